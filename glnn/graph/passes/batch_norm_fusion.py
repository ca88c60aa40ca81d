"""Fuse the statistics of batch normalisations in training, and of their gradients, into these.

The sums of each channel are computed a second time: running statistics and the gradients by weight
and bias need them. But the normalisation does not wait for these, so a GPU may overlap both.
"""

from __future__ import annotations

from glnn.core.types import DType, TensorType
from glnn.graph.compose.batch_norm import GRADIENT, NORMALIZED, samples_per_channel
from glnn.graph.expression import Arg, Expr, Scalar, replace_part
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import BatchNormalize, BatchNormalizeGradient, Pointwise
from glnn.graph.passes.channel_sums_fusion import PRODUCTS, SQUARES, reduces_channels
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter

X, MEAN, VARIANCE = Arg(0), Arg(1), Arg(2)
GRADIENT_OPERANDS = tuple(Arg(i) for i in range(6))
"""Operands of the gradient: dy, x, the mean, the variance and the two sums."""
NUM_NORM_OPERANDS = 3
"""Operands of the normalisation: x, its mean and its variance; those of weight and bias follow."""


def fuse_batch_norms(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with BatchNormalize and its gradient in place of pointwise nodes that
    normalise images by the statistics of their channels, where that pays.

    types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Pointwise):
            _fuse(rewriter, node, node.operator.expr, is_profitable)
    return rewriter.graph()


def _fuse(rewriter: GraphRewriter, node: Node, expr: Expr, is_profitable: FusionCheck) -> None:
    """Fuse `node`, which computes `expr`, if it is a normalisation or the gradient of one."""
    for number in dict.fromkeys(expr.scalars):
        eps = Scalar(number)
        core = NORMALIZED(X, MEAN, VARIANCE, eps)
        rest = replace_part(expr, core, X)
        if rest != expr:
            if not {X, MEAN, VARIANCE} & {*replace_part(expr, core, Scalar(0.0)).parts()}:
                _normalize(rewriter, node, rest, float(number), is_profitable)
            return
        gradients = (GRADIENT(*GRADIENT_OPERANDS, Scalar(part), eps) for part in expr.scalars)
        if expr.arity == len(GRADIENT_OPERANDS) and expr in gradients:
            _fuse_gradient(rewriter, node, float(number), is_profitable)
            return


def _are_images(rewriter: GraphRewriter, *values: Value) -> bool:
    """Return True for float32 images of one shape that is not empty."""
    shape = rewriter.shape(values[0])
    return (
        len(shape) == 4
        and 0 not in shape
        and all(rewriter.shape(one) == shape for one in values)
        and all(rewriter.types[one].dtype is DType.float32 for one in values)
    )


def _are_statistics(rewriter: GraphRewriter, x: Value, mean: Value, variance: Value) -> bool:
    """Return True where `mean` and `variance` are those of the channels of `x`."""
    first, second = rewriter.producer(mean), rewriter.producer(variance)
    return (
        first is not None
        and second is not None
        and first.inputs == (x,)
        and second.inputs == (x, mean)
        and reduces_channels(rewriter, first, means=True, prologue=X)
        and reduces_channels(rewriter, second, means=True, prologue=SQUARES)
    )


def _are_sums(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where the last operands of `node`, which computes a gradient, are the sums of dy
    and of dy (x - mean), and its expression divides by the numbers of a channel.
    """
    dy, x, mean, variance, total, products = (value for value in node.inputs if value is not None)
    first, second = rewriter.producer(total), rewriter.producer(products)
    assert isinstance(node.operator, Pointwise)
    return (
        first is not None
        and second is not None
        and first.inputs == (dy,)
        and second.inputs == (dy, x, mean)
        and rewriter.shape(mean) == rewriter.shape(variance) == rewriter.shape(total)
        and reduces_channels(rewriter, first, means=False, prologue=X)
        and reduces_channels(rewriter, second, means=False, prologue=PRODUCTS)
        and 1 / samples_per_channel(rewriter.shape(x)) in node.operator.expr.scalars
    )


def _normalize(
    rewriter: GraphRewriter, node: Node, rest: Expr, eps: float, is_profitable: FusionCheck
) -> None:
    """Replace `node` by BatchNormalize and a pointwise node of `rest`: weight and bias."""
    x, mean, variance, *others = node.inputs
    assert x is not None and mean is not None and variance is not None
    operator = BatchNormalize(eps)
    if not (
        _are_images(rewriter, x, *node.outputs) and _are_statistics(rewriter, x, mean, variance)
    ):
        return
    if not is_profitable(operator, {"x": rewriter.types[x]}):
        return
    if rest == X:
        rewriter.replace(node, operator, x)
    else:
        normalized = rewriter.add(node.name, operator, x)
        scaled = rest.replace(
            lambda one: (
                Arg(one.index - NUM_NORM_OPERANDS + 1)
                if isinstance(one, Arg) and one.index >= NUM_NORM_OPERANDS
                else None
            )
        )
        rewriter.replace(node, Pointwise(scaled), normalized, *others)
    for value in (variance, mean):
        rewriter.prune(value)


def _fuse_gradient(
    rewriter: GraphRewriter, node: Node, eps: float, is_profitable: FusionCheck
) -> None:
    """Replace `node` by BatchNormalizeGradient."""
    values = [value for value in node.inputs if value is not None]
    dy, x, mean, variance, total, products = values
    if not (_are_images(rewriter, dy, x, *node.outputs) and _are_sums(rewriter, node)):
        return
    operator, channels = BatchNormalizeGradient(eps), rewriter.shape(x)[1:2]
    of_channels = TensorType(channels)
    types = {"dy": rewriter.types[dy], "x": rewriter.types[x]}
    if not is_profitable(operator, {**types, "mean": of_channels, "variance": of_channels}):
        return
    statistics = (rewriter.reshape(node.name, value, channels) for value in (mean, variance))
    rewriter.replace(node, operator, dy, x, *statistics)
    for value in (products, total):
        rewriter.prune(value)
