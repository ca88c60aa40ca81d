"""What a program is told of how an operand lies in memory."""

from __future__ import annotations

from glnn.layout import Layout, Morton
from glnn.layout.half import Half
from glnn.layout.layout import RowMajor
from glnn.types import Shape


def places(name: str, layout: Layout, shape: Shape) -> dict[str, int]:
    """The uniforms of the operand called `name`, an array of `shape` that lies in `layout`.

    Rows, columns and what a matrix of a stack takes count numbers, floats or halves.
    """
    found = {f"{name}_size": layout.size(shape)}
    plain = layout.inner if isinstance(layout, Half) else layout
    if isinstance(plain, RowMajor):
        found[f"{name}_row"] = found[f"{name}_columns"] = plain.row(shape)
        found[f"{name}_rows"] = plain.rows(shape)
    elif isinstance(plain, Morton):
        rows, columns = plain.padded(shape)
        found[f"{name}_rows"], found[f"{name}_columns"] = rows, columns
        found[f"{name}_matrix"] = rows * columns
    return found
