"""Pooling and adaptive pooling layers."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any, ClassVar

from glnn.errors import ShapeError
from glnn.graph.compose.sliding_windows import Window, adaptive_pool, average_pool, pool
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Pointwise, Pool2d
from glnn.layers.arguments import (
    Ints,
    IntsOrNone,
    Sizes,
    axis_names,
    flag,
    integer,
    number,
    only,
    sizes,
    sizes_or_none,
    with_unusual,
)
from glnn.layers.layer import Layer, Scope


class _Pool(Layer):
    """Pooling of x of shape (n, c, ...), by one operator or by several."""

    count: ClassVar[int]
    """The number of spatial dimensions of x."""

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if len(x.type.dims) != self.count + 2:
            wanted = f"(n, c, {axis_names(self.count)})"
            raise ShapeError(
                f"{type(self).__name__}: x must have shape {wanted}, got {x.type.dims}"
            )
        if isinstance(self.op, Pool2d):
            return scope.result(self.op, x)
        return scope.named(self._compose(scope, x))

    @abstractmethod
    def _compose(self, scope: Scope, x: Value) -> Value:
        """Add several operators, and return their result."""


class Pool(_Pool):
    """Pooling over the windows of x of shape (n, c, ...).

    windows: the sizes and positions of the windows. stride: None is `kernel_size`. ceil_mode:
    whether to use a last, partial window.
    """

    def _set_windows(
        self, kernel_size: Ints, stride: Ints | None, padding: Ints, dilation: Ints, ceil: bool
    ) -> None:
        """Set the attributes of the windows. Raises ShapeError for arguments that do not fit."""
        kind, count = type(self).__name__, self.count
        self.kernel_size = sizes(f"{kind} kernel_size", kernel_size, count)
        stride = self.kernel_size if stride is None else stride
        self.stride = sizes(f"{kind} stride", stride, count)
        self.padding = sizes(f"{kind} padding", padding, count, 0)
        self.dilation = sizes(f"{kind} dilation", dilation, count)
        self.ceil_mode = flag(f"{kind} ceil_mode", ceil)
        extents: Sizes = tuple(
            d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)
        )
        if any(2 * p > n for p, n in zip(self.padding, extents, strict=True)):
            raise ShapeError(
                f"{kind} padding must be at most half of what a window reaches over, {extents}, "
                f"got {self.padding}"
            )
        self.windows = Window(
            self.kernel_size, self.stride, self.dilation, self.padding, self.padding, self.ceil_mode
        )

    def _image_pool(self, mode: str, **more: Any) -> Pool2d | Identity:
        """Return the Pool2d that computes the result; Identity where `_compose` must."""
        paddings = zip(self.padding, self.kernel_size, strict=True)
        if self.count != 2 or any(2 * p > k for p, k in paddings):
            return Identity()
        return Pool2d(
            mode,
            self.kernel_size,  # type: ignore[arg-type]
            self.stride,  # type: ignore[arg-type]
            self.windows.sides,  # type: ignore[arg-type]
            self.dilation,  # type: ignore[arg-type]
            self.ceil_mode,
            **more,
        )


class MaxPool(Pool):
    """The largest value in each window of x: the base of MaxPool1d, MaxPool2d and MaxPool3d.

    stride: None is `kernel_size`. ceil_mode: whether to use a last, partial window. dilation: the
    distance between the elements of a window. return_indices: False, as a layer has one result.
    """

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        kind = type(self).__name__
        self._set_windows(kernel_size, stride, padding, dilation, ceil_mode)
        only(f"{kind} return_indices", return_indices, False, "a layer has one result")
        super().__init__(self._image_pool("max"))

    def _compose(self, scope: Scope, x: Value) -> Value:
        return pool(scope.add, x, self.windows, "max")

    def config(self) -> dict[str, Any]:
        return {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "ceil_mode": self.ceil_mode,
        }


class MaxPool1d(MaxPool):
    """The largest value in each window of x of shape (n, c, l): see `MaxPool`."""

    count = 1


class MaxPool2d(MaxPool):
    """The largest value in each window of x of shape (n, c, h, w): see `MaxPool`."""

    count = 2


class MaxPool3d(MaxPool):
    """The largest value in each window of x of shape (n, c, d, h, w): see `MaxPool`."""

    count = 3


class AvgPool(Pool):
    """The mean of each window of x: the base of AvgPool1d, AvgPool2d and AvgPool3d.

    stride: None is `kernel_size`. ceil_mode: whether to use a last, partial window.
    count_include_pad: whether the zeros of the padding count in the mean. divisor_override: the
    divisor of a window's sum, instead of the number of its elements.
    """

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        kind = type(self).__name__
        self._set_windows(kernel_size, stride, padding, 1, ceil_mode)
        self.count_include_pad = flag(f"{kind} count_include_pad", count_include_pad)
        self.divisor_override = divisor_override
        if divisor_override is not None:
            self.divisor_override = integer(f"{kind} divisor_override", divisor_override)
        more = {"count_include_pad": self.count_include_pad, "divisor": self.divisor_override}
        super().__init__(self._image_pool("average", **more))

    def _compose(self, scope: Scope, x: Value) -> Value:
        if self.divisor_override is not None:
            return pool(scope.add, x, self.windows, "average", self.divisor_override)
        return average_pool(scope.add, x, self.windows, counted=self.count_include_pad)

    def config(self) -> dict[str, Any]:
        config = {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
        }
        return with_unusual(config, divisor_override=(self.divisor_override, None))


class AvgPool1d(AvgPool):
    """The mean of each window of x of shape (n, c, l): see `AvgPool`; without divisor_override."""

    count = 1

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)


class AvgPool2d(AvgPool):
    """The mean of each window of x of shape (n, c, h, w): see `AvgPool`."""

    count = 2


class AvgPool3d(AvgPool):
    """The mean of each window of x of shape (n, c, d, h, w): see `AvgPool`."""

    count = 3


class LPPool(Pool):
    """(sum of x^p)^(1/p) over each window of x, for p = `norm_type`.

    The base of LPPool1d, LPPool2d and LPPool3d. Powers keep their signs, as in PyTorch: the root of
    a negative sum is NaN. stride: None is `kernel_size`. ceil_mode: whether to use a last, partial
    window, whose sum is scaled to a full one.
    """

    def __init__(
        self,
        norm_type: float,
        kernel_size: Ints,
        stride: Ints | None = None,
        ceil_mode: bool = False,
    ) -> None:
        kind = type(self).__name__
        self.norm_type = number(f"{kind} norm_type", norm_type, 0)
        if not self.norm_type:
            raise ShapeError(f"{kind} norm_type must be a number above 0, got 0")
        self._set_windows(kernel_size, stride, 0, 1, ceil_mode)
        super().__init__(Identity())

    def _compose(self, scope: Scope, x: Value) -> Value:
        p = float(self.norm_type)
        mean = average_pool(scope.add, power(scope, x, p), self.windows, counted=True)
        sum = scope.add(Pointwise(call("mul", Arg(0), float(prod(self.kernel_size)))), mean)
        return power(scope, sum, 1 / p)

    def config(self) -> dict[str, Any]:
        return {
            "norm_type": self.norm_type,
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "ceil_mode": self.ceil_mode,
        }


def power(scope: Scope, x: Value, exponent: float) -> Value:
    """Return x to the power `exponent`, by the functions square and sqrt where these do."""
    if exponent == 1:
        return x
    faster: dict[float, Expr] = {2.0: call("square", Arg(0)), 0.5: call("sqrt", Arg(0))}
    return scope.add(Pointwise(faster.get(exponent, call("pow", Arg(0), exponent))), x)


class LPPool1d(LPPool):
    """A norm of each window of x of shape (n, c, l): see `LPPool`."""

    count = 1


class LPPool2d(LPPool):
    """A norm of each window of x of shape (n, c, h, w): see `LPPool`."""

    count = 2


class LPPool3d(LPPool):
    """A norm of each window of x of shape (n, c, d, h, w): see `LPPool`."""

    count = 3


class AdaptivePool(_Pool):
    """Pooling of x of shape (n, c, ...) over a fixed number of windows that cover x.

    output_size: the number of windows along each dimension, or one number for all; None is x's
    size. Of m windows along a dimension, the i-th reaches from floor(i size / m) to
    ceil((i + 1) size / m), exclusive.
    """

    mode: ClassVar[str]
    """The mode of `Pool2d`."""

    def __init__(self, output_size: IntsOrNone) -> None:
        what = f"{type(self).__name__} output_size"
        self.output_size = sizes_or_none(what, output_size, self.count)
        if self.count == 2:
            sizes = self.output_size
            super().__init__(Pool2d(mode=self.mode, kernel=None, output=sizes))  # type: ignore[arg-type]
        else:
            super().__init__(Identity())

    def _compose(self, scope: Scope, x: Value) -> Value:
        return adaptive_pool(scope.add, x, self.mode, self.output_size)

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size}


class AdaptiveAvgPool1d(AdaptivePool):
    """The mean of each window of x of shape (n, c, l): see `AdaptivePool`."""

    count, mode = 1, "average"


class AdaptiveAvgPool2d(AdaptivePool):
    """The mean of each window of x of shape (n, c, h, w): see `AdaptivePool`."""

    count, mode = 2, "average"


class AdaptiveAvgPool3d(AdaptivePool):
    """The mean of each window of x of shape (n, c, d, h, w): see `AdaptivePool`."""

    count, mode = 3, "average"


class AdaptiveMaxPool(AdaptivePool):
    """The largest value in each window of x: the base of AdaptiveMaxPool1d, AdaptiveMaxPool2d and
    AdaptiveMaxPool3d.

    output_size: see `AdaptivePool`. return_indices: False, as a layer has one result.
    """

    mode = "max"

    def __init__(self, output_size: IntsOrNone, return_indices: bool = False) -> None:
        what = f"{type(self).__name__} return_indices"
        only(what, return_indices, False, "a layer has one result")
        super().__init__(output_size)


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    """The largest value in each window of x of shape (n, c, l): see `AdaptivePool`."""

    count = 1


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    """The largest value in each window of x of shape (n, c, h, w): see `AdaptivePool`."""

    count = 2


class AdaptiveMaxPool3d(AdaptiveMaxPool):
    """The largest value in each window of x of shape (n, c, d, h, w): see `AdaptivePool`."""

    count = 3
