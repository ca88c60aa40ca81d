"""Nodes of a model that the host computes, of operands whose types are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glnn.graph.graph import FOLDED, GROWTH, Graph, Kind, Node, Value
from glnn.graph.operator import Cost, Known, Types
from glnn.graph.operators.host import HostOperator
from glnn.types import TensorType


@dataclass(frozen=True, eq=False)
class HostNode(HostOperator):
    """A node of a model that only the host computes."""

    op_type: str
    """ONNX's name."""
    types: tuple[TensorType, ...]
    """The types of the results."""
    why: str
    """The reason why the host computes it."""

    @property
    def called(self) -> str:
        return self.op_type

    @property
    def reason(self) -> str:
        return self.why

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        return self.types

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def host_graph(
    op_type: str,
    operator: HostNode,
    operands: Sequence[Value | None],
    types: Sequence[TensorType],
) -> Graph:
    """Return a graph of one operator, or its results where all numbers are known and they are few.

    types: those of the results. Random numbers are none that are known.
    """
    present = tuple(value for value in operands if value is not None)
    inputs = tuple(dict.fromkeys(v for v in present if v.kind is not Kind.CONSTANT))
    most = FOLDED + GROWTH * sum(value.type.nbytes for value in present)
    known = present and not inputs and not operator.random
    if known and sum(type.nbytes for type in types) <= most:
        found = operator.reference(*(value.data for value in present))  # type: ignore[arg-type]
        constants = tuple(
            Value(f"result {i}", type if type.holds else TensorType.of(array), Kind.CONSTANT, array)
            for i, (array, type) in enumerate(zip(found, types, strict=True))
        )
        return Graph((), (), constants, op_type)
    results = tuple(Value(f"result {i}", type) for i, type in enumerate(types))
    return Graph((Node(op_type, operator, present, results),), inputs, results, op_type)
