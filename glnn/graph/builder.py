"""Making a graph node by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glnn.errors import ModelError
from glnn.graph.graph import Graph, Kind, Node, Value, Variable
from glnn.graph.operator import Known, Operator, Types
from glnn.types import Array, Dim, Shape, TensorType

SAMPLES = (1, 2)  # what symbols stand for where a type is inferred


class Builder:
    """Collects the nodes of a graph; types are inferred as they are added."""

    def __init__(self, name: str = "graph", reserved: Iterable[str] = ()) -> None:
        """reserved: names that only who asks for them gets, as results."""
        self.name = name
        self._reserved = set(reserved)
        self._nodes: list[Node] = []
        self._inputs: list[Value] = []
        self._variables: dict[Variable, Value] = {}
        self._names: set[str] = set()

    def input(self, name: str, type: TensorType) -> Value:
        """A value that is given in each run."""
        value = Value(self._unique(name), type, Kind.INPUT)
        self._inputs.append(value)
        return value

    def constant(self, array: Array, name: str = "constant") -> Value:
        """A value that never changes."""
        return Value(name, TensorType.of(array), Kind.CONSTANT, array)

    def variable(self, variable: Variable, name: str) -> Value:
        """The value that `variable` has in each run: one value, however often it is asked for."""
        if variable not in self._variables:
            self._variables[variable] = Value(name, variable.type, Kind.VARIABLE, variable)
        return self._variables[variable]

    def add(
        self,
        operator: Operator,
        *inputs: Value | None,
        name: str,
        outputs: Sequence[str] | None = None,
    ) -> tuple[Value, ...]:
        """The results of `operator` on `inputs`, called `outputs`, or as the node where it is one.

        Raises ShapeError where they do not fit.
        """
        types = [None if value is None else value.type for value in inputs]
        known = [_known(value) for value in inputs]
        found = inferred(operator, types, known)
        if outputs is None:
            outputs = [name, *(f"{name}.{i}" for i in range(1, len(found)))]
        if len(outputs) != len(found):
            raise ModelError(f"{name!r} has {len(found)} results, got {len(outputs)} names")
        values = tuple(
            Value(self._unique(called), type) for called, type in zip(outputs, found, strict=True)
        )
        self._nodes.append(Node(name, operator, inputs, values))
        return values

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """The graph of what was added. Raises ModelError where it does not hold together."""
        return Graph(tuple(self._nodes), tuple(self._inputs), tuple(outputs), self.name)

    def fresh(self, name: str) -> str:
        """`name`, marked where another value is called so, or is to be."""
        while name in self._names or name in self._reserved:
            name += "'"
        return name

    def _unique(self, name: str) -> str:
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name


def _known(value: Value | None) -> Array | None:
    return None if value is None or value.kind is not Kind.CONSTANT else value.data  # type: ignore[return-value]


def inferred(operator: Operator, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
    """The results' types for types whose dimensions may be symbols.

    A dimension that is the same whatever the symbols stand for is a number; one that is always what
    a symbol stands for is that symbol; any other is `?`, a symbol that stands for itself.
    """
    symbols = list(dict.fromkeys(s for type in types if type is not None for s in type.symbols))
    if not symbols:
        return operator.infer(types, known)
    found = []
    for sample in SAMPLES:
        sizes = {symbol: sample + i for i, symbol in enumerate(symbols)}
        bound = [None if type is None else type.bound(sizes) for type in types]
        found.append((sizes, operator.infer(bound, known)))
    (sizes, first), (others, second) = found
    of_pair = {(sizes[symbol], others[symbol]): symbol for symbol in symbols}

    def dim(pair: tuple[int, int]) -> Dim:
        return pair[0] if pair[0] == pair[1] else of_pair.get(pair, "?")

    def joined(one: Shape, two: Shape) -> tuple[Dim, ...]:
        return tuple(map(dim, zip(one, two, strict=True)))

    return tuple(
        TensorType(joined(one.shape, two.shape), one.dtype)
        for one, two in zip(first, second, strict=True)
    )
