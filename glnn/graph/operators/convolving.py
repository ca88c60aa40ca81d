"""Shared base of operators that convolve images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.operator import Shapes
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides
from glnn.graph.prologued import Prologued
from glnn.types import Shape


@dataclass(frozen=True)
class Convolving(Prologued):
    """A convolution of x, (n, c, h, w), by windows.

    padding: zeros at the top, left, bottom and right.
    """

    has_epilogue: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
        )

    def windows(self, x: Shape, weight: Shape) -> Pair:
        """Return the number of windows down and across `x`, of the last two sizes of `weight`.

        Raises ShapeError where there are none.
        """
        kernel = weight[2], weight[3]
        if min(kernel) < 1:
            raise ShapeError(f"{self.name}: the kernel must be at least 1 x 1, weight is {weight}")
        size = x[2], x[3]
        found = windows.outputs(size, kernel, self.stride, self.padding, self.dilation)
        if any(count < 1 for count in found):
            raise ShapeError(f"{self.name}: the kernel of {weight} is larger than the padded x {x}")
        return found

    def window_defines(self, weight: Shape) -> dict[str, int]:
        """Return the shader macros of the window, from the last two sizes of `weight`."""
        return windows.defines((weight[2], weight[3]), self.stride, self.padding, self.dilation)

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        return (*super().sample_operands(shapes), *self.by_image())

    def fixed_layouts(self) -> Mapping[str, str]:
        return self.layouts_of("nhwC4c")
