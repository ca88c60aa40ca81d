"""Weights as int8 with a scale for each output channel: computed by the host, once.

Symmetric, per channel: Krishnamoorthi 2018, "Quantizing deep convolutional networks for efficient
inference", section 2.2; Jacob et al. 2018, section 2.1, with the zero point 0. A channel's scale is
its greatest absolute weight / 127, so -128 is never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.graph.operator import Constants, Cost, Operator, Types

MOST = 127  # of an int8: as far from 0 on either side
LARGEST = float(np.finfo(np.float32).max)
PART = 1 << 20  # numbers that are rounded at once


class _OfWeights(Operator):
    """Base class of operators on weights whose first dimension is the output channels."""

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class WeightScales(_OfWeights):
    """The scale of each output channel, as float32: (o, ...) gives (o,).

    0 where all weights are; NaN where one is not finite, which the channel's results then are, too.
    """

    name: ClassVar[str] = "weight_scales"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.named(types)["x"].dims[:1]),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (_scales(self.named(arrays)["x"]),)


@dataclass(frozen=True)
class QuantizedWeight(_OfWeights):
    """The weights over their channel's scale, rounded to the nearest int8, ties to even."""

    name: ClassVar[str] = "quantized_weight"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.named(types)["x"].dims, DType.int8),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        quantized, scales = np.empty(x.shape, np.int8), _scales(x)
        for some in _parts(x):
            quantized[some] = _round_to_int8(x[some], scales[some])
        return (quantized,)


@dataclass(frozen=True)
class RoundedWeight(_OfWeights):
    """Weights rounded to int8 and multiplied by their scale again, as floats: for backends without
    int8 kernels.
    """

    name: ClassVar[str] = "rounded_weight"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (self.named(types)["x"],)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        rounded, scales = np.empty(x.shape, x.dtype), _scales(x)
        for some in _parts(x):
            made = _round_to_int8(x[some], scales[some]) * _spread(scales[some], x)
            rounded[some] = np.clip(made, -LARGEST, LARGEST)  # 127 scales may be an ulp more
        return (rounded,)


def _scales(x: Array) -> Array:
    """Return the scale of each output channel, without a second copy of the weights."""
    rows = x.reshape(len(x), -1)
    least, most = rows.min(1, initial=0.0), rows.max(1, initial=0.0)
    with np.errstate(invalid="ignore", under="ignore"):
        scales = (np.maximum(most, -least).astype(np.float64) / MOST).astype(np.float32)
    result: Array = np.where(np.isfinite(scales), scales, np.float32(np.nan))
    return result


def _parts(x: Array) -> Iterator[slice]:
    """The channels of `x`, some at a time, as what is made of them is in float64."""
    step = max(PART * len(x) // max(x.size, 1), 1)
    return (slice(first, first + step) for first in range(0, len(x), step))


def _round_to_int8(x: Array, scales: Array) -> Array:
    """The numbers of int8 in float64; 0 where the scale is 0 or NaN."""
    known = scales > 0
    scale = _spread(np.where(known, scales, 1).astype(np.float64), x)
    with np.errstate(invalid="ignore"):
        scaled = np.where(_spread(known, x), x / scale, 0.0)
    return np.clip(np.rint(scaled, out=scaled), -MOST, MOST, out=scaled)


def _spread(each: Array, x: Array) -> Array:
    """Reshape one number per channel so that it broadcasts against `x`."""
    return each.reshape(-1, *(1,) * (x.ndim - 1))
