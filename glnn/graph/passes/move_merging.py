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
"""The transposition of an image to channels last, which moves nothing in some layouts."""
Factors = tuple[Axis, ...]
"""Factors of a dimension, the outermost first. Each starts at 0 and has a size of 2 or more; the
start is in `MoveChain.base`.
"""


@dataclass(frozen=True)
class MoveChain:
    """The composition of moves and views of a tensor of `shape`, no size of which is 0."""

    shape: Shape
    base: tuple[int, ...]
    """Index of the first element along each dimension of the tensor."""
    dims: tuple[Factors, ...]
    """Factors of each dimension of the result."""

    @classmethod
    def identity(cls, shape: Shape) -> MoveChain:
        """Return the chain of no moves, the identity on a tensor of `shape`."""
        dims = tuple(() if same(n, 1) else (Axis(n, i),) for i, n in enumerate(shape))
        return cls(shape, (0,) * len(shape), dims)

    @property
    def result(self) -> Shape:
        """The shape of the result."""
        return tuple(_size(factors) for factors in self.dims)

    def then(self, operator: Operator, shape: Shape | None = None) -> MoveChain | None:
        """Return the chain followed by `operator`; None where the composition is no MoveChain.

        shape: of the result, where that is known.
        """
        if isinstance(operator, View):
            if shape is None:
                shape = operator.infer([TensorType(self.result)])[0].shape
            return self._viewed(shape)
        if isinstance(operator, Pad):
            return self._padded(operator)
        if isinstance(operator, Rearrange) and operator.padded:
            return None
        if isinstance(operator, Transpose | Slice | Flip | Expand | Rearrange):
            return self._composed(operator.map(self.result).dims)
        return None

    def _padded(self, pad: Pad) -> MoveChain | None:
        """Return the chain followed by `pad`, where that puts zeros behind whole dimensions of the
        tensor; None where it does not.
        """
        if pad.edge != "constant" or pad.fill != 0 or any(n < 0 for n in pad.after):
            return None
        if not all(same(n, 0) for n in pad.before):
            return None
        dims: list[Factors] = []
        for factors, after in zip(self.dims, pad.after, strict=True):
            if not same(after, 0):
                (axis,) = factors if len(factors) == 1 else (Axis(0),)
                if axis.axis is None or self.base[axis.axis]:
                    return None
                if not _walks_whole_dimension(axis, self.shape):
                    return None
                factors = (replace(axis, size=axis.size + after),)
            dims.append(factors)
        return replace(self, dims=tuple(dims))

    def _exceeds_dimension(self, axis: Axis) -> bool:
        """Return True where `axis` walks beyond the end of its dimension."""
        return axis.axis is not None and not at_most(axis.size, self.shape[axis.axis])

    def _viewed(self, shape: Shape) -> MoveChain | None:
        """Return the chain followed by a view of `shape`; None where that would split a factor
        unevenly.
        """
        remaining = [axis for factors in self.dims for axis in factors]
        dims: list[Factors] = []
        for size in shape:
            axes: list[Axis] = []
            while not same(size, 1):
                if not remaining:
                    return None
                axis = remaining.pop(0)
                if divides(axis.size, size):
                    axes.append(axis)
                    size //= axis.size
                elif divides(size, axis.size) and not self._exceeds_dimension(axis):
                    inner = axis.size // size
                    axes.append(replace(axis, size=size, step=axis.step * inner))
                    remaining.insert(0, replace(axis, size=inner))
                    size = 1
                else:
                    return None
            dims.append(_merge_axes(axes))
        return replace(self, dims=tuple(dims))

    def _composed(self, outer: Sequence[Sequence[Axis]]) -> MoveChain | None:
        """Return the chain followed by a move; None where the composition is no MoveChain.

        outer: the factors of each dimension of the move's result, which walk along the dimensions
        of the chain's result.
        """
        base = list(self.base)
        dims: list[Factors] = []
        for factors in outer:
            axes: list[Axis] = []
            for axis in factors:
                part: Factors | None = () if same(axis.size, 1) else (Axis(axis.size),)
                if axis.axis is not None:
                    inner = self.dims[axis.axis]
                    part = _walk_along(inner, axis, base)
                    is_whole = (axis.start, axis.step) == (0, 1) and same(axis.size, _size(inner))
                    if not is_whole and any(map(self._exceeds_dimension, inner)):
                        return None
                if part is None:
                    return None
                axes += part
            dims.append(_merge_axes(axes))
        return replace(self, base=tuple(base), dims=tuple(dims))

    def operators(self) -> tuple[Operator, ...]:
        """Return operators equal to the whole chain: a view where nothing moves, else one move,
        perhaps with a view behind it; none where that is impossible.
        """
        is_padded = any(self._exceeds_dimension(axis) for factors in self.dims for axis in factors)
        if not any(self.base) and not is_padded:
            if _are_equal_walks(self._flat_factors, MoveChain.identity(self.shape)._flat_factors):
                return (Reshape(self.result, True),)
            if (order := self._permutation) is not None:
                transposed = Transpose(order)
                (type,) = transposed.infer([TensorType(self.shape)])
                if same(type.shape, self.result):
                    return (transposed,)
                if self._without_ones(order) == self._without_ones(CHANNELS_LAST):
                    transposed = Transpose(CHANNELS_LAST)
                return transposed, Reshape(self.result, True)
        if not is_padded and (cut := self._slice) is not None:
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
    def _flat_factors(self) -> Factors:
        """Factors of the flattened result, the outermost first; their steps are in memory."""
        return _merge_axes(
            axis
            if axis.axis is None
            else replace(axis, axis=-1, step=axis.step * self._stride_of(axis))
            for factors in self.dims
            for axis in factors
        )

    def _stride_of(self, axis: Axis) -> int:
        """Return the row-major stride of the dimension that `axis` walks along, in numbers."""
        assert axis.axis is not None
        return prod(self.shape[axis.axis + 1 :])

    @property
    def _permutation(self) -> tuple[int, ...] | None:
        """The permutation of whole dimensions, those of size 1 too, that the chain is; None where
        it is none.
        """
        order: list[int | None] = []
        for factors in self.dims:
            for axis in factors:
                if not _walks_whole_dimension(axis, self.shape):
                    return None
            order += [axis.axis for axis in factors] or [None]
        ones = [i for i in range(len(self.shape)) if i not in order]
        if not all(same(self.shape[i], 1) for i in ones):
            return None
        while order.count(None) > len(ones):
            order.remove(None)
        unused = iter(ones)
        permutation = tuple(next(unused) if axis is None else axis for axis in order)
        return (*permutation, *unused)

    def _without_ones(self, order: tuple[int, ...]) -> list[int]:
        """Return `order` without dimensions of size 1; those beyond the tensor's rank stay."""
        return [i for i in order if i >= len(self.shape) or not same(self.shape[i], 1)]

    @property
    def _slice(self) -> Slice | None:
        """The Slice that the chain is; None where it is none."""
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
    """Return True where `axis` walks along a dimension of `shape` from its beginning to its end."""
    if axis.axis is None:
        return False
    return (axis.start, axis.step) == (0, 1) and same(axis.size, shape[axis.axis])


