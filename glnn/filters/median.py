"""The median of each pixel and its eight neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glnn.backends import Backend
from glnn.filters.filter import Filter, Sketch
from glnn.filters.image import axes, check_border
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Value
from glnn.graph.index_map import Edge
from glnn.graph.operators import Pad, Pointwise, Slice
from glnn.types import Array, DType

EDGE: dict[str, Edge] = {"reflect": "reflect", "replicate": "edge", "constant": "constant"}
"""What a Pad calls BORDERS."""


@dataclass(frozen=True)
class Median(Filter):
    """The median of 3 x 3 pixels."""

    name: ClassVar[str] = "median"
    border: str
    """One of BORDERS."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        shape, along = x.type.shape, axes(x.type.shape)
        of_bytes = x.type.dtype is DType.uint8
        wide = sketch.add(Pointwise(call("cast_int32", Arg(0))), x) if of_bytes else x
        around = tuple(int(axis in along) for axis in range(len(shape)))
        padded = sketch.add(Pad(around, around, EDGE[self.border]), wide)
        columns, rows = along
        met = [
            sketch.add(
                Slice(
                    (top, left), (top + shape[rows], left + shape[columns]), (rows, columns), (1, 1)
                ),
                padded,
            )
            for top in range(3)
            for left in range(3)
        ]
        middle = median_of_nine([Arg(i) for i in range(9)])
        return (sketch.add(Pointwise(call("cast_uint8", middle) if of_bytes else middle), *met),)


def median_of_nine(pixels: list[Expr]) -> Expr:
    """That of three rows of three: each column is sorted, then only three can be the median."""
    columns = [_sorted(*pixels[i::3]) for i in range(3)]
    least, middle, most = ([column[i] for column in columns] for i in range(3))
    greatest_least = call("maximum", call("maximum", least[0], least[1]), least[2])
    least_greatest = call("minimum", call("minimum", most[0], most[1]), most[2])
    return _middle(greatest_least, _middle(*middle), least_greatest)


def _sorted(a: Expr, b: Expr, c: Expr) -> tuple[Expr, Expr, Expr]:
    low, high = call("minimum", a, b), call("maximum", a, b)
    rest = call("minimum", high, c)
    return call("minimum", low, c), call("maximum", low, rest), call("maximum", high, c)


def _middle(a: Expr, b: Expr, c: Expr) -> Expr:
    return _sorted(a, b, c)[1]


def median(image: Array, border: str = "replicate", backend: str | Backend = "auto") -> Array:
    """The median of each pixel of `image` and its eight neighbours, channel by channel.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result is like it. OpenCV's
    `medianBlur` of size 3, which has no other border than "replicate"; scipy's `median_filter` of
    size 3 with `mode` "mirror" (reflect), "nearest" (replicate) or "constant". A NaN makes all
    that it is in NaN. Raises ShapeError for other arguments.
    """
    return Median(check_border("median", border))(image, backend)[0]
