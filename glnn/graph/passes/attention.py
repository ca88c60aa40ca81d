"""Recognise attention, products and a softmax between moves of heads, as one operator."""

from __future__ import annotations

from itertools import permutations

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Expand, Matmul, Reshape, Softmax, Transpose
from glnn.graph.operators.attention import Attention
from glnn.graph.operators.move import Move
from glnn.graph.operators.views import View
from glnn.graph.passes.factors import Chain
from glnn.graph.passes.heads import Read, joined, legs_of, read
from glnn.graph.passes.rewriting import Pays, Rewriting
from glnn.graph.passes.scores import Scores, scores_of
from glnn.symint import divides, same
from glnn.types import TensorType

Order = tuple[int, int, int]


def with_attention(graph: Graph, types: dict[Value, TensorType], pays: Pays) -> Graph:
    """Return `graph` with attention as one operator, which reads and writes heads where they lie.

    types: of every value; those of new ones are added.
    """
    if not any(isinstance(node.operator, Softmax) for node in graph.nodes):
        return graph
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if isinstance(node.operator, Matmul) and not rewriting.fixed(node.outputs[0]):
            scores = scores_of(rewriting, node)
            if scores is not None:
                _put(rewriting, node, scores, pays)
    return rewriting.graph()


def _put(rewriting: Rewriting, weighted: Node, scores: Scores, pays: Pays) -> None:
    """Replace `weighted`, with the moves behind it, by an attention operator where that pays."""
    (q, k), (_, v) = scores.product.inputs, weighted.inputs
    if q is None or k is None or v is None or rewriting.fixed(k) or rewriting.fixed(v):
        return
    (_, width), (*batch, keys, _), (*again, columns, _) = map(rewriting.shape, (q, k, v))
    count = batch[0] if batch else 1
    total = rewriting.shape(q)[0]
    if again != batch or 0 in (total, count, width, keys, columns):
        return
    queries = total // count
    keyed, valued = Reshape((count * keys, width), True), Reshape((count * keys, columns), True)
    turned = Transpose((0, 2, 1) if batch else (1, 0))
    found = [read(rewriting, q, queries), read(rewriting, k, keys, keyed)]
    found.append(read(rewriting, v, keys, turned, valued))
    moved = rewriting.add(weighted.name, turned, v)  # for values that lie with the keys innermost
    found[2] = found[2] or read(rewriting, moved, keys, valued)
    if scores.mask is not None:
        masked = Expand(scores.shape), Reshape((total, keys), True)
        found.append(read(rewriting, scores.mask, queries, *masked, rows=False))
    reads = [one for one in found if one is not None]
    inner = {one.stack[1][0] for one in reads if len(one.stack) == 2}
    if len(reads) == len(found) and len(inner) < 2:
        sizes = count, queries, keys, width, columns
        _replace(rewriting, weighted, scores, sizes, reads, min(inner, default=None), pays)
    rewriting.prune(moved)


def _replace(
    rewriting: Rewriting,
    weighted: Node,
    scores: Scores,
    sizes: tuple[int, int, int, int, int],
    reads: list[Read],
    heads: int | None,
    pays: Pays,
) -> None:
    """The same with all that was found. sizes: of the stack, queries, keys, width and columns."""
    count, queries, keys, width, columns = sizes
    last, heads, order = _result(rewriting, weighted, sizes, heads)
    walks = tuple(one.walk(heads) for one in reads)
    operator = Attention(
        *(count // heads, heads, queries, keys, width, columns, walks),
        *(scores.scale, order, scores.zeros),
    )
    values = [one.value for one in reads]
    names = dict(zip(Attention.inputs, values, strict=False))
    if not pays(operator, {name: rewriting.types[value] for name, value in names.items()}):
        return
    made = rewriting.add(weighted.name, operator, *values)
    shape = rewriting.shape(last.outputs[0])
    rewriting.be(last, rewriting.reshaped(weighted.name, made, shape))


def _result(
    rewriting: Rewriting, weighted: Node, sizes: tuple[int, int, int, int, int], heads: int | None
) -> tuple[Node, int, Order]:
    """The last of the moves behind `weighted` that attention can do, with how many heads it then
    has, and their order.
    """
    count, queries, *_, columns = sizes
    chain: Chain | None = Chain.of((count * queries, columns))
    node, best = weighted, (weighted, heads or count, (0, 1, 2))
    while chain is not None:
        legs = joined(leg for dim in range(len(chain.dims)) for leg in legs_of(chain, dim))
        for many in (heads,) if heads else {count, *(size for size, _ in legs)}:
            if not divides(many, count):
                continue
            apart = (count // many, many * queries * columns), (many, queries * columns)
            outer = (*apart, (queries, columns))
            for order in permutations(range(3)):
                walked = joined([*(outer[i] for i in order), (columns, 1)])
                if same(walked, legs):
                    best = node, many, (order[0], order[1], order[2])
        value = node.outputs[0]
        (reader, *_) = rewriting.readers(value) or (None,)
        if reader is None or not rewriting.alone(value):
            break
        if not isinstance(reader.operator, View | Move) or reader.epilogue is not None:
            break
        node, chain = reader, chain.then(reader.operator, rewriting.shape(reader.outputs[0]))
    return best
