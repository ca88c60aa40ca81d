"""Have layers read weights of int8: four in a word, a scale for each channel.

Integer weights of a model stay integers; float weights of memory-bound layers are quantised on
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.graph.constant import ConstantExpression, constant, evaluated
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call, formula
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Pointwise, Reshape
from glnn.graph.operators.dequantize import Dequantize
from glnn.graph.operators.quantize import QuantizedWeight, RoundedWeight, WeightScales
from glnn.graph.operators.views import View
from glnn.graph.passes.scale_folding import as_affine
from glnn.graph.passes.weight_packing import FLOAT_CASTS

MOST_USES = 64
"""Most uses of each weight by a sample in a layer that is bound by reading its weights.

A GPU does 14 (H200) to 50 (boards) operations in the time in which it reads a byte. A float32
weight of so many uses takes half as many operations a byte.
"""
LEAST_QUANTIZED = 1 << 13
"""Least number of elements of a quantised weight: smaller ones stay in caches, and the launch takes
longer than to read them.
"""
SCALED = Epilogue(call("mul", Arg(0), Arg(1)), ("channel",))
SCALED_BY_ONE = Epilogue(call("mul", Arg(0), Arg(1)), ("one",))
BYTES = (DType.int8, DType.uint8)
INT8 = np.iinfo(np.int8)
LESS_ZERO = formula("cast_int8(cast_int32(a) - cast_int32(b))")


def keep_integers(graph: Graph, types: dict[Value, TensorType], samples: int) -> Graph:
    """Return `graph` with int8 weights in layers whose weights are a `Dequantize` of constants.

    The layer's epilogue begins with the scale, one for the tensor or one for each output channel;
    zero points are subtracted from the weights once. A weight stays float where it less its zero
    points exceeds int8, and in convolutions that are faster by Winograd's transforms, which take
    floats. The original layers are the origins of the new ones. types: of every value, sizes known;
    those of new ones are added. samples: of a batch.
    """
    return _IntegerKeeping(graph, types, samples).graph()


Scaled = tuple[Value, Value | None]
"""A weight of int8 and its scale, (o,) or (1,); None for 1."""


class _IntegerKeeping:
    """The pass `keep_integers` on one graph."""

    def __init__(self, graph: Graph, types: dict[Value, TensorType], samples: int) -> None:
        self._graph, self._types, self._samples = graph, types, samples
        self._expressions: dict[Value, ConstantExpression] = {}
        self._int8_weights: dict[Value, Scaled | None] = {}
        """By the float weight; None where it has to be floats."""
        self._nodes: list[Node] = []

    def graph(self) -> Graph:
        graph = self._graph
        for node in graph.nodes:
            weight = _large_weight(graph, node, self._types)
            if weight is not None and self._has_transforms(node, weight):
                weight = None
            if weight is not None and weight not in self._int8_weights:
                self._int8_weights[weight] = self._dequantized(node, weight)
            scaled = None if weight is None else self._int8_weights[weight]
            self._nodes.append(node if scaled is None else _with_int8(node, *scaled, self._types))
        return Graph(tuple(self._nodes), graph.inputs, graph.outputs, graph.name)

    def _has_transforms(self, node: Node, weight: Value) -> bool:
        """Return True where `node` is a convolution that is faster by Winograd's transforms: one
        that uses each weight often.
        """
        conv, taps = node.operator, self._types[weight].shape[2:]
        if not isinstance(conv, Conv2d) or conv.exact or conv.groups > 1 or taps != (3, 3):
            return False
        if not conv.stride == conv.dilation == (1, 1):
            return False
        return _uses(node, self._types) > MOST_USES * self._samples

    def _dequantized(self, layer: Node, weight: Value) -> Scaled | None:
        """Return the integers and the scale that `weight`, of `layer`, is computed from; None where
        it has to be floats.
        """
        value, factors = weight, list[tuple[Node, int]]()
        while True:
            node = self._graph.producers.get(value)
            if node is None or node.epilogue is not None:
                return None
            if isinstance(node.operator, Dequantize):
                break
            index = self._scaled_operand(node)
            if index is None:
                return None
            if isinstance(node.operator, Pointwise):
                factors.append((node, index))
            value = node.reads[index]
        shape = self._types[weight].shape
        scaled = self._integers(layer, node, node.operator, shape)
        if scaled is None:
            return None
        integers, scale = scaled
        if not factors and (self._array(node.operator.named(node.inputs)["scale"]) == 1).all():
            return integers, None
        for node, index in reversed(factors):
            scale = self._apply(layer, node, index, scale)
        return integers, self._reshape(layer, scale, (prod(self._types[scale].shape),))

    def _integers(
        self, layer: Node, node: Node, dequantize: Dequantize, shape: Shape
    ) -> tuple[Value, Value] | None:
        """Return the integers of `node` less its zero points, in `shape`, and its float32 scale.

        None where the integers are not int8, or scales differ along another axis than the first.
        """
        operands = dequantize.named(node.inputs)
        x, scale, zero = operands["x"], operands["scale"], operands.get("zero")
        by_channel = dequantize.axis == 0 and self._types[x].shape[:1] == shape[:1]
        by_tensor = all(prod(self._types[one].shape) == 1 for one in (scale, zero or scale))
        if dequantize.block or not (by_channel or by_tensor) or self._types[x].dtype not in BYTES:
            return None
        zeros = None if zero is None else self._array(zero)
        if not _fits_int8(self._array(x), zeros):
            return None
        x = self._reshape(layer, x, shape)
        if zero is not None and zeros is not None and zeros.any():
            column = (zeros.size, *(1,) * (len(shape) - 1))
            x = self._add(layer, Pointwise(LESS_ZERO), x, self._reshape(layer, zero, column))
        elif self._types[x].dtype is not DType.int8:
            x = self._add(layer, Pointwise(formula("cast_int8(a)")), x)
        if self._types[scale].dtype is not DType.float32:
            scale = self._add(layer, Pointwise(FLOAT_CASTS[0]), scale)
        return x, scale

    def _scaled_operand(self, node: Node) -> int | None:
        """Return the index of the operand that `node` views, or scales by a number or by one for
        each index of the first axis; None where `node` does something else.
        """
        if isinstance(node.operator, View):
            return 0
        if not isinstance(node.operator, Pointwise):
            return None
        shape = self._types[node.outputs[0]].shape
        index = next(i for i, v in enumerate(node.reads) if self._types[v].shape == shape)
        for value in node.reads[:index] + node.reads[index + 1 :]:
            size = self._types[value].shape
            if prod(size) != 1 and size != (*shape[:1], *(1,) * (len(shape) - 1)):
                return None
        affine = as_affine(node.operator.expr, index)
        return index if affine is not None and affine.shift is None else None

    def _apply(self, layer: Node, node: Node, index: int, scale: Value) -> Value:
        """Return the result of `node` with `scale` in place of operand `index`, which it scales."""
        rank = len(self._types[node.outputs[0]].shape)
        column = (prod(self._types[scale].shape), *(1,) * (rank - 1))
        inputs = list(node.reads)
        inputs[index] = self._reshape(layer, scale, column)
        return self._add(layer, node.operator, *inputs)

    def _array(self, value: Value) -> Array:
        return evaluated(constant(self._graph, value, self._expressions))

    def _reshape(self, layer: Node, value: Value, shape: Shape) -> Value:
        if self._types[value].shape == shape:
            return value
        return self._add(layer, Reshape(shape, True), value)

    def _add(self, layer: Node, operator: Operator, *inputs: Value) -> Value:
        """Add a node that computes a part of the weight of `layer`; return its result."""
        (type,) = operator.infer([self._types[one] for one in inputs])
        result = _weight_value(layer, f"int8 {len(self._nodes)}", type, self._types)
        self._nodes.append(Node(result.name, operator, inputs, (result,)))
        return result


def _fits_int8(integers: Array, zero: Array | None) -> bool:
    """Return True where all `integers` less their zero points, by the first axis, are int8."""
    wide = integers.astype(np.int16)
    if zero is not None:
        wide -= zero.astype(np.int16).reshape(-1, *(1,) * (wide.ndim - 1))
    return bool(wide.min(initial=0) >= INT8.min and wide.max(initial=0) <= INT8.max)


def quantize_weights(
    graph: Graph, types: dict[Value, TensorType], samples: int, *, whole: bool = False
) -> Graph:
    """Return `graph` with int8 weights in layers that are bound by reading their weights.

    The epilogue of each begins with the scales of its output channels. The original layer is the
    origin of the new one, for devices without a kernel for int8. A weight with numbers that are not
    finite stays float. types: of every value, sizes known; those of new ones are added. samples: of
    a batch; the choice of layers does not depend on it. whole: have the layers read the rounded
    weights as float32 instead.
    """
    expressions: dict[Value, ConstantExpression] = {}
    finite: dict[Value, bool] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = _quantizable_weight(graph, node, types, samples)
        if weight is not None and weight not in finite:
            finite[weight] = _is_finite(constant(graph, weight, expressions))
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
    """Return the weight of `node` to quantise; None where there is none."""
    weight = _large_weight(graph, node, types)
    return weight if weight and _uses(node, types) <= MOST_USES * samples else None


def _uses(node: Node, types: Mapping[Value, TensorType]) -> int:
    """Return how often the layer `node` uses each weight: its rows, or its result's pixels."""
    result = types[node.outputs[0]].shape
    return prod(result) // result[1]


