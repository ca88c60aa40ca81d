"""A graph: operators applied to values, in an order in which they can run.

Values and nodes are told apart by identity. A pass makes a new graph of new nodes over the same
values; which node makes a value is therefore asked of the graph (`Graph.producers`).
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

DOUBLE_SIZE = 8  # bytes of a number of a constant, which is computed in 64 bits


def check_result_memory(
    node: str, operator: Operator, types: Sequence[TensorType], *, wide: bool = False
) -> None:
    """Raise LimitError where the host has too little memory for the results of a node.

    Args:
        node: The node's name.
        operator: Its operator.
        types: Those of its results; what is of unknown sizes counts nothing.
        wide: Whether floats are computed in 64 bits.
    """
    nbytes = 0
    for one in types:
        floats = wide and one.dtype.kind == "float" and not one.symbols
        size = DOUBLE_SIZE // one.dtype.numpy.itemsize if floats else 1
        nbytes += size * one.nbytes
    if nbytes:
        check_memory(
            nbytes, lambda: describe_result(node, operator, max(types, key=lambda t: t.nbytes))
        )


def describe_result(node: str, operator: Operator, result: TensorType) -> str:
    """Return what errors of too little memory say of a node and its largest result."""
    return f"node {node!r}, {operator.label} with the result {result},"


FEW = 64  # numbers of an input that sizes may follow from
FOLDED = 16 << 20  # bytes: masks and tables of positions of 2,048 by 2,048 floats
GROWTH = 8  # int4 becomes float32, which is the most that a cast or DequantizeLinear adds


class Kind(Enum):
    """The source of a value."""

    INPUT = "input"
    CONSTANT = "constant"
    VARIABLE = "variable"
    COMPUTED = "computed"


class Assignments:
    """Counts the assignments to all variables of this process.

    Whoever keeps copies of variables need only look at each of them when `count` has changed. An
    assignment is counted once the new array and the variable's own `revision` are there.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count one more."""
        self.count += 1


ASSIGNMENTS = Assignments()


