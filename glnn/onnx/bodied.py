"""Nodes of ONNX with graphs of their own, which are planned as any graph is."""

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
class Bodied(Composite):
    """A node with graphs of its own, which read values of the graph around it, too."""

    blocks: tuple[Block, ...]
    """Its graphs."""
    first: int
    """How many operands the node has itself; what its graphs take from around follows."""
    wanted: tuple[bool, ...]
    """For each result, whether it has a name in the model; the others are left out."""

    opens: ClassVar[bool] = True
    op_type: ClassVar[str]

    def __str__(self) -> str:
        return self.op_type

    @property
    def free(self) -> tuple[str, ...]:
        """What its graphs take from around: the names of the operands behind the first."""
        return tuple(dict.fromkeys(name for block in self.blocks for name in block.free))

    @property
    def asked(self) -> tuple[str, ...]:
        asked = frozenset[str]().union(*(block.asked for block in self.blocks))
        return tuple(f"x{self.first + i}" for i, name in enumerate(self.free) if name in asked)

    @property
    def type_only(self) -> tuple[str, ...]:
        read = frozenset[str]().union(*(block.reads_numbers_of for block in self.blocks))
        return tuple(f"x{self.first + i}" for i, name in enumerate(self.free) if name not in read)

    def express(self, given: Sequence[Value | None]) -> Graph:
        builder = Builder(self.op_type)
        for value in given:
            if value is not None and value.kind is not Kind.CONSTANT:
                builder.take(value)
        own = [*given[: self.first], *(None,) * (self.first - len(given))]
        around = {n: v for n, v in zip(self.free, given[self.first :], strict=True) if v}
        found = self._results(builder, own, around)
        return builder.graph(found)

    @abstractmethod
    def _results(
        self, builder: Builder, own: Sequence[Value | None], around: dict[str, Value]
    ) -> list[Value]:
        """The results that are wanted. own: the node's operands. around: what its graphs take."""

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
        return (ANYTHING,) * sum(self.wanted)

    def chosen(self, found: Sequence[Value]) -> list[Value]:
        """Those of all results that are wanted."""
        return [value for value, wanted in zip(found, self.wanted, strict=False) if wanted]


def there(what: str, value: Value | None) -> Value:
    """`value`. Raises ShapeError where it is left out."""
    if value is None:
        raise ShapeError(f"{what} is missing")
    return value
