"""Nodes of a model that the host computes, of operands whose types are known."""

from __future__ import annotations

from dataclasses import dataclass

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
