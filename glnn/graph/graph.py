"""A graph: operators applied to values, in an order in which they can run.

Values and nodes are compared by identity. A pass returns a new graph of new nodes over the same
values; so it is the graph that knows the node that produces a value (`Graph.producers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Any, Protocol

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.process import check_memory
from glnn.core.symint import greatest
from glnn.core.types import Array, Shape, TensorType, content
from glnn.errors import ModelError, ShapeError
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import SMALL, Operator

DOUBLE_SIZE = 8  # bytes of a float64, in which constants are computed


def check_result_memory(
    node: str, operator: Operator, types: Sequence[TensorType], *, wide: bool = False
) -> None:
    """Raise LimitError where the host has too little memory for the results of a node.

    Args:
        node: The node's name.
        operator: Its operator.
        types: The types of its results; those of unknown sizes are not counted.
        wide: Whether floats are computed in 64 bits.
    """
    nbytes = 0
    for type in types:
        is_double = wide and type.dtype.kind == "float" and not type.symbols
        factor = DOUBLE_SIZE // type.dtype.numpy.itemsize if is_double else 1
        nbytes += factor * type.nbytes
    if nbytes:
        check_memory(
            nbytes, lambda: describe_result(node, operator, max(types, key=lambda t: t.nbytes))
        )


def describe_result(node: str, operator: Operator, result: TensorType) -> str:
    """Return the description of a node and its largest result for errors of too little memory."""
    return f"node {node!r}, {operator.label} with the result {result},"


FEW = 64  # most numbers of an input that sizes are computed from
FOLDED = 16 << 20  # bytes: masks and tables of positions of 2,048 by 2,048 floats
GROWTH = 8  # int4 to float32, the greatest growth by a cast or DequantizeLinear


class Kind(Enum):
    """The source of a value."""

    INPUT = "input"
    CONSTANT = "constant"
    VARIABLE = "variable"
    COMPUTED = "computed"


class Assignments:
    """Counts the assignments to all variables of this process.

    Code with copies of variables need only compare each `revision` when `count` has changed. An
    assignment is counted after the variable has its new array and `revision`.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count an assignment."""
        self.count += 1


ASSIGNMENTS = Assignments()


class Variable(Protocol):
    """An array that may be reassigned between runs, as a layer's weight.

    Each assignment is counted by its `revision` and, after that, by `ASSIGNMENTS`.
    """

    @property
    def type(self) -> TensorType:
        """Type of the value, which never changes."""

    @property
    def revision(self) -> int:
        """The number of assignments."""

    def read(self) -> Array:
        """Return the current array."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in a graph.

    name: unique among the inputs and computed values of a graph. type: as far as it is known before
    a run; a symbol among its dimensions stands for the same size in the whole graph. kind: the
    source of the value. data: the array of a constant, or the Variable.
    """

    name: str
    type: TensorType
    kind: Kind = Kind.COMPUTED
    data: Array | Variable | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """An operator applied to values.

    name: for messages and traces. inputs: a value for each operand, None for one that is left out.
    outputs: the results. epilogue: pointwise work on the first result before it is stored. extras:
    further operands of the epilogue. origins: the two nodes that were fused into this one, in
    order, which compute the same.
    """

    name: str
    operator: Operator
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    epilogue: Epilogue | None = None
    extras: tuple[Value, ...] = ()
    origins: tuple[Node, ...] = ()

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The values that it reads, those of the epilogue last."""
        return (*(value for value in self.inputs if value is not None), *self.extras)

    @property
    def reads_numbers_of(self) -> tuple[Value, ...]:
        """The values whose numbers the results depend on; of others only the type is read."""
        if not (type_only := self.operator.type_only):
            return self.reads
        names = self.operator.names(len(self.inputs))
        pairs = zip(names, self.inputs, strict=True)
        read = (value for name, value in pairs if value is not None and name not in type_only)
        return (*read, *self.extras)

    @property
    def growth(self) -> int:
        """Bytes by which the results are larger than the operands, as far as sizes are known."""
        result_bytes = sum(value.type.nbytes for value in self.outputs)
        return result_bytes - sum(v.type.nbytes for v in self.reads) if result_bytes else 0

    def with_values(self, substitutes: Mapping[Value, Value]) -> Node:
        """Return the node with its inputs and outputs replaced as in `substitutes`."""
        inputs = tuple([v and substitutes.get(v, v) for v in self.inputs])
        outputs = tuple([substitutes.get(v, v) for v in self.outputs])
        extras = tuple([substitutes.get(v, v) for v in self.extras])
        if (inputs, outputs, extras) == (self.inputs, self.outputs, self.extras):
            return self
        return replace(self, inputs=inputs, outputs=outputs, extras=extras)

    def infer(
        self, types: Mapping[Value, TensorType], constants: Mapping[Value, Array]
    ) -> tuple[TensorType, ...]:
        """Return the types of the results where the values have `types`.

        constants: numbers of values that are known. Raises ShapeError, which names the node.
        """
        operands = [None if value is None else types[value] for value in self.inputs]
        arrays = [None if value is None else constants.get(value) for value in self.inputs]
        try:
            return self.operator.infer(operands, arrays)
        except ShapeError as error:
            raise ShapeError(f"layer {self.name!r}: {error}") from None

    def lacks_shape_inputs(self, constants: Mapping[Value, Array]) -> bool:
        """Return True where `constants` lacks numbers that the results' types depend on."""
        named = self.operator.named(self.inputs) if self.operator.shape_inputs else {}
        return any(
            name in named and named[name] not in constants for name in self.operator.shape_inputs
        )

    def propagate_constants(
        self, types: Mapping[Value, TensorType], constants: Mapping[Value, Array]
    ) -> dict[Value, Array]:
        """Return the numbers of results that are known before a run.

        types: of operands and results. constants: numbers of values that are known.
        """
        if self.epilogue is not None:
            return {}
        operands = [None if value is None else types[value] for value in self.inputs]
        arrays = [None if value is None else constants.get(value) for value in self.inputs]
        results = self.operator.propagate_constants(
            operands, arrays, [types[value] for value in self.outputs]
        )
        pairs = zip(self.outputs, results, strict=True)
        return {value: array for value, array in pairs if array is not None}

    def reference(self, arrays: Mapping[Value, Array]) -> tuple[Array, ...]:
        """Return the results by NumPy, for the `arrays` of the values that it reads."""
        operands = (None if value is None else arrays[value] for value in self.inputs)
        epilogue, extras = self.epilogue, [arrays[value] for value in self.extras]
        if epilogue is None:
            return self.operator.reference(*operands)
        return self.operator.reference_with_epilogue(
            lambda first: epilogue.evaluate(first, *extras), *operands
        )


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which they can run.

    inputs: the values that are fed in each run. outputs: the values that a run returns. Raises
    ModelError where a value is read before it is produced, or produced twice, where an output has
    no producer, or where two inputs or outputs have the same name.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    name: str = "graph"

    def __post_init__(self) -> None:
        available = set(self.inputs)
        for node in self.nodes:
            for value in node.reads:
                if value not in available and value.kind in (Kind.INPUT, Kind.COMPUTED):
                    raise ModelError(
                        f"{self.name}: {node.name!r} reads {value.name!r} before it is made"
                    )
            for value in node.outputs:
                if value in available:
                    raise ModelError(f"{self.name}: {value.name!r} is made twice")
                available.add(value)
        for value in self.outputs:
            if value not in available and value.kind in (Kind.INPUT, Kind.COMPUTED):
                raise ModelError(f"{self.name}: nothing makes the output {value.name!r}")
        named: dict[str, Value] = {}
        for value in (*self.inputs, *self.outputs):
            if named.setdefault(value.name, value) is not value:
                raise ModelError(f"{self.name}: two inputs or outputs are called {value.name!r}")

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The node that produces each computed value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def ordered(self) -> tuple[Node, ...]:
        """The nodes that the outputs need, in the order of `ordered`."""
        return ordered(self.outputs, self.producers)

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value, once each."""
        nodes_of: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.reads):
                nodes_of.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in nodes_of.items()}

    @cached_property
    def fixed(self) -> frozenset[Value]:
        """The values that no run changes: constants, variables, and what only they determine.

        Not among them are results of control flow, whose bodies have variables of their own, and
        random numbers. Nor are results beyond a budget, FOLDED bytes and GROWTH times the bytes of
        constants and variables: each run computes these, so that a small model stays small once
        loaded.
        """
        values: set[Value] = set()
        budget = None
        for node in self.nodes:
            for value in node.reads:
                if value.kind is Kind.CONSTANT or value.kind is Kind.VARIABLE:
                    values.add(value)
            changes = node.operator.control or node.operator.random
            is_foldable = (node.reads or node.operator.table) and not changes
            if is_foldable and values.issuperset(node.reads):
                growth = node.growth
                if greatest(growth) > 0:
                    budget = self._folding_budget if budget is None else budget
                    if growth > budget:
                        continue
                    budget -= growth
                values.update(node.outputs)
        return frozenset(values)

    @property
    def _folding_budget(self) -> int:
        """Bytes by which folded values may be larger than the constants and variables."""
        read = {value for node in self.nodes for value in node.reads}
        fixed_values = (v for v in read if v.kind in (Kind.CONSTANT, Kind.VARIABLE))
        return FOLDED + GROWTH * sum(value.type.nbytes for value in fixed_values)

    def changes(self, value: Value) -> bool:
        """Return True where a run may change `value`: an input, or computed from one."""
        return value.kind in (Kind.INPUT, Kind.COMPUTED) and value not in self.fixed

    def input_types(self, shapes: Mapping[str, Shape]) -> dict[str, TensorType]:
        """Return the types of inputs that have `shapes`, by name."""
        return {value.name: value.type.of_shape(shapes[value.name]) for value in self.inputs}

    def infer_types(self, types: Mapping[str, TensorType]) -> dict[Value, TensorType]:
        """Return the type of every value where the inputs have `types` by name, all sizes known.

        A size that depends on numbers of a run is UNKNOWN, as are all sizes of values computed from
        such a value. Raises ShapeError, which names the node, where types do not fit.
        """
        return self.propagate_constants(types)[0]

    def propagate_constants(
        self, types: Mapping[str, TensorType], shape_arrays: Mapping[str, Array] | None = None
    ) -> tuple[dict[Value, TensorType], dict[Value, Array]]:
        """Return `infer_types`, and the numbers of small values that are known before a run.

        shape_arrays: the numbers of inputs, by name, that are known already.
        """
        arrays = shape_arrays or {}
        key = (
            ASSIGNMENTS.count,  # a variable's numbers may be read
            tuple(types[value.name] for value in self.inputs),
            tuple((name, content(array)) for name, array in sorted(arrays.items())),
        )
        result = self._last_propagated.get(key)  # cached, since several passes ask for it
        if result is None:
            result = self._propagate(types, deepcopy(dict(arrays)))  # the caller may change them
            self._last_propagated.clear()
            self._last_propagated[key] = result
        inferred, constants = result
        return dict(inferred), dict(constants)

    @cached_property
    def _last_propagated(self) -> dict[Any, tuple[dict[Value, TensorType], dict[Value, Array]]]:
        """The last result of `propagate_constants`, by its arguments."""
        return {}

    def _propagate(
        self, types: Mapping[str, TensorType], shape_arrays: Mapping[str, Array]
    ) -> tuple[dict[Value, TensorType], dict[Value, Array]]:
        """Compute `propagate_constants`, node by node."""
        inferred = {value: types[value.name] for value in self.inputs}
        constants = {
            value: shape_arrays[value.name] for value in self.inputs if value.name in shape_arrays
        }
        for node in self.nodes:
            for value in node.reads:
                if value.kind in (Kind.CONSTANT, Kind.VARIABLE):
                    inferred[value] = value.type
                    if value.kind is Kind.CONSTANT and value.data.size <= SMALL:  # type: ignore[union-attr]
                        constants[value] = value.data  # type: ignore[assignment]
            self._add_constants(node, constants)
            is_open = any(inferred[value].symbols for value in node.reads)
            if is_open or node.lacks_shape_inputs(constants):
                inferred.update((value, value.type.unknown) for value in node.outputs)
                continue
            inferred.update(zip(node.outputs, node.infer(inferred, constants), strict=True))
            if not any(inferred[value].symbols for value in node.outputs):
                constants |= node.propagate_constants(inferred, constants)
        return inferred, constants

    @cached_property
    def _shape_inputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the inputs that shape inputs of operators are, and of the inputs that others are
        computed from.
        """
        inputs, direct = set(self.inputs), set[Value]()
        stack: list[Value] = []
        for node in self.nodes:
            names, shape_inputs = node.operator.all_shape_inputs, node.operator.shape_inputs
            operands = node.operator.named(node.inputs) if names else {}
            for name in (name for name in names if name in operands):
                is_direct = name in shape_inputs and operands[name] in inputs
                (direct.add if is_direct else stack.append)(operands[name])
        indirect: set[Value] = set()
        while stack:
            value = stack.pop()
            if value not in indirect:
                indirect.add(value)
                if value in self.producers:
                    stack += self.producers[value].reads_numbers_of
        indirect -= direct
        return (
            tuple(value.name for value in self.inputs if value in direct),
            tuple(value.name for value in self.inputs if value in indirect),
        )

    def shape_input_arrays(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays of `feeds`, by the inputs' names, whose numbers decide about sizes.

        Inputs that sizes are only computed from count where they have at most one dimension and
        FEW numbers.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        return {name: feeds[name] for name in self.shape_input_names(shapes)}

    def shape_input_names(self, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
        """Return the names in `shapes` of inputs whose numbers decide about sizes and branches; see
        `shape_input_arrays`.
        """
        direct, indirect = self._shape_inputs
        few = (n for n in indirect if n in shapes and len(shapes[n]) < 2 and prod(shapes[n]) <= FEW)
        return (*(name for name in direct if name in shapes), *few)

    def _add_constants(self, node: Node, constants: dict[Value, Array]) -> None:
        """Add to `constants` the numbers that the types of the results of `node` depend on."""
        operator = node.operator
        wanted = {*operator.host, *operator.shape_inputs}
        names = operator.names(len(node.inputs)) if wanted else ()
        for name, value in zip(names, node.inputs, strict=False):
            if name in wanted and value is not None and value not in constants:
                array = self.value_of(value)
                if array is not None:
                    constants[value] = array

    def value_of(self, value: Value) -> Array | None:
        """Return the numbers of a value that no run changes; None for any other value."""
        if value.kind is Kind.VARIABLE:
            return value.data.read()  # type: ignore[union-attr]
        if value.kind is Kind.CONSTANT:
            return value.data  # type: ignore[return-value]
        if value not in self.fixed:
            return None
        arrays: dict[Value, Array] = {}
        for node in ordered((value,), self.producers):
            for read in node.reads:
                if read.kind is Kind.CONSTANT or read.kind is Kind.VARIABLE:
                    arrays[read] = self.value_of(read)  # type: ignore[assignment]
            check_result_memory(node.name, node.operator, [output.type for output in node.outputs])
            arrays.update(zip(node.outputs, node.reference(arrays), strict=True))
        return arrays[value]

    def reference(self, *feeds: Array) -> tuple[Array, ...]:
        """Return the outputs by NumPy for an array of each input, in float64 where one is."""
        arrays = dict(zip(self.inputs, feeds, strict=True))
        wide = any(array.dtype == np.float64 for array in feeds)
        read = (*(value for node in self.nodes for value in node.reads), *self.outputs)
        for value in read:
            if value.kind is Kind.CONSTANT or value.kind is Kind.VARIABLE:
                array = np.asarray(self.value_of(value))
                widens = wide and array.dtype == np.float32
                arrays[value] = array.astype(np.float64) if widens else array
        for node in self.nodes:
            arrays.update(zip(node.outputs, node.reference(arrays), strict=True))
        return tuple(arrays[value] for value in self.outputs)


def ordered(outputs: Sequence[Value], producers: Mapping[Value, Node]) -> tuple[Node, ...]:
    """Return the nodes that `outputs` need in topological order.

    It is depth first, from the first output to the last and from the first operand of a node to the
    last, so that it depends on the structure of the graph alone.
    """
    nodes_in_order: dict[Node, None] = {}
    stack = [producers[value] for value in reversed(outputs) if value in producers]
    entered: set[Node] = set()
    while stack:
        node = stack[-1]
        if node in nodes_in_order or node in entered:
            stack.pop()
            nodes_in_order.setdefault(node)
            continue
        entered.add(node)
        operands = [producers[value] for value in node.reads if value in producers]
        stack += [n for n in reversed(operands) if n not in entered]
    return tuple(nodes_in_order)
