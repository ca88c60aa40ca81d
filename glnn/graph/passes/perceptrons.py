"""Fuse successive products, of rows or of images of one pixel, into one perceptron.

A squeeze-and-excitation makes its scales by such, a classifier its scores. Behind `fuse`: biases
and functions are in epilogues by then.
"""

from __future__ import annotations

import numpy as np

from glnn.graph.builder import constant
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat, Conv2d, Matmul, Pad, Perceptron, Transpose
from glnn.graph.operators.matmul import padded
from glnn.graph.passes.rewriting import Pays, Rewriting
from glnn.types import DType, TensorType

BIASED = call("add", Arg(0), Arg(1))


def with_perceptrons(graph: Graph, types: dict[Value, TensorType], pays: Pays) -> Graph:
    """Return `graph` with runs of small products, of fixed weights, fused where one alone reads the
    one before.

    types: of every value; those of new ones are added. pays: whether it is worth it.
    """
    rewriting = Rewriting(graph, types)
    for first, last in rewriting.pairs():
        _join(rewriting, first, last, pays)
    return rewriting.graph()


def _join(rewriting: Rewriting, first: Node, last: Node, pays: Pays) -> None:
    """Fuse both into one where they are such products, or a perceptron and such a product behind
    it.
    """
    layers, layer = _layers(rewriting, first), _layer(rewriting, last)
    if layers is None or layer is None:
        return
    joined = Perceptron(layers.widths + layer.widths, layers.functions + layer.functions)
    x = first.inputs[0]
    assert x is not None
    shapes = joined.sides(rewriting.shape(x)[1])
    sides = {name: TensorType(shape) for name, shape in shapes.items()}
    if not pays(joined, {"x": rewriting.types[x], **sides}):
        return
    own = zip(_sides(rewriting, first), _sides(rewriting, last), strict=True)
    inputs = (rewriting.add(last.name, Concat(0), *both) for both in own)
    node = Node(last.name, joined, (x, *inputs), last.outputs)
    rewriting.join(first, last, node)


def _layers(rewriting: Rewriting, node: Node) -> Perceptron | None:
    """The layers that `node` is; None where it is no such product."""
    operator = node.operator
    return operator if isinstance(operator, Perceptron) else _layer(rewriting, node)


def _layer(rewriting: Rewriting, node: Node) -> Perceptron | None:
    """The one layer that `node` is; None where it is no such product."""
    operator = node.operator
    if not isinstance(operator, Conv2d | Matmul) or operator.prologue is not None:
        return None
    x, weight = node.inputs[:2]
    given = (x, weight, *node.extras)
    if any(v is None or rewriting.types[v].dtype is not DType.float32 for v in given):
        return None
    if x is None or weight is None or not all(map(rewriting.fixed, (weight, *node.extras))):
        return None
    shape, one = rewriting.shape(weight), rewriting.shape(x)[1:]
    if shape[1:] != one or one[1:] not in ((), (1, 1)):  # a stack of matrices has one more
        return None
    if isinstance(operator, Conv2d) and (operator.groups > 1 or any(operator.padding)):
        return None
    function = _function(node)
    return None if function is None else Perceptron(shape[:1], (function,))


def _function(node: Node) -> Expr | None:
    """Return the function that `node` applies to each of its sums after a bias; None where it takes
    other operands.
    """
    if node.epilogue is None or not node.epilogue.extents:
        return Arg(0) if node.epilogue is None else node.epilogue.expr
    if node.epilogue.extents != ("channel",):
        return None
    sums = node.epilogue.expr.replace(lambda part: Arg(2) if part == BIASED else None)
    left = {part.index for part in sums.parts() if isinstance(part, Arg)}
    return sums(Arg(0), Arg(0), Arg(0)) if left == {2} else None


def _sides(rewriting: Rewriting, node: Node) -> tuple[Value, Value]:
    """The weights and the biases of `node` as `Perceptron` takes them."""
    name, (_, weight, *rest) = node.name, node.inputs
    assert weight is not None
    if isinstance(node.operator, Perceptron):
        (biases,) = rest
        assert biases is not None
        return weight, biases
    width, depth = rewriting.shape(weight)[:2]
    matrix = rewriting.reshaped(name, weight, (width, depth))
    turned = rewriting.add(name, Transpose((1, 0)), _padded(rewriting, name, matrix))
    bias: Value = constant(np.zeros(width, np.float32))
    if node.extras:
        bias = rewriting.reshaped(name, node.extras[0], (width,))
    else:
        rewriting.types[bias] = bias.type
    flat = rewriting.reshaped(name, turned, (depth * padded(width),))
    return flat, _padded(rewriting, name, bias)


def _padded(rewriting: Rewriting, name: str, value: Value) -> Value:
    """Pad `value` to as many results as a layer has in memory."""
    width, *rest = rewriting.shape(value)
    more = padded(width) - width
    none = (0,) * len(rest)
    return rewriting.add(name, Pad((0, *none), (more, *none)), value) if more else value
