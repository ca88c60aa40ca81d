"""Recognise rolls and interleavings written as slices of a tensor that are concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod

from glnn.core.symint import same
from glnn.core.types import Shape, TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat, Roll, Slice, Transpose
from glnn.graph.passes.graph_rewriter import GraphRewriter

MOST_PIECES = 64  # of a concatenation that is looked at


@dataclass(frozen=True)
class _Piece:
    """Some places of a value: the first, how many, and the step between them, along each axis."""

    source: Value
    walks: tuple[tuple[int, int, int], ...]


def recognize_sliced_moves(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with a move in the place of slices of a tensor that are concatenated to a
    roll of it, or to every n-th place of some dimensions side by side.

    types: of every value; those of new ones are added. Exporters write torch.roll and the merging
    of patches so.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Concat) and 1 < len(node.inputs) <= MOST_PIECES:
            _recognize(rewriter, node, node.operator)
    return rewriter.graph()


def _recognize(rewriter: GraphRewriter, node: Node, concat: Concat) -> None:
    """Put a move in the place of the concatenation `node`, where it is one."""
    pieces = [_piece(rewriter, value) for value in node.inputs if value is not None]
    source = pieces[0].source
    shape = rewriter.shape(source)
    if any(one.source is not source for one in pieces) or rewriter.is_fixed(source) or 0 in shape:
        return
    axis = concat.axis % len(shape)
    if (shift := _shift(pieces, shape, axis)) is not None:
        _put_roll(rewriter, node, source, axis, shift)
    elif axis == len(shape) - 1 and (order := _interleaved_axes(pieces, shape)) is not None:
        _put_interleaving(rewriter, node, source, order)


def _piece(rewriter: GraphRewriter, value: Value) -> _Piece:
    """Return what `value` is of the value that it is sliced from, itself where it is no slice."""
    walks = [(0, size, 1) for size in rewriter.shape(value)]
    node = rewriter.runtime_producer(value)
    while node is not None and isinstance(node.operator, Slice):
        (before,) = node.inputs
        assert before is not None
        outer = node.operator.walks(rewriter.shape(before))
        walks = [
            (start + first * step, count, step * inner)
            for (start, _, step), (first, count, inner) in zip(outer, walks, strict=True)
        ]
        value, node = before, rewriter.runtime_producer(before)
    return _Piece(value, tuple(walks))


def _shift(pieces: Sequence[_Piece], shape: Shape, axis: int) -> int | None:
    """Return how far `pieces`, one behind the other along `axis`, are rolled; None where they are
    no roll.
    """
    if len(pieces) != 2:
        return None
    tail, head = (piece.walks for piece in pieces)
    start = tail[axis][0]
    for i, size in enumerate(shape):
        walks = (start, size - start, 1), (0, start, 1)
        if not same((tail[i], head[i]), walks if i == axis else ((0, size, 1),) * 2):
            return None
    return -start


def _put_roll(rewriter: GraphRewriter, node: Node, source: Value, axis: int, shift: int) -> None:
    """Put a roll of `source` in the place of `node`; one with a roll along other axes before it."""
    shifts: tuple[int, ...] = (shift,)
    axes: tuple[int, ...] = (axis,)
    before = rewriter.runtime_producer(source)
    if before is not None and isinstance(before.operator, Roll):
        (inner,) = before.inputs
        if inner is not None and axis not in before.operator.axes:
            shifts, axes = (*before.operator.shifts, shift), (*before.operator.axes, axis)
            source = inner
    rewriter.replace_by(node, rewriter.add(node.name, Roll(shifts, axes), source))


def _interleaved_axes(pieces: Sequence[_Piece], shape: Shape) -> tuple[int, ...] | None:
    """Return the axes that `pieces` interleave, the slowest first; None where they interleave none.

    Each piece takes every n-th place along each of these axes. Piece 0 begins at place 0 of all,
    the next ones count the first places up as an odometer does, the last axis of the result first.
    """
    steps = [step for _, _, step in pieces[0].walks]
    strided = [axis for axis, step in enumerate(steps) if step > 1]
    if not strided or len(shape) - 1 in strided or prod(steps) != len(pieces):
        return None
    for piece in pieces:
        for (start, count, step), size, expected in zip(piece.walks, shape, steps, strict=True):
            if step != expected or start >= step or not same(count * step, size):
                return None
    starts = [tuple(piece.walks[axis][0] for axis in strided) for piece in pieces]
    # Exporters loop over the axes in an order of their own, so that each order is tried.
    for order in permutations(range(len(strided))):
        expected_start = [0] * len(strided)
        for number, start_of_piece in enumerate(starts):
            rest = number
            for i in reversed(order):
                rest, expected_start[i] = divmod(rest, steps[strided[i]])
            if tuple(expected_start) != start_of_piece:
                break
        else:
            return tuple(strided[i] for i in order)
    return None


def _put_interleaving(
    rewriter: GraphRewriter, node: Node, source: Value, order: Sequence[int]
) -> None:
    """Put the places of `source` that lie side by side along the axes `order` behind one another
    along the last axis, in the place of `node`.
    """
    shape, result = rewriter.shape(source), rewriter.shape(node.outputs[0])
    cut: list[int] = []
    outer: list[int] = []
    inner: dict[int, int] = {}
    for axis, (size, whole) in enumerate(zip(result[:-1], shape[:-1], strict=True)):
        outer.append(len(cut))
        cut.append(size)
        if axis in order:
            inner[axis] = len(cut)
            cut.append(whole // size)
    transposed = Transpose((*outer, *(inner[axis] for axis in order), len(cut)))
    seen = rewriter.reshape(node.name, source, (*cut, shape[-1]))
    moved = rewriter.add(node.name, transposed, seen)
    rewriter.replace_by(node, rewriter.reshape(node.name, moved, result))