def _are_equal_walks(first: Factors, second: Factors) -> bool:
    """Return True where both lists of factors are equal for all sizes."""
    fields = [[(a.size, a.axis, a.start, a.step) for a in factors] for factors in (first, second)]
    return same(*fields)


def _size(factors: Iterable[Axis]) -> int:
    return prod(axis.size for axis in factors)


def _merge_axes(factors: Iterable[Axis]) -> Factors:
    """Merge neighbouring factors that one step describes."""
    merged: list[Axis] = []
    for axis in factors:
        last = merged[-1] if merged else None
        if last is not None and last.axis == axis.axis:
            if axis.axis is None:
                merged[-1] = Axis(last.size * axis.size)
                continue
            if same(last.step, axis.size * axis.step):
                merged[-1] = replace(axis, size=last.size * axis.size)
                continue
        merged.append(axis)
    return tuple(merged)


def _walk_along(factors: Factors, axis: Axis, base: list[int]) -> Factors | None:
    """Return factors of the walk of `axis` along a dimension that has `factors`; None where the
    walk has none.

    base: the start of the walk is added to it.
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
    inner_size = _size(factors[inner:])
    _advance(factors[inner:], axis.start % inner_size, base)
    first, count, result = axis.start // inner_size, axis.size, list[Axis]()
    while count > 1 and inner:
        inner -= 1
        factor = factors[inner]
        first, digit = divmod(first, factor.size)
        if digit == 0 and count % factor.size == 0:
            result.insert(0, factor)
            count //= factor.size
        elif digit + count <= factor.size:
            result.insert(0, replace(factor, size=count))
            _advance((factor,), digit, base)
            count = 1
        else:
            return None
    _advance(factors[:inner], first, base)
    return tuple(result)


def _advance(factors: Factors, index: int, base: list[int]) -> None:
    """Add to `base` the offset of element `index` of a dimension of `factors`, along each dimension
    of the tensor.
    """
    for axis in reversed(factors):
        index, digit = divmod(index, axis.size)
        if axis.axis is not None:
            base[axis.axis] += digit * axis.step


def _start_at(dims: list[list[Axis]], along: int, start: int) -> None:
    """Set the start of the first factor in `dims` that walks along dimension `along`."""
    for factors in dims:
        for i, axis in enumerate(factors):
            if axis.axis == along:
                factors[i] = replace(axis, start=start)
                return
    if dims:
        dims[-1].append(Axis(1, along, start))


MoveStep = tuple[Value, Operator]
"""A move or a view, behind its operand."""


def merge_moves(graph: Graph, types: dict[Value, TensorType], *, subviews: bool = False) -> Graph:
    """Return `graph` with chains of transpositions, slices, views and the like as one move each.

    A tensor that only moves read is not computed: each of these moves reads its source instead. A
    Gather of one constant index becomes a slice; one of all indices in order, each equally often, a
    repetition.

    types: of every value; types of new values are added. subviews: whether kernels read slices of
    an image's channels in place; an image that is only sliced so is then moved as a whole, once.
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
    """Replace a Gather of one constant index by a slice."""
    x, index = node.inputs
    assert x is not None and index is not None
    shape, (result,) = rewriter.shape(x), node.outputs
    if prod(rewriter.shape(index)) != 1 or rewriter.is_fixed(result) or 0 in shape:
        return
    numbers = rewriter.constant_array(index)
    if numbers is None:
        return
    axis = operator.axis % len(shape)
    position = int(numbers.reshape(-1)[0]) % shape[axis]
    row = rewriter.add(node.name, Slice((position,), (position + 1,), (axis,), (1,)), x)
    rewriter.replace_by(node, rewriter.reshape(node.name, row, rewriter.shape(result)))


