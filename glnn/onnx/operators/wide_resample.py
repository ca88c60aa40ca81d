"""Numbers between places along one axis, in 64 bits on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.graph.operator import Cost, Known, Types
from glnn.graph.operators.host import HostOperator
from glnn.types import Array, DType, TensorType


@dataclass(frozen=True, eq=False)
class WideResample(HostOperator):
    """Along `axis` of x, sums of numbers at `index` by `weight`, float64.

    index, weight: (taps, places). inside: of each place, whether it lies within x; else its numbers
    are `value`.
    """

    axis: int
    index: Array
    weight: Array
    inside: Array
    value: float

    name: ClassVar[str] = "wide_resample"

    @property
    def called(self) -> str:
        return "Resize"

    @property
    def reason(self) -> str:
        return f"{DType.float64.value} is the host's"

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        (x,) = self.named(types).values()
        count = self.index.shape[1]
        return (TensorType((*x.dims[: self.axis], count, *x.dims[self.axis + 1 :]), x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        rows = np.moveaxis(x, self.axis, -1)
        found = np.zeros((*rows.shape[:-1], self.index.shape[1]), x.dtype)
        for index, weight in zip(self.index, self.weight, strict=True):
            # A number without a weight says nothing, not even where it is infinite.
            found += np.where(weight == 0, 0, rows[..., index] * weight)
        return (np.moveaxis(np.where(self.inside, found, self.value), -1, self.axis),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)
