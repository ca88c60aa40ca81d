"""Compose successive moves and views into one move, and remove those that are not needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from glnn.core.symint import at_most, divides, same
from glnn.core.types import Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.index_map import Axis
from glnn.graph.operator import Operator
from glnn.graph.operators import Gather
from glnn.graph.operators.move import (
    MOST_RANK,
    Expand,
    Flip,
    Move,
    Pad,
    Rearrange,
    Slice,
    Transpose,
)
from glnn.graph.operators.views import Reshape, View
from glnn.graph.passes.graph_rewriter import GraphRewriter

CHANNELS_LAST = (0, 2, 3, 1)
"""The transposition of an image whose channels some layouts have last already."""
Factors = tuple[Axis, ...]
"""Factors of a dimension, the outermost first: walks that begin at 0, of two or more places
each.
"""


@dataclass(frozen=True)
class MoveChain:
    """The composition of moves and views of a tensor of `shape`, no size of which is 0."""

    shape: Shape
    base: tuple[int, ...]
    """First place along each dimension of the tensor."""
    dims: tuple[Factors, ...]
    """Factors of each dimension of the result."""

    @classmethod
    def identity(cls, shape: Shape) -> MoveChain:
        """Return the chain of no moves, the identity on a tensor of `shape`."""
        dims = tuple(() if same(n, 1) else (Axis(n, i),) for i, n in enumerate(shape))
        return cls(shape, (0,) * len(shape), dims)

    @property
    def result(self) -> Shape:
        """The shape of what has come of it."""
        return tuple(_size(factors) for factors in self.dims)

    def then(self, operator: Operator, shape: Shape | None = None) -> MoveChain | None:
        """The chain with `operator` behind it; None where that is no single walk.

        shape: of the result, where that is known.
        """
        if isinstance(operator, View):
            if shape is None:
                shape = operator.infer([TensorType(self.result)])[0].shape
            return self._seen(shape)
        if isinstance(operator, Pad):
            return self._padded(operator)
        if isinstance(operator, Rearrange) and operator.padded:
            return None
        if isinstance(operator, Transpose | Slice | Flip | Expand | Rearrange):
            return self._picked(operator.map(self.result).dims)
        return None

    def _padded(self, pad: Pad) -> MoveChain | None:
        """Return the chain with zeros behind whole dimensions of the tensor."""
        if pad.edge != "constant" or pad.fill != 0 or any(n < 0 for n in pad.after):
            return None
        if not all(same(n, 0) for n in pad.before):
            return None
        dims: list[Factors] = []
        for factors, more in zip(self.dims, pad.after, strict=True):
            if not same(more, 0):
                (axis,) = factors if len(factors) == 1 else (Axis(0),)
                if axis.axis is None or self.base[axis.axis]:
                    return None
                if not _walks_whole_dimension(axis, self.shape):
                    return None
                factors = (replace(axis, size=axis.size + more),)
            dims.append(factors)
        return replace(self, dims=tuple(dims))

    def _beyond(self, axis: Axis) -> bool:
        """Return True where `axis` walks beyond the end of its dimension."""
        return axis.axis is not None and not at_most(axis.size, self.shape[axis.axis])

    def _seen(self, shape: Shape) -> MoveChain | None:
        """Return the chain followed by a view in another shape."""
        left = [axis for factors in self.dims for axis in factors]
        dims: list[Factors] = []
        for size in shape:
            taken: list[Axis] = []
            while not same(size, 1):
                if not left:
                    return None
                axis = left.pop(0)
                if divides(axis.size, size):
                    taken.append(axis)
                    size //= axis.size
                elif divides(size, axis.size) and not self._beyond(axis):
                    rest = axis.size // size
                    taken.append(replace(axis, size=size, step=axis.step * rest))
                    left.insert(0, replace(axis, size=rest))
                    size = 1
                else:
                    return None
            dims.append(_merge_axes(taken))
        return replace(self, dims=tuple(dims))

    def _picked(self, outer: Sequence[Sequence[Axis]]) -> MoveChain | None:
        """The places that `outer`, factors of a result, walk along the dimensions so far."""
        base = list(self.base)
        dims: list[Factors] = []
        for factors in outer:
            axes_run: list[Axis] = []
            for axis in factors:
                part: Factors | None = () if same(axis.size, 1) else (Axis(axis.size),)
                if axis.axis is not None:
                    walked = self.dims[axis.axis]
                    part = _walk_along(walked, axis, base)
                    whole = (axis.start, axis.step) == (0, 1) and same(axis.size, _size(walked))
                    if not whole and any(map(self._beyond, walked)):
                        return None
                if part is None:
                    return None
                axes_run += part
            dims.append(_merge_axes(axes_run))
        return replace(self, base=tuple(base), dims=tuple(dims))

    def operators(self) -> tuple[Operator, ...]:
        """Return operators equal to the whole chain: a view where nothing moves, else one move,
        perhaps with a view behind it; none where that is impossible.
        """
        beyond = any(self._beyond(axis) for factors in self.dims for axis in factors)
        if not any(self.base) and not beyond:
            if _are_equal_walks(self._flat, MoveChain.identity(self.shape)._flat):
                return (Reshape(self.result, True),)
            if (order := self._order) is not None:
                transposed = Transpose(order)
                (type,) = transposed.infer([TensorType(self.shape)])
                if same(type.shape, self.result):
                    return (transposed,)
                if self._without_ones(order) == self._without_ones(CHANNELS_LAST):
                    transposed = Transpose(CHANNELS_LAST)
                return transposed, Reshape(self.result, True)
        if not beyond and (cut := self._cut) is not None:
            return (cut,)
        dims = [list(factors) for factors in self.dims]
        for along, start in enumerate(self.base):
            if start:
                _start_at(dims, along, start)
        if max(len(dims), sum(map(len, dims))) > MOST_RANK:
            return ()
        try:
            return (Rearrange(self.shape, tuple(map(tuple, dims))),)
        except ShapeError:  # parts of a walk backwards
            return ()

    @property
    def _flat(self) -> Factors:
        """All factors, the outermost first."""
        return _merge_axes(
            axis
            if axis.axis is None
            else replace(axis, axis=-1, step=axis.step * self._stride_of(axis))
            for factors in self.dims
            for axis in factors
        )

    def _stride_of(self, axis: Axis) -> int:
        """Return the row-major stride of the dimension of `axis`, in numbers."""
        assert axis.axis is not None
        return prod(self.shape[axis.axis + 1 :])

    @property
    def _order(self) -> tuple[int, ...] | None:
        """The order of whole dimensions, those of size 1 too; None where these are not all."""
        order: list[int | None] = []
        for factors in self.dims:
            for axis in factors:
                if not _walks_whole_dimension(axis, self.shape):
                    return None
            order += [axis.axis for axis in factors] or [None]
        ones = [i for i, n in enumerate(self.shape) if i not in order]
        if not all(same(self.shape[i], 1) for i in ones):
            return None
        while order.count(None) > len(ones):
            order.remove(None)
        left = iter(ones)
        order_known = tuple(next(left) if along is None else along for along in order)
        return (*order_known, *left)

    def _without_ones(self, order: tuple[int, ...]) -> list[int]:
        """Return the dimensions of `order` whose sizes are not 1, or not there."""
        return [i for i in order if i >= len(self.shape) or not same(self.shape[i], 1)]

    @property
    def _cut(self) -> Slice | None:
        """Return the chain with some of each dimension cut off; what is left stays in place."""
        if len(self.dims) != len(self.shape):
            return None
        bounds: list[tuple[int, int, int, int]] = []
        for i, (factors, size) in enumerate(zip(self.dims, self.shape, strict=True)):
            axis = factors[0] if factors else Axis(1, i)
            if len(factors) > 1 or axis.axis != i or axis.step < 1:
                return None
            if not same(axis.size, size):
                end = self.base[i] + (axis.size - 1) * axis.step + 1
                bounds.append((self.base[i], end, i, axis.step))
        starts, ends, axes, steps = zip(*bounds, strict=True) if bounds else ((), (), (), ())
        return Slice(starts, ends, axes, steps)


def _walks_whole_dimension(axis: Axis, shape: Shape) -> bool:
    """Return True where `axis` walks along a dimension of `shape` from its begin to its end."""
    if axis.axis is None:
        return False
    return (axis.start, axis.step) == (0, 1) and same(axis.size, shape[axis.axis])


def _are_equal_walks(some: Factors, others: Factors) -> bool:
    """Return True where both lists of factors walk alike."""
    each = [[(one.size, one.axis, one.start, one.step) for one in part] for part in (some, others)]
    return same(*each)


def _size(factors: Iterable[Axis]) -> int:
    return prod(axis.size for axis in factors)


def _merge_axes(factors: Iterable[Axis]) -> Factors:
    """Merge neighbouring factors that are one walk."""
    made: list[Axis] = []
    for axis in factors:
        last = made[-1] if made else None
        if last is not None and last.axis == axis.axis:
            if axis.axis is None:
                made[-1] = Axis(last.size * axis.size)
                continue
            if same(last.step, axis.size * axis.step):
                made[-1] = replace(axis, size=last.size * axis.size)
                continue
        made.append(axis)
    return tuple(made)


def _walk_along(factors: Factors, axis: Axis, base: list[int]) -> Factors | None:
    """The places of a dimension of `factors` that `axis` walks along; None where these are none.

    base: gets where they begin.
    """
    if len(factors) == 1:
        (whole,) = factors
        _advance(factors, axis.start, base)
        step = axis.step * whole.step if whole.axis is not None else 1
        return (Axis(axis.size, whole.axis, 0, step),) if axis.size > 1 else ()
    inner = len(factors)
    while inner and _size(factors[inner:]) < axis.step:
        inner -= 1
    if axis.size > 1 and _size(factors[inner:]) != axis.step:
        return None
    stepped = _size(factors[inner:])
    _advance(factors[inner:], axis.start % stepped, base)
    first, count, taken = axis.start // stepped, axis.size, list[Axis]()
    while count > 1 and inner:
        inner -= 1
        one = factors[inner]
        first, digit = divmod(first, one.size)
        if digit == 0 and count % one.size == 0:
            taken.insert(0, one)
            count //= one.size
        elif digit + count <= one.size:
            taken.insert(0, replace(one, size=count))
            _advance((one,), digit, base)
            count = 1
        else:
            return None
    _advance(factors[:inner], first, base)
    return tuple(taken)


def _advance(factors: Factors, place: int, base: list[int]) -> None:
    """Add to `base` where number `place` of a dimension of `factors` lies."""
    for axis in reversed(factors):
        place, digit = divmod(place, axis.size)
        if axis.axis is not None:
            base[axis.axis] += digit * axis.step


def _start_at(dims: list[list[Axis]], along: int, start: int) -> None:
    """Let the first of `dims` that walks along that dimension begin at `start`."""
    for factors in dims:
        for i, axis in enumerate(factors):
            if axis.axis == along:
                factors[i] = replace(axis, start=start)
                return
    if dims:
        dims[-1].append(Axis(1, along, start))


MoveStep = tuple[Value, Operator]
"""A move or a view, behind what it is done on."""


def merge_moves(graph: Graph, types: dict[Value, TensorType], *, subviews: bool = False) -> Graph:
    """Return `graph` with chains of transpositions, slices, views and the like as one move each.

    types: of every value; those of new ones are added. A tensor that only moves read is not made:
    each of them begins where it does. A look-up at one known place is a slice, one of each place
    as often as of any other a repetition. subviews: whether
    kernels read some channels of images where they lie: images that are cut into such channels
    are made whole then, by one move for several.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Gather):
            _slice_gather(rewriter, node, node.operator)
            _repeat_gather(rewriter, node, node.operator)
    moves = _MoveMerging(rewriter, subviews)
    for node in rewriter.nodes:
        if isinstance(node.operator, Move) and not rewriter.is_fixed(node.outputs[0]):
            moves.shorten(node)
    return rewriter.graph()


