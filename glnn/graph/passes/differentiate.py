"""Reverse-mode differentiation of graphs, with a rule for each operator.

Reference: Griewank and Walther 2008, Evaluating Derivatives, chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import constant
from glnn.graph.gradients import NONE, RULES, Backward
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Expand, Pointwise
from glnn.graph.patterns import SUM
from glnn.types import DType


def differentiate(
    graph: Graph, of: Value, by: Sequence[Value], gradient: Value | None = None
) -> tuple[Graph, tuple[Value, ...]]:
    """Return `graph` with the gradients of `of` by each of `by`, and these gradients, each of its
    value's shape.

    of: one float32 number that the graph computes. by: float32 values of the graph, of any kind;
    the gradient by one that `of` does not depend on is zeros. gradient: of something else by `of`,
    which may be of any shape then; the gradients found are that one's. It is of the graph, of the
    shape of `of`, and itself taken as fixed. All sizes of the graph must be
    known, and no node may be a composite or have an epilogue: it is a pass before fusion. Where a
    function has no derivative, as |x| has none at 0, what its row says is taken, as PyTorch does.
    Raises UnsupportedOpError, which names the node, where there is no rule, and ShapeError where
    `of` is no number or one of `by` is not float32.
    """
    if of.type.dtype is not DType.float32 or (gradient is None and prod(of.type.shape) != 1):
        raise ShapeError(f"gradients are of one float32 number, {of.name!r} is {of.type}")
    if gradient is None:
        gradient = constant(np.ones(of.type.shape, np.float32))
    if gradient.type != of.type:
        raise ShapeError(f"the gradient by {of.name!r}, {of.type}, is {gradient.type}")
    for value in by:
        if value.type.dtype is not DType.float32:
            raise ShapeError(f"gradients are by float32 values, {value.name!r} is {value.type}")
    return _Differentiation(graph, of, by, gradient).graph()


class _Differentiation:
    def __init__(self, graph: Graph, of: Value, by: Sequence[Value], gradient: Value) -> None:
        self._graph, self._by = graph, by
        self._nodes: list[Node] = []
        self._names = {value.name for value in graph.inputs}
        self._names |= {value.name for node in graph.nodes for value in node.outputs}
        self._found: dict[Value, Value] = {of: gradient}
        """The gradient by each value, as far as it is added up by now."""

    def graph(self) -> tuple[Graph, tuple[Value, ...]]:
        wanted = _dependent(self._graph, self._by)
        for node in reversed(self._graph.nodes):
            if wanted.isdisjoint(node.outputs) or self._found.keys().isdisjoint(node.outputs):
                continue
            self._back(node, wanted)
        results = tuple(self._found.get(value) or self._zeros(value) for value in self._by)
        graph = self._graph
        outputs = tuple(dict.fromkeys((*graph.outputs, *results)))
        nodes = (*graph.nodes, *self._nodes)
        return Graph(nodes, graph.inputs, outputs, graph.name), results

    def _back(self, node: Node, wanted: frozenset[Value]) -> None:
        """Add the gradients by the operands of `node`."""
        if (rule := RULES.get(type(node.operator))) is None:
            kind = type(node.operator)
            why = NONE.get(kind, "there is no rule for it")
            raise UnsupportedOpError(f"layer {node.name!r}: {kind.__name__} has no gradient: {why}")
        for value in node.inputs:
            if value in wanted and value.type.dtype is not DType.float32:
                what = f"{value.name!r} is {value.type.dtype.value}"
                raise UnsupportedOpError(
                    f"layer {node.name!r}: gradients go through float32 alone, {what}"
                )
        label = f"{node.name}: gradient"

        def add(operator: Operator, *inputs: Value | None) -> tuple[Value, ...]:
            return self._add(label, operator, inputs)

        given = tuple(self._found.get(value) for value in node.outputs)
        found = rule(Backward(node, given, wanted, add))
        for value, gradient in zip(node.inputs, found, strict=True):
            if value is None or gradient is None or value not in wanted:
                continue
            if gradient.type.dims != value.type.dims:
                what = f"{gradient.type} as the gradient by {value.name!r}, {value.type}"
                raise ShapeError(f"{node.operator.name} gave {what}")
            before = self._found.get(value)
            sum = gradient if before is None else add(Pointwise(SUM), before, gradient)[0]
            self._found[value] = sum

    def _add(
        self, label: str, operator: Operator, inputs: Sequence[Value | None]
    ) -> tuple[Value, ...]:
        """The results of `operator`."""
        types = [None if value is None else value.type for value in inputs]
        known = [v.data if v and isinstance(v.data, np.ndarray) else None for v in inputs]
        results = operator.infer(types, known)
        values = tuple(Value(self._fresh(f"{label}: {operator.name}"), one) for one in results)
        self._nodes.append(Node(label, operator, tuple(inputs), values))
        return values

    def _zeros(self, value: Value) -> Value:
        zero = constant(np.zeros((1,) * len(value.type.dims), np.float32))
        return self._add(f"{value.name}: gradient", Expand(value.type.shape), (zero,))[0]

    def _fresh(self, name: str) -> str:
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name} {count}"
        self._names.add(found)
        return found


def _dependent(graph: Graph, by: Iterable[Value]) -> frozenset[Value]:
    """The values that `by` lead to by way of floats, and these."""
    found = set(by)
    for node in graph.nodes:
        if not found.isdisjoint(node.reads):
            found.update(value for value in node.outputs if value.type.dtype.kind == "float")
    return frozenset(found)
