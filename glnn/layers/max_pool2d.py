"""Two-dimensional maximum pooling layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Pool2d
from glnn.layers.arguments import IntOrPair, flag, only, pair, sides
from glnn.layers.layer import Layer


class MaxPool2d(Layer):
    """The largest value in each window of x of shape (n, c, h, w).

    stride: None takes `kernel_size`. ceil_mode: a last, partial window counts too.
    return_indices: False, as a layer has one result.
    """

    def __init__(
        self,
        kernel_size: IntOrPair,
        stride: IntOrPair | None = None,
        padding: IntOrPair = 0,
        dilation: IntOrPair = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        self.kernel_size = pair("MaxPool2d kernel_size", kernel_size)
        self.stride = self.kernel_size if stride is None else pair("MaxPool2d stride", stride)
        self.padding = pair("MaxPool2d padding", padding, least=0)
        self.dilation = pair("MaxPool2d dilation", dilation)
        only("MaxPool2d return_indices", return_indices, False, "a layer has one result")
        self.ceil_mode = flag("MaxPool2d ceil_mode", ceil_mode)
        op = Pool2d(
            mode="max",
            kernel=self.kernel_size,
            stride=self.stride,
            padding=sides(self.padding),
            dilation=self.dilation,
            ceil_mode=self.ceil_mode,
        )
        super().__init__(op)

    def config(self) -> dict[str, Any]:
        return {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "ceil_mode": self.ceil_mode,
        }
