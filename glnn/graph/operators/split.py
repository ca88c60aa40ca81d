"""The split operator: a tensor is cut into several."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.graph.operators.move import Slice, normalised, whole_numbers
from glnn.types import Array, TensorType


@dataclass(frozen=True)
class Split(Operator):
    """x of any dtype in pieces along `axis`, one behind another, of as many places as each says.

    Each piece is what its slice of `slices` gives.
    """

    name: ClassVar[str] = "split"
    passes: ClassVar[tuple[str, ...]] = ("x",)
    pieces: tuple[int, ...]
    axis: int = 0

    def __post_init__(self) -> None:
        whole_numbers("split", "pieces", self.pieces, 0)

    @classmethod
    def even(cls, size: int, count: int, axis: int = 0) -> Split:
        """Return a split into `count` pieces of `size` places in all: equal ones, the last one
        perhaps smaller.
        """
        each = -(-size // count)
        return cls(tuple(min(each, max(size - i * each, 0)) for i in range(count)), axis)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices that cut the pieces out."""
        ends = [sum(self.pieces[: i + 1]) for i in range(len(self.pieces))]
        starts = (end - size for end, size in zip(ends, self.pieces, strict=True))
        bounds = zip(starts, ends, strict=True)
        return tuple(Slice((start,), (end,), (self.axis,), (1,)) for start, end in bounds)

    @property
    def single_result_operators(self) -> tuple[Operator, ...]:
        return self.slices

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        (axis,) = normalised("split", (self.axis,), len(x.dims))
        if x.dims[axis] != sum(self.pieces):
            raise ShapeError(f"split: {x} is not {self.pieces} along {axis}")
        return tuple(
            TensorType((*x.dims[:axis], size, *x.dims[axis + 1 :]), x.dtype) for size in self.pieces
        )

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        self.infer([TensorType.of(x)])
        cuts = np.cumsum(self.pieces)[:-1]
        return tuple(map(np.ascontiguousarray, np.split(x, cuts, self.axis)))

    def cost(self, types: Types) -> Cost:
        return Cost(0, 8 * sum(prod(one.shape) for one in self.infer(types)))
