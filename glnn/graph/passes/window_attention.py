"""Fuse the partition of images into windows, and its inverse, into attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from glnn.core.symint import divides, same
from glnn.core.types import Shape, TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Attention, Matmul, Pointwise, Reshape, Roll, Transpose
from glnn.graph.operators.attention import Windows
from glnn.graph.operators.move import Move
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter
from glnn.graph.passes.move_merging import MoveChain
from glnn.graph.passes.transpose_sinking import sink_transposes

TO_WINDOWS = Transpose((0, 1, 3, 2, 4, 5))
"""Swaps the rows of windows with the windows of a row; it is its own inverse."""


def fuse_windows(graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck) -> Graph:
    """Return `graph` with attention to the windows of images, as Swin's, that reads and writes the
    images in place.

    Work between the partition and the attention, and between the attention and the inverse of the
    partition, must be done for each token by itself; it is then done in the images' order, and
    nothing is moved. types: of every value; types of new values are added.
    """
    rewriter, changed = GraphRewriter(graph, types), False
    for node in rewriter.nodes:
        if isinstance(node.operator, Attention) and node.operator.windows is None:
            changed |= _fuse_at(rewriter, node, node.operator, is_profitable)
    # A residual in the images' order may now be fused into the product before it.
    return sink_transposes(rewriter.graph(), types) if changed else graph


@dataclass(frozen=True)
class _Partition:
    """Windows as rows of tokens, cut from an image (images, height, width, numbers)."""

    image: Value
    windows: Windows


def _fuse_at(
    rewriter: GraphRewriter, node: Node, operator: Attention, is_profitable: FusionCheck
) -> bool:
    """Fuse the partitions around the attention `node` into it; return False where that is
    impossible or does not pay.
    """
    if operator.order != (0, 2, 1) or not same(operator.queries, operator.keys):
        return False
    inputs: list[tuple[_Partition, list[Node]]] = []
    for value, view in zip(node.inputs, operator.views[:3], strict=False):
        assert value is not None
        (*_, numbers), tokens = rewriter.shape(value), operator.queries
        is_inside = view.start + (operator.heads - 1) * view.head + operator.width <= numbers
        if not is_inside or not same((view.sample, view.token), (tokens * numbers, numbers)):
            return False
        rows, path = _tokens_before(rewriter, value, node)
        partition = _partition(rewriter, rows, tokens)
        if partition is None or (inputs and partition.windows != inputs[0][0].windows):
            return False
        inputs.append((partition, path))
    windows = inputs[0][0].windows
    if not divides(windows.count, operator.batch):
        return False
    outputs = _images_behind(rewriter, node, operator, windows)
    if outputs is None:
        return False
    views = (replace(view, sample=view.sample * windows.count) for view in operator.views[:3])
    fused = replace(operator, views=(*views, *operator.views[3:]), windows=windows)
    operands = fused.named(node.inputs)
    if not is_profitable(fused, {name: rewriter.types[v] for name, v in operands.items()}):
        return False
    _replace(rewriter, node, fused, inputs, *outputs)
    return True


def _operand_by_tokens(rewriter: GraphRewriter, node: Node) -> Value | None:
    """Return the operand of `node` that it transforms token by token, in the same order; None where
    it does something else.
    """
    operator, (x, *others), (result,) = node.operator, node.inputs, node.outputs
    if node.epilogue is not None or x is None:
        return None
    if isinstance(operator, View):
        is_by_token = same(rewriter.shape(x)[-1:], rewriter.shape(result)[-1:])
        return x if is_by_token else None
    if isinstance(operator, Matmul):
        (weight, *prologue_operands) = others
        is_matrix = weight is not None and len(rewriter.shape(weight)) == 2
        is_plain = is_matrix and not prologue_operands
        return x if is_plain and rewriter.is_fixed(weight) else None
    if not isinstance(operator, Pointwise):
        return None
    tokens = {v for v in node.reads if not rewriter.is_fixed(v)}
    fixed_shapes = [rewriter.shape(v) for v in node.reads if rewriter.is_fixed(v)]
    if len(tokens) != 1 or any(prod(shape[:-1]) != 1 for shape in fixed_shapes):
        return None
    (x,) = tokens
    return x if same(rewriter.shape(x), rewriter.shape(result)) else None


def _apply_to_tokens(rewriter: GraphRewriter, node: Node, x: Value) -> Value:
    """Apply the operator of `node` to the tokens x (rows, numbers), and return the result."""
    if isinstance(node.operator, View):
        return x
    operand, inputs = _operand_by_tokens(rewriter, node), list[Value]()
    for value in node.inputs:
        assert value is not None
        if value is operand:
            value = x
        elif isinstance(node.operator, Pointwise):
            value = rewriter.reshape(node.name, value, rewriter.shape(value)[-1:])
        inputs.append(value)
    return rewriter.add(node.name, node.operator, *inputs)


def _tokens_before(rewriter: GraphRewriter, value: Value, reader: Node) -> tuple[Value, list[Node]]:
    """Return the value that `value` is computed from token by token, for `reader` alone, and the
    nodes between the two, the last first.
    """
    path: list[Node] = []
    while (producer := rewriter.runtime_producer(value)) is not None:
        x = _operand_by_tokens(rewriter, producer)
        if x is None:
            break
        is_only_reader = set(rewriter.readers(value)) == {reader} and not rewriter.is_output(value)
        if not is_only_reader and not isinstance(producer.operator, View):
            break
        path.append(producer)
        value, reader = x, producer
    return value, path


def _partition(rewriter: GraphRewriter, rows: Value, tokens: int) -> _Partition | None:
    """Return the partition of an image into `rows`, windows of `tokens` each, from the farthest
    image that they are moved from; None where there is none.
    """
    moves: list[tuple[Operator, Shape]] = []
    value, result = rows, None
    while (node := rewriter.runtime_producer(value)) is not None and node.epilogue is None:
        if not isinstance(node.operator, View | Move):
            break
        moves.insert(0, (node.operator, rewriter.shape(value)))
        (operand,) = node.inputs
        assert operand is not None
        value = operand
        if len(rewriter.shape(value)) == 4:
            windows = _windows_of(rewriter.shape(value), moves, tokens)
            result = result if windows is None else _Partition(value, windows)
    return result


def _windows_of(
    image: Shape, moves: Sequence[tuple[Operator, Shape]], tokens: int
) -> Windows | None:
    """Return the windows that `moves`, each with the shape of its result, cut an image into."""
    shift: tuple[int, int] | None = (0, 0)
    if isinstance(moves[0][0], Roll):
        shift, moves = _start_of(moves[0][0], image), moves[1:]
    chain: MoveChain | None = None if shift is None else MoveChain.identity(image)
    for move, shape in moves:
        chain = None if chain is None else chain.then(move, shape)
    if chain is None or shift is None:
        return None
    for windows in _possible_windows(image, tokens, shift):
        cut = _cut_shape(image, windows)
        if _is_same_move(chain, image, Reshape(cut), TO_WINDOWS, Reshape(chain.result)):
            return windows
    return None


def _start_of(roll: Roll, image: Shape) -> tuple[int, int] | None:
    """Return the row and the column of an image that `roll` puts first; None where it rolls along
    another axis.
    """
    start = [0, 0]
    for shift, axis in zip(roll.shifts, roll.axes, strict=True):
        axis %= len(image)
        if axis not in (1, 2):
            return None
        start[axis - 1] = -shift % image[axis]
    return start[0], start[1]


def _possible_windows(image: Shape, tokens: int, start: tuple[int, int]) -> Iterator[Windows]:
    """Yield the partitions of `image` into windows of `tokens` each, but the image itself."""
    _, high, wide, _ = image
    if type(high) is not int or type(wide) is not int or type(tokens) is not int:
        return
    for height in range(1, min(high, tokens) + 1):
        width = tokens // height
        if tokens % height or high % height or wide % width:
            continue
        if tokens < high * wide or start != (0, 0):
            yield Windows(high // height, wide // width, height, width, *start)


def _cut_shape(image: Shape, windows: Windows) -> Shape:
    """Return the shape of images with rows and columns cut into those of windows."""
    images, _, _, numbers = image
    return images, windows.rows, windows.height, windows.columns, windows.width, numbers


def _is_same_move(chain: MoveChain, shape: Shape, *operators: Operator) -> bool:
    """Return True where `chain` moves a tensor of `shape` as `operators` do."""
    other: MoveChain | None = MoveChain.identity(shape)
    for operator in operators:
        other = None if other is None else other.then(operator)
    if other is None or any(chain.base):
        return False
    walks = (
        [[(a.size, a.axis, a.start, a.step) for a in factors] for factors in moves.dims]
        for moves in (chain, other)
    )
    return same(*walks)


def _images_behind(
    rewriter: GraphRewriter, node: Node, operator: Attention, windows: Windows
) -> tuple[list[Node], Node] | None:
    """Return the nodes behind the attention `node` that work on each token, in order, and the last
    of the following nodes, which merge windows into images; None where they do something else.
    """
    value, path = node.outputs[0], list[Node]()
    numbers = operator.heads * operator.columns
    while (reader := _only_reader(rewriter, value)) is not None:
        may_merge_heads = isinstance(reader.operator, View) and not path
        if may_merge_heads and same(rewriter.shape(reader.outputs[0])[-1:], (numbers,)):
            value = reader.outputs[0]  # a token is its heads, concatenated
        elif _operand_by_tokens(rewriter, reader) is value:
            path.append(reader)
            value = reader.outputs[0]
        else:
            break
    (*_, numbers) = rewriter.shape(value)
    rows = operator.batch * windows.tokens, numbers
    if prod(rewriter.shape(value)) != prod(rows):
        return None
    images = operator.batch // windows.count
    high, wide = windows.rows * windows.height, windows.columns * windows.width
    image = images, high, wide, numbers
    chain: MoveChain | None = MoveChain.identity(rows).then(Reshape(rewriter.shape(value)))
    while chain is not None and reader is not None:
        if isinstance(reader.operator, Roll):
            inverse = Roll(tuple(-n for n in reader.operator.shifts), reader.operator.axes)
            if not same(rewriter.shape(value), image):
                return None
            if _start_of(inverse, image) != (windows.down, windows.right):
                return None
            return (path, reader) if _merges_windows(chain, rows, image, windows) else None
        if reader.epilogue is not None or not isinstance(reader.operator, View | Move):
            return None
        value = reader.outputs[0]
        chain = chain.then(reader.operator, rewriter.shape(value))
        is_unshifted = (windows.down, windows.right) == (0, 0)
        if chain is not None and is_unshifted and _merges_windows(chain, rows, image, windows):
            return path, reader
        reader = _only_reader(rewriter, value)
    return None


def _only_reader(rewriter: GraphRewriter, value: Value) -> Node | None:
    return rewriter.readers(value)[0] if rewriter.is_read_once(value) else None


def _merges_windows(chain: MoveChain, rows: Shape, image: Shape, windows: Windows) -> bool:
    """Return True where `chain` moves the rows of windows back into images, of any shape."""
    images, high, tall, across, wide, numbers = _cut_shape(image, windows)
    cut = Reshape((images, high, across, tall, wide, numbers))
    return _is_same_move(chain, rows, cut, TO_WINDOWS, Reshape(chain.result))


def _replace(
    rewriter: GraphRewriter,
    node: Node,
    fused: Attention,
    inputs: Sequence[tuple[_Partition, list[Node]]],
    output_path: Sequence[Node],
    last: Node,
) -> None:
    """Replace all nodes from the partitions to `last`, the inverse one, by `fused` and the work on
    tokens in the images' order.

    node: the attention. inputs: the partition of each operand, and the nodes between it and the
    attention, the last first. output_path: the nodes that work on tokens behind the attention.
    """
    tokens = prod(fused.counts[::2])
    substitutes: dict[Value | None, Value] = {}
    for operand, (partition, path) in zip(node.inputs, inputs, strict=False):
        if operand in substitutes:
            continue
        value = partition.image
        value = rewriter.reshape(node.name, value, (tokens, rewriter.shape(value)[-1]))
        for step in reversed(path):
            value = _apply_to_tokens(rewriter, step, value)
        substitutes[operand] = value
    attended = rewriter.add(node.name, fused, *(substitutes.get(v, v) for v in node.inputs))
    value = rewriter.reshape(node.name, attended, (tokens, fused.heads * fused.columns))
    for step in output_path:
        value = _apply_to_tokens(rewriter, step, value)
    shape = rewriter.shape(last.outputs[0])
    rewriter.replace_by(last, rewriter.reshape(last.name, value, shape))