class Variable(Protocol):
    """An array that may be assigned anew between runs, as a layer's weight.

    Each assignment is counted by its `revision` and, after that, by `ASSIGNMENTS`.
    """

    @property
    def type(self) -> TensorType:
        """Type of the value, which never changes."""

    @property
    def revision(self) -> int:
        """Counts the assignments."""

    def read(self) -> Array:
        """The array as it is now."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in a graph.

    name: unique among those that a graph computes and is given. type: what is known of it before a
    run; a symbol among its dimensions is one size throughout. kind: where it comes from. data: of
    a constant its array, of a variable who has it.
    """

    name: str
    type: TensorType
    kind: Kind = Kind.COMPUTED
    data: Array | Variable | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """An operator applied to values.

    name: what people know it by. inputs: a value for each operand, None for one that is left out.
    outputs: the results. epilogue: what is done to the first result before it is stored, and
    extras: the values that this takes besides. origins: the two nodes that were joined into this
    one, in order; by themselves they compute the same.
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
        """The values on whose numbers the results depend: those of which more than the type is
        read.
        """
        if not (type_only := self.operator.type_only):
            return self.reads
        names = self.operator.names(len(self.inputs))
        pairs = zip(names, self.inputs, strict=True)
        read = (value for name, value in pairs if value is not None and name not in type_only)
        return (*read, *self.extras)

    @property
    def growth(self) -> int:
        """Return the bytes by which the results are larger than the operands, as far as sizes are
        known.
        """
        made = sum(value.type.nbytes for value in self.outputs)
        return made - sum(value.type.nbytes for value in self.reads) if made else 0

    def with_values(self, instead: Mapping[Value, Value]) -> Node:
        """The same of other values: of those that `instead` has for its own."""
        inputs = tuple([v and instead.get(v, v) for v in self.inputs])
        outputs = tuple([instead.get(v, v) for v in self.outputs])
        extras = tuple([instead.get(v, v) for v in self.extras])
        if (inputs, outputs, extras) == (self.inputs, self.outputs, self.extras):
            return self
        return replace(self, inputs=inputs, outputs=outputs, extras=extras)

    def infer(
        self, types: Mapping[Value, TensorType], constants: Mapping[Value, Array]
    ) -> tuple[TensorType, ...]:
        """The results' types where the values have `types`. Raises ShapeError that names it."""
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
        """The results whose numbers are known where the values, these too, have `types`."""
        if self.epilogue is not None:
            return {}
        operands = [None if value is None else types[value] for value in self.inputs]
        arrays = [None if value is None else constants.get(value) for value in self.inputs]
        known = self.operator.propagate_constants(
            operands, arrays, [types[value] for value in self.outputs]
        )
        pairs = zip(self.outputs, known, strict=True)
        return {value: array for value, array in pairs if array is not None}

    def reference(self, arrays: Mapping[Value, Array]) -> tuple[Array, ...]:
        """The results by NumPy for values that are `arrays`."""
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

    inputs: what is given in each run. outputs: what is asked for. Raises ModelError where a value
    is read before it is made, made twice, or asked for and never made, or two are called the same.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    name: str = "graph"

    def __post_init__(self) -> None:
        made = set(self.inputs)
        for node in self.nodes:
            for value in node.reads:
                if value not in made and value.kind in (Kind.INPUT, Kind.COMPUTED):
                    raise ModelError(
                        f"{self.name}: {node.name!r} reads {value.name!r} before it is made"
                    )
            for value in node.outputs:
                if value in made:
                    raise ModelError(f"{self.name}: {value.name!r} is made twice")
                made.add(value)
        for value in self.outputs:
            if value not in made and value.kind in (Kind.INPUT, Kind.COMPUTED):
                raise ModelError(f"{self.name}: nothing makes the output {value.name!r}")
        named: dict[str, Value] = {}
        for value in (*self.inputs, *self.outputs):
            if named.setdefault(value.name, value) is not value:
                raise ModelError(f"{self.name}: two inputs or outputs are called {value.name!r}")

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The node that makes each computed value."""
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
        """The values that no run changes: constants, variables, and what is made of these alone.

        Results of control flow are not among them, as bodies have variables of their own, nor are
        random numbers. Nor are results that would take more, all together, than FOLDED bytes and
        GROWTH times the constants and variables: each run computes these, so that a small model
        stays small once loaded.
        """
        values: set[Value] = set()
        spare = None
        for node in self.nodes:
            for value in node.reads:
                if value.kind is Kind.CONSTANT or value.kind is Kind.VARIABLE:
                    values.add(value)
            changes = node.operator.control or node.operator.random
            made_once = node.reads or node.operator.table
            if made_once and not changes and values.issuperset(node.reads):
                grown = node.growth
                if greatest(grown) > 0:
                    spare = self._spare if spare is None else spare
                    if grown > spare:
                        continue
                    spare -= grown
                values.update(node.outputs)
        return frozenset(values)

    @property
    def _spare(self) -> int:
        """Bytes by which values made of constants and variables may be larger than these."""
        read = {value for node in self.nodes for value in node.reads}
        fixed_values = (v for v in read if v.kind in (Kind.CONSTANT, Kind.VARIABLE))
        return FOLDED + GROWTH * sum(value.type.nbytes for value in fixed_values)

    def changes(self, value: Value) -> bool:
        """Return True where a run may change `value`: an input, or computed from one."""
        return value.kind in (Kind.INPUT, Kind.COMPUTED) and value not in self.fixed

    def input_types(self, shapes: Mapping[str, Shape]) -> dict[str, TensorType]:
        """The types of the inputs of these shapes, by name."""
        return {value.name: value.type.of_shape(shapes[value.name]) for value in self.inputs}

    def infer_types(self, types: Mapping[str, TensorType]) -> dict[Value, TensorType]:
        """The type of every value where the inputs have the `types` by name, all sizes known.

        A size that only a run tells is UNKNOWN, as is every size of what is made of such a value.
        Raises ShapeError, which names the node, where they do not fit.
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
        both = self._last_propagated.get(key)  # several passes ask one after the other
        if both is None:
            both = self._propagate(types, deepcopy(dict(arrays)))  # they are the caller's to change
            self._last_propagated.clear()
            self._last_propagated[key] = both
        types_known, known = both
        return dict(types_known), dict(known)

    @cached_property
    def _last_propagated(self) -> dict[Any, tuple[dict[Value, TensorType], dict[Value, Array]]]:
        """The last result of `propagate_constants`, by its arguments."""
        return {}

    def _propagate(
        self, types: Mapping[str, TensorType], shape_arrays: Mapping[str, Array]
    ) -> tuple[dict[Value, TensorType], dict[Value, Array]]:
        """Compute `propagate_constants`, node by node."""
        inferred = {value: types[value.name] for value in self.inputs}
        known = {
            value: shape_arrays[value.name] for value in self.inputs if value.name in shape_arrays
        }
        for node in self.nodes:
            for value in node.reads:
                if value.kind in (Kind.CONSTANT, Kind.VARIABLE):
                    inferred[value] = value.type
                    if value.kind is Kind.CONSTANT and value.data.size <= SMALL:  # type: ignore[union-attr]
                        known[value] = value.data  # type: ignore[assignment]
            self._add_constants(node, known)
            if any(inferred[value].symbols for value in node.reads) or node.lacks_shape_inputs(
                known
            ):
                inferred.update((value, value.type.unknown) for value in node.outputs)
                continue
            inferred.update(zip(node.outputs, node.infer(inferred, known), strict=True))
            if not any(inferred[value].symbols for value in node.outputs):
                known |= node.propagate_constants(inferred, known)
        return inferred, known

    @cached_property
    def _shape_inputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The inputs whose numbers operators read before a run, and those that they follow from."""
        inputs, first = set(self.inputs), set[Value]()
        behind: list[Value] = []
        for node in self.nodes:
            asked, told = node.operator.all_shape_inputs, node.operator.shape_inputs
            named = node.operator.named(node.inputs) if asked else {}
            for name in (name for name in asked if name in named):
                direct = name in told and named[name] in inputs
                (first.add if direct else behind.append)(named[name])
        needed: set[Value] = set()
        while behind:
            value = behind.pop()
            if value not in needed:
                needed.add(value)
                if value in self.producers:
                    behind += self.producers[value].reads_numbers_of
        wanted = tuple(v.name for v in self.inputs if v in first)
        return wanted, tuple(v.name for v in self.inputs if v in needed and v not in first)

    def shape_input_arrays(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays of `feeds`, by the inputs' names, whose numbers decide about sizes.

        What sizes may follow from is looked at where it is a few numbers in one dimension.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        return {name: feeds[name] for name in self.shape_input_names(shapes)}

    def shape_input_names(self, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
        """The inputs of `shapes`, by name, whose numbers decide about sizes and branches."""
        direct, behind = self._shape_inputs
        few = (n for n in behind if n in shapes and len(shapes[n]) < 2 and prod(shapes[n]) <= FEW)
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
        """The numbers of a value that no run changes; None for any other."""
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

    def reference(self, *given: Array) -> tuple[Array, ...]:
        """The outputs by NumPy for an array of each input, in the precision of these."""
        arrays = dict(zip(self.inputs, given, strict=True))
        wide = any(array.dtype == np.float64 for array in given)
        read = (*(value for node in self.nodes for value in node.reads), *self.outputs)
        for value in read:
            if value.kind is Kind.CONSTANT or value.kind is Kind.VARIABLE:
                array = np.asarray(self.value_of(value))
                wider = wide and array.dtype == np.float32
                arrays[value] = array.astype(np.float64) if wider else array
        for node in self.nodes:
            arrays.update(zip(node.outputs, node.reference(arrays), strict=True))
        return tuple(arrays[value] for value in self.outputs)


def ordered(outputs: Sequence[Value], producers: Mapping[Value, Node]) -> tuple[Node, ...]:
    """The nodes that `outputs` need, each behind those that it reads from.

    The order depends on how they hang together alone: first what the first output needs, the
    operands of each node from first to last.
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
        needed = [producers[value] for value in node.reads if value in producers]
        stack += [n for n in reversed(needed) if n not in entered]
    return tuple(nodes_in_order)
