"""Model of the cache lines that a matrix product's concurrent invocations read.

Its only input is the kernel's declaration. The model is Gronqvist and Lokhmotov's (sections 1.4.6
and 1.4.7, table 1.2), and Rovder's (2017, chapter 8, table 8.1): invocations advance along k in
step, workgroups adjacent along x are in flight at once, the cache is fully associative, and data
that several invocations read at once is read once. A line is used completely between two misses of
its operand, so lines are counted in a window along k as long as the longest line. Parts of a line
count as fractions, as in their models (which require workgroups of at least 4 invocations along x).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from glnn.core.layout import parse
from glnn.kernels.kernel import Kernel

LINE_BYTES = 64
CACHE_LINES = 256  # of the L1 cache of one core of a Mali-T604, 16 KiB
INVOCATIONS = 128  # in flight on one such core, of kernels with at most 8 registers
FLOATS = LINE_BYTES // 4
LARGE = 4096, 4096  # a matrix whose rows and columns are longer than a cache line
SIDES: Mapping[str, tuple[str, ...]] = {"x": ("m", "out_rows"), "weight": ("n", "out_columns")}
"""The operands, x of m x k and weight of n x k, with the grid's names of their rows."""


@dataclass(frozen=True)
class Side:
    """The access pattern of a kernel on one operand of `SIDES`."""

    layout: str
    """The layout of the operand."""
    rows: int
    """The number of rows that an invocation reads."""
    axis: int
    """The grid dimension, 0 (x) or 1 (y), along which invocations read different rows."""

    @property
    def line(self) -> tuple[int, int]:
        """The extent of a cache line in the operand: rows, and elements along k."""
        extents, remaining = [1, 1], FLOATS
        for dim in reversed(parse(self.layout).dims(LARGE)):
            extent = min(dim.extent, remaining)
            extents[dim.axis] *= extent
            remaining //= extent
        return extents[0], extents[1]


@dataclass(frozen=True)
class Reads:
    """The access pattern of a matmul kernel on both operands."""

    x: Side
    """The access pattern on x, m x k."""
    weight: Side
    """The access pattern on weight, n x k."""

    @property
    def period(self) -> int:
        """The elements along k between two misses of the operand with the longest lines."""
        return max(self.x.line[1], self.weight.line[1])

    def lines(self, workgroup: tuple[int, int], invocations: int = 0) -> float:
        """Return the number of cache lines that are read in one period.

        workgroup: invocations along x and y. invocations: the number in flight at once, in
        workgroups that are adjacent along x; at least one workgroup is in flight.
        """
        groups = max(1, invocations // prod(workgroup))
        counts = workgroup[0] * groups, workgroup[1]
        floats = sum(side.rows * counts[side.axis] for side in (self.x, self.weight)) * self.period
        return floats / FLOATS

    @classmethod
    def from_kernel(cls, kernel: Kernel) -> Reads | None:
        """Return the access pattern of a matmul kernel with its default parameters.

        Returns None where it does not read its operands directly, once for each result: where it
        uses shared memory, a texture or stages.
        """
        values = kernel.defaults
        if kernel.op != "matmul" or kernel.backend != "compute" or kernel.stages:
            return None
        if kernel.launch.shared_bytes.evaluate(values) or len(kernel.launch.workgroup) != 2:
            return None
        sides: dict[str, Side] = {}
        for name, sizes in SIDES.items():
            for axis, factors in enumerate(kernel.launch.grid[:2]):
                if len(factors) == 1 and factors[0].size in sizes and name in kernel.bindings:
                    rows = factors[0].covered.evaluate(values)
                    sides[name] = Side(kernel.wants(name)[0], rows, axis)
        return cls(**sides) if len(sides) == len(SIDES) else None


def workgroups(invocations: int = INVOCATIONS) -> tuple[tuple[int, int], ...]:
    """Return all workgroup sizes (x, y) of `invocations`, a power of two, y = 1 first."""
    return tuple((invocations >> i, 1 << i) for i in range(invocations.bit_length()))
