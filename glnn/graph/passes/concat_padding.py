"""Pad parts of concatenations to whole vec4 of channels, where their readers can leave these out.

What makes such parts can write them to where they belong (`compiler/concat_aliasing.py`). Others
are copied, as the 58 channels that a block of ShuffleNet V2 (Ma et al. 2018) keeps and its own 58.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from glnn.core.types import DType, Shape, TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.index_map import Axis
from glnn.graph.operators import Concat, Conv2d, Pad, Pointwise, Rearrange, Slice
from glnn.graph.passes.graph_rewriter import GraphRewriter


def pad_concats(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with equal parts of concatenations of channels padded to whole vec4, where
    convolutions and moves make them, and nothing but moves reads the concatenation.

    The padding channels are undefined. What was in a convolution's epilogue is pointwise work
    behind it again, for `fuse_pointwise`. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Concat):
            _pad(rewriter, node, node.operator)
    return rewriter.graph()


def _pad(rewriter: GraphRewriter, node: Node, concat: Concat) -> None:
    """Pad the parts of the concatenation `node`, where all of them can be."""
    (result,), parts = node.outputs, node.inputs
    shape, readers = rewriter.shape(result), rewriter.readers(result)
    sizes = {rewriter.shape(part)[1] for part in parts if part is not None and len(shape) == 4}
    several = len(parts) > 1 and len({*parts}) == len(parts)
    if not several or concat.axis not in (1, -3) or len(sizes) != 1:
        return
    (size,) = sizes
    float32 = rewriter.types[result].dtype is DType.float32
    if not isinstance(size, int) or size % 4 == 0 or not float32 or rewriter.is_output(result):
        return
    padding = _Padding(rewriter, size, -(-size // 4) * 4)
    padded_shape = (shape[0], len(parts) * padding.padded_size, *shape[2:])
    moves = [padding.remap_reader(reader, shape, padded_shape) for reader in readers]
    if None in moves or not all(padding.can_pad(part) for part in parts):
        return
    padded = [padding.pad_part(part) for part in parts if part is not None]
    value = rewriter.add(node.name, concat, *padded)
    _replace_readers(rewriter, [*zip(readers, filter(None, moves), strict=True)], value)
    rewriter.remove(node)
    for part in parts:
        rewriter.prune(part)


def _replace_readers(
    rewriter: GraphRewriter, moves: Sequence[tuple[Node, Rearrange]], value: Value
) -> None:
    """Have nodes be such moves of `value`: slices of a single one, where that can be."""
    moves = sorted(moves, key=lambda each: _first(each[1]))
    merged = _merge_moves([move for _, move in moves])
    if merged is None:
        for node, move in moves:
            rewriter.replace(node, move, value)
        return
    moved = rewriter.add(moves[0][0].name, merged, value)
    distance = rewriter.shape(moved)[1] // len(moves)
    for i, (node, _) in enumerate(moves):
        start, size = i * distance, rewriter.shape(node.outputs[0])[1]
        rewriter.replace(node, Slice((start,), (start + size,), (1,), (1,)), moved)


def _first(move: Rearrange) -> int:
    """Return the first channel that `move` takes."""
    return sum(axis.start for axis in move.axes[1])


def _merge_moves(moves: Sequence[Rearrange]) -> Rearrange | None:
    """Return one move that makes the channels of all `moves` side by side, each from a whole vec4
    on; None where they differ in more than where they begin, or not by equal distances.
    """
    starts = [_first(move) for move in moves]
    images, (outer, *inner), *image = moves[0].axes
    inner = [replace(axis, start=0) for axis in inner]
    for move in moves:
        of_images, (first, *others), *of_image = move.axes
        alike = first.step == outer.step and [replace(axis, start=0) for axis in others] == inner
        if not alike or (of_images, of_image) != (images, image):
            return None
    distance = starts[1] - starts[0] if len(moves) > 1 else 0
    if distance < 1 or [*range(starts[0], starts[-1] + 1, distance)] != starts:
        return None
    within, count = prod(axis.size for axis in inner), max(move.axes[1][0].size for move in moves)
    while count * within % 4:
        count += 1
    each = Axis(len(moves), 1, starts[0], distance)
    channels = each, replace(outer, size=count, start=0), *inner
    reach = starts[-1] + sum((axis.size - 1) * axis.step for axis in channels[1:])
    if reach >= moves[0].shape[1]:
        return None
    return Rearrange(moves[0].shape, (images, channels, *image))


@dataclass(frozen=True)
class _Padding:
    """Pads parts of `size` channels to `padded_size`, whole vec4."""

    rewriter: GraphRewriter
    size: int
    padded_size: int

    def remap_reader(self, node: Node, shape: Shape, padded_shape: Shape) -> Rearrange | None:
        """Return the move that reads the same from the padded concatenation, of `padded_shape`, as
        `node` from the one of `shape`; None where `node` reads anything else than channels of
        parts.
        """
        if not isinstance(node.operator, Rearrange | Slice):
            return None
        index_map = node.operator.map(shape)
        if index_map.edge != "none":
            return None
        along = [axis for factors in index_map.dims for axis in factors if axis.axis == 1]
        inner = [axis for axis in along if axis.step % self.size]
        first = sum(axis.start for axis in along)
        last = first % self.size + sum((axis.size - 1) * axis.step for axis in inner)
        if any(axis.step < 1 for axis in along) or last >= self.size:
            return None
        if len(index_map.dims) != 4 or along != list(index_map.dims[1]):
            return None  # what makes rows of channels, or takes one of them
        begin = first // self.size * self.padded_size + first % self.size
        dims: list[tuple[Axis, ...]] = []
        for factors in index_map.dims:
            made: list[Axis] = []
            for axis in factors:
                if axis.axis == 1:
                    parts, rest = divmod(axis.step, self.size)
                    step = rest if rest else parts * self.padded_size
                    axis, begin = replace(axis, start=begin, step=step), 0
                made.append(axis)
            dims.append(tuple(made))
        return Rearrange(padded_shape, tuple(dims))

    def can_pad(self, part: Value | None) -> bool:
        """Return True where the operator that makes `part` can make further channels."""
        node = self.rewriter.runtime_producer(part)
        if part is None or node is None or not self.rewriter.is_read_once(part):
            return False
        if isinstance(node.operator, Conv2d):
            weight = node.inputs[1]
            extents = () if node.epilogue is None else node.epilogue.extents
            fixed = all(map(self.rewriter.is_fixed, (weight, *node.extras)))
            return node.operator.groups == 1 and fixed and "full" not in extents
        return self._enlarged(node) is not None

    def pad_part(self, part: Value) -> Value:
        """Return `part` with further channels."""
        rewriter, node = self.rewriter, self.rewriter.producer(part)
        assert node is not None
        if not isinstance(node.operator, Conv2d):
            larger = self._enlarged(node)
            assert larger is not None
            return rewriter.add(node.name, larger, *node.inputs)
        x, weight, *others = node.inputs
        assert weight is not None
        value = rewriter.add(node.name, node.operator, x, self._with_zeros(node, weight), *others)
        if node.epilogue is None:
            return value
        extras = [
            self._with_zeros(node, rewriter.reshape(node.name, extra, (self.size, 1, 1)))
            if extent == "channel"
            else extra
            for extra, extent in zip(node.extras, node.epilogue.extents, strict=True)
        ]
        return rewriter.add(node.name, Pointwise(node.epilogue.expr), value, *extras)

    def _with_zeros(self, node: Node, value: Value) -> Value:
        """Return `value` with zeros behind the last place of its first dimension."""
        none = (0,) * len(self.rewriter.shape(value))
        after = (self.padded_size - self.size, *none[1:])
        return self.rewriter.add(node.name, Pad(none, after), value)

    def _enlarged(self, node: Node) -> Rearrange | Slice | None:
        """Return the move `node` with further channels of x; None where it has none, or is none."""
        if not isinstance(node.operator, Rearrange | Slice):
            return None
        shape = self.rewriter.shape(node.reads[0])
        index_map = node.operator.map(shape)
        if index_map.edge != "none":
            return None
        first, *others = index_map.dims[1]
        within = prod(axis.size for axis in others)
        if any(axis.axis != 1 or axis.step < 1 for axis in (first, *others)):
            return None
        if self.padded_size % within:
            return None
        first = replace(first, size=self.padded_size // within)
        last = sum(axis.start + (axis.size - 1) * axis.step for axis in (first, *others))
        if not isinstance(shape[1], int) or last >= shape[1]:
            return None
        if isinstance(node.operator, Slice) and node.operator.axes == (1,) and first.step == 1:
            return Slice((first.start,), (first.start + self.padded_size,), (1,), (1,))
        images, _, *image = index_map.dims
        return Rearrange(shape, (images, (first, *others), *image))
