"""Replace int64 by int32 where all numbers are proved, or were checked, to fit.

Casts of int32 to other integers and back are removed where all numbers fit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from glnn.core.types import MAX_SMALL, DType, TensorType
from glnn.graph.constant import (
    Leaf,
    OperatorResult,
    constant,
    depends_on_sizes,
    evaluated,
    leaves,
)
from glnn.graph.expression import Arg, call
from glnn.graph.expression_evaluation import CAST_INT32, CAST_INT64
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.interval import INT32, Interval
from glnn.graph.operators import Identity, Pointwise, Within
from glnn.graph.operators.host import CONVERTED, HostCast

Types = Mapping[Value, TensorType]
TO_NARROW, TO_WIDE = (Pointwise(call(name, Arg(0))) for name in (CAST_INT32, CAST_INT64))
FROM_INT32 = {one: Pointwise(call(f"cast_{one.value}", Arg(0))) for one in CONVERTED}
"""Casts of int32 to these types, by type."""


def narrow_integers(graph: Graph, types: Types, *, body: bool = False) -> Graph:
    """Return `graph` for devices without int64: a node computes with int32 where all its int64
    operands, results and intermediate numbers are proved to fit.

    Other nodes stay as they are, for the host; casts connect the two. Inputs of int64 become int32:
    the caller checks that their numbers fit. Constants stay int64 and are cast for their consumers.
    float64 stays: float32 holds few of its numbers. Outputs keep their names; some become int32.
    types: of every value, sizes known. body: True for the body of a branch or loop, whose inputs
    have unknown intervals: they and the outputs stay as they are.
    """
    return _IntegerNarrowing(graph, types, body).graph()


class _IntegerNarrowing:
    def __init__(self, graph: Graph, types: Types, body: bool) -> None:
        self._graph, self._types, self._body = graph, types, body
        self._intervals: dict[Value, Interval] = {}
        self._nodes: list[Node] = []
        self._names = {value.name for value in types}
        self._narrow: dict[Value, Value] = {}  # the int32 version of int64 values
        self._wide: dict[Value, Value] = {}  # the int64 version of int64 values
        self._unchanged: set[Value] = set(graph.fixed)
        self._cast_sources: dict[
            Value, Value
        ] = {}  # the int32 operand of casts that keep all numbers

    def graph(self) -> Graph:
        graph = self._graph
        inputs = tuple(self._input(value) for value in graph.inputs)
        for node in graph.nodes:
            if node.outputs[0] in graph.fixed:
                self._nodes.append(node)
            else:
                self._add(node)
        outputs = [v if v in self._unchanged else self._narrow.get(v, v) for v in graph.outputs]
        if self._body:
            outputs = [self._as_wide(v) for v in graph.outputs]
        narrowed = set(inputs) - set(graph.inputs)
        result = Graph(tuple(self._nodes), inputs, tuple(outputs), graph.name)
        return _remove_cast_pairs(result, narrowed)

    def _input(self, value: Value) -> Value:
        if self._body or self._types[value].dtype is not DType.int64:
            self._unchanged.add(value)
            self._wide[value] = value
            return value
        self._intervals[value] = INT32
        self._narrow[value] = Value(value.name, _int32_type(value), Kind.INPUT)
        return self._narrow[value]

    def _add(self, node: Node) -> None:
        """Add `node`, of int32 where all its numbers fit."""
        node = self._without_round_trip(_read_each_value_once(node))
        operand_intervals = [
            None if value is None else self._interval(value) for value in node.inputs
        ]
        types = [None if value is None else self._types[value] for value in node.inputs]
        intervals = node.operator.value_ranges(operand_intervals, types)
        for value, interval in zip(node.outputs, intervals, strict=bool(intervals)):
            self._intervals[value] = interval.stored(self._types[value].dtype)
        operator = node.operator.narrow(operand_intervals, types) if self._fits(node) else None
        if operator is None:
            inputs = tuple(v and self._as_wide(v) for v in node.inputs)
            self._wide |= {v: v for v in node.outputs if self._is_wide(v)}
            self._unchanged.update(node.outputs)
            self._nodes.append(replace(node, inputs=inputs))
            return
        inputs = tuple(v and self._as_narrow(v) for v in node.inputs)
        if operator == TO_NARROW and inputs[0] and inputs[0].type.dtype is DType.int32:
            operator = Identity()
        self._narrow |= {v: Value(v.name, _int32_type(v)) for v in node.outputs if self._is_wide(v)}
        outputs = tuple(self._narrow.get(v, v) for v in node.outputs)
        self._nodes.append(replace(node, operator=operator, inputs=inputs, outputs=outputs))

    def _without_round_trip(self, node: Node) -> Node:
        """Return `node`, a cast of integers that were cast from int32, as a cast of the int32.

        Only where all numbers fit the type between. QuantizeLinear to 16 bits and DequantizeLinear
        then need no step of the host between them.
        """
        if not isinstance(cast := node.operator, HostCast):
            return node
        (operand,) = node.reads
        if (source := self._cast_sources.get(operand)) is not None and cast.to in FROM_INT32:
            return replace(node, operator=FROM_INT32[cast.to], inputs=(source,))
        known = cast.to.numpy.kind in "iu"  # `Interval.of_type` has no bounds of int4 and the like
        fits = known and self._interval(operand).within(Interval.of_type(cast.to))
        if self._types[operand].dtype is DType.int32 and fits:
            self._cast_sources[node.outputs[0]] = operand
        return node

    def _fits(self, node: Node) -> bool:
        """Return True where all int64 operands and results of `node` fit int32, and none is
        float64.
        """
        values = (*node.reads, *node.outputs)
        if any(self._types[value].dtype is DType.float64 for value in values):
            return False
        return all(self._interval(v).within(INT32) for v in values if self._is_wide(v))

    def _is_wide(self, value: Value) -> bool:
        return self._types[value].dtype is DType.int64

    def _interval(self, value: Value) -> Interval:
        """Return the interval of the numbers of `value`."""
        if value not in self._intervals:
            interval, dtype = None, self._types[value].dtype
            if value in self._graph.fixed and dtype.kind == "int":
                expression = constant(self._graph, value, {})
                if isinstance(expression, OperatorResult) and depends_on_sizes(expression):
                    interval = self._interval_by_operator(value)
                elif all(leaf.value.kind is Kind.CONSTANT for leaf in leaves(expression)):
                    array = value.data if isinstance(expression, Leaf) else evaluated(expression)
                    interval = Interval.of_array(np.asarray(array))
            self._intervals[value] = interval or Interval.of_type(dtype)
        return self._intervals[value]

    def _interval_by_operator(self, value: Value) -> Interval | None:
        """Return the interval of a constant that depends on open sizes, by its operator: its value
        would restrict the plan to the current sizes.
        """
        node = self._graph.producers.get(value)
        if node is None:
            return None
        intervals = [None if one is None else self._interval(one) for one in node.inputs]
        types = [None if one is None else self._types[one] for one in node.inputs]
        ranges = node.operator.value_ranges(intervals, types)
        by_value = dict(zip(node.outputs, ranges, strict=bool(ranges)))
        return by_value[value].stored(self._types[value].dtype) if value in by_value else None

    def _as_wide(self, value: Value) -> Value:
        """Return the int64 value for `value`, cast from its int32 version where there is one."""
        if not self._is_wide(value) or value in self._graph.fixed:
            return value
        if value not in self._wide:
            self._wide[value] = self._cast(self._narrow[value], TO_WIDE, value.type)
        return self._wide[value]

    def _as_narrow(self, value: Value) -> Value:
        """Return the int32 value for `value`, cast where it is of int64."""
        if not self._is_wide(value):
            return value
        if value not in self._narrow:
            self._narrow[value] = self._cast(value, TO_NARROW, _int32_type(value))
        return self._narrow[value]

    def _cast(self, value: Value, operator: Pointwise, type: TensorType) -> Value:
        name = f"{value.name} as {type.dtype.value}"
        while name in self._names:
            name += "'"
        self._names.add(name)
        result = Value(name, type)
        self._nodes.append(Node(name, operator, (value,), (result,)))
        return result


def _read_each_value_once(node: Node) -> Node:
    """Return a pointwise `node` with each operand once: the interval of x - x is then exact."""
    values = tuple(dict.fromkeys(v for v in node.inputs if v))
    if not isinstance(node.operator, Pointwise) or len(values) == len(node.inputs):
        return node
    args = [Arg(values.index(v)) for v in node.inputs if v]
    return replace(node, operator=Pointwise(node.operator.expr(*args)), inputs=values)


def _remove_cast_pairs(graph: Graph, narrowed: Collection[Value]) -> Graph:
    """Keep an input int64 where all its consumers are casts back to int64, and drop the casts.

    Its numbers may then exceed int32. narrowed: the inputs of int32 that were int64; a cast of
    another input is one of the model, which may change numbers.
    """
    substitutes: dict[Value, Value] = {}
    inputs = list(graph.inputs)
    for i, value in enumerate(inputs):
        readers = graph.readers.get(value, ())
        casts = [node for node in readers if node.operator == TO_WIDE]
        if value not in narrowed or not casts or len(casts) < len(readers):
            continue
        if not {value, *(node.outputs[0] for node in casts)}.intersection(graph.outputs):
            inputs[i] = Value(value.name, casts[0].outputs[0].type, Kind.INPUT)
            substitutes |= {node.outputs[0]: inputs[i] for node in casts}
    nodes = tuple(
        node.with_values(substitutes)
        for node in graph.nodes
        if not substitutes.keys() & set(node.outputs)
    )
    return Graph(nodes, tuple(inputs), graph.outputs, graph.name)


def _int32_type(value: Value) -> TensorType:
    return TensorType(value.type.dims, DType.int32)


SMALL_INTERVAL = Interval(-MAX_SMALL, MAX_SMALL)
"""Bounds of the numbers of inputs that are `types.all_small`."""


def has_int64_inputs(graph: Graph) -> bool:
    """Return True where any input is of int64."""
    return any(value.type.dtype is DType.int64 for value in graph.inputs)


def small_input_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of the inputs that `mark_small_inputs` marked in `graph`."""
    values = (node.inputs[0] for node in graph.nodes if isinstance(node.operator, Within))
    return tuple(value.name for value in values if value is not None)


def mark_small_inputs(graph: Graph, excluded: Collection[str]) -> Graph:
    """Return `graph` for int64 inputs that are `types.all_small`, except those in `excluded`."""
    marked: dict[Value, Value] = {}
    nodes: list[Node] = []
    for value in graph.inputs:
        if value.type.dtype is DType.int64 and value.name not in excluded:
            marked[value] = Value(f"{value.name}, which is small", value.type)
            nodes.append(Node(value.name, Within(SMALL_INTERVAL), (value,), (marked[value],)))
    nodes += [node.with_values(marked) for node in graph.nodes]
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
