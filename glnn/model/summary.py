"""A model as a table for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from glnn.errors import printable
from glnn.graph.graph import Graph, Kind, Value
from glnn.model.node import Node
from glnn.tensor_info import TensorInfo, show
from glnn.types import DType


def _type_text(info: TensorInfo) -> str:
    """Return the shape, and the type where that is not float32."""
    if info.holds:
        return info.holds
    kind = "" if info.dtype is DType.float32 else f"{info.dtype.value} "
    return kind + show(info.shape)


Row = tuple[str, str, str, int]
"""A layer: its name and kind, the shape of its output, and how many numbers its parameters have."""


def of_layers(nodes: Sequence[Node], tensors: Mapping[str, TensorInfo]) -> list[Row]:
    """Return the rows of a model's layers. tensors: all that these make, by name."""
    return [
        (
            node.name,
            type(node.layer).__name__,
            " ".join(show(tensors[name].shape) for name in node.outputs),
            sum(prod(shape) for shape in node.layer.shapes.values()),
        )
        for node in nodes
    ]


def of_graph(graph: Graph, named: Collection[str]) -> list[Row]:
    """Return the rows of a graph's nodes; a constant counts where it is read first.

    Sizes and places (int64), and single numbers that are none of those `named`, are no parameters.
    """
    seen: set[Value] = set()
    rows: list[Row] = []
    for node in graph.nodes:
        read = [v for v in node.reads if v.kind is Kind.CONSTANT and v not in seen]
        seen.update(read)
        shapes_read = [
            value.type.shape
            for value in read
            if value.type.dtype is not DType.int64 and (value.type.shape or value.name in named)
        ]
        count = sum(map(prod, shapes_read))
        shapes = " ".join(show(value.type.dims) for value in node.outputs)
        rows.append((node.name, str(node.operator), shapes, count))
    return rows


def summary(
    name: str, layers: Sequence[Row], inputs: Sequence[TensorInfo], outputs: Sequence[str]
) -> str:
    """Return a table as text, a line for each layer: name, kind, output shape and number of
    parameters.
    """
    total = sum(count for *_, count in layers)
    rows = [("layer", "kind", "output", "parameters")]
    rows += [(*texts, f"{count:,}") for *texts, count in layers]  # type: ignore[misc]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    taken = ", ".join(f"{info.name} {_type_text(info)}" for info in inputs)
    lines = [f"{name}: {taken} -> {', '.join(outputs)}, {total:,} parameters"]
    for *texts, count_text in rows:
        cells = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
        lines.append("  ".join([*cells, count_text.rjust(10)]))
    return "\n".join(printable(line.replace("\n", " ")) for line in lines)
