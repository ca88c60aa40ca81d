"""Dead code elimination, removal of identities, and scalar constants within expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from glnn.core.symint import same
from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, Expr, Scalar
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import Expand, Identity, Pad, Pointwise, Slice, Transpose
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import GraphRewriter

SCALAR_DTYPES = (DType.float32, DType.int32, DType.bool)
"""Types whose numbers expressions may have."""


def remove_identities(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` without nodes that give their operand as it is, which their readers read
    instead; outputs are kept.

    types: of every value. That is identities, transpositions into the same order, slices of
    everything, pads of nothing and the like; also views of views in the shape of what these are
    views of, as an image would lose its layout on the way.
    """
    sources: dict[Value, Value] = {}
    kept: list[Node] = []
    views: dict[Value, Value] = {}
    undone = False
    for node in graph.nodes:
        read = node.with_values(sources)
        source = _identity_source(read, types)
        if source is None and isinstance(node.operator, View):
            (viewed,), (seen,) = read.reads, node.outputs
            source, views[seen] = _seen_again(viewed, seen, views, types), viewed
            undone |= source is not None
        if source is None:
            kept.append(read)
        elif (result := node.outputs[0]) not in graph.outputs:
            sources[result] = source
        else:
            kept.append(replace(node, operator=Identity(), inputs=(source,)))
    left = Graph(tuple(kept), graph.inputs, graph.outputs, graph.name)
    return prune_dead_nodes(left) if undone else left  # views on the way have no reader left


def _seen_again(
    viewed: Value, result: Value, views: Mapping[Value, Value], types: Mapping[Value, TensorType]
) -> Value | None:
    """Return what `viewed` is a view of, perhaps by several, in the shape of `result`."""
    value = views.get(viewed)
    while value is not None and not same(types[value].dims, types[result].dims):
        value = views.get(value)
    return value


def _identity_source(node: Node, types: dict[Value, TensorType]) -> Value | None:
    """The operand that the result of `node` is; None of one that is something else."""
    source = node.inputs[0] if node.inputs else None
    if source is None or node.epilogue is not None or len(node.outputs) > 1:
        return None
    operator = node.operator
    source_type, made = types[source], types[node.outputs[0]]
    if source_type.dtype is not made.dtype or not same(source_type.dims, made.dims):
        return None
    if isinstance(operator, Identity | View | Expand):
        return source
    if isinstance(operator, Slice):
        return source if min(operator.steps, default=1) > 0 else None
    if isinstance(operator, Pad):
        return source if not any((*operator.before, *operator.after)) else None
    if isinstance(operator, Transpose):
        rank = len(operator.perm)
        in_order = [axis % rank for axis in operator.perm] == list(range(rank))
        return source if in_order else None
    if isinstance(operator, Pointwise):
        return source if operator.expr == Arg(0) and len(node.inputs) == 1 else None
    return None


def prune_dead_nodes(graph: Graph) -> Graph:
    """Return `graph` without the nodes that no output needs."""
    needed = {value for value in graph.outputs if value.kind is Kind.COMPUTED}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
            kept.append(node)
    return Graph(tuple(reversed(kept)), graph.inputs, graph.outputs, graph.name)


def inline_scalars(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with operands that are one constant number as numbers in expressions.

    types: of every value. So they are uniforms, and need no buffer.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Pointwise) and not rewriter.is_fixed(node.outputs[0]):
            _inline_into(rewriter, node, node.operator.expr)
    return rewriter.graph()


def _inline_into(rewriter: GraphRewriter, node: Node, expr: Expr) -> None:
    arguments: list[Expr] = []
    kept: list[Value] = []
    for value in node.inputs:
        assert value is not None
        number = _scalar_of(rewriter, value)
        if number is None:
            arguments.append(Arg(len(kept)))
            kept.append(value)
        else:
            arguments.append(number)
    if not 0 < len(kept) < len(node.inputs):
        return
    operator, types = Pointwise(expr(*arguments)), rewriter.types
    if operator.infer([types[value] for value in kept]) == (types[node.outputs[0]],):
        rewriter.replace(node, operator, *kept)


def _scalar_of(rewriter: GraphRewriter, value: Value) -> Scalar | None:
    """Return the number that `value` holds as a Scalar; None where it is none."""
    type = rewriter.types[value]
    if (
        not same(prod(type.shape), 1)
        or type.dtype not in SCALAR_DTYPES
        or not rewriter.is_fixed(value)
    ):
        return None
    if rewriter.depends_on_sizes(value):  # to read it would make the plan one for these sizes
        return None
    array = rewriter.constant_array(value)
    return None if array is None else Scalar(array.item())
