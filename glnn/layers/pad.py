"""Layers that pad one to three dimensions of x."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import MOST, Dim, DType
from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.graph import Value
from glnn.graph.index_map import Edge
from glnn.graph.operators import Identity
from glnn.layers.arguments import Ints, Sizes, axis_names, index, is_list, number
from glnn.layers.layer import ANY, Layer, Scope


class Pad(Layer):
    """x of shape (n, c, ...), padded along its last dimensions; a negative padding crops it.

    padding: the elements to add before and after the last dimension, then those of the dimension
    before it, and so on; one integer stands for all. before, after: the same, an integer for each
    dimension in x's order.
    """

    takes = ANY
    count: ClassVar[int]
    """The number of padded dimensions."""
    edge: ClassVar[Edge]
    """The edge mode of `operators.Pad`."""
    value: float | int = 0
    """The number that pads x in the edge mode "constant"."""

    def __init__(self, padding: Ints) -> None:
        what, many = f"{type(self).__name__} padding", 2 * self.count
        if is_list(padding) and len(padding) != many:
            raise ShapeError(f"{what} must be an integer or {many} of them, got {shown(padding)}")
        sides: Sequence[object] = padding if is_list(padding) else (padding,) * many
        self.padding: Sizes = tuple(index(what, one) for one in sides)
        if any(abs(one) > MOST for one in self.padding):
            raise ShapeError(f"{what} must be integers of at most {MOST}, got {shown(padding)}")
        self.before, self.after = self.padding[-2::-2], self.padding[::-2]
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        self._check(x.type.dims)
        for before, after, edge in self.steps:
            if any((*before, *after)):
                none = (0,) * (len(x.type.dims) - self.count)
                fill = self._fill(x.type.dtype)
                x = scope.add(operators.Pad((*none, *before), (*none, *after), edge, fill), x)
        return scope.named(x)

    @property
    def steps(self) -> tuple[tuple[Sizes, Sizes, Edge], ...]:
        """The operations that pad x: (before, after, edge) of each.

        Negative paddings are a second operation, constant pads that crop; circular padding crops
        first, as it repeats what remains. In the edge mode "constant" one operation does both.
        """
        if self.edge == "constant":
            return ((self.before, self.after, self.edge),)
        pad: tuple[Sizes, Sizes, Edge] = (_positive(self.before), _positive(self.after), self.edge)
        negative = tuple(min(n, 0) for n in self.before), tuple(min(n, 0) for n in self.after)
        crop: tuple[Sizes, Sizes, Edge] = (*negative, "constant")
        return (crop, pad) if self.edge == "wrap" else (pad, crop)

    def _fill(self, dtype: DType) -> float | int | bool:
        """Return the value as a number of `dtype`. Raises ShapeError where it is none."""
        if dtype.kind == "float":
            return float(self.value)
        integer = int(self.value) if abs(self.value) <= MOST else None
        if integer != self.value or np.array(integer).astype(dtype.numpy) != integer:
            what = f"{type(self).__name__} value {self.value} is no number of x, {dtype.value}"
            raise ShapeError(what)
        return bool(integer) if dtype.kind == "bool" else integer

    def _check(self, x: tuple[Dim, ...]) -> None:
        """Raise ShapeError where x has too few dimensions or elements."""
        kind = type(self).__name__
        if len(x) <= self.count or (self.edge != "constant" and len(x) > self.count + 2):
            raise ShapeError(f"{kind}: x must have shape (n, c, {axis_names(self.count)}), got {x}")
        reach = {"reflect": 1, "wrap": 0}.get(self.edge, -inf)
        for n, before, after in zip(x[-self.count :], self.before, self.after, strict=True):
            if not isinstance(n, int):
                continue
            source_size = n + min(before, 0) + min(after, 0) if self.edge == "wrap" else n
            if max(before, after) + reach > source_size:
                raise ShapeError(f"{kind}: padding {self.padding} reaches beyond x of shape {x}")
            if n + before + after < 1:
                raise ShapeError(f"{kind}: padding {self.padding} leaves nothing of x {x}")

    def config(self) -> dict[str, Any]:
        return {"padding": self.padding}


def _positive(sides: Sizes) -> Sizes:
    return tuple(max(n, 0) for n in sides)


class ZeroPad(Pad):
    """x padded with zeros: the base of ZeroPad1d, ZeroPad2d and ZeroPad3d."""

    edge = "constant"


class ZeroPad1d(ZeroPad):
    """x of shape (n, c, l), padded with zeros: see `Pad`."""

    count = 1


class ZeroPad2d(ZeroPad):
    """x of shape (n, c, h, w), padded with zeros: see `Pad`."""

    count = 2


class ZeroPad3d(ZeroPad):
    """x of shape (n, c, d, h, w), padded with zeros: see `Pad`."""

    count = 3


class ConstantPad(Pad):
    """x padded with `value`: the base of ConstantPad1d, ConstantPad2d and ConstantPad3d.

    value: an integer where x has integers. padding: see `Pad`.
    """

    edge = "constant"

    def __init__(self, padding: Ints, value: float) -> None:
        infinite = isinstance(value, (float, np.floating)) and abs(value) == inf
        what = f"{type(self).__name__} value"
        self.value = float(value) if infinite else number(what, value, -inf)
        super().__init__(padding)

    def config(self) -> dict[str, Any]:
        return {"padding": self.padding, "value": self.value}


class ConstantPad1d(ConstantPad):
    """x of shape (n, c, l), padded with `value`: see `Pad`."""

    count = 1


class ConstantPad2d(ConstantPad):
    """x of shape (n, c, h, w), padded with `value`: see `Pad`."""

    count = 2


class ConstantPad3d(ConstantPad):
    """x of shape (n, c, d, h, w), padded with `value`: see `Pad`."""

    count = 3


class ReflectionPad(Pad):
    """x padded with its reflection at the first and last element: the base of ReflectionPad1d,
    ReflectionPad2d and ReflectionPad3d.
    """

    edge = "reflect"


class ReflectionPad1d(ReflectionPad):
    """x of shape (n, c, l), padded with its reflection: see `Pad`."""

    count = 1


class ReflectionPad2d(ReflectionPad):
    """x of shape (n, c, h, w), padded with its reflection: see `Pad`."""

    count = 2


class ReflectionPad3d(ReflectionPad):
    """x of shape (n, c, d, h, w), padded with its reflection: see `Pad`."""

    count = 3


class ReplicationPad(Pad):
    """x padded with its first and last element: the base of ReplicationPad1d, ReplicationPad2d and
    ReplicationPad3d.
    """

    edge = "edge"


class ReplicationPad1d(ReplicationPad):
    """x of shape (n, c, l), padded with its edges: see `Pad`."""

    count = 1


class ReplicationPad2d(ReplicationPad):
    """x of shape (n, c, h, w), padded with its edges: see `Pad`."""

    count = 2


class ReplicationPad3d(ReplicationPad):
    """x of shape (n, c, d, h, w), padded with its edges: see `Pad`."""

    count = 3


class CircularPad(Pad):
    """x padded with the elements of its opposite side: the base of CircularPad1d, CircularPad2d and
    CircularPad3d.
    """

    edge = "wrap"


class CircularPad1d(CircularPad):
    """x of shape (n, c, l), padded circularly: see `Pad`."""

    count = 1


class CircularPad2d(CircularPad):
    """x of shape (n, c, h, w), padded circularly: see `Pad`."""

    count = 2


class CircularPad3d(CircularPad):
    """x of shape (n, c, d, h, w), padded circularly: see `Pad`."""

    count = 3
