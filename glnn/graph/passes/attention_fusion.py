"""Fuse attention, two products and a softmax between moves of heads, into one operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod

from glnn.core.symint import at_most, divides, same
from glnn.core.types import DType, Shape, TensorType
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Expand, Matmul, Pointwise, Reshape, Softmax, Transpose
from glnn.graph.operators.attention import Attention, StridedView
from glnn.graph.operators.move import Move
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter
from glnn.graph.passes.move_merging import MoveChain
from glnn.graph.passes.transpose_sinking import regroup

StridedDims = list[tuple[int, int]]
"""Sizes and strides of the nested dimensions that one dimension consists of, the outermost first.
"""


def merge_strided_dims(dims: Iterable[tuple[int, int]]) -> StridedDims:
    """Merge neighbours that one stride describes, and leave out those of size 1."""
    result: StridedDims = []
    for size, stride in dims:
        if same(size, 1):
            continue
        if result and same(result[-1][1], size * stride):
            result[-1] = result[-1][0] * size, stride
        else:
            result.append((size, stride))
    return result


def strided_dims_of(chain: MoveChain, dim: int) -> StridedDims:
    """Return the sizes and strides of dimension `dim` of the chain's result, in the memory of the
    chain's operand.
    """
    return merge_strided_dims(
        (axis.size, 0 if axis.axis is None else axis.step * prod(chain.shape[axis.axis + 1 :]))
        for axis in chain.dims[dim]
    )


@dataclass(frozen=True)
class StridedRead:
    """A strided view of a value as rows of numbers, one for each token of each head."""

    value: Value
    start: int
    """Offset of the first number."""
    stack: StridedDims
    """Samples and heads: at most two dimensions, for masks three."""
    token: int
    """Stride between tokens."""
    step: int
    """Stride between the numbers of a row."""

    @classmethod
    def from_chain(
        cls, value: Value, chain: MoveChain, tokens: int, most: int
    ) -> StridedRead | None:
        """Return the strided view, in the memory of `value`, of the result of `chain`, a matrix of
        (stack * tokens, numbers); None where strides cannot describe it.

        most: dimensions of the stack, at most.
        """
        rows, numbers = strided_dims_of(chain, 0), strided_dims_of(chain, 1)
        token, start = 0, 0
        if tokens > 1:
            size, token = rows.pop() if rows else (1, 0)
            if size % tokens:
                return None
            rows = merge_strided_dims([*rows, (size // tokens, token * tokens)])
        for index, stride in zip(chain.base, _strides_of(chain.shape), strict=True):
            start += index * stride
        step = numbers[0][1] if numbers else 1
        strides = (*(stride for _, stride in rows), token, step)
        is_padded = any(
            axis.axis is not None and not at_most(axis.size, chain.shape[axis.axis])
            for factors in chain.dims
            for axis in factors
        )
        if len(rows) > most or len(numbers) > 1 or min(strides) < 0 or is_padded:
            return None
        return cls(value, start, rows, token, step)

    def strided_view(self, heads: int) -> StridedView:
        """Return the view as samples of `heads` heads each."""
        sample, head = 0, 0
        if len(self.stack) == 2:
            (_, sample), (_, head) = self.stack
        elif self.stack:
            ((_, head),) = self.stack
            sample = heads * head
        return StridedView(self.start, sample, head, self.token, self.step)

    def mask_view(self, heads: int) -> tuple[StridedView, int] | None:
        """Return the view as masks of `heads` heads, and the number of samples after which masks
        repeat, 0 where they do not; None where neither a stride nor a repetition describes them.
        """
        *samples, (size, head) = self.stack or [(heads, 0)]
        if not divides(heads, size):
            return None
        samples = merge_strided_dims([*samples, (size // heads, head * heads)])
        sample, masks = samples[-1] if samples else (0, 0), 0
        if len(samples) == 2 and same(samples[0][1], 0):
            masks = samples[1][0]
        elif len(samples) > 1:
            return None
        return StridedView(self.start, sample[1], head, self.token, self.step), masks


def _strides_of(shape: Shape) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _move_sources(
    rewriter: GraphRewriter, value: Value, last: Iterable[Operator]
) -> Iterator[tuple[Value, MoveChain]]:
    """Yield the sources of `value`, the farthest first and `value` itself last, each with the chain
    of moves from the source to `value` and on through the operators `last`.
    """
    steps: list[tuple[Value, tuple[Operator, Shape] | None]] = [(value, None)]
    while (node := rewriter.runtime_producer(value)) is not None:
        operator, shape = node.operator, rewriter.shape(value)
        if node.epilogue is not None or not isinstance(operator, View | Move):
            break
        (operand,) = node.inputs
        assert operand is not None
        value = operand
        steps.append((value, (operator, shape)))
    for count in range(len(steps) - 1, -1, -1):
        source = steps[count][0]
        chain: MoveChain | None = MoveChain.identity(rewriter.shape(source))
        for _, step in reversed(steps[1 : count + 1]):
            assert step is not None
            chain = None if chain is None else chain.then(*step)
        for operator in last:
            chain = None if chain is None else chain.then(operator)
        if chain is not None:
            yield source, chain


def find_strided_read(
    rewriter: GraphRewriter, value: Value | None, tokens: int, *last: Operator, rows: bool = True
) -> StridedRead | None:
    """Return a strided view of `value` after the operators `last`, which give a matrix; None where
    there is none. rows: True where the numbers of a row must be adjacent in memory.
    """
    if value is None:
        return None
    for source, chain in _move_sources(rewriter, value, last):
        result = StridedRead.from_chain(source, chain, tokens, 2 if rows else 3)
        if result is not None and (result.step == 1 or not rows):
            return result
    return None


@dataclass(frozen=True)
class AttentionScores:
    """The operand of an attention's softmax: scaled products of queries and keys, plus masks."""

    product: Node
    """Product of queries and keys."""
    scale: float
    """Factor of the product."""
    masks: tuple[tuple[Value, Shape], ...]
    """Masks that are added to the scaled product, the last one first, and the shapes that they
    broadcast to."""
    zeros: bool
    """True where rows whose softmax is NaN become zeros."""


