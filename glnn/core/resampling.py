"""Resampling of an axis: coordinates of the output positions in the input, and filter weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np

from glnn.core.symint import holds_symbols
from glnn.core.types import Array

CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
MODES = (*CENTRES, "align_corners", "asymmetric", "tf_crop_and_resize")


@dataclass(frozen=True)
class InterpolationFilter:
    """Interpolation filter, which weights the input positions around a coordinate."""

    linear: bool
    """True for linear interpolation of two neighbours, False for cubic of four (Keys 1981)."""
    a: float = -0.75
    """The coefficient of the cubic."""
    antialias: bool = False
    """True to stretch the filter where the axis is downsampled."""
    exclude_outside: bool = False
    """True to give positions outside no weight, instead of repeating the edge."""

    def reach(self, scale: float) -> int:
        """Return the greatest number of taps of an output position for `scale`."""
        scale = min(scale, 1.0) if self.antialias else 1.0
        return -2 * floor(-(1 if self.linear else 2) / scale)

    def taps(
        self,
        at: Array,
        size: int,
        scale: float,
        dtype: type[np.floating[Any]] = np.float32,
        reach: int | None = None,
    ) -> tuple[Array, Array]:
        """Return input indices (int32) and weights (`dtype`), each of shape (taps, positions).

        at: the input coordinate of each output position. reach: the number of taps; None to leave
        out those whose weights are all 0.
        """
        scale, leave_out_zeros = min(scale, 1.0) if self.antialias else 1.0, reach is None
        reach = self.reach(scale) if reach is None else reach
        offsets = np.arange(1 - reach // 2, 1 + reach // 2)[:, None]
        index = np.floor(at).astype(np.int64) + offsets
        weights = self._weights((index - at.astype(np.float64)) * scale)
        if self.exclude_outside:
            weights = np.where((index < 0) | (index >= size), 0.0, weights)
        if self.exclude_outside or self.antialias:
            total = weights.sum(0)
            weights = weights / np.where(total == 0, 1.0, total)
        index = np.clip(index, 0, size - 1)
        used = np.any(weights != 0, axis=1) if leave_out_zeros else np.ones(reach, bool)
        used[0] |= not used.any()  # at least one tap, also without positions or weights
        return index[used].astype(np.int32), weights[used].astype(dtype)

    def _weights(self, distance: Array) -> Array:
        x = np.abs(distance)
        if self.linear:
            return np.asarray(np.clip(1 - x, 0, 1))
        a = self.a
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))


@dataclass(frozen=True)
class AxisResampling:
    """Resizing of one axis.

    Coordinates are computed in float32, as exporters' runtimes do, except for float64 tensors.
    """

    axis: int
    size: int
    """The input size."""
    count: int
    """The output size."""
    explicit_scale: float | None = None
    """The scale, output over input size, where it is not count / size."""
    roi: tuple[float, float] = (0.0, 1.0)
    """The region of interest, as fractions of the distance from the first to the last position."""

    @property
    def is_open(self) -> bool:
        """Return True where a size is a SymInt; only table-driven kernels can be used then."""
        return holds_symbols((self.size, self.count))

    @property
    def moves(self) -> bool:
        """Return True where resizing changes the axis."""
        is_scaled = self.count != self.size or self.explicit_scale not in (None, 1.0)
        return is_scaled or self.roi != (0.0, 1.0)

    @property
    def scale(self) -> float:
        """The scale, output over input size."""
        if self.explicit_scale is not None:
            return self.explicit_scale
        return self.count / self.size if self.size else 1.0  # an empty axis stays empty

    def source_coordinates(self, mode: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Return the input coordinate of each output position. mode: of MODES."""
        at, scale = np.arange(self.count, dtype=dtype), dtype(self.scale)
        if mode == "asymmetric":
            return np.asarray(at / scale)
        half, most = dtype(0.5), dtype(self.size - 1)
        if mode == "align_corners":
            return np.asarray(at * most / self._last)
        if mode == "tf_crop_and_resize":
            first, last = (dtype(end) * most for end in self.roi)
            if self.count == 1:
                return np.full(self.count, (first + last) * half, dtype)
            return np.asarray(first + at * (last - first) / self._last)
        if mode == "pytorch_half_pixel" and self.count == 1:
            return np.zeros(1, dtype)
        centers = (at + half) / scale
        if mode == "half_pixel_symmetric":
            ratio = dtype(self.count) / dtype(self._length)
            centers = dtype(self.size) / 2 * (1 - ratio) + centers
        return np.asarray(centers - half, dtype)

    def inside(self, mode: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Return the mask of output positions whose coordinate is within the input."""
        at = self.source_coordinates(mode, dtype)
        return np.asarray((at >= 0) & (at <= self.size - 1))

    def reach(self, filter: InterpolationFilter) -> int:
        """Return the greatest number of taps of an output position; may be a SymInt."""
        if filter.antialias and self.explicit_scale is None and 0 < self.count < self.size:
            half = filter.reach(1.0) // 2
            return 2 * ((half * self.size + self.count - 1) // self.count)
        return filter.reach(self.explicit_scale or 1.0)

    @property
    def _length(self) -> float:
        """The output length before it is rounded down."""
        return float(np.float32(self.scale) * np.float32(self.size))

    @property
    def _last(self) -> float:
        """The last output position; 1 where there is only one.

        The ONNX specification, ONNX Runtime and PyTorch use the output size, an integer;
        onnx.reference, and two cases of its test suite, use `_length`.
        """
        return float(max(self.count - 1, 1))


ROUNDING: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.asarray(np.ceil(at - np.float32(0.5))),
    "round_prefer_ceil": lambda at: np.asarray(np.floor(at + np.float32(0.5))),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""The rounding function of coordinates, by Resize's `nearest_mode`."""


def nearest_positions(at: Array, size: int, mode: str) -> Array:
    """Return the index (int32) of the position nearest to each coordinate. mode: of ROUNDING."""
    return np.asarray(np.minimum(np.maximum(ROUNDING[mode](at), 0), size - 1), np.int32)
