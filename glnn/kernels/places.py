"""The uniforms that describe an operand's memory layout to a program."""

from __future__ import annotations

from glnn.layout import Layout, Morton, Strip
from glnn.layout.layout import CHANNELS_LAST, RowMajor
from glnn.types import Shape


def places(name: str, layout: Layout, shape: Shape) -> dict[str, int]:
    """Return the layout uniforms of the operand `name`, an array of `shape` stored in `layout`.

    All strides (`_row`, `_columns`, `_pixel`, `_matrix`) and the offset `_first` count elements,
    floats or halves. The offset is not 0 where the operand is a channel range of wider images.
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
