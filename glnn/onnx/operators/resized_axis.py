"""An axis of another size: where its places lie among those that there were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glnn.graph.compose.resample import Filter
from glnn.symint import holds_symbols
from glnn.types import Array

CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
MODES = (*CENTRES, "align_corners", "asymmetric", "tf_crop_and_resize")


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
        at = np.arange(self.count, dtype=dtype)
        scale, half, most = dtype(self.scale), dtype(0.5), dtype(self.size - 1)
        if mode == "asymmetric":
            return np.asarray(at / scale)
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
    return np.asarray(np.clip(ROUNDED[mode](at), 0, size - 1), np.int32)
