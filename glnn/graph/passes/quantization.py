"""Quantise weights of layers that are bound by memory to int8: four in a word, a scale for each
channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from glnn.core.types import DType, Shape, TensorType
from glnn.graph.constant import ConstantExpression, constant, evaluated
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators.quantize import QuantizedWeight, RoundedWeight, WeightScales

MOST_USES = 64
"""Most uses of each weight by a sample in a layer that is bound by reading the weights.

A GPU does 14 (H200) to 50 (boards) operations in the time in which it reads a byte, and a float32
that is used so often makes for a half as many a byte.
"""
LEAST_QUANTIZED = 1 << 13
"""Least number of elements of a weight that is quantised: smaller ones stay in caches, and launches
take longer.
"""
SCALED = Epilogue(call("mul", Arg(0), Arg(1)), ("channel",))


def quantize_weights(
    graph: Graph, types: dict[Value, TensorType], samples: int, *, whole: bool = False
) -> Graph:
    """Return `graph` with int8 weights in layers that are bound by reading their weights.

    Each has the scale of its output channels in its epilogue, before all else; the layer as it was
    is among its origins, for devices where no kernel can. A weight with numbers that are not finite
    stays what it is. types: of every value, sizes known; those of new ones are added. samples: of a
    batch, so that it does not depend on it which layers these are. whole: have the layers take
    what int8 and scale say as float32 instead.
    """
    known: dict[Value, ConstantExpression] = {}
    finite: dict[Value, bool] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = _quantizable_weight(graph, node, types, samples)
        if weight is not None and weight not in finite:
            finite[weight] = _is_finite(constant(graph, weight, known))
        if weight is None or not finite[weight]:
            nodes.append(node)
        elif whole:
            nodes += _round_node(node, weight, types)
        else:
            nodes += _quantize_node(node, weight, types)
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)


def _quantizable_weight(
    graph: Graph, node: Node, types: Mapping[Value, TensorType], samples: int
) -> Value | None:
    """The weight that `node` is to have as int8; None where it has none."""
    operator = node.operator
    if not operator.int8_operands or not operator.has_epilogue or node.outputs[0] in graph.fixed:
        return None
    weight = operator.named(node.inputs)[operator.int8_operands[0]]
    type, result = types[weight], types[node.outputs[0]].shape
    plain = (
        weight in graph.fixed
        and type.dtype is DType.float32
        and prod(type.shape) >= LEAST_QUANTIZED
    )
    if not plain or len(type.shape) != len(result):  # a stack of matrices
        return None
    if type.shape[1] == 1:  # of channels one by one, which read more of images than of weights
        return None
    rows = prod(result) // result[1]
    return weight if rows <= MOST_USES * samples else None


def _is_finite(weight: ConstantExpression) -> bool:
    """Return True where all numbers of `weight` are finite."""
    array = evaluated(weight)
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _quantize_node(node: Node, weight: Value, types: dict[Value, TensorType]) -> tuple[Node, ...]:
    """Return `node` with `weight` as int8, behind the nodes that compute that and its scales."""
    packed = _weight_value(node, "int8", QuantizedWeight().infer([types[weight]])[0], types)
    scales = _weight_value(node, "scales", WeightScales().infer([types[weight]])[0], types)
    epilogue = SCALED if node.epilogue is None else SCALED.then(node.epilogue)
    made = replace(
        _with_weight(node, packed),
        epilogue=epilogue,
        extras=(scales, *node.extras),
        origins=(node,),
    )
    return (
        Node(packed.name, QuantizedWeight(), (weight,), (packed,)),
        Node(scales.name, WeightScales(), (weight,), (scales,)),
        made,
    )


def _round_node(node: Node, weight: Value, types: dict[Value, TensorType]) -> tuple[Node, ...]:
    """Return `node` with `weight` rounded, behind the node that does so."""
    made = _weight_value(node, "rounded", types[weight], types)
    rounding = Node(made.name, RoundedWeight(), (weight,), (made,))
    return rounding, _with_weight(node, made)


def _with_weight(node: Node, weight: Value) -> Node:
    """Return `node` with another weight."""
    named = zip(node.operator.names(len(node.inputs)), node.inputs, strict=True)
    inputs = tuple(
        weight if name in node.operator.int8_operands else value for name, value in named
    )
    return replace(node, inputs=inputs)


def _weight_value(node: Node, what: str, type: TensorType, types: dict[Value, TensorType]) -> Value:
    """A new value of `type`, made of the weight of `node`."""
    result = Value(f"{node.outputs[0].name}: weight, {what}", type)
    types[result] = type
    return result


def batch_size_of(graph: Graph, shapes: Mapping[str, Shape]) -> int:
    """Return the batch size of inputs of `shapes`: the size that the symbol of their batch stands
    for.

    graph: as the model says it, its inputs of sizes yet unknown. That is `N` where there is one,
    else the symbol of a first dimension; 1 where the model says no such size.
    """
    pairs = [zip(v.type.dims, shapes[v.name], strict=False) for v in graph.inputs]  # bound later
    sizes = [(i, dim, size) for one in pairs for i, (dim, size) in enumerate(one)]
    named = [size for _, dim, size in sizes if dim == "N"]
    first = [size for i, dim, size in sizes if i == 0 and isinstance(dim, str)]
    return max((named or first or [1])[0], 1)
