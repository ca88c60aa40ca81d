"""The median of each pixel and its eight neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glnn.backends import Backend
from glnn.core.types import Array, DType
from glnn.filters.filter import Filter, Sketch, axes, check_border
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.index_map import Edge
from glnn.graph.operators import Pad, Pointwise, Slice

EDGE: dict[str, Edge] = {"reflect": "reflect", "replicate": "edge", "constant": "constant"}
"""Edge modes of `Pad`, by BORDERS."""
LOW, HIGH = call("minimum", Arg(0), Arg(1)), call("maximum", Arg(0), Arg(1))
SORTED = (
    call("minimum", LOW, Arg(2)),
    call("maximum", LOW, call("minimum", HIGH, Arg(2))),
    call("maximum", HIGH, Arg(2)),
)
"""The least, middle and greatest of three values."""


@dataclass(frozen=True)
class Median(Filter):
    """The median of 3 x 3 pixels."""

    name: ClassVar[str] = "median"
    border: str
    """A name of BORDERS."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        shape = x.type.shape
        columns, rows = axes(shape)
        is_bytes = x.type.dtype is DType.uint8
        wide = sketch.add(Pointwise(call("cast_int32", Arg(0))), x) if is_bytes else x
        padding = tuple(int(axis in (columns, rows)) for axis in range(len(shape)))
        padded = sketch.add(Pad(padding, padding, EDGE[self.border]), wide)
        neighbours = [
            sketch.add(
                Slice(
                    (top, left), (top + shape[rows], left + shape[columns]), (rows, columns), (1, 1)
                ),
                padded,
            )
            for top in range(3)
            for left in range(3)
        ]
        result = median_of_nine(sketch, neighbours)
        return (sketch.add(Pointwise(call("cast_uint8", Arg(0))), result) if is_bytes else result,)


def median_of_nine(sketch: Sketch, pixels: list[Value]) -> Value:
    """Return the median of three rows of three.

    Once columns are sorted, it is the median of three candidates: the greatest minimum, the middle
    median and the least maximum of the columns. No operator has more than three operands, as some
    devices bind no more; on other devices the plan fuses them.
    """
    columns = [pixels[i::3] for i in range(3)]
    minima, medians, maxima = (
        [sketch.add(Pointwise(ranked), *column) for column in columns] for ranked in SORTED
    )
    greatest_minimum = sketch.add(Pointwise(SORTED[2]), *minima)
    least_maximum = sketch.add(Pointwise(SORTED[0]), *maxima)
    middle_median = sketch.add(Pointwise(SORTED[1]), *medians)
    return sketch.add(Pointwise(SORTED[1]), greatest_minimum, middle_median, least_maximum)


def median(image: Array, border: str = "replicate", backend: str | Backend = "auto") -> Array:
    """Return the median of each pixel of `image` and its eight neighbours, channel by channel.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result has its shape and dtype.
    Equal to OpenCV's `medianBlur` of size 3, which has only the border "replicate", and to scipy's
    `median_filter` of size 3 with `mode` "mirror" (reflect), "nearest" (replicate) or "constant". A
    NaN makes each result that reads it NaN. Raises ShapeError for other arguments.
    """
    return Median(check_border("median", border))(image, backend)[0]