def _repeat_gather(rewriter: GraphRewriter, node: Node, operator: Gather) -> None:
    """Replace a Gather of images by all constant indices in order, each equally often, by an
    expansion: nearest upsampling.
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
        """Replace the chain of moves that ends with `last`, and the views behind it that are read
        only once, by one move.
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
            producer = graph.runtime_producer(value)
            if producer is None or 0 in graph.shape(value):
                return result
            is_view = isinstance(producer.operator, View)
            is_move = isinstance(producer.operator, Move)
            if not is_view and (not is_move or self._is_needed(value)):
                return result
            node = producer

    def _is_needed(self, value: Value) -> bool:
        """Return True where `value` is an output, or read by other nodes than moves, or cut into
        slices of channels that are read in place.
        """
        if self.rewriter.is_output(value) or (self.subviews and self._is_cut(value)):
            return True
        readers = self.rewriter.readers(value)
        if any(not isinstance(node.operator, View | Move) for node in readers):
            return True
        views = (node for node in readers if isinstance(node.operator, View))
        return any(self._is_needed(node.outputs[0]) for node in views)

    def _is_cut(self, value: Value) -> bool:
        """Return True where `value` is images with two or more readers, each a slice of
        consecutive channels from a multiple of 4 on.
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
        """Replace `steps`, of which `end` is the last, by fewer; return False where none are."""
        best: tuple[int, tuple[Operator, ...]] | None = None
        for start, (_, operator) in enumerate(steps):
            operators = self._merged(steps[start:], self.rewriter.shape(end.outputs[0]))
            if operators and self._is_better(steps[start:], operators):
                plain = not isinstance(operators[0], Rearrange)
                if best is None or plain:
                    best = start, operators
                if plain:
                    break
            if best is not None and not isinstance(operator, View):
                break
        if best is None:
            return False
        (start, (*first, last)), operand = best, end.inputs[0]
        value = steps[start][0]
        for operator in first:
            value = self.rewriter.add(end.name, operator, value)
        self.rewriter.replace(end, last, value)
        self.rewriter.prune(operand)
        return True

    def _merged(self, steps: Sequence[MoveStep], result: Shape) -> tuple[Operator, ...]:
        """Return operators equal to all of `steps`, whose result has shape `result`; none where
        that is impossible.
        """
        if len(steps) == 1 and not isinstance(steps[0][1], Transpose):
            return ()
        shapes = [self.rewriter.shape(value) for value, _ in steps]
        chain: MoveChain | None = MoveChain.identity(shapes[0])
        for (_, operator), shape in zip(steps, [*shapes[1:], result], strict=True):
            chain = None if chain is None else chain.then(operator, shape)
        return () if chain is None else chain.operators()

    def _is_better(self, steps: Sequence[MoveStep], operators: tuple[Operator, ...]) -> bool:
        """Return True where `operators` have fewer moves than `steps`, or as many and either keep
        images as images without views between, or move an image's channels last.
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
