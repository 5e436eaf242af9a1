"""Detectors, one file each, behind the interface of `base.Detector`.

To add one, write it, name it here and in a setting of `monitor.scoring`. A detector in no setting is not fitted.
"""

from __future__ import annotations

from metastable.monitor.detectors.attention_entropy import AttentionEntropy
from metastable.monitor.detectors.base import Column, Detector, Reading, Values
from metastable.monitor.detectors.concentration import Concentration
from metastable.monitor.detectors.nearest_texts import NearestTexts
from metastable.monitor.detectors.place_surprise import PlaceSurprise
from metastable.monitor.detectors.pooled_mahalanobis import PooledMahalanobis
from metastable.monitor.detectors.spoilt_probe import SpoiltProbe
from metastable.monitor.detectors.token_mahalanobis import TokenMahalanobis

__all__ = ["DETECTORS", "Column", "Detector", "Reading", "Values"]

# The detectors by name; `monitor.scoring.SETTINGS` says which are used together.
DETECTORS: dict[str, type[Detector]] = {
    found.name: found
    for found in (
        TokenMahalanobis,
        PlaceSurprise,
        PooledMahalanobis,
        NearestTexts,
        Concentration,
        AttentionEntropy,
        SpoiltProbe,
    )
}
