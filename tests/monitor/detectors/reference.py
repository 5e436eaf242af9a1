"""Slow, literal versions of what detectors compute, from the model's own hidden states and weights, in float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from tests.monitor.detectors import harness

SHARE = 0.01


@cache
def hidden(text):
    """(hidden states (depths, n, d), ids (n,)) of one text of the real encoder alone, special tokens included."""
    encoder = harness.minilm()
    inputs = harness.real_texts(encoder, [text])
    with torch.no_grad():
        states = encoder.model(**inputs, output_hidden_states=True).hidden_states
    return torch.cat(states).double().numpy(), inputs["input_ids"][0].numpy()


def is_word(ids):
    return np.array([int(i) not in harness.special_of(harness.minilm()) for i in ids], dtype=bool)


@cache
def units(text):
    """x̂ of the ordinary tokens at each depth, (depths, n, d): z from gain and offset, put to length 1."""
    states, ids = hidden(text)
    model = harness.minilm().model
    norms = [model.embeddings.LayerNorm, *(layer.output.LayerNorm for layer in model.encoder.layer)]
    found = []
    for x, norm in zip(states[:, is_word(ids)], norms, strict=True):
        gain, offset = (w.detach().double().numpy() for w in (norm.weight, norm.bias))
        seen = np.abs(gain) > 1e-4 * np.median(np.abs(gain))
        z = np.where(seen, (x - offset) / np.where(seen, gain, 1.0), 0.0)
        found.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    return np.stack(found)


def shrunk(rows, share=SHARE):
    scatter = np.cov(rows.T, bias=True)
    return (1 - share) * scatter + share * np.trace(scatter) / len(scatter) * np.eye(len(scatter))


def ledoit_wolf(rows):
    y = rows - rows.mean(axis=0)
    n, d = y.shape
    scatter = y.T @ y / n
    noise = sum(((np.outer(row, row) - scatter) ** 2).sum() for row in y) / n**2
    return min(max(noise / ((scatter - np.trace(scatter) / d * np.eye(d)) ** 2).sum(), SHARE), 1.0)


def distances(rows, mean, covariance):
    """(row − mean)ᵀ C^{-1} (row − mean)/d of each row."""
    inverse = np.linalg.inv(covariance)
    return np.array([(row - mean) @ inverse @ (row - mean) for row in rows]) / rows.shape[1]


def mean_and_worst(values):
    return [values.mean(), np.sort(values)[-3:].mean()]
