"""Fuse the two reductions of a normalisation, or of its gradient, into one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, Expr, formula
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import ChannelSums, Reduce, Slice
from glnn.graph.operators.reductions import axes_of
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter

X = Arg(0)
SQUARES, PRODUCTS = formula("square(a - b)"), formula("a * (b - c)")


def fuse_channel_sums(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with ChannelSums in the place of the mean and the variance of the channels of
    images, and of the sums of dy and of dy (x - mean), of images, or of dy and of dy x, of the
    columns of matrices, where that pays.

    Each of the two is a row of the result. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if (match := _pair(rewriter, node) or _pair_of_columns(rewriter, node)) is None:
            continue
        reductions, operands = match
        of_each = {name: rewriter.types[value] for name, value in operands.items()}
        if any(one.dtype is not DType.float32 for one in of_each.values()):
            continue  # reductions are of any type, ChannelSums has float32
        if "mean" in of_each:
            of_each["mean"] = TensorType(of_each["x"].dims[1:2])
        if is_profitable(ChannelSums(), of_each):
            _replace(rewriter, reductions, operands)
    return rewriter.graph()


def _pair(
    rewriter: GraphRewriter, node: Node
) -> tuple[tuple[Node | None, Node], Mapping[str, Value]] | None:
    """Return the two reductions of which `node` is the second, and the operands of both.

    The first is None where dy has its sums already, as it is the gradient of two normalisations.
    """
    operator = node.operator
    if not isinstance(operator, Reduce) or operator.prologue not in (SQUARES, PRODUCTS):
        return None
    squares = operator.prologue == SQUARES
    if not reduces_channels(rewriter, node, means=squares):
        return None
    reduced, *others = node.inputs
    assert reduced is not None
    operands = {"x": reduced}
    if not squares:
        x, mean = others
        assert x is not None and mean is not None
        operands = {"x": x, "dy": reduced, "mean": mean}
        if rewriter.shape(x) != rewriter.shape(reduced):
            return None
    if others[-1] is None or rewriter.shape(others[-1]) != rewriter.shape(node.outputs[0]):
        return None
    readers = rewriter.readers(reduced)
    alike = [one for one in readers if reduces_channels(rewriter, one, squares, prologue=X)]
    first = alike[0] if alike else None
    if squares and (first is None or first.outputs[0] is not others[0]):
        return None
    if not squares and any(one is first for one in rewriter.ancestors(*others)):
        first = None  # it is needed before the other one can begin
    return (first, node), operands


def _pair_of_columns(
    rewriter: GraphRewriter, node: Node
) -> tuple[tuple[Node, Node], Mapping[str, Value]] | None:
    """Return the sums of dy and, by `node`, of dy x, for each column of two matrices, and the
    operands of both.
    """
    if node.operator != Reduce("sum", (0,), False, formula("a * b")):
        return None
    dy, x = node.inputs
    assert dy is not None and x is not None
    if len(rewriter.shape(dy)) != 2 or rewriter.shape(x) != rewriter.shape(dy):
        return None
    plain = Reduce("sum", (0,))
    for one in rewriter.readers(dy):
        if one.operator == plain and all(maker is not one for maker in rewriter.ancestors(x)):
            return (one, node), {"x": x, "dy": dy}
    return None


def reduces_channels(
    rewriter: GraphRewriter, node: Node, means: bool, prologue: Expr | None = None
) -> bool:
    """Return True where `node` is a sum, or a mean, of `prologue` for each channel of images.

    prologue: None for any.
    """
    operator, shape = node.operator, rewriter.shape(node.outputs[0])
    if not isinstance(operator, Reduce) or node.epilogue is not None or len(shape) != 4:
        return False
    expr = operator.prologue if prologue is None else prologue
    plain = operator == Reduce("mean" if means else "sum", operator.axes, True, expr)
    return plain and axes_of("reduce", operator.axes, 4) == (0, 2, 3)


def _replace(
    rewriter: GraphRewriter, reductions: Sequence[Node | None], operands: Mapping[str, Value]
) -> None:
    """Put the rows of one ChannelSums in the place of `reductions`."""
    named, node = dict(operands), reductions[-1]
    assert node is not None
    shape, channels = rewriter.shape(node.outputs[0]), rewriter.shape(operands["x"])[1]
    if "mean" in named:
        named["mean"] = rewriter.reshape(node.name, named["mean"], (channels,))
    sums = rewriter.add(node.name, ChannelSums(), *named.values())
    for row, one in enumerate(reductions):
        if one is not None:
            cut = Slice((row, 0), (row + 1, channels), (0, 1), (1, 1))
            value = rewriter.add(one.name, cut, sums)
            rewriter.replace_by(one, rewriter.reshape(one.name, value, shape))
