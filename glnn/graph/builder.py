"""A builder that makes a graph node by node, and names that are used once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from glnn.core.types import UNKNOWN, UNRANKED, Array, Dim, TensorType
from glnn.errors import ModelError
from glnn.graph.graph import Graph, Kind, Node, Value, Variable
from glnn.graph.operator import Constants, Operator

MOST_MARKS = 8  # marks behind a name; more are counted


class UniqueNames:
    """Marks names that are taken: `x'`, `x''`, and from the eighth on `x'8`, `x'9`, ..."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # how many marks a name had when it was last asked for

    def free(self, name: str, *taken: Collection[str]) -> str:
        """Return `name`, with marks where one of `taken` has it."""
        result, count = name, self._last.get(name, 0)
        if count and any(name in names for names in taken):
            result = _append_marks(name, count)
        while any(result in names for names in taken):
            count += 1
            result = _append_marks(name, count)
        if count:
            self._last[name] = count
        return result


def _append_marks(name: str, count: int) -> str:
    return name + ("'" * count if count < MOST_MARKS else f"'{count}")


SAMPLES = (1, 2)  # what the first symbol stands for where types are inferred, the next one more
OTHERS = (256, 384)  # the same for symbols that are no batch, the next one so much more:
APART = 64
LATE = (5, 3)  # what stands for a size that only a run tells: no symbol stands for these two


