"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.graph.blockwise import runs
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes
from glnn.graph.operators.reduce import axes_of, check_axes
from glnn.symint import divides, same
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Softmax(Contraction):
    """exp(x) over its sum along `axis`, or the logarithm of that. x: any shape but (), float32.

    A row with NaN, with infinity or of nothing but minus infinity is NaN altogether.
    """

    name: ClassVar[str] = "softmax"
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    axis: int = -1
    """Axis of the softmax; negative ones count from the end."""
    log: bool = False
    """True where the logarithm is wanted."""

    def __post_init__(self) -> None:
        check_axes("softmax", (self.axis,))

    def shape_of(self, shapes: Shapes) -> Shape:
        axes_of("softmax", (self.axis,), len(shapes["x"]))
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({"x": x.shape})
        if x.size == 0:
            return np.array(x)
        axis, result = self.axis % x.ndim, np.empty(x.shape, x.dtype)
        view = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
        given, made = x.reshape(view), result.reshape(view)
        # inf - inf is NaN, as it should be; a difference that overflows has the power 0.
        with np.errstate(invalid="ignore", over="ignore"):
            for part in runs(view[0], view[1] * view[2]):
                below = given[part] - given[part].max(axis=1, keepdims=True)
                powers = np.exp(below, out=None if self.log else below)
                total = powers.sum(axis=1, keepdims=True, dtype=np.float64)
                made[part] = below - np.log(total) if self.log else powers / total
        return result

    def flops(self, shapes: Shapes) -> int:
        return 5 * prod(shapes["x"])  # maximum, difference, exponential, sum, quotient

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the operands that hold samples: none where the axis is the samples'."""
        x = shapes["x"]
        return ("x",) if axes_of("softmax", (self.axis,), len(x)) != (0,) else ()

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][self.axis]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x = shapes["x"]
        (axis,) = axes_of("softmax", (self.axis,), len(x))
        extent, inner = x[axis], prod(x[axis + 1 :])
        whole = prod(x[1:]) if len(x) > 1 else prod(x)  # numbers of a sample, which lie together
        return {
            "rows": prod(x[:axis]),
            "extent": extent,
            "sample_rows": whole // max(extent, 1),
        } | {"inner": inner}

    def derived(self, shapes: Shapes) -> dict[str, int]:
        sizes = self.sizes(shapes)
        return {"in_rows": int(same(sizes["inner"], 1)), "wide": int(divides(4, sizes["extent"]))}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"LOG": int(self.log)}
