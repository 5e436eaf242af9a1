"""The programs of benchmarks/detection, which are no package."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def module(name):
    folder = str(ROOT / "benchmarks" / "detection")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
