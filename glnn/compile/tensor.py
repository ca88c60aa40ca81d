"""Tensors of a schedule, and whether they can be had in another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from glnn.backends.backend import Backend
from glnn.graph.operator import Operator
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.problem import Problem
from glnn.layout import Layout
from glnn.layout.layout import RowMajor
from glnn.types import DType, Shape, TensorType, widened


@dataclass(frozen=True)
class Tensor:
    """A tensor: several share the memory called `memory` where an operator is only a view.

    offset: the word of that memory that it begins at, where others lie beside it; None else.
    """

    type: TensorType
    layout: Layout
    memory: str
    offset: int | None = None

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.type.shape

    @property
    def unpacked(self) -> Tensor:
        """What it is once each of its numbers takes a word, where kernels compute with it."""
        if self.layout == self.layout.unpacked:
            return self
        return replace(self, type=widened(self.type), layout=self.layout.unpacked)


def unpacked(op: Operator, operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors that `operands` must be for kernels of `op`: packed ones some cannot take."""
    rows = all(tensor.layout.in_rows for tensor in operands.values())
    if isinstance(op, Pointwise) and rows:
        return operands
    return {name: tensor.unpacked for name, tensor in operands.items()}


def reorder(type: TensorType, source: Layout, target: Layout) -> Problem:
    """The problem of moving a tensor from one layout to another."""
    return Problem.of(Reorder(source.name, target.name), {"x": type}, {"x": source.name})


def can_reorder(backend: Backend, type: TensorType, lies: Layout, wanted: Layout) -> bool:
    """Whether launches take a tensor from `lies` to `wanted`, those that pack by moves aside."""
    if lies == wanted or (isinstance(lies, RowMajor) and isinstance(wanted, RowMajor)):
        return True
    if type.dtype is not DType.float32:
        return True  # by moves
    return backend.why_not(reorder(type, lies, wanted)) is None
