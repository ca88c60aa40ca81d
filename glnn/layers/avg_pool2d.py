"""Two-dimensional average pooling layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Pool2d
from glnn.layers.arguments import IntOrPair, flag, integer, pair, sides, with_unusual
from glnn.layers.layer import Layer


class AvgPool2d(Layer):
    """The mean of each window of x of shape (n, c, h, w).

    stride: None takes `kernel_size`. ceil_mode: a last, partial window counts too.
    count_include_pad: whether the zeros of the padding count in the mean.
    divisor_override: what the sum of a window is divided by, instead of how many numbers it has.
    """

    def __init__(
        self,
        kernel_size: IntOrPair,
        stride: IntOrPair | None = None,
        padding: IntOrPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel_size = pair("AvgPool2d kernel_size", kernel_size)
        self.stride = self.kernel_size if stride is None else pair("AvgPool2d stride", stride)
        self.padding = pair("AvgPool2d padding", padding, least=0)
        self.ceil_mode = flag("AvgPool2d ceil_mode", ceil_mode)
        self.count_include_pad = flag("AvgPool2d count_include_pad", count_include_pad)
        self.divisor_override = divisor_override
        if divisor_override is not None:
            self.divisor_override = integer("AvgPool2d divisor_override", divisor_override)
        op = Pool2d(
            mode="average",
            kernel=self.kernel_size,
            stride=self.stride,
            padding=sides(self.padding),
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            divisor=self.divisor_override,
        )
        super().__init__(op)

    def config(self) -> dict[str, Any]:
        found = {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
        }
        return with_unusual(found, divisor_override=(self.divisor_override, None))
