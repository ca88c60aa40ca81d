"""Pooling of any number of dimensions, as pooling of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glnn.array_functions import window_counts
from glnn.graph.builder import constant
from glnn.graph.compose.add import Add, joined, parted
from glnn.graph.compose.window import Sizes, Window
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operator import Constants, Types
from glnn.graph.operators import Pad, Pointwise, Pool2d, Squeeze, Unsqueeze
from glnn.graph.operators.host import Table
from glnn.symint import holds_symbols
from glnn.types import Array, DType, TensorType


def pooled(add: Add, x: Value, windows: Window, mode: str, divisor: int | None = None) -> Value:
    """The greatest number of each window, or the sum over `divisor`: one or two dimensions at a
    time, since both are separable.

    x: (n, c, ...), float32, of which only n may be unknown. mode: "max", or "average" with a
    divisor. Raises ShapeError where there is no window.
    """
    count = len(windows.kernel)
    if count == 1:
        y = pooled(add, add(Unsqueeze((2,)), x), windows.with_rows(), mode, divisor)
        return add(Squeeze((2,)), y)
    if count == 2:
        return of_images(add, x, windows, mode, divisor)
    c, depth = TensorType(x.type.dims[1:3]).shape
    sums = None if divisor is None else 1
    y = pooled(add, joined(add, x, 1, 2), windows.part(1, count), mode, sums)
    outs = TensorType(y.type.dims[2:]).shape
    y = joined(add, parted(add, y, 1, c, depth), 3, count - 1)
    y = pooled(add, y, windows.part(0, 1).with_columns(), mode, divisor)
    return parted(add, y, 3, *outs)


def of_images(
    add: Add, x: Value, windows: Window, mode: str, divisor: int | None, counted: bool = True
) -> Value:
    """The same of images, and without a divisor the mean: with the padding's zeros if `counted`."""
    sides = windows.sides
    if not _fit(windows):
        # More than Pool2d takes: what no sum and no maximum sees is put around x.
        fill = 0.0 if mode == "average" else -np.inf
        x = add(Pad((0, 0, *windows.before), (0, 0, *windows.after), "constant", fill), x)
        sides = (0, 0, 0, 0)
    op = Pool2d(
        mode,
        windows.kernel,  # type: ignore[arg-type]
        windows.stride,  # type: ignore[arg-type]
        sides,  # type: ignore[arg-type]
        windows.dilation,  # type: ignore[arg-type]
        windows.ceil,
        counted,
        divisor,
    )
    return add(op, x)


def averaged(add: Add, x: Value, windows: Window, *, counted: bool) -> Value:
    """The mean of each window of x (n, c, ...), float32, of which only n may be unknown.

    counted: whether zeros of the padding count. Raises ShapeError where there is no window.
    """
    sizes = TensorType(x.type.dims[2:]).shape
    if len(sizes) <= 2 and _fit(windows) and set(windows.dilation) == {1}:
        if len(sizes) == 2:
            return of_images(add, x, windows, "average", None, counted)
        rows = add(Unsqueeze((2,)), x)
        y = of_images(add, rows, windows.with_rows(), "average", None, counted)
        return add(Squeeze((2,)), y)
    sums = pooled(add, x, windows, "average", 1)
    table = WindowCounts(windows, sizes, counted)
    is_open = holds_symbols((windows.sides, sizes))
    counts = add(table) if is_open else constant(table.reference()[0])
    return add(Pointwise(call("div", Arg(0), Arg(1))), sums, counts)


def _fit(windows: Window) -> bool:
    """Return True where Pool2d takes the padding: known sizes, each at most half of the window."""
    pairs = zip(windows.sides, 2 * windows.kernel, strict=True)
    return not holds_symbols(windows.sides) and all(2 * side <= k for side, k in pairs)


@dataclass(frozen=True)
class WindowCounts(Table):
    """The number of elements that the mean of each window is over, float32."""

    name: ClassVar[str] = "window_counts"
    array_function: ClassVar[str] = "window_counts"
    windows: Window
    extents: Sizes
    """Spatial sizes of the tensor, all but the first two."""
    counted: bool
    """True where elements of the padding count, too."""

    @property
    def display_name(self) -> str:
        return "AveragePool"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.windows.outputs(self.extents), DType.float32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (window_counts(*self.array_attributes),)

    @property
    def array_attributes(self) -> tuple[Any, ...]:
        of = self.windows
        outs = of.outputs(self.extents)
        sides = of.before, of.after
        return self.extents, outs, of.kernel, of.stride, of.dilation, *sides, self.counted


def shared(add: Add, x: Value, mode: str, counts: tuple[int | None, ...]) -> Value:
    """The greatest number, or the mean, of each of so many windows that share x among them.

    x: (n, c, ...) of one to three dimensions more, float32, of which only n may be unknown. mode:
    "max" or "average". counts: for each of the dimensions, None for its own size. See `Pool2d`.
    """
    if len(counts) == 2:
        return add(Pool2d(mode, None, output=counts), x)
    if len(counts) == 1:
        return add(
            Squeeze((2,)), add(Pool2d(mode, None, output=(1, *counts)), add(Unsqueeze((2,)), x))
        )
    if all(count == 1 for count in counts):
        return add(Unsqueeze((2,)), add(Pool2d(mode, None), joined(add, x, 3, 2)))
    c, depth = TensorType(x.type.dims[1:3]).shape
    down, *others = counts
    y = add(Pool2d(mode, None, output=tuple(others)), joined(add, x, 1, 2))  # type: ignore[arg-type]
    outs = TensorType(y.type.dims[2:]).shape
    y = joined(add, parted(add, y, 1, c, depth), 3, 2)
    return parted(add, add(Pool2d(mode, None, output=(down, None)), y), 3, *outs)
