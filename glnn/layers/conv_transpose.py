"""Transposed convolution layers of one to three dimensions."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from numpy.typing import DTypeLike

from glnn.errors import ShapeError, shown
from glnn.graph.compose.conv_transpose import conv_transpose
from glnn.graph.graph import Value
from glnn.graph.operators import Conv2d, Pointwise
from glnn.graph.patterns import SUM
from glnn.layers.arguments import Ints, flag, integer, plain, sizes
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope


class ConvTranspose(Layer):
    """Transposed convolution of x of shape (n, in_channels, ...): (n, out_channels, ...).

    What ConvTranspose1d, ConvTranspose2d and ConvTranspose3d share. A dimension of x of `size`
    becomes (size - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1.
    output_padding: smaller than the stride or the dilation. padding_mode: "zeros".
    weight: (in_channels, out_channels / groups, ...), of the kernel's sizes.
    bias: (out_channels,), or None with `bias=False`.
    device, dtype: None and None or float32; parameters are float32.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()
    count: ClassVar[int]
    """The number of spatial dimensions of x."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        kind, count = type(self).__name__, self.count
        plain(kind, device, dtype)
        self.in_channels = integer(f"{kind} in_channels", in_channels)
        self.out_channels = integer(f"{kind} out_channels", out_channels)
        self.kernel_size = sizes(f"{kind} kernel_size", kernel_size, count)
        self.stride = sizes(f"{kind} stride", stride, count)
        self.padding = sizes(f"{kind} padding", padding, count, 0)
        self.output_padding = sizes(f"{kind} output_padding", output_padding, count, 0)
        self.dilation = sizes(f"{kind} dilation", dilation, count)
        self.groups = integer(f"{kind} groups", groups)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ShapeError(
                f"{kind} groups must divide in_channels {self.in_channels} and "
                f"out_channels {self.out_channels}, got {self.groups}"
            )
        if any(
            p >= max(s, d)
            for p, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True)
        ):
            raise ShapeError(
                f"{kind} output_padding must be smaller than the stride {self.stride} or the "
                f"dilation {self.dilation}, got {self.output_padding}"
            )
        if not isinstance(padding_mode, str) or padding_mode != "zeros":
            raise ShapeError(f"{kind} padding_mode must be 'zeros', got {shown(padding_mode)}")
        share = self.out_channels // self.groups
        shapes: dict[str, tuple[int, ...]] = {
            "weight": (self.in_channels, share, *self.kernel_size)
        }
        if flag(f"{kind} bias", bias):
            shapes["bias"] = (self.out_channels,)
        fan_in = share * prod(self.kernel_size)
        super().__init__(Conv2d(groups=self.groups), shapes, fan_in=fan_in, seed=seed)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        found = conv_transpose(
            scope.add,
            x,
            self.variable(scope, "weight"),
            stride=self.stride,
            padding=(*self.padding, *self.padding),
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        if "bias" not in self.shapes:
            return scope.named(found)
        bias = scope.channels(self.variable(scope, "bias"), found)
        return scope.result(Pointwise(SUM), found, bias)

    def config(self) -> dict[str, Any]:
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "groups": self.groups,
            "bias": "bias" in self.shapes,
            "dilation": self.dilation,
        }


class ConvTranspose1d(ConvTranspose):
    """Transposed convolution of x of shape (n, in_channels, l): see `ConvTranspose`."""

    count = 1


class ConvTranspose2d(ConvTranspose):
    """Transposed convolution of x of shape (n, in_channels, h, w): see `ConvTranspose`."""

    count = 2


class ConvTranspose3d(ConvTranspose):
    """Transposed convolution of x of shape (n, in_channels, d, h, w): see `ConvTranspose`."""

    count = 3
