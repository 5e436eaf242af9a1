"""Fewer penalties: small features do not need a fine grid."""

import pytest

from metastable.encoder.exit.probes import PENALTIES


@pytest.fixture(autouse=True, scope="session")
def _few_penalties():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PENALTIES, "classes", (1.0, 0.03))
        patch.setitem(PENALTIES, "numbers", (10.0, 0.1))
        yield
