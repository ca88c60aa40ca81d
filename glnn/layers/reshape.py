"""Layers that reshape and reorder elements: flattening, shuffling, unfolding and folding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glnn.core.types import Dim
from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.compose.node_adder import merge_dims, split_dim
from glnn.graph.compose.sliding_windows import FoldWindows, Window, unfold
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Transpose
from glnn.layers.arguments import Ints, index, integer, sizes, with_unusual
from glnn.layers.layer import ANY, Layer, Scope


class Flatten(Layer):
    """x of shape (n, ...) with the dimensions from `start_dim` to `end_dim` merged into one.

    Negative dimensions count from the end. The batch, dimension 0, cannot be merged.
    """

    takes = ANY

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = index("Flatten start_dim", start_dim)
        self.end_dim = index("Flatten end_dim", end_dim)
        super().__init__(operators.Flatten(self.start_dim, self.end_dim))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        rank = len(dims)
        if self.start_dim in (0, -rank) and self.end_dim in (*range(1, rank), *range(1 - rank, 0)):
            raise ShapeError(f"Flatten: the first dimension of x {dims} is the batch and stays")
        return scope.result(self.op, *inputs)

    def config(self) -> dict[str, Any]:
        return with_unusual({}, start_dim=(self.start_dim, 1), end_dim=(self.end_dim, -1))


class Unflatten(Layer):
    """x with dimension `dim` split into the sizes `unflattened_size`, one of which may be -1.

    A negative dim counts from the end.
    """

    takes = ANY

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim = index("Unflatten dim", dim)
        if not isinstance(unflattened_size, (list, tuple)) or not unflattened_size:
            got = shown(unflattened_size)
            raise ShapeError(f"Unflatten unflattened_size must be sizes, got {got}")
        what = "Unflatten unflattened_size"
        self.unflattened_size = tuple(index(what, size) for size in unflattened_size)
        super().__init__(operators.Unflatten(self.dim, self.unflattened_size))

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "unflattened_size": self.unflattened_size}


class PixelShuffle(Layer):
    """x of shape (..., c r², h, w) as (..., c, h r, w r), r being `upscale_factor`.

    Each r² consecutive channels become the r x r squares of one channel, row by row.
    """

    takes = ANY

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = integer("PixelShuffle upscale_factor", upscale_factor)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,), r = inputs, self.upscale_factor
        c, _, _ = _image("PixelShuffle", x.type.dims)
        if c % r**2:
            raise ShapeError(f"PixelShuffle: {r} * {r} must divide the channels of x {x.type.dims}")
        axis = len(x.type.dims) - 3
        x = split_dim(scope.add, x, axis, c // r**2, r, r)
        order = (*range(axis + 1), axis + 3, axis + 1, axis + 4, axis + 2)
        x = scope.add(Transpose(order), x)
        return scope.named(
            merge_dims(scope.add, merge_dims(scope.add, x, axis + 3, 2), axis + 1, 2)
        )

    def config(self) -> dict[str, Any]:
        return {"upscale_factor": self.upscale_factor}


class PixelUnshuffle(Layer):
    """x of shape (..., c, h r, w r) as (..., c r², h, w), r being `downscale_factor`.

    The inverse of PixelShuffle.
    """

    takes = ANY

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = integer("PixelUnshuffle downscale_factor", downscale_factor)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,), r = inputs, self.downscale_factor
        _, h, w = _image("PixelUnshuffle", x.type.dims)
        if h % r or w % r:
            what = f"PixelUnshuffle: {r} must divide the height and width of x {x.type.dims}"
            raise ShapeError(what)
        axis = len(x.type.dims) - 3
        x = split_dim(scope.add, x, axis + 2, w // r, r)
        x = split_dim(scope.add, x, axis + 1, h // r, r)
        order = (*range(axis + 1), axis + 2, axis + 4, axis + 1, axis + 3)
        return scope.named(merge_dims(scope.add, scope.add(Transpose(order), x), axis, 3))

    def config(self) -> dict[str, Any]:
        return {"downscale_factor": self.downscale_factor}


class ChannelShuffle(Layer):
    """x of shape (n, c, ...) with the channels of `groups` groups interleaved."""

    takes = ANY

    def __init__(self, groups: int) -> None:
        self.groups = integer("ChannelShuffle groups", groups)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,), groups = inputs, self.groups
        dims = x.type.dims
        if len(dims) < 3 or not isinstance(c := dims[1], int):
            raise ShapeError(f"ChannelShuffle: x must have shape (n, c, ...), got {dims}")
        if c % groups:
            raise ShapeError(f"ChannelShuffle groups {groups} must divide the channels of x {dims}")
        x = split_dim(scope.add, x, 1, groups, c // groups)
        x = scope.add(Transpose((0, 2, 1, *range(3, len(dims) + 1))), x)
        return scope.named(merge_dims(scope.add, x, 1, 2))

    def config(self) -> dict[str, Any]:
        return {"groups": self.groups}


def _image(kind: str, x: tuple[Dim, ...]) -> tuple[int, int, int]:
    """Return the channels, height and width of x. Raises ShapeError where these are not known."""
    if len(x) < 3 or not all(isinstance(dim, int) for dim in x[-3:]):
        raise ShapeError(f"{kind}: x must have shape (..., c, h, w), got {x}")
    c, h, w = x[-3:]
    return c, h, w  # type: ignore[return-value]


class Unfold(Layer):
    """The sliding windows of x of shape (n, c, h, w) as columns: (n, c kh kw, windows).

    A column has the elements of a window channel by channel, row by row; windows are in the order
    of x, row by row. padding: zeros around x.
    """

    def __init__(
        self, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
    ) -> None:
        self.windows = _windows("Unfold", kernel_size, dilation, padding, stride)
        self.kernel_size, self.dilation = self.windows.kernel, self.windows.dilation
        self.padding, self.stride = self.windows.before, self.windows.stride
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if len(x.type.dims) != 4:
            raise ShapeError(f"Unfold: x must have shape (n, c, h, w), got {x.type.dims}")
        return scope.named(unfold(scope.add, x, self.windows))

    def config(self) -> dict[str, Any]:
        return _config(self.windows)


class Fold(Layer):
    """The sums of overlapping windows in an image of `output_size`: (n, c, oh, ow).

    x: (n, c kh kw, windows), as Unfold returns it. padding: the padding of the image that the
    windows cover; the result is without it.
    """

    def __init__(
        self,
        output_size: Ints,
        kernel_size: Ints,
        dilation: Ints = 1,
        padding: Ints = 0,
        stride: Ints = 1,
    ) -> None:
        self.output_size = sizes("Fold output_size", output_size, 2)
        self.windows = _windows("Fold", kernel_size, dilation, padding, stride)
        self.kernel_size, self.dilation = self.windows.kernel, self.windows.dilation
        self.padding, self.stride = self.windows.before, self.windows.stride
        self.windows.outputs(self.output_size)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        return scope.result(FoldWindows(self.windows, self.output_size), *inputs)

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size, **_config(self.windows)}


def _windows(kind: str, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Window:
    around = sizes(f"{kind} padding", padding, 2, 0)
    return Window(
        sizes(f"{kind} kernel_size", kernel_size, 2),
        sizes(f"{kind} stride", stride, 2),
        sizes(f"{kind} dilation", dilation, 2),
        around,
        around,
    )


def _config(windows: Window) -> dict[str, Any]:
    return {
        "kernel_size": windows.kernel,
        "dilation": windows.dilation,
        "padding": windows.before,
        "stride": windows.stride,
    }
