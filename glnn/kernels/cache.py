"""Cache lines that a matrix product's concurrent invocations read, from its declaration alone.

The model is Gronqvist and Lokhmotov's (sections 1.4.6 and 1.4.7, table 1.2) and Rovder's after them
(2017, chapter 8, table 8.1): invocations go along k together, workgroups that follow one another
along x are in flight at once, the cache is fully associative, and what several invocations read at
once is read once. Between two misses of an operand all of a line is used up, so what counts is a
window along k as long as the longest line: a line's part counts as a part of a line, as theirs does
(who want workgroups of at least 4 invocations along x).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from glnn.kernels.kernel import Kernel
from glnn.layout import parse

LINE_BYTES = 64
CACHE_LINES = 256  # of the L1 cache of one core of a Mali-T604, 16 KiB
INVOCATIONS = 128  # in flight on one core of it, of kernels that take no more than 8 registers
FLOATS = LINE_BYTES // 4
LARGE = 4096, 4096  # a matrix whose rows and columns are longer than lines
SIDES: Mapping[str, tuple[str, ...]] = {"x": ("m", "out_rows"), "weight": ("n", "out_columns")}
"""The operands, x of m x k and weight of n x k, and what the grid calls their rows."""


@dataclass(frozen=True)
class Side:
    """How a kernel walks one operand, of `SIDES`."""

    layout: str
    """How the operand lies."""
    rows: int
    """That an invocation reads."""
    axis: int
    """Of the grid: along 0, x, or 1, y, other invocations read other rows."""

    @property
    def line(self) -> tuple[int, int]:
        """Rows of the operand and places along k that a cache line holds."""
        held, left = [1, 1], FLOATS
        for dim in reversed(parse(self.layout).dims(LARGE)):
            taken = min(dim.extent, left)
            held[dim.axis] *= taken
            left //= taken
        return held[0], held[1]


@dataclass(frozen=True)
class Reads:
    """What the invocations of a kernel read of both operands."""

    x: Side
    """Of x, m x k."""
    weight: Side
    """Of weight, n x k."""

    @property
    def period(self) -> int:
        """Places along k from one miss of the operand with the longest lines to the next."""
        return max(self.x.line[1], self.weight.line[1])

    def lines(self, workgroup: tuple[int, int], invocations: int = 0) -> float:
        """Cache lines that are read in one period.

        workgroup: invocations along x and y. invocations: how many are in flight at once, in as
        many workgroups along x; those of one workgroup unless it is more.
        """
        groups = max(1, invocations // prod(workgroup))
        along = workgroup[0] * groups, workgroup[1]
        floats = sum(side.rows * along[side.axis] for side in (self.x, self.weight)) * self.period
        return floats / FLOATS

    @classmethod
    def of(cls, kernel: Kernel) -> Reads | None:
        """Those of a matmul kernel that reads its operands directly, as its defaults say.

        None where it does not: by shared memory, a texture or stages, or not once for each result.
        """
        values = kernel.defaults
        if kernel.op != "matmul" or kernel.backend != "compute" or kernel.stages:
            return None
        if kernel.launch.shared_bytes.of(values) or len(kernel.launch.workgroup) != 2:
            return None
        found: dict[str, Side] = {}
        for name, sizes in SIDES.items():
            for axis, along in enumerate(kernel.launch.grid[:2]):
                if len(along) == 1 and along[0].size in sizes and name in kernel.bindings:
                    rows = along[0].covered.of(values)
                    found[name] = Side(kernel.wants(name)[0], rows, axis)
        return cls(**found) if len(found) == len(SIDES) else None


def workgroups(invocations: int = INVOCATIONS) -> tuple[tuple[int, int], ...]:
    """Every workgroup of so many invocations, a power of two: along x and y, of 1 along y first."""
    return tuple((invocations >> i, 1 << i) for i in range(invocations.bit_length()))
