"""The functions that are to be looked at: their arguments, and what is expected of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from glnn.doctor.cases import BOOLS, CASES, INTEGER, INTS, Case, points
from glnn.graph.expression import Arg, Call, call
from glnn.graph.functions import FUNCTIONS
from glnn.kernels.generate.expression import function
from glnn.types import Array, DType

SOME = 16  # functions of one program, as compiling takes longest
LEAST = 2.0**-126  # the least number that is not subnormal: below, GL promises nothing
INTEGERS = (DType.int32, DType.uint8, DType.int8)


@dataclass(frozen=True)
class Look:
    """A function, of arguments of one type, that is to be looked at."""

    name: str
    """As the table has it."""
    dtype: DType
    """Of its arguments."""
    given: Array
    """(n, 4), float32: the bits of its arguments."""
    expected: tuple[Array, ...]
    """(n,) each: any of these may be; of floats the second is of subnormal arguments taken as 0."""
    case: Case | None = None
    """How far off floats may be; None where every bit counts."""

    @property
    def arity(self) -> int:
        """How many arguments it takes."""
        return FUNCTIONS[self.name].arity

    @property
    def text(self) -> tuple[str, str]:
        """The GLSL of the function, and that of a float of its value for the arguments `v`."""
        called = f"f_{self.name}"
        made = function(_call(self.name), [self.dtype] * self.arity, called)
        lanes = [f"v.{lane}" for lane in "xyzw"[: self.arity]]
        if self.dtype.kind == "float":
            return made, f"float({called}({', '.join(lanes)}))"
        bits = [f"floatBitsToInt({lane})" for lane in lanes]
        if self.dtype is DType.bool:  # true is anything but 0
            return made, f"float({called}({', '.join(f'7 * {one}' for one in bits)}))"
        value = f"{called}({', '.join(bits)})"
        whole = FUNCTIONS[self.name].gives != "float32"
        return made, f"intBitsToFloat({value})" if whole else value


def function_looks(names: Sequence[str] | None = None) -> list[list[Look]]:
    """What there is to look at, a program each. names: of these functions alone."""
    kinds = (
        [_of_floats(case) for case in CASES],
        *([_of_integers(n, dtype) for n in INTEGER] for dtype in INTEGERS),
        [_of_bools(name) for name in BOOLS],
    )
    found = ([look for look in kind if names is None or look.name in names] for kind in kinds)
    return [looks[i : i + SOME] for looks in found for i in range(0, len(looks), SOME)]


def unlooked() -> Iterator[str]:
    """The functions of the table that no program here looks at."""
    known = {case.name for case in CASES} | set(INTEGER) | set(BOOLS)
    yield from (name for name in FUNCTIONS if name not in known)


def _call(name: str) -> Call:
    return call(name, *(Arg(i) for i in range(FUNCTIONS[name].arity)))


@cache
def _of_floats(case: Case) -> Look:
    arity = FUNCTIONS[case.name].arity
    some = points(case, arity)
    given = np.zeros((len(some[0]), 4), np.float32)
    for i, one in enumerate(some):
        given[:, i] = one
    flushed = np.where(np.abs(given) < LEAST, np.copysign(0, given), given)
    with np.errstate(all="ignore"):
        exact, other = (
            np.asarray(case.expected(*rows.T[:arity].astype(np.float64)), np.float64)
            for rows in (given, flushed)
        )
    return Look(case.name, DType.float32, given, (exact, other), case)


@cache
def _of_integers(name: str, dtype: DType) -> Look:
    limits = np.iinfo(dtype.numpy)
    inside = INTS[(limits.min <= INTS) & (limits.max >= INTS)]
    a, b = (grid.reshape(-1) for grid in np.meshgrid(inside, inside))
    given = np.zeros((len(a), 4), np.int32)
    given[:, 0], given[:, 1] = a, b
    result = _call(name).infer([dtype] * FUNCTIONS[name].arity)
    exact = np.asarray(INTEGER[name](*(a, b)[: FUNCTIONS[name].arity])).astype(np.int64)
    width = result.numpy if result.kind == "int" else np.dtype(np.int32)
    expected = exact.astype(width).astype(np.int32)
    return Look(name, dtype, given.view(np.float32), (expected,))


@cache
def _of_bools(name: str) -> Look:
    bits = [[i & 1, (i >> 1) & 1, (i >> 2) & 1, 0] for i in range(8)]
    given = np.array(bits, np.int32)
    expected = np.asarray(BOOLS[name](*given.T[:3])).astype(np.int32)
    return Look(name, DType.bool, given.view(np.float32), (expected,))
