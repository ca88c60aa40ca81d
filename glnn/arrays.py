"""Conversion and checks of users' arrays, with errors of one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glnn.errors import ShapeError, first_line
from glnn.types import Array, DType, narrowed

FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
SMALL = 1 << 20
"""Bound on indices, lengths and masks, so that sums of them along an axis fit in int32."""
NO_NUMPY = ("torch.bfloat16", *(f"torch.float8_{kind}" for kind in FLOAT8))
"""PyTorch's dtypes that NumPy lacks and float32 represents exactly."""


def as_float32(name: str, array: object) -> Array:
    """Return `array` as a plain float32 array: see `as_one_of`."""
    return as_one_of(name, array, (DType.float32,))


def as_one_of(name: str, array: object, dtypes: Sequence[DType]) -> Array:
    """Return a NumPy `array` of one of `dtypes` as a plain ndarray: subclasses may override ops.

    int64 is accepted for int32 where all numbers fit. Raises ShapeError for anything else, and for
    a masked array with a masked value.
    """
    if type(array) is np.ndarray and any(array.dtype == one.numpy for one in dtypes):
        return array
    if not isinstance(array, np.ndarray) or array.dtype.name not in _taken(dtypes):
        got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
        hint = _hint(array, dtypes)
        raise ShapeError(f"{name} must be {_a(dtypes)} NumPy array, got {got}{hint}")
    if np.ma.is_masked(array):
        raise ShapeError(f"{name} has masked values, which are no numbers: fill them first")
    plain = np.asarray(array).astype(array.dtype.newbyteorder("="), copy=False)
    return plain if DType.int64 in dtypes else narrowed(name, plain)


def _hint(array: object, dtypes: Sequence[DType]) -> str:
    """Return a hint how to convert the refused `array`; empty where there is none."""
    if is_tensor(array):
        return ": .numpy() makes one of a tensor"
    wide = isinstance(array, np.ndarray) and array.dtype in (np.float64, np.float16)
    return ": .astype(np.float32) makes one" if wide and DType.float32 in dtypes else ""


def _taken(dtypes: Sequence[DType]) -> set[str]:
    names = {dtype.value for dtype in dtypes}
    return names | {"int64"} if "int32" in names else names


def _a(dtypes: Sequence[DType]) -> str:
    """`a float32`, `an int32 or a bool`."""
    return " or ".join(f"{'an' if one.kind == 'int' else 'a'} {one.value}" for one in dtypes)


def to_float32(name: str, array: object) -> Array:
    """Convert an `array` of any real numbers within float32's range to float32, rounding.

    It may also be a PyTorch tensor (see `of_tensor`), or of ml_dtypes' bfloat16.
    """
    array = of_tensor(name, array)
    real = isinstance(array, np.ndarray) and array.dtype.kind in "iuf"
    if isinstance(array, np.ndarray) and (real or array.dtype.name == "bfloat16"):
        if array.dtype == np.float32:
            return as_float32(name, array)
        with np.errstate(over="ignore"):
            found = as_float32(name, array.astype(np.float32))
        if real and (np.isinf(found) & np.isfinite(np.asarray(array))).any():
            raise ShapeError(f"{name} has numbers that float32 does not hold, got {array.dtype}")
        return found
    return as_float32(name, array)


def of_tensor(name: str, value: object) -> object:
    """Return a PyTorch tensor `value` as a NumPy array; anything else unchanged.

    The tensor may be on any device and may require gradients. Types that NumPy lacks, such as
    bfloat16, become float32. Memory is shared where possible. Raises ShapeError for a tensor
    without plain numbers: a sparse or quantised one, or one on the device meta.
    """
    if not is_tensor(value):
        return value
    tensor: Any = value
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        if str(plain.dtype) in NO_NUMPY:
            plain = plain.float()
        found = plain.numpy()
    except Exception as error:  # PyTorch raises any
        kind = f"{getattr(tensor, 'dtype', 'tensor')} on {getattr(tensor, 'device', '?')}"
        raise ShapeError(f"{name} is no plain tensor ({kind}): {first_line(error)}") from None
    if not isinstance(found, np.ndarray):
        raise ShapeError(f"{name} must be a tensor of numbers, got {type(value).__name__}")
    return found


def is_tensor(value: object) -> bool:
    """Return True where `value` looks like a PyTorch tensor; PyTorch is not imported."""
    return not isinstance(value, np.ndarray) and all(
        callable(getattr(value, name, None)) for name in ("detach", "cpu", "numpy")
    )


def all_small(feeds: Mapping[str, Array]) -> bool:
    """Return True where `feeds` has int64 arrays and none has a number beyond `SMALL`."""
    wide = [array for array in feeds.values() if array.dtype == DType.int64.numpy]
    return bool(wide) and all(map(_small, wide))


def beyond_int32(feeds: Mapping[str, Array]) -> bool:
    """Return True where an int64 array in `feeds` has a number that int32 cannot represent."""
    wide = [array for array in feeds.values() if array.dtype == DType.int64.numpy and array.size]
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    return any(array.min() < least or array.max() > most for array in wide)


def check_small(name: str, array: Array) -> None:
    """Raise ShapeError where `array` of integers has a number beyond `SMALL`."""
    if not _small(array):
        raise ShapeError(
            f"input {name!r} must have int64 numbers from {-SMALL} to {SMALL} for this plan; "
            "a session has another one for larger ones"
        )


def check_indices(called: str, array: Array, sizes: tuple[int, ...]) -> None:
    """Raise ShapeError where an index in `array` is out of range.

    called: the array in the error, as "input 'ids'".
    sizes: the sizes of the tables that it indexes, one for all numbers or one for each place
    along the last dimension. Negative indices count from the end. Floats are converted as by a
    Cast to integers: rounded towards 0, and 0 for NaN.
    """
    if not array.size:
        return
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), 0, np.trunc(array))
    for i, size in enumerate(sizes):
        part = array if len(sizes) == 1 else array[..., i]
        if part.max() < size and part.min() >= -size:
            continue
        wrong = (part < -size) | (part >= size)
        at = [int(n) for n in np.argwhere(wrong)[0]]
        number = part[tuple(at)]
        at += [i] if len(sizes) > 1 else []
        where = f" at {at}" if at else ""
        raise ShapeError(
            f"{called} must be indices from {-size} to {size - 1}, of a table of {size}, "
            f"got {number}{where}"
        )


def _small(array: Array) -> bool:
    return not array.size or bool(array.min() >= -SMALL and array.max() <= SMALL)
