"""Fuse layer normalisations with the products whose rows they normalise.

It comes behind `fuse_pointwise`, when biases and residuals are in the products' epilogues.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from glnn.core.types import DType, TensorType
from glnn.graph.builder import constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Matmul, MatmulNormalize, Normalize
from glnn.graph.operators.matmul_normalize import COUNTS, MOST_ROWS
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter

RESIDUALS = tuple(call("add", *operands) for operands in ((Arg(0), Arg(1)), (Arg(1), Arg(0))))


def fuse_product_norms(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with each product, of fixed weights, and the layer normalisation that alone
    reads its rows as one operator, where that pays.

    What is between them may be a bias and a residual. types: of every value; those of new ones are
    added.
    """
    rewriter = GraphRewriter(graph, types)
    numbers = iter(range(1, len(graph.ordered) + 1))
    for node in rewriter.nodes:
        if isinstance(node.operator, Normalize):
            _fuse(rewriter, node, node.operator, numbers, is_profitable)
    return rewriter.graph()


def _fuse(
    rewriter: GraphRewriter,
    node: Node,
    norm: Normalize,
    numbers: Iterator[int],
    is_profitable: FusionCheck,
) -> None:
    """Fuse `node` and the product that makes its rows, where there is one and that pays.

    numbers: different ones for different nodes.
    """
    if norm.dims != 1 or not norm.centred or node.epilogue is not None:
        return
    named = norm.named(node.inputs)
    parameters = [named.get(name) for name in ("weight", "bias")]
    rows, product = rewriter.behind_views(named["x"])
    if product is None or not rewriter.is_read_once(rows) or not _is_product(rewriter, product):
        return
    given = [one for one in parameters if one is not None]
    added, row = _added(rewriter, product), rewriter.shape(rows)[1:]
    if added is None or any(rewriter.shape(one) != row for one in given):
        return
    if not all(map(rewriter.is_fixed, given)) or rewriter.shape(named["x"])[-1:] != row:
        return
    if rewriter.shape(rows)[0] > MOST_ROWS:
        return
    (x, weight, *_), (bias, residual) = product.reads, added
    arrivals = constant(np.full(COUNTS, next(numbers), np.float32), "arrivals")
    rewriter.types[arrivals] = arrivals.type
    operator, inputs = MatmulNormalize(norm.eps), (x, weight, bias, *parameters, arrivals, residual)
    types = {name: rewriter.types[value] for name, value in operator.named(inputs).items()}
    if is_profitable(operator, types):
        made = rewriter.add(f"{product.name} + {node.name}", operator, *inputs)
        shape = rewriter.shape(node.outputs[0])
        rewriter.replace_by(node, rewriter.reshape(node.name, made, shape))


def _is_product(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where `node` multiplies float32 rows by a matrix that no run changes."""
    operator = node.operator
    if not isinstance(operator, Matmul) or operator.prologue is not None:
        return False
    x, weight = node.reads[:2]
    float32 = all(rewriter.types[one].dtype is DType.float32 for one in (x, weight, *node.extras))
    return float32 and rewriter.is_fixed(weight) and len(rewriter.shape(weight)) == 2


def _added(rewriter: GraphRewriter, product: Node) -> tuple[Value | None, Value | None] | None:
    """Return the bias and the residual that the epilogue of `product` adds, either None where
    there is none; None where it does something else.
    """
    epilogue, extras = product.epilogue, list(product.extras)
    if epilogue is None:
        return None, None
    bias: Value | None = None
    if (found := epilogue.split_bias()) is not None:
        place, epilogue = found
        bias, n = extras.pop(place), rewriter.shape(product.outputs[0])[-1]
        if not rewriter.is_fixed(bias) or prod(rewriter.shape(bias)) != n:
            return None
        bias = rewriter.reshape(product.name, bias, (n,))
    if epilogue is None:
        return bias, None
    residual = epilogue.extents == ("full",) and epilogue.expr in RESIDUALS
    if not residual or rewriter.shape(extras[0]) != rewriter.shape(product.outputs[0]):
        return None
    return bias, extras[0]
