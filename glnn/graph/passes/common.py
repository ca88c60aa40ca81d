"""Common subexpression elimination, and single numbers of operands as constants of expressions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import prod

from glnn.graph.expression import Arg, Expr, Scalar
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import Pointwise
from glnn.graph.passes.rewriting import Rewriting
from glnn.symint import same
from glnn.types import DType, TensorType

SHORT = (DType.float32, DType.int32, DType.bool)
"""Types whose numbers expressions may have."""


def with_common(graph: Graph) -> Graph:
    """Return `graph` with equal operators on equal operands merged into one; outputs are kept."""
    firsts: dict[Value, Value] = {}
    found: dict[Hashable, Node] = {}
    constants: dict[Hashable, Value] = {}
    kept: list[Node] = []

    def one(value: Value | None) -> Value | None:
        return value if value is None else firsts.get(value, _shared(value, constants))

    for node in graph.nodes:
        given = tuple([one(value) for value in node.inputs])
        extras = tuple([firsts.get(v, v) for v in node.extras])
        if given != node.inputs or extras != node.extras:
            node = replace(node, inputs=given, extras=extras)
        node = _once(node)
        inputs = node.inputs
        key = (node.operator, inputs, node.epilogue, node.extras)
        first = found.get(key)
        asked = any(value in graph.outputs for value in node.outputs)
        if first is None or asked or node.operator.control:
            found.setdefault(key, node)
            kept.append(node)
        else:
            firsts |= zip(node.outputs, first.outputs, strict=True)
    return Graph(tuple(kept), graph.inputs, graph.outputs, graph.name)


def _once(node: Node) -> Node:
    """Return `node` with each value read once."""
    if not isinstance(node.operator, Pointwise) or len(set(node.inputs)) == len(node.inputs):
        return node
    inputs = tuple(dict.fromkeys(node.inputs))
    expr = node.operator.expr(*(Arg(inputs.index(value)) for value in node.inputs))
    return replace(node, operator=Pointwise(expr), inputs=inputs)


def _shared(value: Value, constants: dict[Hashable, Value]) -> Value:
    """The first constant of the same few numbers."""
    array = value.data
    if value.kind is not Kind.CONSTANT or array is None or array.nbytes > 64:  # type: ignore[union-attr]
        return value
    key = value.type, array.tobytes()  # type: ignore[union-attr]
    return constants.setdefault(key, value)


def with_numbers(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with operands that are one constant number as numbers in expressions.

    types: of every value. So they are uniforms, and need no buffer.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if isinstance(node.operator, Pointwise) and not rewriting.fixed(node.outputs[0]):
            _numbered(rewriting, node, node.operator.expr)
    return rewriting.graph()


def _numbered(rewriting: Rewriting, node: Node, expr: Expr) -> None:
    arguments: list[Expr] = []
    kept: list[Value] = []
    for value in node.inputs:
        assert value is not None
        number = _number(rewriting, value)
        if number is None:
            arguments.append(Arg(len(kept)))
            kept.append(value)
        else:
            arguments.append(number)
    if not 0 < len(kept) < len(node.inputs):
        return
    operator, types = Pointwise(expr(*arguments)), rewriting.types
    if operator.infer([types[value] for value in kept]) == (types[node.outputs[0]],):
        rewriting.replace(node, operator, *kept)


def _number(rewriting: Rewriting, value: Value) -> Scalar | None:
    """Return the number that `value` holds as a Scalar; None where it is none."""
    type = rewriting.types[value]
    if not same(prod(type.shape), 1) or type.dtype not in SHORT or not rewriting.fixed(value):
        return None
    array = rewriting.numbers(value)
    return None if array is None else Scalar(array.item())
