"""Operators that ONNX defines by functions of other operators, once operand types are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.onnx.block import Block
from glnn.onnx.delegated import Delegate
from glnn.types import TensorType


@dataclass(frozen=True, eq=False)
class FunctionNode(Composite):
    """An operator that ONNX defines by a function, which depends on the operands' types."""

    op_type: str
    """ONNX's name."""
    block: Callable[[Types], Block]
    """Function that returns the nodes for operand types. Raises ShapeError where ONNX has none."""
    free: tuple[str, ...]
    """The names of the values that subgraphs of the node capture: the last operands."""
    delegate: Delegate
    """The `onnx` package's."""

    opens: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.op_type

    def express(self, given: Sequence[Value | None]) -> Graph:
        count = len(given) - len(self.free)
        try:
            block = self.block([None if v is None else v.type for v in given[:count]])
            builder = Builder(self.op_type)
            for value in given:
                if value is not None and value.kind is not Kind.CONSTANT:
                    builder.take(value)
            names = (*block.inputs[:count], *self.free)
            here = {n: v for n, v in zip(names, given, strict=True) if v is not None}
            found = block.put(builder, here)
            return builder.graph(found)
        except (ShapeError, UnsupportedOpError) as error:
            if self.free:
                raise
            return self.delegate.graph(given, str(error))

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        return self.delegate.unknown(types[: len(types) - len(self.free)])
