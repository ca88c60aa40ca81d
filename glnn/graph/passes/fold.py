"""Scales and shifts of channels moved into the weights that made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value, ordered
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Reshape
from glnn.graph.patterns import PRODUCT, SCALE_AND_SHIFT, SUM
from glnn.types import TensorType

Types = Mapping[Value, TensorType]


def fold(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """`graph` with a scale and a shift of each channel, as a batch normalisation is at inference,
    moved into the fixed weights and the bias of the convolution or product before it.

    types: of every value; those of new ones are added. A value that somebody else reads, or that is
    an output, is left as it is.
    """
    made = dict(graph.producers)
    for node in graph.nodes:
        found = _folded(graph, made, node, types)
        if found is not None:
            made |= {value: one for one in found for value in one.outputs}
    return Graph(ordered(graph.outputs, made), graph.inputs, graph.outputs, graph.name)


def _folded(
    graph: Graph, made: Mapping[Value, Node], node: Node, types: dict[Value, TensorType]
) -> list[Node] | None:
    """The nodes that stand for `node` and its producer; None where nothing can be folded."""
    if not _is(node, SCALE_AND_SHIFT) or not _by_channel(graph, node, types):
        return None
    first = _before(graph, made, node)
    bias: Value | None = None
    if first is not None and _is(first, SUM) and _by_channel(graph, first, types):
        bias, first = first.inputs[1], _before(graph, made, first)
    if first is None or not isinstance(first.operator, (Conv2d, Matmul)):
        return None
    weight = first.inputs[1]
    if weight is None or weight not in graph.fixed or len(types[weight].dims) == 3:
        return None
    _, scale, shift = node.inputs
    assert scale is not None and shift is not None
    count = types[weight].shape[0]
    nodes: list[Node] = []

    def add(operator: Pointwise | Reshape, *inputs: Value) -> Value:
        (type,) = operator.infer([types[value] for value in inputs])
        value = Value(f"{node.name}: folded {len(nodes)}", type)
        types[value] = type
        nodes.append(Node(node.name, operator, inputs, (value,)))
        return value

    wide = add(Reshape((count, *(1,) * (len(types[weight].dims) - 1))), scale)
    scaled = add(Pointwise(PRODUCT), weight, wide)
    total = shift
    if bias is not None:
        total = add(Pointwise(SCALE_AND_SHIFT), bias, scale, shift)
    product = Value(f"{node.name}: scaled", types[first.outputs[0]])
    types[product] = product.type
    contraction = replace(
        first, inputs=(first.inputs[0], scaled, *first.inputs[2:]), outputs=(product,)
    )
    shifted = replace(node, operator=Pointwise(SUM), inputs=(product, total))
    return [*nodes, contraction, shifted]


def _is(node: Node, expr: object) -> bool:
    return isinstance(node.operator, Pointwise) and node.operator.expr == expr


def _by_channel(graph: Graph, node: Node, types: Types) -> bool:
    """Whether all operands but the first are fixed, and of one number a channel."""
    first, *rest = node.inputs
    if first is None:
        return False
    shape = types[first].shape
    wanted = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else None
    return all(v in graph.fixed and v and types[v].shape == wanted for v in rest)


def _before(graph: Graph, made: Mapping[Value, Node], node: Node) -> Node | None:
    """The node that makes the first operand of `node`, where nobody else reads that."""
    value = node.inputs[0]
    if value is None or value in graph.outputs or len(graph.readers[value]) > 1:
        return None
    return made.get(value)
