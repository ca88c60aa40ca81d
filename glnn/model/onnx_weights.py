"""Weights of an .onnx file, and its graph with these as variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.onnx.node import OnnxOperator
from glnn.types import Array, DType, TensorType

STATISTICS = {"BatchNormalization": slice(3, 5)}
"""Operands that are running statistics, the mean and the variance, by operator."""


@dataclass(frozen=True, eq=False)
class AsVariable:
    """A constant that stands for a `graph.Variable`."""

    array: Array
    """The array."""
    revision: int = 0
    """They are never assigned."""

    @property
    def type(self) -> TensorType:
        """The array's type."""
        return TensorType.of(self.array)

    def read(self) -> Array:
        """Return the array."""
        return self.array


def weights(graph: Graph) -> tuple[Value, ...]:
    """The constants of `graph` that training changes, in the order in which nodes read them.

    They are float32 and have a dimension at least: a number by itself is an epsilon, a bound or a
    scale that somebody wrote. None of them is a running statistic, or what sizes follow from.
    """
    found: dict[Value, None] = {}
    others: set[Value] = set()
    for node in graph.nodes:
        found |= dict.fromkeys(value for value in node.reads if _may_be(value))
        others.update(_statistics(node))
        asked = node.operator.asked
        named = node.operator.named(node.inputs) if asked else {}
        others.update(named[name] for name in asked if name in named)
    return tuple(value for value in found if value not in others)


def with_variables(graph: Graph, chosen: tuple[Value, ...]) -> Graph:
    """`graph` with variables of the same names for the constants `chosen`."""
    here: Mapping[Value | None, Value] = {
        value: replace(value, kind=Kind.VARIABLE, data=AsVariable(value.data))  # type: ignore[arg-type]
        for value in chosen
    }
    nodes = tuple(
        replace(node, inputs=tuple(here.get(value, value) for value in node.inputs))
        for node in graph.nodes
    )
    outputs = tuple(here.get(value, value) for value in graph.outputs)
    return Graph(nodes, graph.inputs, outputs, graph.name)


def _may_be(value: Value) -> bool:
    plain = value.kind is Kind.CONSTANT and value.type.dtype is DType.float32
    return plain and len(value.type.dims) > 0


def _statistics(node: Node) -> tuple[Value, ...]:
    kind = node.operator.op_type if isinstance(node.operator, OnnxOperator) else ""
    return tuple(v for v in node.inputs[STATISTICS.get(kind, slice(0))] if v is not None)
