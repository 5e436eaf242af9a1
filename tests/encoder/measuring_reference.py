"""Slow, literal pieces that several tests of measurements compare with."""

import math

import numpy as np
import ot


def tangent(vectors, unit):
    """P_z C u for each row."""
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    return np.array([u - (u @ x) * x for u, x in zip(centred, unit, strict=True)])


def transported(cloud_, e, sides):
    """W₂ by the network simplex to the law of the limits of tokens with these co-vectors."""
    m = len(cloud_)
    cost = np.array([[((x - y) ** 2).sum() for y in (e, -e)] for x in cloud_])
    up = (sides > 0).mean()
    return math.sqrt(ot.emd2(np.full(m, 1 / m), np.array([up, 1 - up]), cost))
