"""What a program is told of how an operand lies in memory."""

from __future__ import annotations

from glnn.layout import Layout, Morton, Strip
from glnn.layout.layout import CHANNELS_LAST, RowMajor
from glnn.types import Shape


def places(name: str, layout: Layout, shape: Shape) -> dict[str, int]:
    """The uniforms of the operand called `name`, an array of `shape` that lies in `layout`.

    Rows, columns, pixels and what a matrix of a stack takes count numbers, floats or halves; so
    does the place of the first of all, which is not 0 where it lies among others.
    """
    found = {f"{name}_size": layout.size(shape), f"{name}_first": layout.first}
    if isinstance(layout, Strip):
        alone = places(name, layout.whole, shape)
        apart = {key: layout.wide for key in alone if key.endswith(("_row", "_columns", "_pixel"))}
        return {**alone, **found, **apart}
    if isinstance(layout, RowMajor):
        found[f"{name}_row"] = found[f"{name}_columns"] = layout.row(shape)
        found[f"{name}_rows"] = layout.rows(shape)
    elif isinstance(layout, Morton):
        rows, columns = layout.padded(shape)
        found[f"{name}_rows"], found[f"{name}_columns"] = rows, columns
        found[f"{name}_matrix"] = rows * columns
    elif layout.name == CHANNELS_LAST:
        found[f"{name}_pixel"] = -(-shape[1] // 4) * 4
    return found
