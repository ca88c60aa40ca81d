"""An axis of another size: where its places lie among those that there were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np

from glnn.symint import holds_symbols
from glnn.types import Array

CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
MODES = (*CENTRES, "align_corners", "asymmetric", "tf_crop_and_resize")


@dataclass(frozen=True)
class Filter:
    """What a number between places is made of."""

    linear: bool
    """By a line through two neighbours, else by a cubic of four (Keys 1981)."""
    a: float = -0.75
    """That one's coefficient."""
    antialias: bool = False
    """Whether it is stretched where places become fewer."""
    exclude_outside: bool = False
    """Whether what lies outside has no weight, instead of the number at the edge."""

    def reach(self, scale: float) -> int:
        """Return how many places each number may be made of, where `taps` is asked for `scale`."""
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
        """Indices, int32, and weights, `dtype`, of what each place is made of: (taps, places).

        reach: how many taps there are, also such as no place has a weight for; else as few as do.
        """
        scale, few = min(scale, 1.0) if self.antialias else 1.0, reach is None
        reach = self.reach(scale) if reach is None else reach
        offsets = np.arange(1 - reach // 2, 1 + reach // 2)[:, None]
        whole = np.floor(at).astype(np.int64)
        index = whole + offsets
        weights = self._weights((index - at.astype(np.float64)) * scale)
        if self.exclude_outside:
            weights = np.where((index < 0) | (index >= size), 0.0, weights)
        if self.exclude_outside or self.antialias:
            total = weights.sum(0)
            weights = weights / np.where(total == 0, 1.0, total)
        index = np.clip(index, 0, size - 1)
        there = np.any(weights != 0, axis=1) if few else np.ones(reach, bool)
        there[0] |= not there.any()  # one at least, where there are no places or no weights
        return index[there].astype(np.int32), weights[there].astype(dtype)

    def _weights(self, distance: Array) -> Array:
        x = np.abs(distance)
        if self.linear:
            return np.asarray(np.clip(1 - x, 0, 1))
        a = self.a
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))


@dataclass(frozen=True)
class ResizedAxis:
    """How one axis is resized. Places are computed in float32, as exporters' runtimes do, but for
    numbers of float64.
    """

    axis: int
    size: int
    """Places that there are."""
    count: int
    """Places wanted."""
    given: float | None = None
    """Places wanted for each, where that is not count / size."""
    roi: tuple[float, float] = (0.0, 1.0)
    """Which part is wanted of what lies between the first and the last place."""

    @property
    def is_open(self) -> bool:
        """Whether its sizes are those of a run: nothing but tables may be made of it."""
        return holds_symbols((self.size, self.count))

    @property
    def moves(self) -> bool:
        """Whether anything of it is wanted but what is there."""
        return self.count != self.size or self.given not in (None, 1.0) or self.roi != (0.0, 1.0)

    @property
    def scale(self) -> float:
        """Places wanted for each."""
        if self.given is not None:
            return self.given
        return self.count / self.size if self.size else 1.0  # 0 stay 0

    def places(self, mode: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Where each place wanted lies among those that there are, as `mode` says."""
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
        found = (at + half) / scale
        if mode == "half_pixel_symmetric":
            share = dtype(self.count) / dtype(self._length)
            found = dtype(self.size) / 2 * (1 - share) + found
        return np.asarray(found - half, dtype)

    def inside(self, mode: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Whether each place wanted lies between the first and the last that there are."""
        at = self.places(mode, dtype)
        return np.asarray((at >= 0) & (at <= self.size - 1))

    def reach(self, made: Filter) -> int:
        """How many places each number may be made of by `made`, a number or an open size."""
        if made.antialias and self.given is None and 0 < self.count < self.size:
            half = made.reach(1.0) // 2
            return 2 * ((half * self.size + self.count - 1) // self.count)
        return made.reach(self.given or 1.0)

    @property
    def _length(self) -> float:
        """How many places are wanted before that is rounded down."""
        return float(np.float32(self.scale) * np.float32(self.size))

    @property
    def _last(self) -> float:
        """The last place wanted; 1 where there is but one.

        ONNX's text, ONNX Runtime and PyTorch mean the length of the result, a whole number;
        onnx.reference, and two cases of the suite, that of `_length`.
        """
        return float(max(self.count - 1, 1))


ROUNDED: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.asarray(np.ceil(at - np.float32(0.5))),
    "round_prefer_ceil": lambda at: np.asarray(np.floor(at + np.float32(0.5))),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""The number of the place that is nearest to each, by the modes of Resize."""


def nearest_places(at: Array, size: int, mode: str) -> Array:
    """The index of the place that is nearest to each, int32. mode: of ROUNDED."""
    return np.asarray(np.minimum(np.maximum(ROUNDED[mode](at), 0), size - 1), np.int32)
