"""Fuse pads, pools and further convolutions or products with a convolution or a product.

`fuse_pads` runs before `fuse_pointwise`; the others run after it, when biases and activations are
in epilogues.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from glnn.core.symint import divides, holds_symbols
from glnn.core.types import DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import constant
from glnn.graph.epilogue import Prologue, Spread
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Matmul,
    Pad,
    Perceptron,
    Pool2d,
    PooledConv2d,
    Reduce,
    SeparableConv2d,
    Transpose,
)
from glnn.graph.operators.matmul import pad_width
from glnn.graph.operators.reductions import axes_of
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter


def recognize_global_pools(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with means and maxima over whole images as pools, whose kernels read images in
    any layout.

    types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        operator = node.operator
        if not isinstance(operator, Reduce) or rewriter.is_fixed(node.outputs[0]):
            continue
        (x, *others) = node.inputs
        if others or x is None or operator.kind not in ("mean", "max") or operator.parts:
            continue
        type = rewriter.types[x]
        plain = operator.prologue == operator.finish == Arg(0) and not operator.count
        if not plain or len(type.shape) != 4 or type.dtype is not DType.float32 or 0 in type.shape:
            continue
        if axes_of("reduce", operator.axes, 4) != (2, 3):
            continue
        mode = "average" if operator.kind == "mean" else "max"
        pooled = rewriter.add(node.name, Pool2d(mode, None), x)
        rewriter.replace_by(
            node, rewriter.reshape(node.name, pooled, rewriter.shape(node.outputs[0]))
        )
    return rewriter.graph()


def fuse_pads(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with the padding of images fused into the convolution or pool behind it.

    A convolution and an average pool that counts its padding take zeros, a maximum pool minus
    infinity. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        pad = rewriter.runtime_producer(node.inputs[0]) if node.inputs else None
        if pad is None or not isinstance(pad.operator, Pad):
            continue
        wider = _with_padding(node.operator, pad.operator)
        if wider is not None:
            padded = node.inputs[0]
            rewriter.replace(node, wider, pad.inputs[0], *node.inputs[1:])
            rewriter.prune(padded)
    return rewriter.graph()


def _with_padding(operator: Operator, pad: Pad) -> Operator | None:
    """Return `operator` with the padding of `pad` added to its own; None where it has no such."""
    if not isinstance(operator, Conv2d | Pool2d) or pad.edge != "constant":
        return None
    sides = (*pad.before, *pad.after)
    if (
        len(sides) != 8
        or holds_symbols(sides)
        or min(sides) < 0
        or any(sides[i] for i in (0, 1, 4, 5))
    ):
        return None
    if isinstance(operator, Pool2d):
        counts = operator.count_include_pad or not any(operator.padding)
        if operator.kernel is None or operator.ceil_mode:
            return None
        if pad.fill != (-inf if operator.mode == "max" else 0):
            return None
        if operator.mode == "average" and not (counts or operator.divisor):
            return None
        operator = replace(operator, count_include_pad=True)
    elif pad.fill != 0:
        return None
    top, left, bottom, right = (
        a + b
        for a, b in zip(operator.padding, (sides[2], sides[3], sides[6], sides[7]), strict=True)
    )
    try:
        return replace(operator, padding=(top, left, bottom, right))
    except ShapeError:  # more than half of a window
        return None


def fuse_conv_pool(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with each convolution fused with its only consumer, a 2 x 2 pool, where that
    pays.
    """
    rewriter = GraphRewriter(graph, types)
    for first, last in rewriter.fusible_pairs():
        _fuse_pool(rewriter, first, last, is_profitable)
    return rewriter.graph()


def _fuse_pool(
    rewriter: GraphRewriter, first: Node, last: Node, is_profitable: FusionCheck
) -> None:
    """Fuse `first` and `last` where they are a convolution and a 2 x 2 pool and that pays."""
    convolution, pool = first.operator, last.operator
    if type(convolution) is not Conv2d or not isinstance(pool, Pool2d):
        return
    if convolution.prologue is not None or convolution.exact or last.epilogue is not None:
        return
    if first.epilogue is not None and "full" in first.epilogue.extents:
        return
    result = rewriter.types[first.outputs[0]]
    if result.dtype is not DType.float32 or not _tiles_image(pool, result.shape[2:]):
        return
    operator = PooledConv2d.from_convolution(convolution, pool.mode)
    named = operator.named(first.inputs)
    if not is_profitable(operator, {name: rewriter.types[value] for name, value in named.items()}):
        return
    joined = replace(first, operator=operator, outputs=last.outputs)
    rewriter.fuse(first, last, joined)


