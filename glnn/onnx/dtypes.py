"""ONNX's types of tensors and glnn's."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.errors import ModelError
from glnn.types import UNKNOWN, UNRANKED, Array, DType, TensorType

NUMBERS = {
    1: DType.float32,
    2: DType.uint8,
    3: DType.int8,
    4: DType.uint16,
    5: DType.int16,
    6: DType.int32,
    7: DType.int64,
    8: DType.object,
    9: DType.bool,
    10: DType.float16,
    11: DType.float64,
    12: DType.uint32,
    13: DType.uint64,
    14: DType.complex64,
    15: DType.complex128,
    16: DType.bfloat16,
    17: DType.float8_e4m3fn,
    18: DType.float8_e4m3fnuz,
    19: DType.float8_e5m2,
    20: DType.float8_e5m2fnuz,
    21: DType.uint4,
    22: DType.int4,
    23: DType.float4_e2m1fn,
    24: DType.float8_e8m0fnu,
    25: DType.uint2,
    26: DType.int2,
}
"""By the numbers of onnx.proto's TensorProto.DataType; 8 are texts."""
CODES = {dtype: code for code, dtype in NUMBERS.items()}


def dtype_of(code: int, where: str) -> DType:
    """That of ONNX's number. Raises ModelError for one that is not known."""
    if code not in NUMBERS:
        raise ModelError(f"{where}: unknown tensor type {code}")
    return NUMBERS[code]


def type_of(proto: Any, where: str = "value") -> TensorType:
    """The type that a TypeProto describes; sequences and optional values are single objects."""
    kind = proto.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return TensorType((), DType.object)
    tensor = getattr(proto, kind)
    dtype = dtype_of(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return TensorType((UNRANKED,), dtype)
    dims: list[int | str] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(int(dim.dim_value))
        else:
            dims.append(dim.dim_param or UNKNOWN)
    return TensorType(tuple(dims), dtype)


def type_proto(type: TensorType) -> Any:
    """The TypeProto of a tensor; the sizes that are not known are left out."""
    from onnx import helper

    if type.dtype is DType.object and not type.dims:
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    dims = [dim if isinstance(dim, int) else None for dim in type.dims] if type.ranked else None
    return helper.make_tensor_type_proto(CODES[type.dtype], dims)


def array_of(value: Any) -> Array:
    """What the package's reference gives, as an array: a list of tensors is one object."""
    if isinstance(value, (list, dict)) or value is None:
        found = np.empty((), object)
        found[()] = value
        return found
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array