def _large_weight(graph: Graph, node: Node, types: Mapping[Value, TensorType]) -> Value | None:
    """Return the weight of `node` that kernels can read as int8; None where there is none or a
    small one.
    """
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
    # A depthwise convolution reads more of images than of weights.
    return None if type.shape[1] == 1 else weight


def _is_finite(weight: ConstantExpression) -> bool:
    """Return True where all numbers of `weight` are finite."""
    array = evaluated(weight)
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _quantize_node(node: Node, weight: Value, types: dict[Value, TensorType]) -> tuple[Node, ...]:
    """Return the nodes that quantise `weight` and compute its scales, and `node` with these."""
    packed = _weight_value(node, "int8", QuantizedWeight().infer([types[weight]])[0], types)
    scales = _weight_value(node, "scales", WeightScales().infer([types[weight]])[0], types)
    return (
        Node(packed.name, QuantizedWeight(), (weight,), (packed,)),
        Node(scales.name, WeightScales(), (weight,), (scales,)),
        _with_int8(node, packed, scales, types),
    )


def _with_int8(
    node: Node, weight: Value, scale: Value | None, types: Mapping[Value, TensorType]
) -> Node:
    """Return `node` with `weight` of int8, and `scale`, (o,) or (1,), in its epilogue."""
    quantized = replace(_with_weight(node, weight), origins=(node,))
    if scale is None:
        return quantized
    epilogue = SCALED_BY_ONE if types[scale].shape == (1,) else SCALED
    if node.epilogue is not None:
        epilogue = epilogue.then(node.epilogue)
    return replace(quantized, epilogue=epilogue, extras=(scale, *node.extras))