def _tiles_image(pool: Pool2d, size: tuple[int, ...]) -> bool:
    """Return True where `pool` has 2 x 2 windows, and none reaches over the edge of images of that
    size.
    """
    plain = Pool2d(pool.mode, count_include_pad=pool.count_include_pad)
    if not all(divides(2, length) for length in size):
        return pool == plain
    return pool in (plain, replace(plain, ceil_mode=True))


def fuse_separable_convs(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with each depthwise convolution fused with its only consumer, a pointwise one,
    where both have fixed weights and that pays.

    types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if _is_pointwise(rewriter, node):
            _fuse_separable(rewriter, node, is_profitable)
    return rewriter.graph()


def _fuse_separable(rewriter: GraphRewriter, last: Node, is_profitable: FusionCheck) -> None:
    """Fuse the pointwise convolution `last` with the producer of its x where that is depthwise."""
    x = last.inputs[0]
    first = rewriter.runtime_producer(x)
    if first is None or not rewriter.is_read_once(x) or last.reads.count(x) > 1:
        return
    window = first.operator
    if not isinstance(window, Conv2d) or not _is_depthwise(rewriter, first):
        return
    extents = () if first.epilogue is None else first.epilogue.extents
    spreads: list[Spread] = [one for one in extents if one in ("channel", "one")]
    if len(spreads) < len(extents):
        return
    prologue = None if first.epilogue is None else Prologue(first.epilogue.expr, tuple(spreads))
    operator = SeparableConv2d(window.stride, window.padding, window.dilation, prologue)
    extras = _prologue_values(rewriter, first, prologue)
    inputs = (*first.inputs, last.inputs[1], *extras)
    named = operator.named(inputs)
    if not is_profitable(operator, {name: rewriter.types[value] for name, value in named.items()}):
        for value in extras:
            rewriter.prune(value)
        return
    rewriter.fuse(first, last, replace(last, operator=operator, inputs=inputs))


def _prologue_values(rewriter: GraphRewriter, node: Node, prologue: Prologue | None) -> list[Value]:
    """Return the operands of the epilogue of `node` in the shapes of the same `prologue`."""
    if prologue is None:
        return []
    shapes = prologue.shapes(rewriter.shape(node.outputs[0]), 1).values()
    pairs = zip(node.extras, shapes, strict=True)
    return [rewriter.reshape(node.name, value, shape) for value, shape in pairs]


def _is_depthwise(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where `node` convolves each channel alone, to one channel."""
    operator, shape = _plain_convolution(rewriter, node)
    return operator is not None and operator.groups > 1 and shape[:2] == (operator.groups, 1)


def _is_pointwise(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where `node` is a 1 x 1 convolution of all channels, with stride 1 and no
    padding.
    """
    operator, shape = _plain_convolution(rewriter, node)
    if operator is None or operator.groups > 1 or shape[2:] != (1, 1):
        return False
    return operator.stride == (1, 1) and not any(operator.padding)


def _plain_convolution(rewriter: GraphRewriter, node: Node) -> tuple[Conv2d | None, Shape]:
    """Return the convolution of `node` and the shape of its weight.

    (None, ()) where `node` is something else, has a prologue or other dtypes than float32, or where
    a run changes the weight.
    """
    operator = node.operator
    if type(operator) is not Conv2d or operator.prologue is not None:
        return None, ()
    weight = node.inputs[1]
    floats = all(rewriter.types[value].dtype is DType.float32 for value in node.reads)
    if weight is None or not rewriter.is_fixed(weight) or not floats:
        return None, ()
    return operator, rewriter.shape(weight)


BIASED_SUM = call("add", Arg(0), Arg(1))


def fuse_perceptrons(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with chains of small products of fixed weights, each the only consumer of the
    one before, fused into perceptrons where that pays.

    types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for first, last in rewriter.fusible_pairs():
        _fuse_layers(rewriter, first, last, is_profitable)
    return rewriter.graph()


def _fuse_layers(
    rewriter: GraphRewriter, first: Node, last: Node, is_profitable: FusionCheck
) -> None:
    """Fuse `first`, a product or a perceptron, with `last`, a product, where that pays."""
    layers, layer = _layers_of(rewriter, first), _layer_of(rewriter, last)
    if layers is None or layer is None:
        return
    joined = Perceptron(layers.widths + layer.widths, layers.functions + layer.functions)
    x = first.inputs[0]
    assert x is not None
    shapes = joined.sides(rewriter.shape(x)[1])
    sides = {name: TensorType(shape) for name, shape in shapes.items()}
    if not is_profitable(joined, {"x": rewriter.types[x], **sides}):
        return
    pairs = zip(_parameters_of(rewriter, first), _parameters_of(rewriter, last), strict=True)
    inputs = (rewriter.add(last.name, Concat(0), *both) for both in pairs)
    node = Node(last.name, joined, (x, *inputs), last.outputs)
    rewriter.fuse(first, last, node)


def _layers_of(rewriter: GraphRewriter, node: Node) -> Perceptron | None:
    """Return `node` as a perceptron of one or several layers; None where it is none."""
    operator = node.operator
    return operator if isinstance(operator, Perceptron) else _layer_of(rewriter, node)


def _layer_of(rewriter: GraphRewriter, node: Node) -> Perceptron | None:
    """Return `node` as a perceptron of one layer; None where it is no such product."""
    operator = node.operator
    if not isinstance(operator, Conv2d | Matmul) or operator.prologue is not None:
        return None
    x, weight = node.inputs[:2]
    operands = (x, weight, *node.extras)
    if any(v is None or rewriter.types[v].dtype is not DType.float32 for v in operands):
        return None
    if x is None or weight is None or not all(map(rewriter.is_fixed, (weight, *node.extras))):
        return None
    shape, row = rewriter.shape(weight), rewriter.shape(x)[1:]
    if shape[1:] != row or row[1:] not in ((), (1, 1)):  # a stack of matrices has another dimension
        return None
    if isinstance(operator, Conv2d) and (operator.groups > 1 or any(operator.padding)):
        return None
    function = _activation_of(node)
    return None if function is None else Perceptron(shape[:1], (function,))


def _activation_of(node: Node) -> Expr | None:
    """Return the function that `node` applies to each sum after the bias; None where the function
    reads other operands.
    """
    if node.epilogue is None or not node.epilogue.extents:
        return Arg(0) if node.epilogue is None else node.epilogue.expr
    if node.epilogue.extents != ("channel",):
        return None
    sums = node.epilogue.expr.replace(lambda part: Arg(2) if part == BIASED_SUM else None)
    args = {part.index for part in sums.parts() if isinstance(part, Arg)}
    return sums(Arg(0), Arg(0), Arg(0)) if args == {2} else None


def _parameters_of(rewriter: GraphRewriter, node: Node) -> tuple[Value, Value]:
    """Return the weights and the biases of `node` as `Perceptron` reads them."""
    name, (_, weight, *others) = node.name, node.inputs
    assert weight is not None
    if isinstance(node.operator, Perceptron):
        (biases,) = others
        assert biases is not None
        return weight, biases
    width, depth = rewriter.shape(weight)[:2]
    matrix = rewriter.reshape(name, weight, (width, depth))
    transposed = rewriter.add(name, Transpose((1, 0)), _pad_to_width(rewriter, name, matrix))
    bias: Value = constant(np.zeros(width, np.float32))
    if node.extras:
        bias = rewriter.reshape(name, node.extras[0], (width,))
    else:
        rewriter.types[bias] = bias.type
    flat = rewriter.reshape(name, transposed, (depth * pad_width(width),))
    return flat, _pad_to_width(rewriter, name, bias)


def _pad_to_width(rewriter: GraphRewriter, name: str, value: Value) -> Value:
    """Pad the first axis of `value` to the width that a layer has in memory."""
    width, *others = rewriter.shape(value)
    padding = pad_width(width) - width
    none = (0,) * len(others)
    return rewriter.add(name, Pad((0, *none), (padding, *none)), value) if padding else value