def match_scores(rewriter: GraphRewriter, weighted: Node) -> AttentionScores | None:
    """Return the scores whose softmax is the first factor of the product `weighted`; None where
    they are not scores, or something else reads them.
    """
    soft = _match_softmax(rewriter, weighted)
    if soft is None:
        return None
    (value,), zeros = soft[0].inputs, soft[1]
    scale, masks = 1.0, list[tuple[Value, Shape]]()
    while (node := rewriter.runtime_producer(value)) is not None and rewriter.is_read_once(value):
        operator, shape = node.operator, rewriter.shape(node.outputs[0])
        if node.epilogue is not None:
            return None
        if isinstance(operator, Matmul):
            return AttentionScores(node, scale, tuple(masks), zeros)
        if isinstance(operator, Pointwise):
            match = _match_scale_and_mask(rewriter, node)
            if match is None or (match[2] is not None and scale != 1.0):
                return None
            value, scale = match[0], scale * match[1]
            masks += [] if match[2] is None else [(match[2], shape)]
        elif isinstance(operator, View) and _keeps_last_dimension(rewriter, node):
            value = node.inputs[0]
        else:
            return None
    return None


def _match_softmax(rewriter: GraphRewriter, weighted: Node) -> tuple[Node, bool] | None:
    """Return the softmax along rows that is the first factor of `weighted`, and whether its NaN
    become zeros; None where there is none, or something else reads it.
    """
    value, zeros, is_private = weighted.inputs[0], False, False
    while (node := rewriter.runtime_producer(value)) is not None and node.epilogue is None:
        operator = node.operator
        if not is_private and not rewriter.is_read_once(value):
            return None
        if isinstance(operator, Softmax):
            last = len(rewriter.shape(node.outputs[0])) - 1
            return (node, zeros) if operator.axis in (-1, last) and not operator.log else None
        if isinstance(operator, Pointwise) and not zeros:
            value, zeros, is_private = _match_nan_guard(rewriter, node), True, True
        elif isinstance(operator, View) and _keeps_last_dimension(rewriter, node):
            value, is_private = node.inputs[0], False
        else:
            return None
    return None


def _match_nan_guard(rewriter: GraphRewriter, node: Node) -> Value | None:
    """Return x where `node` is x with 0 for NaN, in one node or two, and reads x alone."""
    assert isinstance(node.operator, Pointwise)
    expr = node.operator.expr
    if not isinstance(expr, Call) or expr.function != "where":
        return None
    test, zero, x = expr.arguments
    if not isinstance(x, Arg) or not isinstance(zero, Scalar | Constant) or zero.value:
        return None
    value, readers = node.inputs[x.index], {node}
    if isinstance(test, Arg):
        tester = rewriter.runtime_producer(node.inputs[test.index])
        if tester is None or tester.inputs != (value,):
            return None
        if not rewriter.is_read_once(tester.outputs[0]):
            return None
        readers.add(tester)
        test = tester.operator.expr if isinstance(tester.operator, Pointwise) else test
        x = Arg(0)
    if test != Call("isnan", (x,)) or value is None or rewriter.is_output(value):
        return None
    return value if set(rewriter.readers(value)) == readers else None


