"""Columns of texts, computed with a baseline's detectors in the order of the texts."""

from __future__ import annotations

import numpy as np
import torch

from metastable.encoder.hooks import Reader
from metastable.encoder.texts import batches
from metastable.monitor.judge import Readings
from metastable.monitor.scoring import Table


def table_of(encoder, baseline, texts):
    detectors = baseline.detectors
    depths = {name: detector.depths for name, detector in detectors.items()}
    tables, numbers = [], []

    def open(passage):
        return Readings(detectors, depths, passage, lambda table, tokens: tables.append(table))

    wanted = {depth for own in depths.values() for depth in own}
    with torch.inference_mode(), Reader(encoder.model, encoder.anatomy, baseline.special, wanted, open):
        for batch in batches(encoder.tokenizer, texts, encoder.limit, 32):
            encoder.model(**batch.inputs)
            numbers.append(batch.numbers.numpy())
    return Table.joined(tables)[np.argsort(np.concatenate(numbers))]
