"""Recognise rotary embeddings written in small pieces, as one operator each."""

from __future__ import annotations

from itertools import product

import numpy as np

from glnn.core.symint import greatest, same
from glnn.core.types import DType, Shape, TensorType
from glnn.graph.builder import constant
from glnn.graph.graph import FOLDED, Graph, Node, Value
from glnn.graph.operators import Concat, Expand, Pointwise, Slice, Transpose
from glnn.graph.operators.rotary import HALVES, MOST_WIDTH, Rotary
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import GraphRewriter
from glnn.graph.passes.idiom_recognition import Term, Terms

SWAP_HEADS = Transpose((0, 2, 1, 3))
"""From (batch, tokens, heads, width) to (batch, heads, tokens, width), and back."""


def recognize_rotary(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with rotary embeddings (Su et al. 2021) in pieces as one operator each.

    In pieces they are x c + concat(-second half of x, first half of x) s, as in Hugging Face's
    models: x is (batch, heads, tokens, width); c and s, (batch or 1, 1, tokens, width), have the
    cosines and sines of each position's angles twice in a row. types: of every value; types of new
    values are added.
    """
    if not any(isinstance(node.operator, Concat) for node in graph.nodes):
        return graph
    rewriter = GraphRewriter(graph, types)
    terms = Terms(rewriter)
    for node in rewriter.nodes:
        if isinstance(node.operator, Pointwise) and not rewriter.is_fixed(node.outputs[0]):
            _replace_rotation(rewriter, terms, node)
    return rewriter.graph()


def _replace_rotation(rewriter: GraphRewriter, terms: Terms, node: Node) -> None:
    """Replace `node` by a rotary embedding where it is one."""
    term, type = terms.term_of(node.outputs[0]), rewriter.types[node.outputs[0]]
    if term.function != "add" or len(type.shape) != 4 or type.dtype is not DType.float32:
        return
    for plain, rotated in term.argument_orders():
        if plain.function != "mul" or rotated.function != "mul":
            continue
        pairs = product(plain.argument_orders(), rotated.argument_orders())
        for (x, cosine), (half, sine) in pairs:
            match = _match_operands(rewriter, terms, type, x, cosine, half, sine)
            if match is not None:
                _rotate(rewriter, node, *match)
                return


def _match_operands(
    rewriter: GraphRewriter,
    terms: Terms,
    type: TensorType,
    x: Term,
    cosine: Term,
    half: Term,
    sine: Term,
) -> tuple[Value, Value, Value] | None:
    """Return the values of x as (batch, tokens, heads, width), of cosines and of sines; None where
    the terms are not those of a rotation.
    """
    batch, _, tokens, width = type.shape
    if not isinstance(width, int) or width % 2 or width > MOST_WIDTH:
        return None
    if batch * tokens < 1 or 4 * greatest(batch * tokens) > FOLDED:
        return None
    if not any(_is_rotated_half(rewriter, terms, value, x, width) for value in half.values):
        return None
    transpose = next((rewriter.runtime_producer(value) for value in x.values), None)
    if transpose is None or transpose.operator != SWAP_HEADS or transpose.epilogue is not None:
        return None
    angles: list[Value] = []
    for part in (cosine, sine):
        for value in part.values:
            shape = rewriter.shape(value)
            fits = len(shape) == 4 and shape[1:] == (1, tokens, width)
            if fits and (same(shape[0], batch) or same(shape[0], 1)):
                angles += [value] if _repeats_half(rewriter, value) else []
                break
    if len(angles) != 2 or rewriter.shape(angles[0]) != rewriter.shape(angles[1]):
        return None
    (source,) = transpose.inputs
    assert source is not None
    return source, angles[0], angles[1]


def _is_rotated_half(
    rewriter: GraphRewriter, terms: Terms, value: Value, x: Term, width: int
) -> bool:
    """Return True where `value` is the negated second half of x, followed by the first half."""
    node = rewriter.runtime_producer(value)
    if node is None or node.operator not in (Concat(3), Concat(-1)) or len(node.inputs) != 2:
        return False
    second, first = (terms.term_of(half) for half in node.inputs if half is not None)
    if second.function != "neg":
        return False
    bounds = (second.arguments[0], width // 2, width), (first, 0, width // 2)
    return all(_is_part(rewriter, terms, part, x, *ends) for part, *ends in bounds)


def _is_part(
    rewriter: GraphRewriter, terms: Terms, part: Term, x: Term, first: int, last: int
) -> bool:
    """Return True where `part` is x from `first` to before `last` along its last dimension."""
    node = rewriter.runtime_producer(part.value)
    if node is None or not isinstance(node.operator, Slice) or node.epilogue is not None:
        return False
    (value,) = node.inputs
    if value is None or terms.term_of(value) is not x:
        return False
    ends = node.operator.walks(rewriter.shape(value))[-1]
    return node.operator.axes in ((3,), (-1,)) and ends == (first, last - first, 1)


def _repeats_half(rewriter: GraphRewriter, value: Value) -> bool:
    """Return True where the graph shows that the last dimension is a half that is repeated."""
    node, width = rewriter.producer(value), rewriter.shape(value)[-1]
    while node is not None and node.epilogue is None:
        operator = node.operator
        if isinstance(operator, Concat):
            last = operator.axis in (-1, len(rewriter.shape(node.outputs[0])) - 1)
            return last and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        if not isinstance(operator, Pointwise | View | Expand):
            return False
        wide = [
            x
            for x in node.inputs
            if x is not None and rewriter.shape(x) and not same(rewriter.shape(x)[-1], 1)
        ]
        if len(wide) != 1 or not same(rewriter.shape(wide[0])[-1], width):
            return False
        node = rewriter.producer(wide[0])
    return False


def _rows_of(rewriter: GraphRewriter, name: str, x: Value, shape: Shape) -> Value:
    """Return x as rows of `shape`: the value of this shape that x is a view of, else a reshape."""
    value, node = x, rewriter.runtime_producer(x)
    while node is not None and isinstance(node.operator, View) and node.inputs[0] is not None:
        value = node.inputs[0]
        value_shape = rewriter.shape(value)
        if len(value_shape) == len(shape) and all(map(same, value_shape, shape)):
            return value
        node = rewriter.runtime_producer(value)
    return rewriter.reshape(name, x, shape)


def _rotate(rewriter: GraphRewriter, node: Node, x: Value, cosine: Value, sine: Value) -> None:
    """Replace `node` by a rotary embedding of x, (batch, tokens, heads, width)."""
    name, shape = node.name, rewriter.shape(x)
    batch, tokens, heads, width = shape
    half = Slice((0,), (width // 2,), (3,), (1,))
    parts = (rewriter.add(name, half, angles) for angles in (cosine, sine))
    rows = rewriter.shape(cosine)[0] * tokens
    table = rewriter.reshape(name, rewriter.add(name, Concat(3), *parts), (rows, width))
    # Row i of x reads row i % rows of the table: where sequences share angles, from 0 on for each.
    count = batch * tokens
    numbers = constant(np.arange(greatest(count), dtype=np.int32))
    rewriter.types[numbers] = numbers.type
    places = rewriter.add(name, Slice((0,), (count,), (0,), (1,)), numbers)
    x_rows = _rows_of(rewriter, name, x, (batch * tokens, heads * width))
    rotated = rewriter.add(name, Rotary(heads, width, rows, order=HALVES), x_rows, table, places)
    rotated = rewriter.reshape(name, rotated, shape)
    rewriter.replace_by(node, rewriter.add(name, SWAP_HEADS, rotated))
