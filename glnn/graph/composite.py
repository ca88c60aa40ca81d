"""Operators that are made of others, once the types of their operands are known."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from glnn.core.cached_property import cached_property
from glnn.core.types import Array, TensorType, content
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import SMALL, Constants, Cost, Operator, Types

KEPT = 4  # graphs of an operator, by the types that it was last given


@dataclass(frozen=True, eq=False)
class _Expansion:
    """A composite's graph, and what is known of its results."""

    graph: Graph
    is_subgraph: bool

    @cached_property
    def numbers(self) -> tuple[Array | None, ...]:
        """Return the numbers of each result that are known before a run; None for others."""
        known: Mapping[Value, Array] = {}
        if self.is_subgraph:
            types = {value.name: value.type for value in self.graph.inputs}
            _, known = self.graph.propagate_constants(types)
        return tuple(known.get(value, _small(value)) for value in self.graph.outputs)


@dataclass(frozen=True, eq=False)
class Composite(Operator):
    """An operator made of a graph of other operators, which depends on the operands' types.

    Passes put that graph in its place before anything is planned (`passes.expand_composites`).
    """

    name: ClassVar[str] = "composite"
    composite: ClassVar[bool] = True
    variadic: ClassVar[bool] = True
    is_subgraph: ClassVar[bool] = False
    """True where the graph is a part of the model: its nodes keep their names and can be expanded
    alone (`passes.expand_subgraphs`)."""
    _expansions: OrderedDict[Any, _Expansion] = field(
        default_factory=OrderedDict, init=False, repr=False
    )

    @property
    def required(self) -> tuple[str, ...]:
        return ()  # it says itself what is missing

    @property
    def label(self) -> str:
        return str(self)

    @abstractmethod
    def expand(self, operands: Sequence[Value | None]) -> Graph:
        """A graph of operators that computes the results.

        operands: a value for each operand, of a type with all sizes known, and a constant where the
        numbers are known. The inputs of the graph are those of them that are no constants. Raises
        ShapeError where they do not fit, UnsupportedOpError where nothing computes this.
        """

    def graph(self, types: Types, constants: Constants = ()) -> Graph:
        """Return the graph of `expand` for operands of such types and numbers, the same one for
        the same.
        """
        return self._expansion(types, constants).graph

    def _expansion(self, types: Types, constants: Constants) -> _Expansion:
        arrays = (*constants, *(None,) * (len(types) - len(constants)))
        key = tuple(
            (type, None if array is None else content(array))
            for type, array in zip(types, arrays, strict=True)
        )
        result = self._expansions.get(key)
        if result is None:
            operands = [_value(i, t, a) for i, (t, a) in enumerate(zip(types, arrays, strict=True))]
            result = self._expansions[key] = _Expansion(self.expand(operands), self.is_subgraph)
            while len(self._expansions) > KEPT:
                self._expansions.popitem(last=False)
        return result

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.graph(types, constants).outputs)

    def propagate_constants(
        self, types: Types, constants: Constants = (), results: Sequence[TensorType] | None = None
    ) -> tuple[Array | None, ...]:
        return self._expansion(types, constants).numbers

    @abstractmethod
    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        """The results' types where too little is known of the operands: dtypes without sizes."""

    def infer_open_sizes(
        self, types: Types, constants: Constants, *, strict: bool
    ) -> tuple[tuple[TensorType, ...], Constants]:
        named = dict(zip(self.names(len(types)), zip(types, constants, strict=True), strict=False))
        asked = (named[name] for name in self.shape_inputs if name in named)
        late = any(type is not None and array is None for type, array in asked)
        if late or any(type is not None and not type.ranked for type in types):
            outputs = self.unknown(types)
            return outputs, (None,) * len(outputs)
        try:
            return self.infer(types, constants), self.propagate_constants(types, constants)
        except (ShapeError, UnsupportedOpError):  # some refuse so many steps
            if strict:
                raise
            outputs = self.unknown(types)
            return outputs, (None,) * len(outputs)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        types = [None if array is None else TensorType.from_array(array) for array in arrays]
        return self.evaluate(types, arrays)

    def evaluate(self, types: Types, arrays: Constants) -> tuple[Array, ...]:
        """Return the results of operands of such types, which say what single objects hold."""
        graph = self.graph(types, arrays)
        if graph.inputs:
            raise ShapeError(f"{self.name}: {graph.inputs[0].name!r} is not known")
        return graph.reference()

    def cost(self, types: Types) -> Cost:
        """Return the cost of all operators of the graph; 0 where sizes, or numbers that decide
        them, are unknown.
        """
        if any(type is not None and type.symbols for type in types):
            return Cost(0, 0)
        try:
            graph, flops, nbytes = self.graph(types), 0, 0
        except (ShapeError, UnsupportedOpError):
            if not self.shape_inputs:
                raise
            return Cost(0, 0)
        inferred = graph.infer_types({value.name: value.type for value in graph.inputs})
        for node in graph.nodes:
            one = node.operator.cost([None if v is None else inferred[v] for v in node.inputs])
            flops, nbytes = flops + one.flops, nbytes + one.bytes
        return Cost(flops, nbytes)


def _small(value: Value) -> Array | None:
    """The numbers of a constant of few."""
    if value.kind is not Kind.CONSTANT or value.data is None:
        return None
    return value.data if value.data.size <= SMALL else None  # type: ignore


def _value(number: int, type: TensorType | None, array: Array | None) -> Value | None:
    if type is None:
        return None
    name = f"operand {number}"
    return (
        Value(name, type, Kind.INPUT) if array is None else Value(name, type, Kind.CONSTANT, array)
    )
