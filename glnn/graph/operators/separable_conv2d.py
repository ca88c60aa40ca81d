"""A convolution of each channel by itself and one of 1 x 1 behind it, as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.convolving import Convolving
from glnn.graph.operators.correlation import correlated
from glnn.graph.prologue import Prologue
from glnn.types import Array, Shape


@dataclass(frozen=True)
class SeparableConv2d(Convolving):
    """The pointwise convolution by `weight` of `prologue`(the depthwise one of x by `depthwise`).

    x: (n, c, h, w). depthwise: (c, 1, kh, kw). weight: (o, c, 1, 1). Result: (n, o, oh, ow). The
    window is the depthwise convolution's. So MobileNets have it (Howard et al. 2017, section 3.1).
    """

    name: ClassVar[str] = "separable_conv2d"
    parameters: ClassVar[tuple[str, ...]] = ("depthwise", "weight")
    halves: ClassVar[tuple[str, ...]] = ("depthwise", "weight")
    bytes: ClassVar[tuple[str, ...]] = ("weight",)
    prologue: Prologue | None = None
    """Work on the depthwise convolution's results before they are multiplied."""

    def shape_of(self, shapes: Shapes) -> Shape:
        x, depthwise, weight = (shapes[name] for name in ("x", "depthwise", "weight"))
        rank(self.name, "x", x, 4, "(n, c, h, w)")
        rank(self.name, "depthwise", depthwise, 4, "(c, 1, kh, kw)")
        rank(self.name, "weight", weight, 4, "(o, c, 1, 1)")
        n, c, *_ = x
        if depthwise[:2] != (c, 1) or weight[1:] != (c, 1, 1):
            raise ShapeError(
                f"{self.name}: x {x}, depthwise {depthwise} and weight {weight} do not fit: they "
                "must be (n, c, h, w), (c, 1, kh, kw) and (o, c, 1, 1)"
            )
        oh, ow = self.windows(x, depthwise)
        self.check_prologue(shapes)
        return n, weight[0], oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        depthwise, weight = (operands[name].astype(x.dtype, copy=False) for name in self.parameters)
        out = self.shape_of({name: array.shape for name, array in operands.items()})[2:]
        size, one = (out[0], out[1]), (1, 1)
        window = self.stride, self.padding, self.dilation
        between = correlated(x, depthwise, size, *window, groups=x.shape[1])
        between = self.prepared({**operands, "x": between})
        return correlated(np.ascontiguousarray(between), weight, size, one, (0, 0, 0, 0), one, 1)

    def flops(self, shapes: Shapes) -> int:
        functions = 0 if self.prologue is None else self.prologue.expr.flops
        n, o, oh, ow = self.shape_of(shapes)
        c, *_ = shapes["depthwise"]
        return n * oh * ow * c * (2 * prod(shapes["depthwise"][2:]) + functions + 2 * o)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        _, c, h, w = shapes["x"]
        names = ("n", "c", "h", "w", "o", "oh", "ow", "pixels")
        return dict(zip(names, (n, c, h, w, o, oh, ow, n * oh * ow), strict=True))

    def product(self, shapes: Shapes) -> tuple[int, int]:
        n, o, oh, ow = self.shape_of(shapes)
        return n * oh * ow, o

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """The depthwise kernel's size."""
        kernel_h, kernel_w = shapes["depthwise"][2:]
        return {"kernel_h": kernel_h, "kernel_w": kernel_w}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return self.window_defines(shapes["depthwise"])

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (n, c, *size), (_, *window) = shapes["x"], shapes["depthwise"]
        made = depth + (c - depth) % 4  # a whole quad or not, as before
        found = self.with_x(shapes, (n, made, *size))
        return {
            **found,
            "depthwise": (made, *window),
            "weight": (shapes["weight"][0], made, 1, 1),
        }

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *size = shapes["x"]
        fewer = windows.shrink_sizes(size, self.shape_of(shapes)[2:], self.stride)
        return self.with_x(shapes, (n, c, *fewer))
