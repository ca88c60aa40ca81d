"""What a program is told of how an operand lies in memory."""

from __future__ import annotations

from glnn.layout import Layout, Morton
from glnn.layout.layout import RowMajor
from glnn.types import Shape


def places(name: str, layout: Layout, shape: Shape) -> dict[str, int]:
    """The uniforms of the operand called `name`, an array of `shape` that lies in `layout`.

    Rows, columns and what a matrix of a stack takes count numbers, floats or halves.
    """
    found = {f"{name}_size": layout.size(shape)}
    if isinstance(layout, RowMajor):
        found[f"{name}_row"] = found[f"{name}_columns"] = layout.row(shape)
        found[f"{name}_rows"] = layout.rows(shape)
    elif isinstance(layout, Morton):
        rows, columns = layout.padded(shape)
        found[f"{name}_rows"], found[f"{name}_columns"] = rows, columns
        found[f"{name}_matrix"] = rows * columns
    return found