def _keeps_last_dimension(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where the view `node` leaves the last dimension as it is."""
    (x,), (result,) = node.inputs, node.outputs
    return x is not None and rewriter.shape(x)[-1:] == rewriter.shape(result)[-1:]


def _match_scale_and_mask(
    rewriter: GraphRewriter, node: Node
) -> tuple[Value, float, Value | None] | None:
    """Return x, s and m where `node` is x s + m and x has the shape of the result; m is None where
    nothing is added.
    """
    assert isinstance(node.operator, Pointwise)
    shape = rewriter.shape(node.outputs[0])
    for i, x in enumerate(node.inputs):
        if x is None or rewriter.shape(x) != shape or node.inputs.count(x) != 1:
            continue
        match = _match_multiple(node.operator.expr, i)
        if match is None or not rewriter.is_read_once(x) or not _comes_from_product(rewriter, x):
            continue
        scale, other = match
        mask = None if other is None else node.inputs[other]
        if mask is None or rewriter.types[mask].dtype is DType.float32:
            return x, scale, mask
    return None


def _comes_from_product(rewriter: GraphRewriter, value: Value | None) -> bool:
    """Return True where `value` is a product, or computed from one by views and pointwise work."""
    while (node := rewriter.runtime_producer(value)) is not None:
        if not isinstance(node.operator, View | Pointwise):
            return isinstance(node.operator, Matmul)
        if len(node.inputs) > 1:
            return any(_comes_from_product(rewriter, operand) for operand in node.inputs)
        value = node.inputs[0]
    return False


def _match_multiple(expr: Expr, index: int) -> tuple[float, int | None] | None:
    """Return s and j where `expr` is argument `index` times s plus argument j; j is None where
    nothing is added.
    """
    if expr == Arg(index):
        return 1.0, None
    if not isinstance(expr, Call) or len(expr.arguments) != 2:
        return None
    for inner, other in (expr.arguments, expr.arguments[::-1]):
        match = _match_multiple(inner, index)
        if match is None:
            continue
        scale, addend = match
        if expr.function == "add" and addend is None and isinstance(other, Arg):
            return None if other.index == index else (scale, other.index)
        number = float(other.value) if isinstance(other, Scalar | Constant) else 0.0
        if expr.function == "mul" and addend is None and number:
            return scale * number, None
        if expr.function == "div" and addend is None and number and inner is expr.arguments[0]:
            return scale / number, None
    return None


Order = tuple[int, int, int]


def fuse_attention(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with attention as one operator, which reads and writes heads in place by
    strides instead of moves.

    types: of every value; types of new values are added.
    """
    if not any(isinstance(node.operator, Softmax) for node in graph.nodes):
        return graph
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Matmul) and not rewriter.is_fixed(node.outputs[0]):
            scores = match_scores(rewriter, node)
            if scores is not None:
                _fuse_at(rewriter, node, scores, is_profitable)
    return rewriter.graph()


def _fuse_at(
    rewriter: GraphRewriter, weighted: Node, scores: AttentionScores, is_profitable: FusionCheck
) -> None:
    """Replace `weighted`, with the moves behind it, by an attention operator where that pays."""
    (q, k), (_, v) = scores.product.inputs, weighted.inputs
    if q is None or k is None or v is None or rewriter.is_fixed(k) or rewriter.is_fixed(v):
        return
    (_, width), (*batch, keys, _), (*v_batch, columns, _) = map(rewriter.shape, (q, k, v))
    count = batch[0] if batch else 1
    total = rewriter.shape(q)[0]
    if v_batch != batch or 0 in (total, count, width, keys, columns):
        return
    queries = total // count
    k_rows, v_rows = Reshape((count * keys, width), True), Reshape((count * keys, columns), True)
    transpose = Transpose((0, 2, 1) if batch else (1, 0))
    # for values whose innermost dimension in memory is the keys
    transposed = rewriter.add(weighted.name, transpose, v)
    v_read = find_strided_read(rewriter, v, keys, transpose, v_rows)
    if v_read is None:
        v_read = find_strided_read(rewriter, transposed, keys, v_rows)
    reads = [
        find_strided_read(rewriter, q, queries),
        find_strided_read(rewriter, k, keys, k_rows),
        v_read,
    ]
    mask, mask_shape = _sum_of_masks(rewriter, weighted.name, scores.masks)
    if mask is not None:
        mask_rows = Expand(mask_shape), Reshape((total, keys), True)
        reads.append(find_strided_read(rewriter, mask, queries, *mask_rows, rows=False))
    strided_reads = [read for read in reads if read is not None]
    heads = {read.stack[1][0] for read in strided_reads[:3] if len(read.stack) == 2}
    if len(strided_reads) == len(reads) == 3 + bool(scores.masks) and len(heads) < 2:
        sizes = count, queries, keys, width, columns
        head_count = min(heads, default=None)
        _replace_by_attention(
            rewriter, weighted, scores, sizes, strided_reads, head_count, is_profitable
        )
    rewriter.prune(transposed)
    rewriter.prune(mask)


