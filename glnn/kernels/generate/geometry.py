"""Strides of broadcast operands along the dimensions of a result's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from glnn.errors import UnsupportedOpError
from glnn.layout import Layout
from glnn.symint import divides, same
from glnn.types import Shape

ENDLESS = 2**31 - 1


class Read(IntEnum):
    """Access pattern by which a shader reads an operand's four numbers for a vec4 of the result."""

    SAME = 0
    """The vec4 at the same place."""
    QUAD = 1
    """The vec4 at another place."""
    SPLAT = 2
    """A single number, broadcast to all four."""
    EACH = 3
    """Four numbers, each from its own place."""
    ONE = 4
    """The only number of a scalar operand."""


@dataclass(frozen=True)
class Geometry:
    """The dimensions of a result's memory, adjacent ones merged where they are so in all operands.

    The place of a number in an operand's memory is the sum of strides times indices.
    """

    places: tuple[int, ...]
    """The result's stride along each dimension, outermost first; the last is 1."""
    extents: tuple[int, ...]
    """The size of each dimension; ENDLESS where only padding follows."""
    strides: Mapping[str, tuple[int, ...]]
    """Each operand's strides along these dimensions."""

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], layouts: Mapping[str, Layout]) -> Geometry:
        """Return the geometry of operands whose shapes broadcast to that of the result `out`.

        Raises UnsupportedOpError where an operand's layout has no strides along the result's.
        """
        dims = layouts["out"].dims(shapes["out"])
        names = [name for name in shapes if name != "out"]
        table = {n: [_stride(n, i, shapes, layouts) for i in range(len(dims))] for n in names}
        columns = [
            (dim.extent, dim.stride, [table[name][i] for name in names])
            for i, dim in enumerate(dims)
            if not same(dim.extent, 1)
        ]
        last = columns[-1][1] if columns else 4
        if not same(last, 1):  # padding behind every number
            alike = [
                int(same(shapes[n], shapes["out"]) and layouts[n] == layouts["out"]) for n in names
            ]
            columns.append((last, 1, alike))
        columns = _merged(columns)
        places = tuple(place for _, place, _ in columns)
        extents = tuple(
            extent if i == 0 or same(extent * place, places[i - 1]) else ENDLESS
            for i, (extent, place, _) in enumerate(columns)
        )
        strides = {name: tuple(own[i] for _, _, own in columns) for i, name in enumerate(names)}
        return cls(places, extents, strides)

    def read(self, name: str) -> Read:
        """Return the access pattern of the operand `name`."""
        strides = self.strides[name]
        if all(same(stride, 0) for stride in strides):
            return Read.ONE
        if same(strides, self.places):
            return Read.SAME
        if all(divides(4, place) for place in self.places[:-1]):
            if same(strides[-1], 0):
                return Read.SPLAT
            if same(strides[-1], 1) and all(divides(4, stride) for stride in strides[:-1]):
                return Read.QUAD
        return Read.EACH


def _stride(name: str, i: int, shapes: Mapping[str, Shape], layouts: Mapping[str, Layout]) -> int:
    """Return the stride of `name` along dimension `i` of the result's memory; 0 if broadcast."""
    dim = layouts["out"].dims(shapes["out"])[i]
    axis = dim.axis - (len(shapes["out"]) - len(shapes[name]))
    if axis < 0 or shapes[name][axis] != shapes["out"][dim.axis]:
        return 0
    own = [d for d in layouts[name].dims(shapes[name]) if d.axis == axis]
    if len(own) == 1:
        return own[0].stride * dim.step
    for one in own:
        if one.step == dim.step:
            return one.stride
    raise UnsupportedOpError(
        f"{name} lies in {layouts[name].name} and the result in {layouts['out'].name}"
    )


def _merged(columns: list[tuple[int, int, list[int]]]) -> list[tuple[int, int, list[int]]]:
    """Merge adjacent dimensions (extent, place, strides) that are contiguous in all operands."""
    merged = [columns[0]]
    for extent, place, strides in columns[1:]:
        many, outer, own = merged[-1]
        steps = zip(own, strides, strict=True)
        if divides(place, outer) and all(same(a * place, b * outer) for a, b in steps):
            merged[-1] = many * (outer // place), place, strides
        else:
            merged.append((extent, place, strides))
    return merged
