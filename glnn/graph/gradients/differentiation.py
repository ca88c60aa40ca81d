"""Reverse-mode differentiation of graphs, with a rule for each operator.

Reference: Griewank and Walther 2008, Evaluating Derivatives, chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import constant
from glnn.graph.expression import SUM
from glnn.graph.gradients import data_movement, neural_network, pointwise
from glnn.graph.gradients.gradient_context import GradientContext, GradientRule
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Arange,
    ArgReduce,
    Attention,
    AttentionParts,
    AttentionSum,
    BatchNormalize,
    BatchNormalizeGradient,
    CacheAppend,
    CachedAttention,
    CacheUpdate,
    ChannelSums,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Expand,
    Fourier,
    If,
    Im2row,
    Loop,
    MatmulParts,
    MatmulSum,
    MergeChannelSums,
    MergeTopK,
    NormalizeGradient,
    NormedMatmul,
    Pack,
    PartialAttention,
    Perceptron,
    PhasedRecurrence,
    Pointwise,
    Pool2dGradient,
    PooledConv2d,
    QuantizedMatmul,
    QuantizedRows,
    Recurrence,
    Rotary,
    Sample,
    SeparableConv2d,
    ShiftAdd,
    Sobel,
    SoftmaxGradient,
    TopK,
    WinogradInput,
    WinogradOutput,
    Zero,
)

RULES: dict[type[Operator], GradientRule] = {
    **neural_network.RULES,
    **data_movement.RULES,
    **pointwise.RULES,
}
"""Gradient rules by kind of operator."""


_IS_GRADIENT = "it is a gradient itself"
_IS_INFERENCE = "it is for inference alone"
_MADE_IN_PLANS = "it is made only where a plan is"
_HAS_BODIES = "gradients do not go through the graphs that it runs"

NOT_DIFFERENTIABLE: Mapping[type[Operator], str] = {
    Arange: "it counts",
    ArgReduce: "its results are indices",
    TopK: "its results are indices",
    Fourier: "spectra are of what is given, not of what is trained",
    MergeChannelSums: _MADE_IN_PLANS,
    MergeTopK: _MADE_IN_PLANS,
    If: _HAS_BODIES,
    Loop: _HAS_BODIES,
    Sobel: "it is a filter of images",
    Conv2dInputGradient: _IS_GRADIENT,
    Conv2dWeightGradient: _IS_GRADIENT,
    Pool2dGradient: _IS_GRADIENT,
    NormalizeGradient: _IS_GRADIENT,
    SoftmaxGradient: _IS_GRADIENT,
    Attention: _MADE_IN_PLANS,
    BatchNormalize: _MADE_IN_PLANS,
    BatchNormalizeGradient: _MADE_IN_PLANS,
    AttentionParts: _MADE_IN_PLANS,
    AttentionSum: _MADE_IN_PLANS,
    CachedAttention: _IS_INFERENCE,
    CacheAppend: _MADE_IN_PLANS,
    CacheUpdate: _IS_INFERENCE,
    ChannelSums: _MADE_IN_PLANS,
    QuantizedMatmul: _IS_INFERENCE,
    QuantizedRows: _IS_INFERENCE,
    Rotary: _IS_INFERENCE,
    Sample: "its results are drawn",
    Im2row: _MADE_IN_PLANS,
    MatmulParts: _MADE_IN_PLANS,
    NormedMatmul: _MADE_IN_PLANS,
    MatmulSum: _MADE_IN_PLANS,
    Pack: _MADE_IN_PLANS,
    PartialAttention: _MADE_IN_PLANS,
    Perceptron: _MADE_IN_PLANS,
    PhasedRecurrence: _MADE_IN_PLANS,
    PooledConv2d: _MADE_IN_PLANS,
    Recurrence: _MADE_IN_PLANS,
    SeparableConv2d: _MADE_IN_PLANS,
    ShiftAdd: _MADE_IN_PLANS,
    WinogradInput: _MADE_IN_PLANS,
    WinogradOutput: _MADE_IN_PLANS,
    Zero: _MADE_IN_PLANS,
}
"""Operators without a gradient, and why they have none."""


def differentiate(
    graph: Graph, result: Value, by: Sequence[Value], gradient: Value | None = None
) -> tuple[Graph, tuple[Value, ...]]:
    """Return `graph` with the gradients of `result` by each value in `by`, and these gradients.

    result: one float32 number that the graph computes; with `gradient`, float32 of any shape. by:
    float32 values of the graph, of any kind; the gradient by a value that `result` does not depend
    on is zeros. gradient: the gradient of a loss by `result`, a value of the graph with the shape
    of `result`, which is not differentiated itself; the gradients are then the loss's. All sizes of
    the graph must be known, and no node may be a composite or have an epilogue: it runs before
    fusion. Where a function has no derivative, as |x| at 0, the formula of its row gives the same
    as PyTorch. Raises UnsupportedOpError, which names the node, where there is no rule, and
    ShapeError where `result` is not one number or a value in `by` is not float32.
    """
    if result.type.dtype is not DType.float32 or (
        gradient is None and prod(result.type.shape) != 1
    ):
        raise ShapeError(f"gradients are of one float32 number, {result.name!r} is {result.type}")
    if gradient is None:
        gradient = constant(np.ones(result.type.shape, np.float32))
    if gradient.type != result.type:
        raise ShapeError(f"the gradient by {result.name!r}, {result.type}, is {gradient.type}")
    for value in by:
        if value.type.dtype is not DType.float32:
            raise ShapeError(f"gradients are by float32 values, {value.name!r} is {value.type}")
    return _Differentiation(graph, result, by, gradient).graph()


class _Differentiation:
    def __init__(self, graph: Graph, result: Value, by: Sequence[Value], gradient: Value) -> None:
        self._graph, self._by = graph, by
        self._nodes: list[Node] = []
        self._names = {value.name for value in graph.inputs}
        self._names |= {value.name for node in graph.nodes for value in node.outputs}
        self._gradients: dict[Value, Value] = {result: gradient}
        """The gradient by each value, accumulated so far."""

    def graph(self) -> tuple[Graph, tuple[Value, ...]]:
        """Return the graph with gradients, and the gradients by the values in `by`."""
        targets = _dependents(self._graph, self._by)
        for node in reversed(self._graph.nodes):
            if targets.isdisjoint(node.outputs) or self._gradients.keys().isdisjoint(node.outputs):
                continue
            self._backward(node, targets)
        results = tuple(self._gradients.get(value) or self._zeros(value) for value in self._by)
        graph = self._graph
        outputs = tuple(dict.fromkeys((*graph.outputs, *results)))
        nodes = (*graph.nodes, *self._nodes)
        return Graph(nodes, graph.inputs, outputs, graph.name), results

    def _backward(self, node: Node, targets: frozenset[Value]) -> None:
        """Add the gradients by the operands of `node`."""
        if (rule := RULES.get(type(node.operator))) is None:
            kind = type(node.operator)
            why = NOT_DIFFERENTIABLE.get(kind, "there is no rule for it")
            raise UnsupportedOpError(f"layer {node.name!r}: {kind.__name__} has no gradient: {why}")
        for value in node.inputs:
            if value in targets and value.type.dtype is not DType.float32:
                got = f"{value.name!r} is {value.type.dtype.value}"
                raise UnsupportedOpError(
                    f"layer {node.name!r}: gradients go through float32 alone, {got}"
                )
        label = f"{node.name}: gradient"

        def add(operator: Operator, *inputs: Value | None) -> tuple[Value, ...]:
            return self._add(label, operator, inputs)

        dy = tuple(self._gradients.get(value) for value in node.outputs)
        gradients = rule(GradientContext(node, dy, targets, add))
        for value, gradient in zip(node.inputs, gradients, strict=True):
            if value is None or gradient is None or value not in targets:
                continue
            if gradient.type.dims != value.type.dims:
                got = f"{gradient.type} as the gradient by {value.name!r}, {value.type}"
                raise ShapeError(f"{node.operator.name} gave {got}")
            previous = self._gradients.get(value)
            if previous is not None:
                (gradient,) = add(Pointwise(SUM), previous, gradient)
            self._gradients[value] = gradient

    def _add(
        self, label: str, operator: Operator, inputs: Sequence[Value | None]
    ) -> tuple[Value, ...]:
        """Add a node called `label` that applies `operator`, and return its results."""
        types = [None if value is None else value.type for value in inputs]
        arrays = [v.data if v and isinstance(v.data, np.ndarray) else None for v in inputs]
        results = operator.infer(types, arrays)
        values = tuple(Value(self._fresh(f"{label}: {operator.name}"), type) for type in results)
        self._nodes.append(Node(label, operator, tuple(inputs), values))
        return values

    def _zeros(self, value: Value) -> Value:
        zero = constant(np.zeros((1,) * len(value.type.dims), np.float32))
        return self._add(f"{value.name}: gradient", Expand(value.type.shape), (zero,))[0]

    def _fresh(self, name: str) -> str:
        result, count = name, 1
        while result in self._names:
            count += 1
            result = f"{name} {count}"
        self._names.add(result)
        return result


def _dependents(graph: Graph, by: Iterable[Value]) -> frozenset[Value]:
    """Return the values in `by`, and all values that depend on them through floats."""
    dependents = set(by)
    for node in graph.nodes:
        if not dependents.isdisjoint(node.reads):
            dependents.update(value for value in node.outputs if value.type.dtype.kind == "float")
    return frozenset(dependents)
