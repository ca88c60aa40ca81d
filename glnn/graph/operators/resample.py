"""Resampling along an axis: weighted sums of few places, by which images are resized."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.symint import divides, same
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.expression_evaluation import runs
from glnn.graph.operator import Constants, Cost, Operator, Shapes, Types, shrink_size
from glnn.graph.operators.gather import in_range
from glnn.graph.operators.move import normalize_axes, whole_numbers


@dataclass(frozen=True)
class Resample(Operator):
    """Sums along `axis` of x's numbers at the places `index` times `weight`.

    x: any shape of at least one dimension, float32. index: int32 (taps, count), the places that
    each of the result's is made of. weight: float32, of the same shape. Result: as x, of `count`
    places along the axis. Where the indices are known, one out of range is a ShapeError;
    else the nearest one in range is taken.
    """

    name: ClassVar[str] = "resample"
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    parameters: ClassVar[tuple[str, ...]] = ("index", "weight")
    axis: int
    """Axis of the sums; negative ones count from the end."""

    def __post_init__(self) -> None:
        whole_numbers(self.name, "axis", (self.axis,))

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "index", "weight")

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        x, index, weight = operands["x"], operands["index"], operands["weight"]
        (axis,) = normalize_axes(self.name, (self.axis,), len(x.dims))
        if index.dtype is not DType.int32 or len(index.dims) != 2 or 0 in index.dims[:1]:
            raise ShapeError(f"resample: index must be int32 (taps, count), got {index}")
        if {x.dtype.kind, weight.dtype.kind} != {"float"} or weight.dims != index.dims:
            raise ShapeError(f"resample: expected floats {index.dims}, got {weight} for {x}")
        if len(constants) > 1 and constants[1] is not None:
            in_range(self.name, constants[1], (x.shape[axis],))
        return (TensorType((*x.dims[:axis], index.dims[1], *x.dims[axis + 1 :]), x.dtype),)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, count, axis = shapes["x"], shapes["index"][1], self.axis % len(shapes["x"])
        return (*x[:axis], count, *x[axis + 1 :])

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, index = operands["x"], operands["index"]
        self.infer([TensorType.from_array(array) for array in arrays if array is not None])
        result = np.zeros(self.shape_of({"x": x.shape, "index": index.shape}), x.dtype)
        axis, inner = self.axis % x.ndim, self._inner({"x": x.shape})
        before, count = prod(x.shape[:axis]), index.shape[1]
        x, sums = x.reshape(before, x.shape[axis], inner), result.reshape(before, count, inner)
        weight = operands["weight"].astype(x.dtype, copy=False)[..., None]
        with np.errstate(all="ignore"):
            for part in runs(before, count * inner):
                for at, share in zip(index, weight, strict=True):
                    sums[part] += x[part].take(at, 1, mode="clip") * share
        return (result,)

    def cost(self, types: Types) -> Cost:
        operands = self.named(types)
        count = prod(self.shape_of({name: one.shape for name, one in operands.items()}))
        taps = operands["index"].shape[0]
        moved = count + prod(operands["x"].shape) + 2 * prod(operands["index"].shape)
        return Cost(2 * taps * count, 4 * moved)

    def shrink(self, shapes: Shapes) -> Shapes:
        x, (taps, count), axis = shapes["x"], shapes["index"], self.axis % len(shapes["x"])
        some = (*map(shrink_size, x[:axis]), x[axis], *map(shrink_size, x[axis + 1 :]))
        return {"x": some, **dict.fromkeys(("index", "weight"), (taps, shrink_size(count)))}

    def depth(self, shapes: Shapes) -> int:
        return shapes["index"][0]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x, (taps, count) = shapes["x"], shapes["index"]
        axis = self.axis % len(x)
        places = prod(self.shape_of(shapes))
        return {
            "taps": taps,
            "count": count,
            "extent": x[axis],
            "inner": self._inner(shapes),
            "places": places,
            "sums": places // 4 if self._fours(shapes) or self._along(shapes) else places,
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        """Return the macros FOURS, 1 where four neighbouring results are sums of as many neighbours
        of x, and ALONG, 1 where they are neighbours along the axis.
        """
        return {"FOURS": int(self._fours(shapes)), "ALONG": int(self._along(shapes))}

    def _inner(self, shapes: Shapes) -> int:
        """Return the distance in numbers from one place along the axis to the next."""
        x = shapes["x"]
        return prod(x[self.axis % len(x) + 1 :])

    def _fours(self, shapes: Shapes) -> bool:
        return divides(4, self._inner(shapes))

    def _along(self, shapes: Shapes) -> bool:
        return same(self._inner(shapes), 1) and divides(4, shapes["index"][1])
