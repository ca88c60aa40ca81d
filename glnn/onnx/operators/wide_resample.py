"""Numbers between places along one axis, in 64 bits on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from glnn.graph.operator import Cost, Known, Types
from glnn.graph.operators.host import HostOperator
from glnn.resized_axis import Filter, ResizedAxis
from glnn.types import Array, DType, TensorType

F64 = np.float64


@dataclass(frozen=True)
class WideResample(HostOperator):
    """Weighted sums of x's numbers along an axis, float64."""

    resized: ResizedAxis
    mode: str
    """The coordinate transformation mode."""
    filter: Filter
    outside: float | None
    """The number of places that lie outside of x; None where the filter makes them, too."""

    name: ClassVar[str] = "wide_resample"

    @property
    def called(self) -> str:
        return "Resize"

    @property
    def reason(self) -> str:
        return f"{DType.float64.value} is the host's"

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        (x,) = self.named(types).values()
        axis = self.resized.axis
        return (TensorType((*x.dims[:axis], self.resized.count, *x.dims[axis + 1 :]), x.dtype),)

    @cached_property
    def _taps(self) -> tuple[Array, Array]:
        one = self.resized
        return self.filter.taps(one.places(self.mode, F64), one.size, one.scale, F64)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        axis = self.resized.axis
        rows = np.moveaxis(x, axis, -1)
        found = np.zeros((*rows.shape[:-1], self.resized.count), x.dtype)
        for index, weight in zip(*self._taps, strict=True):
            # A number without a weight says nothing, not even where it is infinite.
            found += np.where(weight == 0, 0, rows[..., index] * weight)
        if self.outside is not None:
            found = np.where(self.resized.inside(self.mode, F64), found, self.outside)
        return (np.moveaxis(found, -1, axis),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)
