"""The types of ONNX Runtime: `tensor(float)` and such, their numbers in ONNX, and NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.errors import GlnnError, shown
from glnn.types import DType

NUMPY: dict[str, DType] = {
    "float": DType.float32,
    "uint8": DType.uint8,
    "int8": DType.int8,
    "uint16": DType.uint16,
    "int16": DType.int16,
    "int32": DType.int32,
    "int64": DType.int64,
    "string": DType.object,
    "bool": DType.bool,
    "float16": DType.float16,
    "double": DType.float64,
    "uint32": DType.uint32,
    "uint64": DType.uint64,
    "complex64": DType.complex64,
    "complex128": DType.complex128,
    "bfloat16": DType.bfloat16,
    "float8e4m3fn": DType.float8_e4m3fn,
    "float8e4m3fnuz": DType.float8_e4m3fnuz,
    "float8e5m2": DType.float8_e5m2,
    "float8e5m2fnuz": DType.float8_e5m2fnuz,
    "uint4": DType.uint4,
    "int4": DType.int4,
}
"""NumPy's types by the names in `tensor(...)`, in the order of ONNX's numbers, from 1 on."""
NUMBERS = {f"tensor({name})": number for number, name in enumerate(NUMPY, 1)}
"""ONNX's numbers."""
_CALLED = {dtype.value: f"tensor({name})" for name, dtype in NUMPY.items()}


def type_of(dtype: np.dtype[Any]) -> str:
    """Return the type of an array's dtype, as `tensor(float)`. Raises RuntimeError where there is
    none.
    """
    if dtype.kind in "UO":
        return "tensor(string)"
    found = _CALLED.get(dtype.name)
    if found is None or dtype.kind == "c":
        raise RuntimeError(f"Numpy_type {dtype.num} can't be converted to MLDataType.")
    return found


def dtype_of(type: object) -> np.dtype[Any]:
    """NumPy's dtype for one of its own, its name, a `tensor(float)` or ONNX's number.

    Raises RuntimeError for what is none.
    """
    try:
        if isinstance(type, int) and not isinstance(type, bool):
            return [*NUMPY.values()][range(1, 1 + len(NUMPY)).index(type)].numpy
        if isinstance(type, str) and type.startswith("tensor("):
            return NUMPY[type[7:-1]].numpy
        found: np.dtype[Any] = np.dtype(type)  # type: ignore[call-overload]
    except (GlnnError, KeyError, TypeError, ValueError):
        raise RuntimeError(f"{shown(type)} is not the type of a tensor's numbers") from None
    type_of(found)
    return found


def theirs(type: str) -> str:
    """A type of glnn's as ONNX Runtime writes it: `tensor(float8e4m3fn)`."""
    return type.replace("float8_", "float8").replace("float4_", "float4")
