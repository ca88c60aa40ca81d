"""Concatenation along an axis, and its inverse, Split."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, TensorType
from glnn.errors import ShapeError
from glnn.graph.operator import Constants, Cost, Operator, Reference, SampleSubset, Shapes, Types
from glnn.graph.operators.move import MOST_RANK, Slice, normalize_axes, whole_numbers

MOST_INPUTS = 1024  # that a layer may have: each gets a name


@dataclass(frozen=True)
class Concat(Operator):
    """Concatenation of x0, x1, ... along `axis`, in which alone they may differ.

    Of any dtype, which is the same for all.
    """

    name: ClassVar[str] = "concat"
    variadic: ClassVar[bool] = True
    any_sizes: ClassVar[bool] = True
    passes: ClassVar[tuple[str, ...]] = ("x",)
    nan_operands: ClassVar[tuple[str, ...]] = ("x0",)
    array_function: ClassVar[str] = "concat"
    axis: int = 1

    def __post_init__(self) -> None:
        whole_numbers("concat", "axis", (self.axis,))

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        if not operands:
            raise ShapeError("concat: the operand x0 is missing")
        first, *others = operands.items()
        x0 = first[1]
        (axis,) = normalize_axes("concat", (self.axis,), len(x0.dims))
        if len(x0.dims) > MOST_RANK:
            raise ShapeError(f"concat: at most {MOST_RANK} dimensions, got {x0}")
        total = x0.dims[axis] if not others else x0.shape[axis]
        for name, other in others:
            dims = (*other.dims[:axis], x0.dims[axis], *other.dims[axis + 1 :])
            if len(other.dims) != len(x0.dims) or dims != x0.dims or other.dtype != x0.dtype:
                raise ShapeError(f"concat: {name} must be {x0} but along {axis}, got {other}")
            assert not isinstance(total, str)
            total += other.shape[axis]
        return (TensorType((*x0.dims[:axis], total, *x0.dims[axis + 1 :]), x0.dtype),)

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        if self.axis in (0, -len(shapes["x0"])):
            return None
        return self.reduce_samples_of(shapes, shapes, count)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        present = [array for array in arrays if array is not None]
        self.infer([TensorType.from_array(array) for array in present])
        return (np.concatenate(present, self.axis),)

    def specialize(self, types: Types) -> Reference:
        return lambda *arrays: (np.concatenate(arrays, self.axis),)

    def cost(self, types: Types) -> Cost:
        words = sum(one.dtype.words(prod(one.shape)) for one in types if one is not None)
        return Cost(0, 4 * (words + prod(self.infer(types)[0].shape)))


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
        (axis,) = normalize_axes("split", (self.axis,), len(x.dims))
        if x.dims[axis] != sum(self.pieces):
            raise ShapeError(f"split: {x} is not {self.pieces} along {axis}")
        return tuple(
            TensorType((*x.dims[:axis], size, *x.dims[axis + 1 :]), x.dtype) for size in self.pieces
        )

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        self.infer([TensorType.from_array(x)])
        cuts = np.cumsum(self.pieces)[:-1]
        return tuple(map(np.ascontiguousarray, np.split(x, cuts, self.axis)))

    def cost(self, types: Types) -> Cost:
        return Cost(0, 8 * sum(prod(one.shape) for one in self.infer(types)))
