"""ONNX's types of tensors and glnn's."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.core.types import ANYTHING, UNKNOWN, UNRANKED, Array, DType, TensorType, boxed
from glnn.errors import ModelError

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
"""Dtypes by the numbers of onnx.proto's TensorProto.DataType; 8 is text."""
HALVES = (DType.float16, DType.bfloat16)
"""Floats of 16 bits, which are computed in float32."""
CODES = {dtype: code for code, dtype in NUMBERS.items()}
_NAMES = {dtype: dtype.value for dtype in NUMBERS.values()} | {
    DType.float32: "float",
    DType.float64: "double",
    DType.object: "string",
    DType.float8_e4m3fn: "float8e4m3fn",
    DType.float8_e4m3fnuz: "float8e4m3fnuz",
    DType.float8_e5m2: "float8e5m2",
    DType.float8_e5m2fnuz: "float8e5m2fnuz",
    DType.float8_e8m0fnu: "float8e8m0",
    DType.float4_e2m1fn: "float4e2m1",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_of(code: int, where: str) -> DType:
    """Return the dtype of ONNX's number. Raises ModelError for an unknown one."""
    if code not in NUMBERS:
        raise ModelError(f"{where}: unknown tensor type {code}")
    return NUMBERS[code]


def type_of(proto: Any, where: str = "value") -> TensorType:
    """Return the type of a TypeProto; ANYTHING for one without a value.

    Sequences and optional values are single objects.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return ANYTHING
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return TensorType((), DType.object, _type_text(proto, where))
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
    """Return the TypeProto of a type, without unknown sizes."""
    from onnx import helper

    if type.holds:
        return _parse_type(type.holds)
    dims = [dim if isinstance(dim, int) else None for dim in type.dims] if type.ranked else None
    return helper.make_tensor_type_proto(CODES[type.dtype], dims)


def array_of(value: Any) -> Array:
    """Return a result of the package's reference as an array; lists and None are boxed."""
    if isinstance(value, (list, dict)) or value is None:
        return boxed(value)
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def _type_text(proto: Any, where: str) -> str:
    """Return the text of a type that is no tensor, as ONNX Runtime writes it:
    `seq(tensor(float))`.
    """
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return f"tensor({_NAMES[dtype_of(getattr(proto, kind).elem_type, where)]})"
    if kind == "sequence_type":
        return f"seq({_type_text(proto.sequence_type.elem_type, where)})"
    if kind == "optional_type":
        return f"optional({_type_text(proto.optional_type.elem_type, where)})"
    if kind == "map_type":
        key = _NAMES[dtype_of(proto.map_type.key_type, where)]
        return f"map({key},{_type_text(proto.map_type.value_type, where)})"
    raise ModelError(f"{where}: its type is not said")


def _parse_type(text: str) -> Any:
    """Return the TypeProto of a text of `_type_text`."""
    from onnx import helper

    kind, _, inner = text.removesuffix(")").partition("(")
    if kind == "seq":
        return helper.make_sequence_type_proto(_parse_type(inner))
    if kind == "optional":
        return helper.make_optional_type_proto(_parse_type(inner))
    if kind == "map":
        key, _, value = inner.partition(",")
        return helper.make_map_type_proto(CODES[_DTYPES[key]], _parse_type(value))
    return helper.make_tensor_type_proto(CODES[_DTYPES[inner]], None)


def type_text(type: TensorType) -> str:
    """Return the text of a type without its dimensions, as ONNX Runtime writes it:
    `tensor(float)`.
    """
    return type.holds or f"tensor({_NAMES[type.dtype]})"


def type_from_text(text: str) -> TensorType:
    """Return the type of a text that `type_text` returns."""
    if text.startswith("tensor("):
        return TensorType((UNRANKED,), _DTYPES[text[7:-1]])
    return TensorType((), DType.object, text)
