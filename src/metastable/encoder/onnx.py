"""Encoders as ONNX files, for the monitor: hidden states are outputs of the graph, and weights are not read.

The file must have been exported with its hidden states and with dynamic axes for texts and tokens. The outputs are

    hidden_states.0, …, hidden_states.L     each (texts, n, d); also hidden_states_0 or hidden_states[0]
    hidden_states                           or one output for all of them, (L + 1, texts, n, d)

Depth 0 is the input of the first layer and depth L the output of the encoder. The inputs are input_ids, attention_mask
and, if the graph has them, token_type_ids and position_ids. The tokenizer lies beside the file, or in the folder above.

No normalisation is known, so the token of the theory is x̂ = x/|x|, as where none precedes a layer. A baseline of an
ONNX file is therefore for this file, and not for the same model in torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Site
from metastable.encoder.load import Encoder, tokenizer_in
from metastable.encoder.sentence import settings_on_disk
from metastable.errors import BadInput, extra

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
NUMBERED = re.compile(r"hidden_states[._\[]?(\d+)\]?")
STACKED = "hidden_states"
TYPES = {"tensor(int64)": torch.int64, "tensor(int32)": torch.int32}
WHOLE = 2**20
"""Bytes that are hashed at once."""

Run = Callable[[dict[str, Tensor]], list[Tensor]]
"""From the inputs of a pass to the hidden states of depths 0, …, L, each (texts, n, d)."""


class OnnxModel(nn.Module):
    """A graph as a module. Each depth passes through a module of its own, where hooks read it.

    run : runs the graph
    depths : L + 1
    """

    def __init__(self, run: Run, depths: int) -> None:
        super().__init__()
        self.graph, self.config = run, _NoConfiguration()
        self.sites = nn.ModuleList(nn.Identity() for _ in range(depths))
        # Where the tensors are.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        self.eval()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The hidden states of all depths."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        places = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        given = dict(zip(INPUTS, (input_ids, attention_mask, types, places), strict=True))
        return tuple(site(x.float()) for site, x in zip(self.sites, self.graph(given), strict=True))


class _NoConfiguration:
    """The bytes of the file decide everything."""

    def to_dict(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class OutlineLayer:
    index: int
    width: int


@dataclass(frozen=True)
class Outline:
    """What is known of an encoder without its weights, in place of an `Anatomy`: where depths are read, and how wide.

    sites : the site of each depth
    layers : as many as there are, without weights
    limit : the longest sequence, special tokens included
    """

    sites: tuple[Site, ...]
    layers: tuple[OutlineLayer, ...]
    limit: int

    @classmethod
    def of(cls, model: OnnxModel, width: int, limit: int) -> Outline:
        sites = tuple(Site(module, 0, None, False) for module in model.sites)
        return cls(sites, tuple(OutlineLayer(index, width) for index in range(len(sites) - 1)), limit)


@dataclass(frozen=True)
class OnnxEncoder(Encoder):
    """An encoder whose hidden states are outputs of an ONNX graph.

    sha : SHA-256 of the file, and of the file with its weights if they are apart
    """

    sha: str = ""

    @property
    def has_weights(self) -> bool:
        return False

    @cached_property
    def fingerprint(self) -> str:
        return self.sha

    def private(self) -> Encoder:
        """This encoder with hooks of its own; the graph, which threads may share, is the same."""
        model = OnnxModel(self.model.graph, len(self.model.sites))
        return replace(self, model=model, anatomy=_outline(model, self.anatomy.layers[0].width, self.anatomy.limit))


def load_onnx(path: Path, name: str, tokenizer: Any = None, tokenizer_folder: Path | None = None) -> Encoder:
    """The encoder in an ONNX file.

    tokenizer : replaces that beside the file
    """
    folder = next(
        (p for p in (path.parent, path.parent.parent) if (p / "tokenizer_config.json").is_file()), path.parent
    )
    problem = ""
    if tokenizer is None:
        tokenizer, problem = tokenizer_in(folder)
    session = _session(path, name)
    run, depths, width = _graph(session, name)
    model = OnnxModel(run, depths)
    sentence = settings_on_disk(folder, folder, tokenizer)
    outline = _outline(model, width, _limit(folder, tokenizer, name))
    return OnnxEncoder(name, model, tokenizer, outline, problem, folder, tokenizer_folder, sentence, _sha(path))


def _outline(model: OnnxModel, width: int, limit: int) -> Any:
    return Outline.of(model, width, limit)


def _session(path: Path, name: str) -> Any:
    if find_spec("onnxruntime") is None:
        raise BadInput(f"{name!r} is an ONNX file, which needs onnxruntime; {extra('onnx')}")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Errors are raised; the log would only repeat them.
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise BadInput(f"{name!r} is no ONNX graph that onnxruntime can run ({why}); export it again") from error


def _graph(session: Any, name: str) -> tuple[Run, int, int]:
    """What runs the graph, and the numbers of its depths and features."""
    inputs = {found.name: found for found in session.get_inputs()}
    if other := [found for found in inputs if found not in INPUTS]:
        raise BadInput(f"{name!r} has the input {other[0]!r}; the monitor can only give {', '.join(INPUTS)}")
    types = {found: TYPES.get(given.type) for found, given in inputs.items()}
    if wrong := [found for found, kind in types.items() if kind is None]:
        raise BadInput(f"{name!r} takes {wrong[0]} as {inputs[wrong[0]].type}; export it with int64 inputs")
    outputs = {found.name: found for found in session.get_outputs()}
    numbered = {int(match[1]): found for found in outputs if (match := NUMBERED.fullmatch(found))}
    names = [numbered[depth] for depth in sorted(numbered)] or [found for found in (STACKED,) if found in outputs]
    if not names or (numbered and (sorted(numbered) != list(range(len(names))) or len(names) < 2)):
        held = ", ".join(list(outputs)[:4])
        wanted = "hidden_states.0, hidden_states.1, …, or hidden_states with all depths stacked"
        raise BadInput(f"{name!r} has the outputs {held}; export it with its hidden states: {wanted}")
    shape = outputs[names[0]].shape
    if len(shape) != (3 if numbered else 4) or not isinstance(shape[-1], int):
        raise BadInput(f"the output {names[0]} of {name!r} has shape {shape}; it must be (texts, n, d) for each depth")
    fixed = [size for found in inputs.values() for size in found.shape if isinstance(size, int)]
    if fixed:
        raise BadInput(f"{name!r} only takes inputs with a size of {fixed[0]}; export it with dynamic axes")

    def run(given: Mapping[str, Tensor]) -> list[Tensor]:
        feed = {found: given[found].to(kind).numpy() for found, kind in types.items()}
        found = session.run(names, feed)
        return [torch.from_numpy(x) for x in (found if numbered else found[0])]

    depths = len(names) if numbered else shape[0]
    if not isinstance(depths, int):
        # The number of depths is not written in the graph: run it once.
        two = torch.zeros(1, 2, dtype=torch.int64)
        depths = len(run({**dict.fromkeys(INPUTS, two), "attention_mask": torch.ones_like(two)}))
    return run, depths, shape[-1]


def _limit(folder: Path, tokenizer: Any, name: str) -> int:
    """The smaller of max_position_embeddings in config.json and of the tokenizer's limit."""
    known = [getattr(tokenizer, "model_max_length", None)]
    if (folder / "config.json").is_file():
        try:
            known.append(
                json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
            )
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"config.json beside {name!r} is not a JSON object; mend it or remove it") from error
    # The tokenizers of transformers have 10³⁰ where they know no limit.
    limits = [limit for limit in known if isinstance(limit, int) and 0 < limit < 10**9]
    if not limits:
        raise BadInput(f"the longest text of {name!r} is not known; save its config.json or its tokenizer beside it")
    return min(limits)


def _sha(path: Path) -> str:
    digest = hashlib.sha256()
    # Large graphs have their weights in a file beside them.
    apart = [path.with_name(path.name + ending) for ending in ("_data", ".data")]
    for part in (path, *filter(Path.is_file, apart)):
        with part.open("rb") as file:
            while piece := file.read(WHOLE):
                digest.update(piece)
    return digest.hexdigest()


def onnx_file(name: str) -> Path | None:
    """The ONNX file of that name, or the model.onnx in a folder without weights of transformers; else None."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".onnx" and path.is_file():
        return path
    inside = path / "model.onnx"
    weights = any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin")) if inside.is_file() else True
    return None if weights else inside
