"""Columns of texts, computed with a baseline's detectors in the order of the texts."""

from __future__ import annotations

import numpy as np

from metastable.encoder.hooks import Reader
from metastable.encoder.texts import batches
from metastable.monitor import passes
from metastable.monitor.scoring import ColumnTable


def table_of(encoder, baseline, texts):
    detectors = baseline.detectors
    tables, numbers = [], []

    def open(passage):
        return passes.reading(detectors, passage, lambda table, tokens: tables.append(table))

    wanted = {depth for detector in detectors.values() for depth in detector.depths}
    own = encoder.private()
    with Reader(own.model, own.anatomy, baseline.special, wanted, open):
        for batch in batches(encoder.tokenizer, texts, encoder.limit, 32):
            own.run(batch.inputs)
            numbers.append(batch.numbers.numpy())
    return ColumnTable.joined(tables)[np.argsort(np.concatenate(numbers))]
