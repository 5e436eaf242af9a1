"""The texts in the page's fields, and the state that they say."""

from __future__ import annotations

import re
from typing import Any

from metastable.lab.state import CONTROLS, READERS, Controls, State, _flat, _written, problems

LISTS = ("interaction", "value")
NEEDED = {"matrices": "paste B, a blank line, and V", "trained": "give MODEL:layer:head"}
"""The fields that one way to give a head needs, and what to say where they are empty."""


def texts(state: State) -> dict[str, str]:
    """What to write into the fields, so that `read` gives the same state again."""
    found = {name: _written(value) for name, value in _flat(state).items() if name not in ("time", "theme")}
    found |= {name: found[name].replace(",", ", ") for name in LISTS}
    source = next((name for name in ("trained", "matrices") if found[name]), "spectra")
    return {**found, "source": source}


def read(given: dict[str, Any]) -> tuple[State, dict[str, str]]:
    """The state that the fields say, and what is wrong with it, by field.

    A text that cannot be read stands in the state as it is: `problems` knows what to say of it.
    """
    texts = {name: str(given.get(name) or "").strip() for name in (*READERS, "source")}
    texts |= {name: re.sub(r"[\s,;]+", ",", texts[name]).strip(",") for name in LISTS}
    texts |= {name: "" for name in NEEDED if name != texts["source"]}
    if texts["compare"] not in ("beta", "n"):
        texts["other"] = ""
    found = {
        name: _value(name, text) for name, text in texts.items() if name in READERS and name not in ("time", "theme")
    }
    wrong = {name: words for name, words in NEEDED.items() if name == texts["source"] and not texts[name]}
    if isinstance(found["other"], str):
        wrong["other"] = f"{found['other']}: give a number"
        found["other"] = None
    for name, usual in (("view", "laboratory"), ("head", None)):
        # These two come from the page's own buttons.
        found[name] = usual if isinstance(found[name], str) and found[name] != "audit" else found[name]
    own = {name: found.pop(name) for name in CONTROLS}
    state = State(controls=Controls(**own), **found)
    return state, {**problems(state), **wrong}


def _value(name: str, text: str) -> Any:
    try:
        return READERS[name](text)
    except (ValueError, OverflowError):
        return text
