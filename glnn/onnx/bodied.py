"""ONNX nodes that have subgraphs, which are planned as any other graph is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.onnx.block import Block
from glnn.types import ANYTHING, TensorType


@dataclass(frozen=True, eq=False)
class SubgraphNode(Composite):
    """A node with subgraphs, which may also read values of the graph around it."""

    blocks: tuple[Block, ...]
    """The subgraphs."""
    first: int
    """The number of the node's own operands; the values that its subgraphs capture follow these."""
    used_outputs: tuple[bool, ...]
    """Flags, one for each result: True where the result has a name in the model."""

    opens: ClassVar[bool] = True
    op_type: ClassVar[str]

    def __str__(self) -> str:
        return self.op_type

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the values that the subgraphs capture: the operands behind the first."""
        return tuple(dict.fromkeys(name for block in self.blocks for name in block.free))

    @property
    def asked(self) -> tuple[str, ...]:
        names = frozenset[str]().union(*(block.size_names for block in self.blocks))
        return tuple(f"x{self.first + i}" for i, name in enumerate(self.free) if name in names)

    @property
    def type_only(self) -> tuple[str, ...]:
        read = frozenset[str]().union(*(block.reads_numbers_of for block in self.blocks))
        return tuple(f"x{self.first + i}" for i, name in enumerate(self.free) if name not in read)

    def express(self, given: Sequence[Value | None]) -> Graph:
        builder = Builder(self.op_type)
        for value in given:
            if value is not None and value.kind is not Kind.CONSTANT:
                builder.take(value)
        operands = [*given[: self.first], *(None,) * (self.first - len(given))]
        captured = {n: v for n, v in zip(self.free, given[self.first :], strict=True) if v}
        found = self._results(builder, operands, captured)
        return builder.graph(found)

    @abstractmethod
    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        """Return the used results.

        operands: the node's own, None where one is left out. captured: values of the graph around
        it, by name.
        """

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        unranked = [None if type is None else type.unranked for type in types]
        for some in (types, unranked):
            given = [
                None if type is None else Value(f"operand {i}", type, Kind.INPUT)
                for i, type in enumerate(some)
            ]
            try:
                return tuple(value.type.unknown for value in self.express(given).outputs)
            except (ShapeError, UnsupportedOpError):
                continue
        return (ANYTHING,) * sum(self.used_outputs)

    def select_outputs(self, results: Sequence[Value]) -> list[Value]:
        """Return those of `results` that the model uses."""
        return [value for value, used in zip(results, self.used_outputs, strict=False) if used]


def require(what: str, value: Value | None) -> Value:
    """Return `value`. Raises ShapeError where it is None: `what` is missing."""
    if value is None:
        raise ShapeError(f"{what} is missing")
    return value
