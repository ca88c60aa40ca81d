"""A model as a table for people."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from glnn.errors import printable
from glnn.model.tensor import show

if TYPE_CHECKING:
    from glnn.model.model import Model


def summary(model: Model) -> str:
    """One line for each layer: name, kind, output shape and number of parameters."""
    rows = [("layer", "kind", "output", "parameters")]
    total = 0
    for node in model.nodes:
        count = sum(prod(shape) for shape in node.layer.shapes.values())
        total += count
        shape = show(model.tensors[node.output].shape)
        rows.append((node.name, type(node.layer).__name__, shape, f"{count:,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    inputs = ", ".join(f"{info.name} {show(info.shape)}" for info in model.inputs)
    lines = [f"{model.name}: {inputs} -> {', '.join(model.outputs)}, {total:,} parameters"]
    for *texts, count_text in rows:
        cells = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
        lines.append("  ".join([*cells, count_text.rjust(10)]))
    return "\n".join(printable(line.replace("\n", " ")) for line in lines)
