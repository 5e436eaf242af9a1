"""The sets of the benchmark by name: clean texts in domain, and shifted ones, for development, seen, or frozen.

Documents of the domain are parted once: most are `clean`, and are split again for every seed; the others are what the
perturbations and attacks are made from, a part for development shifts and a part for the others. So no shifted text has
its document among the texts that a detector is fitted, calibrated or compared on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import attacks
import corpora
import perturbations as worse
import torch
from attacks import embedded
from packages import CACHE
from sources import Text
from torch import Tensor

from metastable.encoder.load import Encoder

SIZE = 300
"""Most texts in a shifted set."""

SHARES = {"clean": 0.87, "development": 0.065, "held-out": 0.065}

DOMAINS = ("editorials", "news", "commons", "manual", "bbc")
"""Clean texts of five kinds. On the first two detectors were chosen or looked at. The others are fresh."""

DEVELOPMENT = ("tweets", "german", "typos 10 %", "word shuffle", "half tweet", "swaps, common words")
"""What the settings were chosen on, in the domain of editorials."""

SEEN = (
    *("movies", "amazon", "speeches", "interface", "licences"),
    *("french", "russian", "arabic", "chinese", "languages", "code", "random"),
    *("typos 5 %", "typos 20 %", "word shuffle again", "half amazon", "half code", "joined", "joined with tweet"),
    *("swaps, any words", "swaps, one in twenty", "swaps, away", "swaps, to the boundary", "swaps, far beyond it"),
)
"""Held out when the settings were chosen, but looked at while other combinations were tried: no clean test."""

# Frozen on 16 November 2026, before any score on any of them was computed, and after the settings "light" and "full"
# of metastable.monitor.scoring were fixed. Nothing here may be changed, and no setting chosen, by what comes out.
FROZEN: dict[str, str] = {
    **dict.fromkeys(("articles", "encyclopaedia", "novel"), "prose"),
    "health tweets": "tweets",
    "film reviews": "reviews",
    **dict.fromkeys(("dutch debates", "spanish", "turkish", "greek", "japanese"), "languages"),
    **dict.fromkeys(("C++", "JavaScript", "HTML"), "code"),
    **dict.fromkeys(("random words", "base64"), "random"),
    **dict.fromkeys(("wrong keys 10 %", "misread 10 %"), "typos 10 %"),
    "wrong keys 20 %": "typos 20 %",
    **dict.fromkeys(("look-alikes 10 %", "run together 20 %"), "spelling"),
    "neighbours exchanged 30 %": "word order",
    **dict.fromkeys(("words dropped 20 %", "words repeated 15 %", "negation"), "words"),
    **dict.fromkeys(("half novel", "half C++"), "mixtures"),
    "injected order": "injection",
    **dict.fromkeys(("swaps, rare words", "swaps, towards another"), "gradient swaps"),
    **dict.fromkeys(("character flips", "trigger"), "other attacks"),
}
"""The frozen shifts, each with its kind. On news there are no attacks: it has too few documents to spare."""

KINDS: dict[str, str] = {
    **dict.fromkeys(("tweets",), "tweets"),
    **dict.fromkeys(("movies", "amazon"), "reviews"),
    **dict.fromkeys(("german", "french", "russian", "arabic", "chinese", "languages"), "languages"),
    **{"code": "code", "random": "random", "typos 10 %": "typos 10 %", "typos 20 %": "typos 20 %"},
    **dict.fromkeys(("word shuffle", "word shuffle again"), "word order"),
    **dict.fromkeys(("half tweet", "half amazon", "half code"), "mixtures"),
    **{name: "gradient swaps" for name in (*DEVELOPMENT, *SEEN) if name.startswith("swaps")},
    **FROZEN,
}
"""The kind of a shift, where the issue of the monitor named an ambition for it, or the shift is frozen."""

ATTACKS = tuple(name for name in KINDS if KINDS[name] in ("gradient swaps", "other attacks"))

PLAIN = frozenset(corpora.SOURCES) - set(DOMAINS)
"""Shifts that are sets of their own."""


def groups(domain: str) -> dict[str, tuple[str, ...]]:
    """The shifts of a domain. On news there are no attacks; development and seen shifts are of editorials only."""
    if domain == "editorials":
        return {"development": DEVELOPMENT, "seen": SEEN, "frozen": tuple(FROZEN)}
    return {"frozen": tuple(name for name in FROZEN if domain != "news" or name not in ATTACKS)}


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
    if name in ATTACKS:
        return _kept(name, domain, source, encoder, lambda: _attacked(name, source, part["clean"], encoder))
    return _perturbed(name, source)


def _other(name: str) -> list[str]:
    """Other texts in a mixture come from beyond those that stand in the set of their own."""
    return corpora.sample(name, 2 * SIZE, seed=0)[SIZE:]


def _perturbed(name: str, source: list[str]) -> list[str]:
    made: dict[str, Callable[[], list[str]]] = {
        "typos 5 %": lambda: worse.typos(source, 0.05, seed=5),
        "typos 10 %": lambda: worse.typos(source, 0.10, seed=10),
        "typos 20 %": lambda: worse.typos(source, 0.20, seed=20),
        "word shuffle": lambda: worse.shuffled(source, seed=1),
        "word shuffle again": lambda: worse.shuffled(source, seed=2),
        "half tweet": lambda: worse.mixed(source, _other("tweets"), seed=3),
        "half amazon": lambda: worse.mixed(source, _other("amazon"), seed=4),
        "half code": lambda: worse.mixed(source, _other("code"), seed=5),
        "joined": lambda: worse.joined(source, source, seed=6),
        "joined with tweet": lambda: worse.joined(source, _other("tweets"), seed=7),
        "wrong keys 10 %": lambda: worse.mistyped_by_one_key(source, 0.10, seed=31),
        "wrong keys 20 %": lambda: worse.mistyped_by_one_key(source, 0.20, seed=32),
        "misread 10 %": lambda: worse.lettered(source, 0.10, worse.MISREAD, seed=33),
        "look-alikes 10 %": lambda: worse.lettered(source, 0.10, worse.LOOK, seed=34),
        "run together 20 %": lambda: worse.run_together(source, 0.20, seed=35),
        "neighbours exchanged 30 %": lambda: worse.exchanged(source, 0.30, seed=36),
        "words dropped 20 %": lambda: worse.dropped(source, 0.20, seed=37),
        "words repeated 15 %": lambda: worse.repeated(source, 0.15, seed=38),
        "negation": lambda: worse.negated(source),
        "half novel": lambda: worse.mixed(source, _other("novel"), seed=39),
        "half C++": lambda: worse.mixed(source, _other("C++"), seed=40),
        "injected order": lambda: worse.joined(source, worse.ORDERS, seed=41),
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
    texts = [text.text for text in clean]
    common, any_word = attacks.words_of(encoder, texts), attacks.words_of(encoder)
    random_aim = attacks.along_a_direction(len(source), encoder.model.config.hidden_size, seed=0)
    if name == "swaps, common words":
        return attacks.attack(encoder, source, random_aim, common, share=0.15)
    if name == "swaps, any words":
        return attacks.attack(encoder, source, random_aim, any_word, share=0.15)
    if name == "swaps, one in twenty":
        return attacks.attack(encoder, source, random_aim, common, share=0.05)
    if name == "swaps, rare words":
        rare = any_word & ~attacks.words_of(encoder, texts, least=1)
        return attacks.attack(encoder, source, random_aim, rare, share=0.10)
    if name == "character flips":
        return attacks.misspell(encoder, source, share=0.10, seed=0)
    before = embedded(encoder, source)
    if name == "trigger":
        words = attacks.trigger(encoder, texts[:64], common, words=3, rounds=3, seed=0)
        found = [" ".join([*words, text]) for text in source]
        return attacks.Attacked(found, [3] * len(found), (embedded(encoder, found) * before).sum(dim=-1).tolist())
    if name == "swaps, towards another":
        return attacks.attack(encoder, source, attacks.towards(before.roll(1, dims=0)), common, share=0.15)
    if name == "swaps, away":
        return attacks.attack(encoder, source, attacks.away(before, seed=0), common, share=0.15)
    direction, offset, typical = probe(encoder, clean)
    aim = attacks.against_a_probe(direction, offset, before)
    far = name == "swaps, far beyond it"
    return attacks.attack(encoder, source, aim, common, share=0.4, enough=typical if far else 0.0)


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