def _slice_gather(rewriter: GraphRewriter, node: Node, operator: Gather) -> None:
    """A slice in the place of a look-up of one row that is known."""
    x, index = node.inputs
    assert x is not None and index is not None
    shape, (result,) = rewriter.shape(x), node.outputs
    if prod(rewriter.shape(index)) != 1 or rewriter.is_fixed(result) or 0 in shape:
        return
    numbers = rewriter.constant_array(index)
    if numbers is None:
        return
    axis = operator.axis % len(shape)
    place = int(numbers.reshape(-1)[0]) % shape[axis]
    row = rewriter.add(node.name, Slice((place,), (place + 1,), (axis,), (1,)), x)
    rewriter.replace_by(node, rewriter.reshape(node.name, row, rewriter.shape(result)))


def _repeat_gather(rewriter: GraphRewriter, node: Node, operator: Gather) -> None:
    """An expansion in the place of a known look-up of all places of images in order, each equally
    often: nearest upsampling.
    """
    x, index = node.inputs
    assert x is not None and index is not None
    shape, (result,) = rewriter.shape(x), node.outputs
    if len(shape) != 4 or rewriter.is_fixed(result) or not rewriter.is_fixed(index):
        return
    numbers = None if rewriter.depends_on_sizes(index) else rewriter.constant_array(index)
    if numbers is None or numbers.ndim != 1:
        return
    axis = operator.axis % len(shape)
    before, size, behind = shape[:axis], shape[axis], shape[axis + 1 :]
    if not isinstance(size, int) or size < 1 or numbers.size <= size or numbers.size % size:
        return
    times = numbers.size // size
    if not np.array_equal(numbers, np.arange(numbers.size) // times):
        return
    each = rewriter.reshape(node.name, x, (*before, size, 1, *behind))
    wide = rewriter.add(node.name, Expand((*before, size, times, *behind)), each)
    repeated = rewriter.reshape(node.name, wide, rewriter.shape(result))
    rewriter.replace_by(node, repeated)


@dataclass(frozen=True)
class _MoveMerging:
    rewriter: GraphRewriter
    subviews: bool

    def shorten(self, last: Node) -> None:
        """Replace all moves that end with `last`, and the views behind that alone read it, by one
        move.
        """
        graph, value = self.rewriter, last.outputs[0]
        if (
            0 in graph.shape(value)
            or graph.producer(value) is not last
            or not self._is_needed(value)
        ):
            return
        steps, end, views = self._above(last), last, list[MoveStep]()
        while graph.is_read_once(value):
            (reader, *_) = graph.readers(value)
            if not isinstance(reader.operator, View):
                break
            views.append((value, reader.operator))
            end, value = reader, reader.outputs[0]
        if not views or not self._put(end, [*steps, *views]):
            self._put(last, steps)

    def _above(self, last: Node) -> list[MoveStep]:
        """Return `last` and the moves and views before it whose results nothing else needs, each
        with its operand.
        """
        graph, result, node = self.rewriter, list[MoveStep](), last
        while True:
            (value,) = node.inputs
            assert value is not None
            result.insert(0, (value, node.operator))
            before = graph.runtime_producer(value)
            if before is None or 0 in graph.shape(value):
                return result
            view, move = isinstance(before.operator, View), isinstance(before.operator, Move)
            if not view and (not move or self._is_needed(value)):
                return result
            node = before

    def _is_needed(self, value: Value) -> bool:
        """Return True where `value` is read by other nodes than moves, or by several that read
        some channels each where they lie, or is an output.
        """
        if self.rewriter.is_output(value) or (self.subviews and self._is_cut(value)):
            return True
        readers = self.rewriter.readers(value)
        if any(not isinstance(node.operator, View | Move) for node in readers):
            return True
        views = (node for node in readers if isinstance(node.operator, View))
        return any(self._is_needed(node.outputs[0]) for node in views)

    def _is_cut(self, value: Value) -> bool:
        """Return True where several nodes, and no others, read neighbouring channels of images
        `value` each, from whole vec4 on.
        """
        shape, readers = self.rewriter.shape(value), self.rewriter.readers(value)
        if len(shape) != 4 or len(readers) < 2:
            return False
        for node in readers:
            if not isinstance(node.operator, Slice) or node.operator.axes not in ((1,), (-3,)):
                return False
            start, _, step = node.operator.walks(shape)[1]
            if step != 1 or not divides(4, start):
                return False
        return True

    def _put(self, end: Node, steps: Sequence[MoveStep]) -> bool:
        """Replace `steps`, of which `end` is the last, by fewer; return True where that is done."""
        best: tuple[int, tuple[Operator, ...]] | None = None
        for start, (_, operator) in enumerate(steps):
            operators = self._joined(steps[start:], self.rewriter.shape(end.outputs[0]))
            if operators and self._better(steps[start:], operators):
                plain = not isinstance(operators[0], Rearrange)
                if best is None or plain:
                    best = start, operators
                if plain:
                    break
            if best is not None and not isinstance(operator, View):
                break
        if best is None:
            return False
        (start, (*first, last)), before = best, end.inputs[0]
        value = steps[start][0]
        for operator in first:
            value = self.rewriter.add(end.name, operator, value)
        self.rewriter.replace(end, last, value)
        self.rewriter.prune(before)
        return True

    def _joined(self, steps: Sequence[MoveStep], result: Shape) -> tuple[Operator, ...]:
        """Return operators that do all of `steps`, which give a tensor of shape `result`."""
        if len(steps) == 1 and not isinstance(steps[0][1], Transpose):
            return ()
        shapes = [self.rewriter.shape(value) for value, _ in steps]
        chain: MoveChain | None = MoveChain.identity(shapes[0])
        for (_, operator), shape in zip(steps, [*shapes[1:], result], strict=True):
            chain = None if chain is None else chain.then(operator, shape)
        return () if chain is None else chain.operators()

    def _better(self, steps: Sequence[MoveStep], operators: tuple[Operator, ...]) -> bool:
        """Return True where `operators` have fewer moves than `steps`, or as many without views of
        images as something else, or channels of images last.
        """
        before, after = _count_moves([operator for _, operator in steps]), _count_moves(operators)
        if after < before:
            return True
        if operators[0] == Transpose(CHANNELS_LAST) and isinstance(steps[0][1], View):
            return after == before
        if len(operators) > 1 or len(steps) < 2:
            return False
        (operator,) = operators
        (type,) = operator.infer([self.rewriter.types[steps[0][0]]])
        return len(self.rewriter.shape(steps[0][0])) == len(type.dims) == 4


def _count_moves(operators: Sequence[Operator]) -> int:
    return sum(isinstance(operator, Move) for operator in operators)
