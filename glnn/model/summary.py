"""A model as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from glnn.errors import printable
from glnn.model.node import Node
from glnn.model.tensor import TensorInfo, show
from glnn.types import DType


def _typed(info: TensorInfo) -> str:
    """Its shape, and its type where that is not float32."""
    kind = "" if info.dtype is DType.float32 else f"{info.dtype.value} "
    return kind + show(info.shape)


def summary(
    name: str,
    nodes: Sequence[Node],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[str],
    tensors: Mapping[str, TensorInfo],
) -> str:
    """One line for each layer: name, kind, output shape and number of parameters.

    tensors: all that the layers make, by name.
    """
    rows = [("layer", "kind", "output", "parameters")]
    total = 0
    for node in nodes:
        count = sum(prod(shape) for shape in node.layer.shapes.values())
        total += count
        shape = show(tensors[node.output].shape)
        rows.append((node.name, type(node.layer).__name__, shape, f"{count:,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    taken = ", ".join(f"{info.name} {_typed(info)}" for info in inputs)
    lines = [f"{name}: {taken} -> {', '.join(outputs)}, {total:,} parameters"]
    for *texts, count_text in rows:
        cells = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
        lines.append("  ".join([*cells, count_text.rjust(10)]))
    return "\n".join(printable(line.replace("\n", " ")) for line in lines)
