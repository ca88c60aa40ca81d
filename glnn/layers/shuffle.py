"""Layers that move numbers between channels and places, or among channels."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph.compose.add import joined, parted
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Transpose
from glnn.layers.arguments import integer
from glnn.layers.layer import ANY, Layer
from glnn.layers.scope import Scope
from glnn.types import Dim


class PixelShuffle(Layer):
    """x of shape (..., c r², h, w) as (..., c, h r, w r), r being `upscale_factor`.

    The r² channels of a channel are the places of a square, row by row.
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
        at = len(x.type.dims) - 3
        x = parted(scope.add, x, at, c // r**2, r, r)
        order = (*range(at + 1), at + 3, at + 1, at + 4, at + 2)
        x = scope.add(Transpose(order), x)
        return scope.named(joined(scope.add, joined(scope.add, x, at + 3, 2), at + 1, 2))

    def config(self) -> dict[str, Any]:
        return {"upscale_factor": self.upscale_factor}


class PixelUnshuffle(Layer):
    """x of shape (..., c, h r, w r) as (..., c r², h, w), r being `downscale_factor`.

    What PixelShuffle does, backwards.
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
        at = len(x.type.dims) - 3
        x = parted(scope.add, parted(scope.add, x, at + 2, w // r, r), at + 1, h // r, r)
        order = (*range(at + 1), at + 2, at + 4, at + 1, at + 3)
        return scope.named(joined(scope.add, scope.add(Transpose(order), x), at, 3))

    def config(self) -> dict[str, Any]:
        return {"downscale_factor": self.downscale_factor}


class ChannelShuffle(Layer):
    """x of shape (n, c, ...) with the channels of `groups` groups in turn, one of each."""

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
        x = parted(scope.add, x, 1, groups, c // groups)
        x = scope.add(Transpose((0, 2, 1, *range(3, len(dims) + 1))), x)
        return scope.named(joined(scope.add, x, 1, 2))

    def config(self) -> dict[str, Any]:
        return {"groups": self.groups}


def _image(kind: str, x: tuple[Dim, ...]) -> tuple[int, int, int]:
    """The channels, the height and the width of x. Raises ShapeError where it has none."""
    if len(x) < 3 or not all(isinstance(dim, int) for dim in x[-3:]):
        raise ShapeError(f"{kind}: x must have shape (..., c, h, w), got {x}")
    c, h, w = x[-3:]
    return c, h, w  # type: ignore[return-value]