def _sum_of_masks(
    rewriter: GraphRewriter, name: str, masks: Sequence[tuple[Value, Shape]]
) -> tuple[Value | None, Shape]:
    """Return the sum of `masks`, and the shape that it broadcasts to; None where there are none, or
    their shapes do not broadcast.
    """
    if not masks:
        return None, ()
    (result, full), *others = masks
    for value, shape in others:
        wide = regroup(rewriter.shape(value), shape, full)
        if wide is None:
            return None, ()
        reshaped = rewriter.reshape(name, value, wide)
        result = rewriter.add(name, Pointwise(call("add", Arg(0), Arg(1))), reshaped, result)
    return result, full


def _replace_by_attention(
    rewriter: GraphRewriter,
    weighted: Node,
    scores: AttentionScores,
    sizes: tuple[int, int, int, int, int],
    reads: list[StridedRead],
    heads: int | None,
    is_profitable: FusionCheck,
) -> None:
    """Replace `weighted` by an attention operator with the operands `reads`, where that pays.

    sizes: of the stack, queries, keys, width and columns. heads: None where no operand has samples
    and heads apart.
    """
    count, queries, keys, width, columns = sizes
    mask = reads[3] if len(reads) > 3 else None
    if heads is None and mask is not None and len(mask.stack) > 1:
        heads = mask.stack[-1][0]
    last, heads, order = _absorb_moves(rewriter, weighted, sizes, heads)
    views, masks = [read.strided_view(heads) for read in reads[:3]], 0
    if mask is not None:
        if (match := mask.mask_view(heads)) is None:
            return
        mask_view, masks = match
        views.append(mask_view)
    operator = Attention(
        *(count // heads, heads, queries, keys, width, columns, tuple(views)),
        *(scores.scale, order, scores.zeros, masks),
    )
    values = [read.value for read in reads]
    operands = zip(Attention.inputs, values, strict=False)
    if not is_profitable(operator, {name: rewriter.types[value] for name, value in operands}):
        return
    result = rewriter.add(weighted.name, operator, *values)
    shape = rewriter.shape(last.outputs[0])
    rewriter.replace_by(last, rewriter.reshape(weighted.name, result, shape))


def _absorb_moves(
    rewriter: GraphRewriter,
    weighted: Node,
    sizes: tuple[int, int, int, int, int],
    heads: int | None,
) -> tuple[Node, int, Order]:
    """Return the last of the moves behind `weighted` that attention can do itself, the number of
    heads, and the order of samples, heads and tokens in the result.
    """
    count, queries, *_, columns = sizes
    chain: MoveChain | None = MoveChain.identity((count * queries, columns))
    node, best = weighted, (weighted, heads or count, (0, 1, 2))
    while chain is not None:
        dims = merge_strided_dims(
            strided for dim in range(len(chain.dims)) for strided in strided_dims_of(chain, dim)
        )
        for head_count in (heads,) if heads else {count, *(size for size, _ in dims)}:
            if not divides(head_count, count):
                continue
            outer = (
                (count // head_count, head_count * queries * columns),
                (head_count, queries * columns),
                (queries, columns),
            )
            for order in permutations(range(3)):
                ordered = merge_strided_dims([*(outer[i] for i in order), (columns, 1)])
                if same(ordered, dims):
                    best = node, head_count, (order[0], order[1], order[2])
        value = node.outputs[0]
        (reader, *_) = rewriter.readers(value) or (None,)
        if reader is None or not rewriter.is_read_once(value):
            break
        if not isinstance(reader.operator, View | Move) or reader.epilogue is not None:
            break
        node, chain = reader, chain.then(reader.operator, rewriter.shape(reader.outputs[0]))
    return best
