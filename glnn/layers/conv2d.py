"""Two-dimensional convolution layer."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph import operators
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.layers.arguments import IntOrPair, flag, integer, pair, sides
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.types import Shape


class Conv2d(Layer):
    """Convolution of x of shape (n, in_channels, h, w), padded with zeros.

    weight: (out_channels, in_channels / groups, kernel height, kernel width).
    bias: (out_channels,), or None with `bias=False`.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrPair,
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        dilation: IntOrPair = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        self.in_channels = integer("Conv2d in_channels", in_channels)
        self.out_channels = integer("Conv2d out_channels", out_channels)
        self.kernel_size = pair("Conv2d kernel_size", kernel_size)
        self.stride = pair("Conv2d stride", stride)
        self.padding = pair("Conv2d padding", padding, least=0)
        self.dilation = pair("Conv2d dilation", dilation)
        self.groups = integer("Conv2d groups", groups)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ShapeError(
                f"Conv2d groups must divide in_channels {self.in_channels} and "
                f"out_channels {self.out_channels}, got {self.groups}"
            )
        weight = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        shapes: dict[str, tuple[int, ...]] = {"weight": weight}
        if flag("Conv2d bias", bias):
            shapes["bias"] = (self.out_channels,)
        op = operators.Conv2d(
            stride=self.stride,
            padding=sides(self.padding),
            dilation=self.dilation,
            groups=self.groups,
        )
        fan_in = weight[1] * weight[2] * weight[3]
        super().__init__(op, shapes, fan_in=fan_in, seed=seed)

    @property
    def operands(self) -> dict[str, Array]:
        given = self.parameters
        return {"e1" if name == "bias" else name: array for name, array in given.items()}

    @property
    def epilogue(self) -> Epilogue | None:
        return BIASED if "bias" in self.shapes else None

    def infer(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        channels = self.in_channels
        if len(x) == 4 and x[1] != channels and x[3] == channels:
            raise ShapeError(
                f"Conv2d: x must have shape (n, {channels}, h, w), got {x}: channels come first "
                "here, where x.transpose(0, 3, 1, 2) puts them"
            )
        return super().infer(x)

    def config(self) -> dict[str, Any]:
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "bias": "bias" in self.shapes,
        }