def _round_node(node: Node, weight: Value, types: dict[Value, TensorType]) -> tuple[Node, ...]:
    """Return the node that rounds `weight`, and `node` with the rounded weight."""
    rounded = _weight_value(node, "rounded", types[weight], types)
    rounding = Node(rounded.name, RoundedWeight(), (weight,), (rounded,))
    return rounding, _with_weight(node, rounded)


def _with_weight(node: Node, weight: Value) -> Node:
    """Return `node` with another weight."""
    named = zip(node.operator.names(len(node.inputs)), node.inputs, strict=True)
    inputs = tuple(
        weight if name in node.operator.int8_operands else value for name, value in named
    )
    return replace(node, inputs=inputs)


def _weight_value(node: Node, what: str, type: TensorType, types: dict[Value, TensorType]) -> Value:
    """Return a new value of `type`, which is computed from the weight of `node`."""
    result = Value(f"{node.outputs[0].name}: weight, {what}", type)
    types[result] = type
    return result


def batch_size_of(graph: Graph, shapes: Mapping[str, Shape]) -> int:
    """Return the batch size of inputs of `shapes`.

    graph: the model's, whose inputs have open sizes. The batch size is that of the symbol `N` where
    there is one, else of the symbol of a first dimension; 1 without such a symbol.
    """
    # Ranks may differ here: the inputs are checked later.
    pairs = [zip(v.type.dims, shapes[v.name], strict=False) for v in graph.inputs]
    sizes = [(i, dim, size) for dims in pairs for i, (dim, size) in enumerate(dims)]
    named = [size for _, dim, size in sizes if dim == "N"]
    first = [size for i, dim, size in sizes if i == 0 and isinstance(dim, str)]
    return max((named or first or [1])[0], 1)
