"""What no formula of one operator is."""

from __future__ import annotations

from glnn.errors import UnsupportedOpError
from glnn.graph.graph import Value
from glnn.onnx.call import Call
from glnn.onnx.entry import Entry
from glnn.types import DType

BYTES = (DType.uint8, DType.int8)


def _swiglu(call: Call, gate: Value, x: Value) -> Value:
    return call.pointwise("a * sigmoid(a * c) * b", gate, x, float(call.get("alpha", 1.0)))


def _bit_cast(call: Call, x: Value) -> Value:
    """The same bits as another type: of 8 bits only, which casts keep."""
    dtype, own = call.need("to"), x.type.dtype
    if dtype is not own and not (dtype in BYTES and own in (*BYTES, DType.bool)):
        raise UnsupportedOpError(f"BitCast: {own.value} as {dtype.value}")
    return call.cast(x, dtype)


ENTRIES = (
    Entry("SwiGLU", 28, _swiglu),
    Entry("BitCast", 26, _bit_cast, halves=True),
)
