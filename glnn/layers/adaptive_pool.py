"""Pooling layers of a given size of the result, of one to three dimensions."""

from __future__ import annotations

from typing import Any, ClassVar

from glnn.errors import ShapeError
from glnn.graph.compose.pool import shared
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Pool2d
from glnn.layers.arguments import IntsOrNone, axis_names, only, sizes_or_none
from glnn.layers.layer import Layer
from glnn.layers.scope import Scope


class AdaptivePool(Layer):
    """Pooling of x of shape (n, c, ...) over a fixed number of windows that share x.

    output_size: how many there are along each dimension, or one number for all; None is x's own
    size. Of m windows the i-th has the places from floor(i size / m) up to
    ceil((i + 1) size / m).
    """

    count: ClassVar[int]
    """The number of spatial dimensions of x."""
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

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if len(x.type.dims) != self.count + 2:
            wanted = f"(n, c, {axis_names(self.count)})"
            raise ShapeError(
                f"{type(self).__name__}: x must have shape {wanted}, got {x.type.dims}"
            )
        if isinstance(self.op, Pool2d):
            return scope.result(self.op, x)
        return scope.named(shared(scope.add, x, self.mode, self.output_size))

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size}


class AdaptiveAvgPool1d(AdaptivePool):
    """The mean of each window that shares x of shape (n, c, l): see `AdaptivePool`."""

    count, mode = 1, "average"


class AdaptiveAvgPool2d(AdaptivePool):
    """The mean of each window that shares x of shape (n, c, h, w): see `AdaptivePool`."""

    count, mode = 2, "average"


class AdaptiveAvgPool3d(AdaptivePool):
    """The mean of each window that shares x of shape (n, c, d, h, w): see `AdaptivePool`."""

    count, mode = 3, "average"


class AdaptiveMaxPool(AdaptivePool):
    """The largest value of each window: what those of one to three dimensions share.

    return_indices: False, as a layer has one result. The rest is as `AdaptivePool` has it.
    """

    mode = "max"

    def __init__(self, output_size: IntsOrNone, return_indices: bool = False) -> None:
        what = f"{type(self).__name__} return_indices"
        only(what, return_indices, False, "a layer has one result")
        super().__init__(output_size)


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    """The largest of each window that shares x of shape (n, c, l): see `AdaptivePool`."""

    count = 1


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    """The largest of each window that shares x of shape (n, c, h, w): see `AdaptivePool`."""

    count = 2


class AdaptiveMaxPool3d(AdaptiveMaxPool):
    """The largest of each window that shares x of shape (n, c, d, h, w): see `AdaptivePool`."""

    count = 3
