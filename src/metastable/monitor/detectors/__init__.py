"""Detectors, one file each, behind the interface of `base.Detector`."""

from __future__ import annotations

from metastable.monitor.detectors.attention_entropy import AttentionEntropy
from metastable.monitor.detectors.base import Column, Detector, Reading, Values
from metastable.monitor.detectors.concentration import Concentration
from metastable.monitor.detectors.layer_mean_mahalanobis import LayerMeanMahalanobis
from metastable.monitor.detectors.place_surprise import PlaceSurprise
from metastable.monitor.detectors.pooled_knn import PooledKNN
from metastable.monitor.detectors.pooled_mahalanobis import PooledMahalanobis
from metastable.monitor.detectors.token_count import TokenCount
from metastable.monitor.detectors.token_mahalanobis import TokenMahalanobis
from metastable.monitor.detectors.unigram_rarity import UnigramRarity

__all__ = ["DETECTORS", "Column", "Detector", "Reading", "Values"]

DETECTORS: dict[str, type[Detector]] = {
    found.name: found
    for found in (
        *(TokenMahalanobis, PlaceSurprise, PooledMahalanobis, LayerMeanMahalanobis, PooledKNN),
        *(Concentration, AttentionEntropy, TokenCount, UnigramRarity),
    )
}
"""By name: what there is to detect with."""
