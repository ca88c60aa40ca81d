"""Convolutions and transposed convolutions."""

from __future__ import annotations

from math import inf, prod
from typing import Any, ClassVar

from numpy.typing import DTypeLike

from glnn.core.types import Array, Dim
from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.compose.sliding_windows import conv, conv_transpose
from glnn.graph.expression import SUM
from glnn.graph.graph import Value
from glnn.graph.index_map import Edge
from glnn.graph.operators import Pointwise
from glnn.layers.arguments import (
    MANY,
    Ints,
    Sizes,
    axis_names,
    flag,
    integer,
    plain,
    sizes,
    with_unusual,
)
from glnn.layers.layer import Layer, Parameter, Scope

PADDING_MODES: dict[str, Edge] = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
"""Edges of `operators.Pad` by padding mode."""


class Conv(Layer):
    """Convolution of x of shape (n, in_channels, ...): the base of Conv1d, Conv2d and Conv3d.

    padding: the padding on both sides of each dimension; "valid" for none; "same" for a result as
    large as x, which needs a stride of 1 (an odd total pads one more at the end). around: the
    padding before each dimension, then that after each.
    padding_mode: "zeros"; or "reflect", "replicate" or "circular" for numbers of x: mirrored at its
    edge, the edge's, or those of the opposite side.
    weight: (out_channels, in_channels / groups, *kernel_size). bias: (out_channels,), or None with
    `bias=False`. device: None. dtype: None or float32.
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
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
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
        self.dilation = sizes(f"{kind} dilation", dilation, count)
        self.padding: Sizes | str = (
            padding if isinstance(padding, str) else sizes(f"{kind} padding", padding, count, 0)
        )
        self.padding_mode = padding_mode
        self.groups = integer(f"{kind} groups", groups)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ShapeError(
                f"{kind} groups must divide in_channels {self.in_channels} and "
                f"out_channels {self.out_channels}, got {self.groups}"
            )
        weight = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        shapes: dict[str, tuple[int, ...]] = {"weight": weight}
        if flag(f"{kind} bias", bias):
            shapes["bias"] = (self.out_channels,)
        self.around = self._sides()
        super().__init__(self._op(), shapes, fan_in=prod(weight[1:]), seed=seed)

    def _op(self) -> operators.Conv2d:
        """Return the operator for images; for one or three dimensions, a Conv2d with only the
        groups.
        """
        if self.count != 2:
            return operators.Conv2d(groups=self.groups)
        return operators.Conv2d(
            stride=self.stride,  # type: ignore[arg-type]
            padding=self._zeros,  # type: ignore[arg-type]
            dilation=self.dilation,  # type: ignore[arg-type]
            groups=self.groups,
        )

    def _sides(self) -> Sizes:
        """Return `around`. Raises ShapeError for a padding or a padding mode that does not fit."""
        mode, kind = self.padding_mode, type(self).__name__
        if not isinstance(mode, str) or mode not in PADDING_MODES:
            known = ", ".join(PADDING_MODES)
            raise ShapeError(f"{kind} padding_mode must be one of {known}, got {shown(mode)}")
        if not isinstance(self.padding, str):
            return (*self.padding, *self.padding)
        if self.padding == "valid":
            return (0,) * (2 * self.count)
        if self.padding != "same":
            raise ShapeError(
                f"{kind} padding must be an integer, {MANY[self.count]}, 'same' or 'valid', "
                f"got {shown(self.padding)}"
            )
        if set(self.stride) != {1}:
            raise ShapeError(f"{kind} padding 'same' needs a stride of 1, got {self.stride}")
        return same(self.kernel_size, self.dilation)

    @property
    def _zeros(self) -> Sizes:
        """The zero padding that the convolution itself applies."""
        return self.around if self.padding_mode == "zeros" else (0,) * len(self.around)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        self._check(inputs[0].type.dims)
        operands = self._padded(scope, *inputs), self.variable(scope, "weight")
        has_bias = "bias" in self.shapes
        if self.count == 2 and not has_bias:
            return scope.result(self.op, *operands)
        product = conv(
            scope.add,
            *operands,
            stride=self.stride,
            padding=self._zeros,
            dilation=self.dilation,
            groups=self.groups,
        )
        if not has_bias:
            return scope.named(product)
        bias = scope.channels(self.variable(scope, "bias"), product)
        return scope.result(Pointwise(SUM), product, bias)

    def _padded(self, scope: Scope, x: Value) -> Value:
        """Return x with the padding that the convolution does not apply itself."""
        if self.padding_mode == "zeros" or not any(self.around):
            return x
        before, after = self.around[: self.count], self.around[self.count :]
        reach = {"reflect": 1, "circular": 0}.get(self.padding_mode, -inf)
        for n, side in zip(x.type.dims[2:], map(max, before, after), strict=True):
            if isinstance(n, int) and side + reach > n:
                raise ShapeError(
                    f"{type(self).__name__}: padding {self.around} reaches beyond x of shape "
                    f"{x.type.dims}"
                )
        edge = PADDING_MODES[self.padding_mode]
        return scope.add(operators.Pad((0, 0, *before), (0, 0, *after), edge), x)

    def _check(self, x: tuple[Dim, ...]) -> None:
        """Raise ShapeError, with a hint, where x has other dimensions or channels."""
        channels, rank = self.in_channels, self.count + 2
        wanted = f"x must have shape (n, {channels}, {axis_names(self.count)})"
        if len(x) != rank or (isinstance(x[1], int) and x[1] != channels):
            help, order = "", (0, rank - 1, *range(1, rank - 1))
            if len(x) == rank and x[-1] == channels:
                transposed = f"x.transpose({', '.join(map(str, order))})"
                help = f": channels come first here, where {transposed} puts them"
            raise ShapeError(f"{type(self).__name__}: {wanted}, got {x}{help}")

    def config(self) -> dict[str, Any]:
        config = {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "bias": "bias" in self.shapes,
        }
        return with_unusual(config, padding_mode=(self.padding_mode, "zeros"))


def same(kernel: Sizes, dilation: Sizes) -> Sizes:
    """Return the padding (`Conv.around`) for a result as large as x."""
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    before = [n // 2 for n in totals]  # an odd total pads one more at the end
    return (*before, *(n - b for n, b in zip(totals, before, strict=True)))


class Conv1d(Conv):
    """Convolution of x of shape (n, in_channels, l): see `Conv`."""

    count = 1


class Conv2d(Conv):
    """Convolution of x of shape (n, in_channels, h, w): see `Conv`."""

    count = 2


class Conv3d(Conv):
    """Convolution of x of shape (n, in_channels, d, h, w): see `Conv`."""

    count = 3


class ConvTranspose(Layer):
    """Transposed convolution of x of shape (n, in_channels, ...) to (n, out_channels, ...).

    The base of ConvTranspose1d, ConvTranspose2d and ConvTranspose3d. A dimension of x of `size`
    becomes (size - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1.
    output_padding: smaller than the stride or the dilation. padding_mode: "zeros".
    weight: (in_channels, out_channels / groups, *kernel_size). bias: (out_channels,), or None with
    `bias=False`. device: None. dtype: None or float32.
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
        group_channels = self.out_channels // self.groups
        shapes: dict[str, tuple[int, ...]] = {
            "weight": (self.in_channels, group_channels, *self.kernel_size)
        }
        if flag(f"{kind} bias", bias):
            shapes["bias"] = (self.out_channels,)
        fan_in = group_channels * prod(self.kernel_size)
        super().__init__(operators.Conv2d(groups=self.groups), shapes, fan_in=fan_in, seed=seed)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        bias = self.variable(scope, "bias") if "bias" in self.shapes else None
        result = conv_transpose(
            scope.add,
            x,
            self.variable(scope, "weight"),
            stride=self.stride,
            padding=(*self.padding, *self.padding),
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
            bias=bias,
        )
        return scope.named(result)

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
