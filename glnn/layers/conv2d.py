"""Two-dimensional convolution layer."""

from __future__ import annotations

from math import inf
from typing import Any

from numpy.typing import DTypeLike

from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.graph import Value
from glnn.graph.index_map import Edge
from glnn.graph.operators import Pointwise
from glnn.graph.operators.windows import Sides
from glnn.graph.patterns import SUM
from glnn.layers.arguments import IntOrPair, flag, integer, pair, plain, sides, with_unusual
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope
from glnn.types import Dim

PADDING_MODES: dict[str, Edge] = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
"""What `operators.Pad` calls them."""


class Conv2d(Layer):
    """Convolution of x of shape (n, in_channels, h, w).

    padding: rows above and below and columns left and right; "valid", none; "same", such that the
    result is as large as x, which needs a stride of 1: of an odd number one more is at the end.
    around: that at the top, left, bottom and right.
    padding_mode: what is there: "zeros"; "reflect", "replicate", "circular", numbers of x, mirrored
    at its edge, the edge's own, or those at the other end. device, dtype: None and None or float32;
    parameters are float32.
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
        padding: IntOrPair | str = 0,
        dilation: IntOrPair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        plain("Conv2d", device, dtype)
        self.in_channels = integer("Conv2d in_channels", in_channels)
        self.out_channels = integer("Conv2d out_channels", out_channels)
        self.kernel_size = pair("Conv2d kernel_size", kernel_size)
        self.stride = pair("Conv2d stride", stride)
        self.dilation = pair("Conv2d dilation", dilation)
        self.padding = padding if isinstance(padding, str) else pair("Conv2d padding", padding, 0)
        self.padding_mode = padding_mode
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
        self.around = self._sides()
        op = operators.Conv2d(
            stride=self.stride,
            padding=self.around if self.padding_mode == "zeros" else (0, 0, 0, 0),
            dilation=self.dilation,
            groups=self.groups,
        )
        fan_in = weight[1] * weight[2] * weight[3]
        super().__init__(op, shapes, fan_in=fan_in, seed=seed)

    def _sides(self) -> Sides:
        """What is put at the top, left, bottom and right. Raises ShapeError where it cannot be."""
        mode = self.padding_mode
        if not isinstance(mode, str) or mode not in PADDING_MODES:
            known = ", ".join(PADDING_MODES)
            raise ShapeError(f"Conv2d padding_mode must be one of {known}, got {shown(mode)}")
        if not isinstance(self.padding, str):
            return sides(self.padding)
        if self.padding == "valid":
            return 0, 0, 0, 0
        if self.padding != "same":
            raise ShapeError(
                "Conv2d padding must be an integer, two of them, 'same' or 'valid', "
                f"got {shown(self.padding)}"
            )
        if self.stride != (1, 1):
            raise ShapeError(f"Conv2d padding 'same' needs a stride of 1, got {self.stride}")
        down, across = (
            d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)
        )  # of an odd number, the greater half is at the end
        return down // 2, across // 2, down - down // 2, across - across // 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        self._check(inputs[0].type.dims)
        operands = self._padded(scope, *inputs), self.variable(scope, "weight")
        if "bias" not in self.shapes:
            return scope.result(self.op, *operands)
        product = scope.add(self.op, *operands)
        bias = scope.channels(self.variable(scope, "bias"), product)
        return scope.result(Pointwise(SUM), product, bias)

    def _padded(self, scope: Scope, x: Value) -> Value:
        """x with what the convolution does not put around it itself."""
        top, left, bottom, right = self.around
        if self.padding_mode == "zeros" or not any(self.around):
            return x
        reach = {"reflect": 1, "circular": 0}.get(self.padding_mode, -inf)
        for n, side in zip(x.type.dims[2:], (max(top, bottom), max(left, right)), strict=True):
            if isinstance(n, int) and side + reach > n:
                raise ShapeError(
                    f"Conv2d: padding {self.around} reaches beyond x of shape {x.type.dims}"
                )
        edge = PADDING_MODES[self.padding_mode]
        return scope.add(operators.Pad((0, 0, top, left), (0, 0, bottom, right), edge), x)

    def _check(self, x: tuple[Dim, ...]) -> None:
        """Raise ShapeError, with what would help, where x cannot be so."""
        channels = self.in_channels
        if len(x) != 4:
            raise ShapeError(f"Conv2d: x must have shape (n, {channels}, h, w), got {x}")
        if x[1] != channels and x[3] == channels:
            raise ShapeError(
                f"Conv2d: x must have shape (n, {channels}, h, w), got {x}: channels come first "
                "here, where x.transpose(0, 3, 1, 2) puts them"
            )

    def config(self) -> dict[str, Any]:
        found = {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "bias": "bias" in self.shapes,
        }
        return with_unusual(found, padding_mode=(self.padding_mode, "zeros"))
