"""Dropout in training, which draws random numbers, by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glnn.errors import ShapeError
from glnn.types import Array


def generator_of(attributes: Mapping[str, Any]) -> np.random.RandomState:
    """Return NumPy's generator of random numbers, seeded where the attribute `seed` is given: by
    its low 32 bits, as a seed may be negative.
    """
    seed = attributes.get("seed")
    return np.random.RandomState(None if seed is None else int(seed) % 2**32)


def dropout(
    attributes: Mapping[str, Any],
    version: int,
    x: Array,
    ratio: Array | None = None,
    training: Array | None = None,
) -> list[Array]:
    """Return x with about `ratio` of its numbers 0, half unless said, the others scaled so that
    their mean stays, and where they are. x itself where `training` is absent or false.

    Source: ONNX's operator sets from 12 on. The numbers are those of `numpy.random.RandomState`
    with the attribute `seed`, as in the `onnx` package's reference. Raises ShapeError for a ratio
    that is not from 0 to less than 1.
    """
    share = 0.5 if ratio is None else float(ratio.item())
    if not 0 <= share < 1:
        raise ShapeError(f"Dropout: ratio must be from 0 to less than 1, got {share}")
    if training is None or not training.item() or share == 0:
        return [x, np.ones(x.shape, bool)]
    kept = generator_of(attributes).uniform(size=x.shape) >= share
    wide = x if x.dtype.itemsize > 2 else x.astype(np.float32)
    return [(kept * wide * wide.dtype.type(1 / (1 - share))).astype(x.dtype), kept]
