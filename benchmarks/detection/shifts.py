"""The sets of the benchmark by name: clean texts in domain, and shifted ones, for development or held out.

Documents of the domain are parted once: most are `clean`, and are split again for every seed; the others are what the
perturbations and attacks are made from, a part for development shifts and a part for held-out ones. So no shifted text
has its document among the texts that a detector is fitted, calibrated or compared on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import attacks
import corpora
import torch
from corpora import CACHE, Text
from perturbations import joined, mixed, shuffled, typos
from torch import Tensor

from metastable.encoder.loading import Encoder

SIZE = 300
"""Most texts in a shifted set."""

SHARES = {"clean": 0.87, "development": 0.065, "held-out": 0.065}

DEVELOPMENT = ("tweets", "german", "typos 10 %", "word shuffle", "half tweet", "swaps, common words")
"""What the default detector was chosen on. All other shifts were looked at once, after the choice."""

HELD_OUT = (
    *("movies", "amazon", "speeches", "interface", "licences"),
    *("french", "russian", "arabic", "chinese", "languages", "code", "random"),
    *("typos 5 %", "typos 20 %", "word shuffle again", "half amazon", "half code", "joined", "joined with tweet"),
    *("swaps, any words", "swaps, one in twenty", "swaps, away", "swaps, to the boundary", "swaps, far beyond it"),
)

PLAIN = ("tweets", "german", *HELD_OUT[:12])


def of(domain: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The shifts of a domain. Attacks are made on the first one only: on another they would take minutes each again."""
    return names if domain == "editorials" else tuple(name for name in names if not name.startswith("swaps"))


def parts(domain: str) -> dict[str, list[Text]]:
    """The texts of a domain in the parts of SHARES, by document; the sources of shifts cut to SIZE."""
    found = corpora.splits(domain, SHARES, seed=0)
    return {part: texts if part == "clean" else texts[:SIZE] for part, texts in found.items()}


def shift(name: str, domain: str, encoder: Encoder) -> list[str]:
    """The texts of a shift of a domain; attacks are kept in the cache, since they cost minutes."""
    if name in PLAIN:
        return corpora.sample(name, SIZE, seed=0)
    part = parts(domain)
    source = [text.text for text in part["development" if name in DEVELOPMENT else "held-out"]]
    if name.startswith("swaps"):
        return _kept(name, domain, source, encoder, lambda: _attacked(name, source, part["clean"], encoder))
    # Other texts in a mixture come from beyond those that stand in the set of their own.
    other = {kind: corpora.sample(kind, 2 * SIZE, seed=0)[SIZE:] for kind in ("tweets", "amazon", "code")}
    made: dict[str, Callable[[], list[str]]] = {
        "typos 5 %": lambda: typos(source, 0.05, seed=5),
        "typos 10 %": lambda: typos(source, 0.10, seed=10),
        "typos 20 %": lambda: typos(source, 0.20, seed=20),
        "word shuffle": lambda: shuffled(source, seed=1),
        "word shuffle again": lambda: shuffled(source, seed=2),
        "half tweet": lambda: mixed(source, other["tweets"], seed=3),
        "half amazon": lambda: mixed(source, other["amazon"], seed=4),
        "half code": lambda: mixed(source, other["code"], seed=5),
        "joined": lambda: joined(source, source, seed=6),
        "joined with tweet": lambda: joined(source, other["tweets"], seed=7),
    }
    return made[name]()


def _kept(
    name: str, domain: str, source: list[str], encoder: Encoder, make: Callable[[], attacks.Attacked]
) -> list[str]:
    key = hashlib.sha256(json.dumps([name, domain, source, encoder.fingerprint]).encode()).hexdigest()[:16]
    path = Path(CACHE) / f"attack-{key}.json"
    if not path.is_file():
        made = make()
        record = {"name": name, "domain": domain, "texts": made.texts, "swaps": made.swaps, "cosines": made.cosines}
        path.write_text(json.dumps(record))
    texts: list[str] = json.loads(path.read_text())["texts"]
    return texts


def _attacked(name: str, source: list[str], clean: list[Text], encoder: Encoder) -> attacks.Attacked:
    common = attacks.words_of(encoder, [text.text for text in clean])
    width = encoder.model.config.hidden_size
    random_aim = attacks.along_a_direction(len(source), width, seed=0)
    if name == "swaps, common words":
        return attacks.attack(encoder, source, random_aim, common, share=0.15)
    if name == "swaps, any words":
        return attacks.attack(encoder, source, random_aim, attacks.words_of(encoder), share=0.15)
    if name == "swaps, one in twenty":
        return attacks.attack(encoder, source, random_aim, common, share=0.05)
    before = embedded(encoder, source)
    if name == "swaps, away":
        return attacks.attack(encoder, source, attacks.away(before, seed=0), common, share=0.15)
    direction, offset, typical = probe(encoder, clean)
    aim = attacks.against_a_probe(direction, offset, before)
    far = name == "swaps, far beyond it"
    return attacks.attack(encoder, source, aim, common, share=0.4, enough=typical if far else 0.0)


def embedded(encoder: Encoder, texts: Sequence[str]) -> Tensor:
    """Sentence embeddings, (texts, d)."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(texts), 32):
            part = list(texts[start : start + 32])
            inputs = encoder.reads_text()(part, return_tensors="pt", padding=True, truncation=True)
            found.append(attacks.embeddings(encoder.model(**inputs).last_hidden_state, inputs["attention_mask"]))
    return torch.cat(found).clone()


def probe(encoder: Encoder, clean: list[Text]) -> tuple[Tensor, float, float]:
    """A linear probe for the sign of a text's rating, least squares with a ridge: (w, w₀, typical margin).

    The typical margin is the 0.9 quantile of |⟨w, embedding⟩ + w₀|: an attack that goes on to there is far from the
    boundary, where a low confidence of the classifier gives nothing away.
    """
    rated = [text for text in clean if abs(text.rating) > 0.5][:1500]
    x = embedded(encoder, [text.text for text in rated]).double()
    y = torch.tensor([1.0 if text.rating > 0 else -1.0 for text in rated], dtype=torch.float64)
    centre = x.mean(dim=0)
    ridge = 1e-3 * len(rated) * torch.eye(x.shape[1], dtype=torch.float64)
    direction = torch.linalg.solve((x - centre).T @ (x - centre) + ridge, (x - centre).T @ (y - y.mean()))
    offset = float(-(centre @ direction))
    margins = (x @ direction + offset).abs()
    return direction.float(), offset, float(margins.quantile(0.9))
