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
    """Of the results."""
    why: str
    """Why the host computes it."""

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
    given: Sequence[Value | None],
    types: Sequence[TensorType],
) -> Graph:
    """Return a graph of one operator, or its results where all numbers are known and they are few.

    types: those of the results. Random numbers are none that are known.
    """
    operands = tuple(value for value in given if value is not None)
    inputs = tuple(dict.fromkeys(v for v in operands if v.kind is not Kind.CONSTANT))
    most = FOLDED + GROWTH * sum(value.type.nbytes for value in operands)
    known = operands and not inputs and not operator.random
    if known and sum(type.nbytes for type in types) <= most:
        found = operator.reference(*(value.data for value in operands))  # type: ignore[arg-type]
        constants = tuple(
            Value(f"result {i}", type if type.holds else TensorType.of(array), Kind.CONSTANT, array)
            for i, (array, type) in enumerate(zip(found, types, strict=True))
        )
        return Graph((), (), constants, op_type)
    results = tuple(Value(f"result {i}", type) for i, type in enumerate(types))
    return Graph((Node(op_type, operator, operands, results),), inputs, results, op_type)
