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
    """Return `graph` with one ChannelSums in the place of two reductions, where that pays.

    The pairs are, for each channel of images, mean and variance, or the sums of dy and of
    dy (x - mean); and for each column of matrices, the sums of dy and of dy x. The results of the
    two reductions are rows of ChannelSums' result. types: of every value; types of new values are
    added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if (match := _match_images(rewriter, node) or _match_columns(rewriter, node)) is None:
            continue
        reductions, operands = match
        operand_types = {name: rewriter.types[value] for name, value in operands.items()}
        if any(type.dtype is not DType.float32 for type in operand_types.values()):
            continue  # reductions are of any type, ChannelSums has float32
        if "mean" in operand_types:
            operand_types["mean"] = TensorType(operand_types["x"].dims[1:2])
        if is_profitable(ChannelSums(), operand_types):
            _replace(rewriter, reductions, operands)
    return rewriter.graph()


def _match_images(
    rewriter: GraphRewriter, node: Node
) -> tuple[tuple[Node | None, Node], Mapping[str, Value]] | None:
    """Match two reductions of images, of which `node` is the second; return both and their
    operands by name.

    The first is None where dy's sums are computed already, as dy is the gradient of two
    normalisations.
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
    first = next((r for r in readers if reduces_channels(rewriter, r, squares, prologue=X)), None)
    if squares and (first is None or first.outputs[0] is not others[0]):
        return None
    if not squares and any(ancestor is first for ancestor in rewriter.ancestors(*others)):
        first = None  # `node` depends on its result
    return (first, node), operands


def _match_columns(
    rewriter: GraphRewriter, node: Node
) -> tuple[tuple[Node, Node], Mapping[str, Value]] | None:
    """Match the sums of dy and, by `node`, of dy x, for each column of two matrices; return both
    and their operands by name.
    """
    if node.operator != Reduce("sum", (0,), False, formula("a * b")):
        return None
    dy, x = node.inputs
    assert dy is not None and x is not None
    if len(rewriter.shape(dy)) != 2 or rewriter.shape(x) != rewriter.shape(dy):
        return None
    plain = Reduce("sum", (0,))
    ancestors = set(rewriter.ancestors(x))
    for reader in rewriter.readers(dy):
        if reader.operator == plain and reader not in ancestors:
            return (reader, node), {"x": x, "dy": dy}
    return None


def reduces_channels(
    rewriter: GraphRewriter, node: Node, means: bool, prologue: Expr | None = None
) -> bool:
    """Return True where `node` is a sum, or with `means` a mean, of `prologue` for each channel of
    images.

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
    inputs, last = dict(operands), reductions[-1]
    assert last is not None
    shape, channels = rewriter.shape(last.outputs[0]), rewriter.shape(operands["x"])[1]
    if "mean" in inputs:
        inputs["mean"] = rewriter.reshape(last.name, inputs["mean"], (channels,))
    sums = rewriter.add(last.name, ChannelSums(), *inputs.values())
    for row, node in enumerate(reductions):
        if node is not None:
            cut = Slice((row, 0), (row + 1, channels), (0, 1), (1, 1))
            value = rewriter.add(node.name, cut, sums)
            rewriter.replace_by(node, rewriter.reshape(node.name, value, shape))
