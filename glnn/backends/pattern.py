"""Memory of a tensor made of few samples repeated, and the places of it that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from glnn.gl import Buffer, Device
from glnn.gl.buffer import CHUNK, repeat
from glnn.gl.transfer import Part
from glnn.layout import Layout
from glnn.types import Array, Shape

MOST = 1 << 22  # numbers: where there are more, some are looked at:
ENDS = 1 << 20  # the first and the last so many,
STRETCHES, PLACE = 256, 1 << 13  # in each of so many equal stretches so many at random,
AROUND = 1 << 10  # and so many before and behind each power of two


@dataclass(frozen=True)
class Pattern:
    """Memory of an array of `shape` that repeats an array of the shape `few`, with fewer samples.

    stacks: the number of runs of all samples behind one another along the first dimension; each
    repeats the samples of the same run of the smaller array.
    """

    layout: Layout
    shape: Shape
    few: Shape
    stacks: int = 1

    @cached_property
    def repeats(self) -> bool:
        """Return True where its memory is periodic, because samples are contiguous blocks."""
        of = _block(self.layout, self.few)
        return self.shape != self.few and of is not None and of == _block(self.layout, self.shape)

    @cached_property
    def size(self) -> int:
        """The count of numbers in its memory, without the last sample's padding."""
        return self.runs * self.length

    @property
    def runs(self) -> int:
        """The count of runs in its memory."""
        return self.stacks if self.repeats else 1

    @cached_property
    def length(self) -> int:
        """The count of numbers in a run."""
        return self._numbers(self.shape)

    @cached_property
    def period(self) -> int:
        """The period of the numbers in a run."""
        return self._numbers(self.few) if self.repeats else self.length

    def _numbers(self, shape: Shape) -> int:
        block = _block(self.layout, shape)
        if not self.repeats or block is None:
            return self.layout.size(shape)
        return shape[0] // self.stacks * block

    def packed(self, few: Array) -> Array:
        """Return one period of each run, packed from the elements `few`; padding is 0."""
        array = few if self.repeats else self.whole(few)
        return self.layout.pack(array)[: self.runs * self.period].reshape(self.runs, -1)

    def whole(self, few: Array) -> Array:
        """Return the whole array, repeating the samples of `few`."""
        if self.shape == self.few:
            return few
        runs = few.reshape(self.stacks, len(few) // self.stacks, *few.shape[1:])
        samples = np.arange(self.shape[0] // self.stacks) % runs.shape[1]
        return runs[:, samples].reshape(self.shape)

    @cached_property
    def own(self) -> Array | None:
        """The mask of the elements in a period, False for padding; None where there is none."""
        if self.layout.size(self.shape) == prod(self.shape):
            return None
        own = self.packed(np.ones(self.few, np.float32)) != 0
        return None if own.all() else own

    def at(self, packed: Array, first: int, last: int) -> Array:
        """Return the numbers from `first` up to `last` of memory with these periods."""
        run, start = divmod(first, self.length)
        count = last - first
        if start + count > self.length:
            runs = packed[run : -(-last // self.length)]
            whole = runs.take(np.arange(self.length) % self.period, axis=1).reshape(-1)
            return np.asarray(whole[start : start + count])
        start %= self.period
        if start + count <= self.period:
            return np.asarray(packed[run, start : start + count])
        return _cycled(packed[run], start, count)

    def fill(self, device: Device, buffer: Buffer, packed: Array) -> None:
        """Fill the memory of `buffer` with these periods, repeated."""
        if self.runs > 1 and packed.itemsize * self.size <= CHUNK:
            packed = self.at(packed, 0, self.size)[None]
        size = packed.itemsize * self.size // len(packed)
        for run, numbers in enumerate(packed):
            repeat(device, buffer, (run * size, (run + 1) * size), numbers)
        buffer.wrote()

    def element(self, number: int) -> tuple[int, ...]:
        """Return the index in the array of the element at position `number` of its memory."""
        given = self.few if self.repeats else self.shape
        order = self.layout.pack(np.arange(prod(given), dtype=np.int32).reshape(given))
        periods = order[: self.runs * self.period].reshape(self.runs, -1)
        index = int(self.at(periods, number, number + 1)[0])
        place = tuple(map(int, np.unravel_index(index, given)))
        return (number * self.shape[0] // self.size, *place[1:]) if self.repeats else place


def _block(layout: Layout, shape: Shape) -> int | None:
    """Return the stride along the first axis; None where samples are not contiguous blocks."""
    first, *rest = layout.dims(shape) or (None,)
    if first is None or first.axis or first.step > 1 or not all(dim.axis for dim in rest):
        return None
    return first.stride


def _cycled(period: Array, start: int, count: int) -> Array:
    """Return `count` numbers of the repeated `period`, beginning at its number `start`."""
    found = np.empty(count, period.dtype)
    head = min(len(period) - start, count)
    found[:head] = period[start : start + head]
    whole, rest = divmod(count - head, len(period))
    end = count - rest
    found[head:end].reshape(whole, len(period))[:] = period
    found[end:] = period[:rest]
    return found


def places(size: int) -> list[Part]:
    """Return the ranges that are compared of `size` numbers: all, if there are few."""
    if size <= MOST:
        return [(0, size)]
    random = np.random.default_rng(size)
    wanted = [(0, ENDS), (size - ENDS, size)]
    for i in range(STRETCHES):
        first, last = size * i // STRETCHES, size * (i + 1) // STRETCHES
        start = int(random.integers(first, last - PLACE))
        wanted.append((start, start + PLACE))
    for power in (1 << i for i in range(ENDS.bit_length() - 1, size.bit_length())):
        wanted.append((power - AROUND, min(power + AROUND, size)))
    found: list[Part] = []
    for first, last in sorted(wanted):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
