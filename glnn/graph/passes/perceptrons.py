"""Two products of images of one pixel, the second of what the first makes, as one operator.

That is what a squeeze-and-excitation makes its scales by. Behind `fuse`: biases and functions are
in epilogues by then.
"""

from __future__ import annotations

import numpy as np

from glnn.graph.builder import constant
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat, Conv2d, Perceptron
from glnn.graph.passes.rewriting import Rewriting
from glnn.types import DType, TensorType

BIASED = call("add", Arg(0), Arg(1))


def with_perceptrons(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """`graph` with pairs of such products, of fixed weights, where one reads what is between alone.

    types: of every value; those of new ones are added.
    """
    rewriting = Rewriting(graph, types)
    for first, last in rewriting.pairs():
        _join(rewriting, first, last)
    return rewriting.graph()


def _join(rewriting: Rewriting, first: Node, last: Node) -> None:
    """Both as one, where they are such products."""
    functions = [_function(rewriting, node) for node in (first, last)]
    inner, outer = functions
    if inner is None or outer is None:
        return
    weights = [_biased(rewriting, node) for node in (first, last)]
    inputs = first.inputs[0], *weights
    joined = Node(last.name, Perceptron(inner, outer), inputs, last.outputs)
    rewriting.join(first, last, joined)


def _function(rewriting: Rewriting, node: Node) -> Expr | None:
    """What `node` makes of each of its sums, a bias added; None where it is no such product."""
    operator = node.operator
    if not isinstance(operator, Conv2d) or operator.prologue is not None:
        return None
    x, weight = node.inputs[:2]
    given = (x, weight, *node.extras)
    if any(v is None or rewriting.types[v].dtype is not DType.float32 for v in given):
        return None
    if x is None or weight is None or not all(map(rewriting.fixed, (weight, *node.extras))):
        return None
    if rewriting.shape(weight)[1:] != (rewriting.shape(x)[1], 1, 1) or operator.groups > 1:
        return None
    if rewriting.shape(x)[2:] != (1, 1) or any(operator.padding):
        return None
    if node.epilogue is None or not node.epilogue.extents:
        return Arg(0) if node.epilogue is None else node.epilogue.expr
    if node.epilogue.extents != ("channel",):
        return None
    sums = node.epilogue.expr.replace(lambda part: Arg(2) if part == BIASED else None)
    left = {part.index for part in sums.parts() if isinstance(part, Arg)}
    return sums(Arg(0), Arg(0), Arg(0)) if left == {2} else None


def _biased(rewriting: Rewriting, node: Node) -> Value:
    """The weights of `node` as a matrix, whose last column is the bias."""
    weight = node.inputs[1]
    assert weight is not None
    rows, depth = rewriting.shape(weight)[:2]
    matrix = rewriting.reshaped(node.name, weight, (rows, depth))
    bias: Value = constant(np.zeros((rows, 1), np.float32))
    if node.extras:
        bias = rewriting.reshaped(node.name, node.extras[0], (rows, 1))
    else:
        rewriting.types[bias] = bias.type
    return rewriting.add(node.name, Concat(1), matrix, bias)
