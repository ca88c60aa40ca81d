"""NumPy implementations of functions that NumPy lacks, in their arguments' types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from glnn.symint import is_integer, is_symbolic
from glnn.types import Array

# erf(x) = x + x * P(x^2) up to 0.93 and 1 - exp(-Q(x)) from there, to 1 ulp of float32; as
# shaders/functions/erf.glsl. Highest powers first.
NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
FAR = (
    *(-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2),
    *(-1.06777877e-1, -6.34846687e-1, -1.28717512e-1),
)
FEW = 1 << 10
"""The array size below which the overhead of a NumPy call exceeds its computation."""
ONES = {np.dtype(kind): np.ones((), kind) for kind in (np.float32, np.float64)}
"""The number 1 as an array, which NumPy handles faster than a Python number."""
_exact_erf = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array, out: Array | None = None) -> Array:
    """1 / (1 + exp(-x)), written to `out` where that is given."""
    found = np.asarray(np.negative(x, out))
    np.exp(found, found)
    one = ONES.get(found.dtype, 1)
    np.add(found, one, found)
    return np.asarray(np.divide(one, found, found))


def relu(x: Array, out: Array | None = None) -> Array:
    """The greater of x and 0, written to `out` where that is given.

    `np.maximum` takes three times as long of many numbers where one operand is a number, but less
    of few.
    """
    if x.size <= FEW:
        return np.asarray(np.maximum(x, np.zeros((), x.dtype), out=out))
    most = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return np.asarray(np.clip(x, 0, most, out))


def writes_to(function: Callable[..., object]) -> bool:
    """Return True where `function` writes its result to an array called `out`."""
    return isinstance(function, np.ufunc) or function in (sigmoid, relu)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)."""
    return np.asarray(1 / np.sqrt(x))


def erf(x: Array) -> Array:
    """Compute the error function."""
    if x.dtype.itemsize > 4:
        return np.asarray(_exact_erf(x), x.dtype)
    size = np.minimum(np.abs(x.astype(np.float32, copy=False)), 4)  # where it is 1; keeps NaN
    far = _polynomial(FAR, size)
    far *= size
    far -= size
    np.subtract(1, np.exp(far, out=far), out=far)
    near = _polynomial(NEAR, size * size)
    near *= size
    near += size
    beyond = size > 0.927734375  # products choose faster than np.where, which branches
    far *= beyond
    near *= ~beyond
    near += far
    return np.asarray(np.copysign(near, x), x.dtype)


def _polynomial(factors: tuple[float, ...], x: Array) -> Array:
    """The polynomial by Horner's rule, highest powers first."""
    result = np.full_like(x, factors[0])
    for factor in factors[1:]:
        result *= x
        result += x.dtype.type(factor)
    return result


def div(a: Array, b: Array) -> Array:
    """a / b; of integers towards 0, and 0 where b is, as `numpy.floor_divide` has it."""
    if is_symbolic(a) or is_symbolic(b):
        return np.asarray(np.frompyfunc(_quotient, 2, 1)(a, b), object)
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    floor = np.floor_divide(a, b)
    return np.asarray(floor + ((floor < 0) & (floor * b != a)), floor.dtype)


def _quotient(a: Any, b: Any) -> Any:
    """Return the quotient as `div` does, of numbers that may be SymInts."""
    if not is_integer(a) or not is_integer(b):
        return a / b
    if b == 0:
        return 0
    found = abs(a) // abs(b)
    return -found if (a < 0) != (b < 0) else found


def power(a: Array, b: Array) -> Array:
    """a to the b; of integers what is left in their width, 0 for fractions."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    found = np.power(a, np.maximum(b, 0))
    return np.asarray(
        np.where(b >= 0, found, np.where(np.abs(a) == 1, a ** (b & 1), 0)), found.dtype
    )


def cast(dtype: str | np.dtype[Any]) -> Callable[[Array], Array]:
    """To `dtype`: floats to integers towards 0 and to the nearest that there is, NaN to 0.

    Integers to narrower ones keep their low bits.
    """

    def to(x: Array) -> Array:
        target = np.dtype(dtype)
        if x.dtype.kind != "f" or target.kind not in "iu":
            with np.errstate(over="ignore"):
                return np.asarray(x.astype(target))
        limits = np.iinfo(target)
        whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
        least, over = float(limits.min), whole >= limits.max
        inside = np.where(over, 0, np.maximum(whole, least)).astype(target)
        return np.asarray(np.where(over, limits.max, inside), target)

    return to
