"""Unfold and fold: windows as columns of a matrix, and columns added up at their windows'
places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.add import Add, joined
from glnn.graph.compose.window import Sizes, Window
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator, Types
from glnn.graph.operators import Expand, Gather, Pad, Reshape, ScatterND, Slice, Transpose
from glnn.types import MOST, UNKNOWN, Array, TensorType


def unfold(add: Add, x: Value, windows: Window) -> Value:
    """The numbers of each window: (n, c taps, windows), the taps of a channel one after the other.

    x: (n, c, ...), of which only n may be unknown. Raises ShapeError where there is no window.
    """
    sizes = TensorType(x.type.dims[2:]).shape
    count, outs = len(sizes), windows.outputs(sizes)
    if prod(windows.kernel) * prod(outs) > MOST:
        raise ShapeError(f"{prod(outs)} windows {windows.kernel} have more than {MOST} numbers")
    if any(windows.sides):
        x = add(Pad((0, 0, *windows.before), (0, 0, *windows.after)), x)
    for axis in reversed(range(count)):
        x = add(Gather(2 + axis), x, constant(along(windows, outs, axis).astype(np.int32)))
    taps, places = range(2, 2 * count + 2, 2), range(3, 2 * count + 2, 2)
    x = add(Transpose((0, 1, *taps, *places)), x)
    return joined(add, joined(add, x, count + 2, count), 1, count + 1)


def along(windows: Window, outs: Sizes, axis: int) -> Array:
    """Return the place of each tap of each window in the padded dimension, (taps, windows)."""
    taps = np.arange(windows.kernel[axis]) * windows.dilation[axis]
    return np.add.outer(taps, np.arange(outs[axis]) * windows.stride[axis])


def fold(add: Add, x: Value, windows: Window, sizes: Sizes) -> Value:
    """Add each number of x (n, c taps, windows) to the place of its window's tap.

    The result is (n, c, *sizes), and all sizes of x are known. What falls into the padding is left
    out. Raises ShapeError where x is not of such windows.
    """
    n, rows, count = x.type.shape
    taps, outs = prod(windows.kernel), windows.outputs(sizes)
    if rows % taps or count != prod(outs):
        raise ShapeError(
            f"x {x.type} is not of windows {windows.kernel} on {sizes}: it must have shape "
            f"(n, c * {taps}, {prod(outs)})"
        )
    channels = rows // taps
    padded = tuple(a + n + b for a, n, b in zip(windows.before, sizes, windows.after, strict=True))
    at = np.zeros((1, 1), np.int64)
    for axis, size in enumerate(padded):
        own = along(windows, outs, axis)
        at = (at[:, None, :, None] * size + own[:, None]).reshape(len(at) * len(own), -1)
    updates = add(Transpose((2, 3, 0, 1)), add(Reshape((n, channels, taps, count), True), x))
    zeros = add(Expand((prod(padded), n, channels)), constant(np.zeros((), x.type.dtype.numpy)))
    index = constant(at[..., None].astype(np.int32))
    found = add(Transpose((1, 2, 0)), add(ScatterND("add"), zeros, index, updates))
    found = add(Reshape((n, channels, *padded), True), found)
    if padded == sizes:
        return found
    ends = tuple(a + n for a, n in zip(windows.before, sizes, strict=True))
    axes = tuple(range(2, len(sizes) + 2))
    return add(Slice(windows.before, ends, axes, (1,) * len(sizes)), found)


@dataclass(frozen=True, eq=False)
class Fold(Composite):
    """The composite of `fold`, whose graph is built once all sizes are known."""

    name: ClassVar[str] = "fold"
    variadic: ClassVar[bool] = False
    windows: Window
    into: Sizes
    """The sizes of the result behind n and c."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def required(self) -> tuple[str, ...]:
        return ("x",)

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        first = x.dims[0] if x.ranked and x.dims else UNKNOWN
        return (TensorType((first, UNKNOWN, *self.into), x.dtype),)

    def expand(self, operands: Sequence[Value | None]) -> Graph:
        builder = Builder(self.name)
        x = builder.take(self.named(operands)["x"])
        if len(x.type.dims) != 3:
            raise ShapeError(f"fold: x must have shape (n, c * taps, windows), got {x.type.dims}")

        def add(operator: Operator, *inputs: Value) -> Value:
            return builder.add(operator, *inputs, name=operator.name)[0]

        return builder.graph([fold(add, x, self.windows, self.into)])
