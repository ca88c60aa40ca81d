"""Affine maps, with bounds, from the indices of a result to those of an operand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from glnn.core.symint import at_most, divides, same
from glnn.core.types import Shape

Edge = Literal["none", "constant", "edge", "reflect", "wrap"]
"""Handling of indices outside of the operand: there are none; they give a constant, the element at
the nearest edge, the element mirrored at the edge, or the element from the other end.
"""
EDGES: tuple[Edge, ...] = get_args(Edge)
Strides = tuple[int, ...]
"""Distance in memory between neighbours along each dimension, in elements."""


@dataclass(frozen=True)
class Axis:
    """A range of indices along one dimension of the operand, for a dimension of the result or a
    factor of one.
    """

    size: int
    """Number of indices."""
    axis: int | None = None
    """The operand's dimension; None for a dimension that repeats the same elements."""
    start: int = 0
    """First index along the operand's dimension; negative where it is outside."""
    step: int = 1
    """Distance along the operand's dimension between successive indices."""


@dataclass(frozen=True)
class IndexMap:
    """A map from each index of a result to an index of an operand, or to the outside."""

    dims: tuple[tuple[Axis, ...], ...]
    """Factors of each dimension of the result, the outermost first."""
    edge: Edge = "none"
    """Handling of indices outside of the operand."""

    def walk(self, shape: Shape, reads: Strides, writes: Strides) -> Walk:
        """Return the map in memory.

        shape, reads: the operand's shape and strides. writes: the result's strides.
        """
        base = 0
        legs: list[Leg] = []
        for factors, write in zip(self.dims, writes, strict=True):
            for axis in reversed(factors):
                leg, first = _leg(axis, shape, reads, write, self.edge)
                base += first
                write *= axis.size
                legs.append(leg)
            legs[-len(factors) :] = reversed(legs[-len(factors) :])
        legs.sort(key=lambda leg: -leg.write)  # in the order of the result's memory
        return Walk.from_legs(legs, base, self.edge)

    def padded(self, axis: int, size: int, padded: int) -> IndexMap | None:
        """Return the map for an operand and a result whose dimension `axis` has `padded` elements.

        size: of that dimension without padding. None where it is not moved as a whole.
        """
        if len(self.dims) <= axis or self.dims[axis] != (Axis(size, axis),):
            return None
        whole = (Axis(padded, axis),)
        return replace(self, dims=(*self.dims[:axis], whole, *self.dims[axis + 1 :]))


@dataclass(frozen=True)
class Leg:
    """A loop of a walk through memory."""

    count: int
    """Number of iterations."""
    read: int
    """Stride in the operand."""
    write: int
    """Stride in the result."""
    first: int = 0
    """First index along the operand's dimension, for a bounded loop."""
    extent: int | None = None
    """The size of that dimension, for a bounded loop; None for others."""
    look: int = 0
    """Stride in the tensor of indices, for a gather."""

    @property
    def bounded(self) -> bool:
        """True where the loop leaves the operand, so that its indices are checked."""
        return self.extent is not None


@dataclass(frozen=True)
class Walk:
    """A map in memory: the fewest nested loops, the innermost last."""

    legs: tuple[Leg, ...]
    base: int
    """Offset of the first element in the operand; along bounded legs, of the dimension's start."""
    target: int
    """Offset of the first element in the result."""
    edge: Edge
    """Handling of indices outside; "none" where no leg is bounded."""

    @classmethod
    def from_legs(cls, legs: Sequence[Leg], base: int = 0, edge: Edge = "none") -> Walk:
        """Return the walk of `legs`, the innermost last, with contiguous legs merged into one."""
        loops = [leg for leg in legs if leg.bounded or not same(leg.count, 1)] or [Leg(1, 0, 1)]
        edge = edge if any(leg.bounded for leg in loops) else "none"
        return cls(tuple(_merged(loops, edge)), base, 0, edge)

    @property
    def places(self) -> int:
        """Number of elements of the result: the product of the legs' counts."""
        count = 1
        for leg in self.legs:
            count *= leg.count
        return count

    @property
    def quads(self) -> Walk | None:
        """The walk by four elements at a time; None where these are not contiguous."""
        *outer, inner = self.legs
        steps = [self.base, self.target, *(n for leg in outer for n in (leg.read, leg.write))]
        ends = [inner.count, inner.first, inner.extent or 0]
        if not same((inner.read, inner.write, inner.look), (1, 1, 0)):
            return None
        if not all(divides(4, n) for n in steps + ends):
            return None
        if inner.bounded and self.edge not in ("constant", "wrap"):
            return None
        legs = [replace(leg, read=leg.read // 4, write=leg.write // 4) for leg in outer]
        extent = None if inner.extent is None else inner.extent // 4
        legs.append(Leg(inner.count // 4, 1, 1, inner.first // 4, extent))
        return Walk(tuple(legs), self.base // 4, self.target // 4, self.edge)

    @property
    def whole(self) -> Walk:
        """The walk with an innermost leg of contiguous elements of the result, which transform
        feedback captures in order.
        """
        write = self.legs[-1].write
        if write == 1:
            return self
        return replace(self, legs=(*self.legs, Leg(write, 0, 1)))

    @property
    def transposed(self) -> Walk | None:
        """The walk of a tiled transposition: the last leg but one reads contiguous elements, the
        last one writes them. None where there are no such legs, or a leg is bounded.
        """
        *outer, inner = self.legs
        reads_neighbours = same(inner.read, 0) or same(inner.read, 1)
        if not same(inner.write, 1) or reads_neighbours or self.edge != "none":
            return None
        for i, leg in enumerate(outer):
            if same(leg.read, 1):
                return replace(self, legs=(*outer[:i], *outer[i + 1 :], leg, inner))
        return None


def _leg(axis: Axis, shape: Shape, reads: Strides, write: int, edge: Edge) -> tuple[Leg, int]:
    """Return the loop of `axis`, and the offset in the operand at which it begins."""
    if axis.axis is None:
        return Leg(axis.size, 0, write), 0
    size, read = shape[axis.axis], reads[axis.axis]
    last = axis.start + (axis.size - 1) * axis.step
    ends = axis.start, last
    inside = all(at_most(0, end) and at_most(end + 1, size) for end in ends)
    if edge != "none" and not inside and axis.step == 1 and not same(axis.size, 0):
        return Leg(axis.size, read, write, axis.start, size), 0
    if not inside and axis.size and any(end < 0 or end >= size for end in ends):
        raise ValueError(f"{axis} leaves {size} places")
    return Leg(axis.size, axis.step * read, write), axis.start * read


def _merged(legs: Sequence[Leg], edge: Edge) -> Iterator[Leg]:
    """Return the loops, with neighbours merged into one loop where that is the same walk."""
    result: list[Leg] = []  # the innermost first
    for leg in reversed(legs):
        merged = _merge(leg, result[-1], edge) if result else None
        if merged is None:
            result.append(leg)
        else:
            result[-1] = merged
    return reversed(result)


def _merge(outer: Leg, inner: Leg, edge: Edge) -> Leg | None:
    """Merge both legs into one loop; None where that is another walk."""
    count = inner.count
    strides = (outer.read, outer.write, outer.look)
    spans = count * inner.read, count * inner.write, count * inner.look
    if inner.bounded or not same(strides, spans):
        return None
    if not outer.bounded:
        return replace(inner, count=outer.count * count)
    if edge not in ("constant", "wrap") or outer.extent is None:
        return None
    first, extent = outer.first * count, outer.extent * count
    return Leg(outer.count * count, inner.read, inner.write, first, extent)