class Builder:
    """Collects the nodes of a graph; types are inferred as they are added."""

    def __init__(self, name: str = "graph", reserved: Iterable[str] = ()) -> None:
        """reserved: names that only who asks for them gets, as results."""
        self.name = name
        self._nodes: list[Node] = []
        self._inputs: list[Value] = []
        self._made: set[Value] = set()
        self._captured: dict[Value, Value] | None = None  # of a body, by what it captures
        self._may_never_run = False
        # What bodies share:
        self._reserved = set(reserved)
        self._symbols: dict[str, tuple[int, ...]] = {}  # what each stands for
        self._variables: dict[Variable, Value] = {}
        self._names: set[str] = set()
        self._marks = UniqueNames()
        self._sampled: dict[Value, tuple[TensorType, ...]] = {}
        self._numbers: dict[Value, tuple[Array | None, ...]] = {}
        self._guessed: set[Value] = set()  # made of a value with open sizes: an error may be wrong

    @classmethod
    def from_graph(cls, graph: Graph) -> Builder:
        """A builder that goes on with `graph`, all of whose sizes are known."""
        result = cls(graph.name)
        for value in graph.inputs:
            result.take(value)
        result._nodes = list(graph.nodes)
        result._made |= graph.producers.keys()
        result._names = {value.name for value in result._made}
        return result

    def body(self, name: str, *, may_never_run: bool = False) -> Builder:
        """The builder of a graph that a node of this one is to run.

        Its inputs are those that it is asked for. Values of this graph may be read in it, too: they
        are inputs behind the others then, for which the node is given its `captures`. Symbols are
        the same in both, and names are used once. may_never_run: whether what does not fit in it is
        refused where it runs; of such results no more than the dtype is known.
        """
        result = Builder(name)
        result._may_never_run = may_never_run or self._may_never_run
        result._captured = {}
        result._reserved, result._symbols = self._reserved, self._symbols
        result._variables, result._names = self._variables, self._names
        result._marks = self._marks
        result._sampled, result._numbers = self._sampled, self._numbers
        result._guessed = self._guessed
        return result

    @property
    def captures(self) -> tuple[Value, ...]:
        """The values of the graph around a body that it reads, in the order of its inputs."""
        return tuple(self._captured or ())

    def input(self, name: str, type: TensorType) -> Value:
        """A value that is given in each run."""
        value = Value(self._unique(name), type, Kind.INPUT)
        return self.take(value)

    def take(self, value: Value) -> Value:
        """Add `value`, of another graph, as an input of this one, and return that."""
        if value in self._made:
            return value
        self._inputs.append(value)
        self._made.add(value)
        for place, dim in enumerate(value.type.dims if value.type.ranked else ()):
            if isinstance(dim, str) and dim not in self._symbols:
                more = len(self._symbols)
                sizes = (n + APART * more for n in OTHERS) if place else (n + more for n in SAMPLES)
                self._symbols[dim] = tuple(sizes)
        return value

    def _captured_value(self, value: Value) -> Value:
        """Return `value` itself, or the input that stands for it in a body."""
        foreign = value.kind in (Kind.INPUT, Kind.COMPUTED) and value not in self._made
        if self._captured is None or not foreign:
            return value
        if value not in self._captured:
            inner = Value(self._unique(value.name), value.type, Kind.INPUT)
            self._made.add(inner)
            self._captured[value] = inner
            if value in self._sampled:
                self._sampled[inner] = self._sampled[value]
            if value in self._guessed:
                self._guessed.add(inner)
        return self._captured[value]

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

        Raises ShapeError where they do not fit. Where sizes are open, a composite and control flow
        are refused in a run, once these are known, since other sizes might fit.
        """
        inputs = tuple(None if value is None else self._captured_value(value) for value in inputs)
        result_types, samples, numbers = self._results(operator, inputs)
        if outputs is None:
            outputs = [name, *(f"{name}.{i}" for i in range(1, len(result_types)))]
        if len(outputs) != len(result_types):
            raise ModelError(f"{name!r} has {len(result_types)} results, got {len(outputs)} names")
        values = tuple(
            Value(self._unique(called), type)
            for called, type in zip(outputs, result_types, strict=True)
        )
        for i, value in enumerate(values):
            self._sampled[value] = tuple(
                type.bound(dict.fromkeys(type.symbols, size)) if type.ranked else type
                for type, size in zip((types[i] for types in samples), LATE, strict=False)
            )
            self._numbers[value] = tuple(one[i] for one in numbers)
        if self._is_guessed(inputs):
            self._guessed.update(values)
        self._made.update(values)
        self._nodes.append(Node(name, operator, inputs, values))
        return values

    def _results(
        self, operator: Operator, inputs: Sequence[Value | None]
    ) -> tuple[list[TensorType], list[tuple[TensorType, ...]], list[Constants]]:
        """The results' types, and for each sample their types and the numbers that are known."""
        varies = any(v and (v.type.symbols or len(self._numbers.get(v, ())) > 1) for v in inputs)
        count = len(SAMPLES) if varies else 1
        both = [self._infer(operator, inputs, i) for i in range(count)]
        samples, numbers = [types for types, _ in both], [known for _, known in both]
        if count == 1 and any(type.symbols for type in samples[0]):
            samples, numbers = samples * len(SAMPLES), numbers * len(SAMPLES)
        return [self._joined(types) for types in zip(*samples, strict=True)], samples, numbers

    def _infer(
        self, operator: Operator, inputs: Sequence[Value | None], sample: int
    ) -> tuple[tuple[TensorType, ...], Constants]:
        """The results' types and numbers where symbols stand for the sizes number `sample`."""
        types: list[TensorType | None] = []
        known: list[Array | None] = []
        for value in inputs:
            sampled = self._sampled.get(value) if value else None
            numbers = self._numbers.get(value) if value else None
            known.append(
                numbers[min(sample, len(numbers) - 1)] if numbers else _constant_array(value)
            )
            if value is None:
                types.append(None)
            elif sampled:
                types.append(sampled[min(sample, len(sampled) - 1)])
            else:
                types.append(value.type.bound(self._sizes(sample)))
        return operator.infer_open_sizes(types, known, strict=not self._is_guessed(inputs))

    def _is_guessed(self, inputs: Sequence[Value | None]) -> bool:
        """Return True where samples stand for sizes of `inputs`, or of what these are made of.

        So it is in a body that may never run, since what does not fit there may do no harm.
        """
        return self._may_never_run or any(
            v and (v.type.symbols or v in self._guessed) for v in inputs
        )

    def _sizes(self, sample: int) -> dict[str, int]:
        """Return the size that each symbol of the inputs' types stands for in sample number
        `sample`.
        """
        return {symbol: sizes[sample] for symbol, sizes in self._symbols.items()}

    def _joined(self, samples: Sequence[TensorType]) -> TensorType:
        """Merge the types inferred for each sample of symbol sizes into one type.

        A dimension that is the same whatever the symbols stand for is a number; one that is always
        what a symbol stands for is that symbol; any other is UNKNOWN.
        """
        if len(samples) == 1:
            return samples[0]
        if len({len(type.dims) for type in samples}) > 1 or not all(t.ranked for t in samples):
            return TensorType((UNRANKED,), samples[0].dtype)
        sizes = [self._sizes(i) for i in range(len(samples))]
        symbols = {tuple(of[symbol] for of in sizes): symbol for symbol in sizes[0]}
        dims: list[Dim] = []
        for each in zip(*(type.dims for type in samples), strict=True):
            dims.append(each[0] if len(set(each)) == 1 else symbols.get(each, UNKNOWN))
        return TensorType(tuple(dims), samples[0].dtype, samples[0].holds)

    def numbers(self, values: Sequence[Value]) -> list[Array] | None:
        """The numbers of the last node's results, where all are known; that is then left out."""
        candidates = [self._numbers[value][0] for value in values if self._numbers.get(value)]
        arrays = [array for array in candidates if array is not None]
        if len(arrays) < len(values):
            return None
        self._nodes.pop()
        return arrays

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """The graph of what was added. Raises ModelError where it does not hold together."""
        outputs = tuple(self._captured_value(value) for value in outputs)
        inputs = (*self._inputs, *(self._captured or {}).values())
        return Graph(tuple(self._nodes), inputs, outputs, self.name)

    def fresh(self, name: str) -> str:
        """Return `name`, with marks where another value has it or is to have it."""
        return self._marks.free(name, self._names, self._reserved)

    def _unique(self, name: str) -> str:
        result = self._marks.free(name, self._names)
        self._names.add(result)
        return result


def constant(array: Array, name: str = "constant") -> Value:
    """A value that never changes."""
    return Value(name, TensorType.from_array(array), Kind.CONSTANT, array)


def _constant_array(value: Value | None) -> Array | None:
    return None if value is None or value.kind is not Kind.CONSTANT else value.data  # type: ignore[return-value]
