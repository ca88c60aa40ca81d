"""Compose chains of moves and views into one walk: each dimension a product of walks along the
operand's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from glnn.errors import ShapeError
from glnn.graph.index_map import Axis
from glnn.graph.operator import Operator
from glnn.graph.operators.move import MOST_RANK, Expand, Flip, Pad, Rearrange, Slice, Transpose
from glnn.graph.operators.views import Reshape, View
from glnn.symint import at_most, divides, same
from glnn.types import Shape, TensorType

Factors = tuple[Axis, ...]
"""Factors of a dimension, the outermost first: walks that begin at 0, of two or more places
each.
"""


@dataclass(frozen=True)
class Chain:
    """The composition of moves and views of a tensor of `shape`, no size of which is 0."""

    shape: Shape
    base: tuple[int, ...]
    """First place along each dimension of the tensor."""
    dims: tuple[Factors, ...]
    """Factors of each dimension of the result."""

    @classmethod
    def of(cls, shape: Shape) -> Chain:
        """Return the chain of no moves, the identity on a tensor of `shape`."""
        dims = tuple(() if same(n, 1) else (Axis(n, i),) for i, n in enumerate(shape))
        return cls(shape, (0,) * len(shape), dims)

    @property
    def result(self) -> Shape:
        """The shape of what has come of it."""
        return tuple(_size(factors) for factors in self.dims)

    def then(self, operator: Operator, shape: Shape | None = None) -> Chain | None:
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

    def _padded(self, pad: Pad) -> Chain | None:
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
                if not _is_whole(axis, self.shape):
                    return None
                factors = (replace(axis, size=axis.size + more),)
            dims.append(factors)
        return replace(self, dims=tuple(dims))

    def _beyond(self, axis: Axis) -> bool:
        """Return True where `axis` walks beyond the end of its dimension."""
        return axis.axis is not None and not at_most(axis.size, self.shape[axis.axis])

    def _seen(self, shape: Shape) -> Chain | None:
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
            dims.append(_joined(taken))
        return replace(self, dims=tuple(dims))

    def _picked(self, outer: Sequence[Sequence[Axis]]) -> Chain | None:
        """The places that `outer`, factors of a result, walk along the dimensions so far."""
        base = list(self.base)
        dims: list[Factors] = []
        for factors in outer:
            found: list[Axis] = []
            for axis in factors:
                part: Factors | None = () if same(axis.size, 1) else (Axis(axis.size),)
                if axis.axis is not None:
                    walked = self.dims[axis.axis]
                    part = _places(walked, axis, base)
                    whole = (axis.start, axis.step) == (0, 1) and same(axis.size, _size(walked))
                    if not whole and any(map(self._beyond, walked)):
                        return None
                if part is None:
                    return None
                found += part
            dims.append(_joined(found))
        return replace(self, base=tuple(base), dims=tuple(dims))

    def operators(self) -> tuple[Operator, ...]:
        """Return operators equal to the whole chain: a view where nothing moves, else one move,
        perhaps with a view behind it; none where that is impossible.
        """
        beyond = any(self._beyond(axis) for factors in self.dims for axis in factors)
        if not any(self.base) and not beyond:
            if _alike(self._flat, Chain.of(self.shape)._flat):
                return (Reshape(self.result, True),)
            if (order := self._order) is not None:
                turned = Transpose(order)
                (type,) = turned.infer([TensorType(self.shape)])
                alike = same(type.shape, self.result)
                return (turned,) if alike else (turned, Reshape(self.result, True))
        if not beyond and (cut := self._cut) is not None:
            return (cut,)
        dims = [list(factors) for factors in self.dims]
        for along, start in enumerate(self.base):
            if start:
                _begin(dims, along, start)
        if max(len(dims), sum(map(len, dims))) > MOST_RANK:
            return ()
        try:
            return (Rearrange(self.shape, tuple(map(tuple, dims))),)
        except ShapeError:  # parts of a walk backwards
            return ()

    @property
    def _flat(self) -> Factors:
        """All factors, the outermost first."""
        return _joined(
            axis
            if axis.axis is None
            else replace(axis, axis=-1, step=axis.step * self._apart(axis))
            for factors in self.dims
            for axis in factors
        )

    def _apart(self, axis: Axis) -> int:
        """Return the row-major stride of the dimension of `axis`, in numbers."""
        assert axis.axis is not None
        return prod(self.shape[axis.axis + 1 :])

    @property
    def _order(self) -> tuple[int, ...] | None:
        """The order of whole dimensions, those of size 1 too; None where these are not all."""
        order: list[int | None] = []
        for factors in self.dims:
            for axis in factors:
                if not _is_whole(axis, self.shape):
                    return None
            order += [axis.axis for axis in factors] or [None]
        ones = [i for i, n in enumerate(self.shape) if i not in order]
        if not all(same(self.shape[i], 1) for i in ones):
            return None
        while order.count(None) > len(ones):
            order.remove(None)
        left = iter(ones)
        found = tuple(next(left) if along is None else along for along in order)
        return (*found, *left)

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


def _is_whole(axis: Axis, shape: Shape) -> bool:
    """Return True where `axis` walks along a dimension of `shape` from its begin to its end."""
    if axis.axis is None:
        return False
    return (axis.start, axis.step) == (0, 1) and same(axis.size, shape[axis.axis])


def _alike(some: Factors, others: Factors) -> bool:
    """Return True where both lists of factors walk alike."""
    each = [[(one.size, one.axis, one.start, one.step) for one in part] for part in (some, others)]
    return same(*each)


def _size(factors: Iterable[Axis]) -> int:
    return prod(axis.size for axis in factors)


def _joined(factors: Iterable[Axis]) -> Factors:
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


def _places(factors: Factors, axis: Axis, base: list[int]) -> Factors | None:
    """The places of a dimension of `factors` that `axis` walks along; None where these are none.

    base: gets where they begin.
    """
    if len(factors) == 1:
        (whole,) = factors
        _add(factors, axis.start, base)
        step = axis.step * whole.step if whole.axis is not None else 1
        return (Axis(axis.size, whole.axis, 0, step),) if axis.size > 1 else ()
    inner = len(factors)
    while inner and _size(factors[inner:]) < axis.step:
        inner -= 1
    if axis.size > 1 and _size(factors[inner:]) != axis.step:
        return None
    stepped = _size(factors[inner:])
    _add(factors[inner:], axis.start % stepped, base)
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
            _add((one,), digit, base)
            count = 1
        else:
            return None
    _add(factors[:inner], first, base)
    return tuple(taken)


def _add(factors: Factors, place: int, base: list[int]) -> None:
    """Add to `base` where number `place` of a dimension of `factors` lies."""
    for axis in reversed(factors):
        place, digit = divmod(place, axis.size)
        if axis.axis is not None:
            base[axis.axis] += digit * axis.step


def _begin(dims: list[list[Axis]], along: int, start: int) -> None:
    """Let the first of `dims` that walks along that dimension begin at `start`."""
    for factors in dims:
        for i, axis in enumerate(factors):
            if axis.axis == along:
                factors[i] = replace(axis, start=start)
                return
    if dims:
        dims[-1].append(Axis(1, along, start))
