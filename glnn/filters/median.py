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
"""The names that a Pad has for BORDERS."""
LOW, HIGH = call("minimum", Arg(0), Arg(1)), call("maximum", Arg(0), Arg(1))
SORTED = (
    call("minimum", LOW, Arg(2)),
    call("maximum", LOW, call("minimum", HIGH, Arg(2))),
    call("maximum", HIGH, Arg(2)),
)
"""The least, the middle one and the greatest of three."""


@dataclass(frozen=True)
class Median(Filter):
    """The median of 3 x 3 pixels."""

    name: ClassVar[str] = "median"
    border: str
    """A name of BORDERS."""

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
        result = median_of_nine(sketch, met)
        return (sketch.add(Pointwise(call("cast_uint8", Arg(0))), result) if of_bytes else result,)


def median_of_nine(sketch: Sketch, pixels: list[Value]) -> Value:
    """Return the median of three rows of three: where columns are sorted, only three values are
    candidates.

    No step has more than three operands, which is all that some devices bind at once; on others
    a plan makes one step of them.
    """
    columns = [pixels[i::3] for i in range(3)]
    least, middle, most = (
        [sketch.add(Pointwise(place), *column) for column in columns] for place in SORTED
    )
    greatest_least = sketch.add(Pointwise(SORTED[2]), *least)
    least_greatest = sketch.add(Pointwise(SORTED[0]), *most)
    central = sketch.add(Pointwise(SORTED[1]), *middle)
    return sketch.add(Pointwise(SORTED[1]), greatest_least, central, least_greatest)


def median(image: Array, border: str = "replicate", backend: str | Backend = "auto") -> Array:
    """The median of each pixel of `image` and its eight neighbours, channel by channel.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result is like it. OpenCV's
    `medianBlur` of size 3, which has no other border than "replicate"; scipy's `median_filter` of
    size 3 with `mode` "mirror" (reflect), "nearest" (replicate) or "constant". A NaN makes all
    that it is in NaN. Raises ShapeError for other arguments.
    """
    return Median(check_border("median", border))(image, backend)[0]
