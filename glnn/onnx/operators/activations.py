"""Activation functions that are not one pointwise formula."""

from __future__ import annotations

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.graph import Value
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry
from glnn.types import DType

BYTES = (DType.uint8, DType.int8)


def _gelu(call: Call, x: Value) -> Value:
    form = call.get("approximate", "none")
    if form not in ("none", "tanh"):
        raise ShapeError(f"Gelu: approximate must be none or tanh, got {form!r}")
    return call.pointwise("gelu(a)" if form == "none" else "gelu_tanh(a)", x)


def _swiglu(call: Call, gate: Value, x: Value) -> Value:
    return call.pointwise("a * sigmoid(a * c) * b", gate, x, float(call.get("alpha", 1.0)))


def _bit_cast(call: Call, x: Value) -> Value:
    """The same bits as another type: of 8 bits only, which casts keep."""
    dtype, own = call.need("to"), x.type.dtype
    if dtype is not own and not (dtype in BYTES and own in (*BYTES, DType.bool)):
        raise UnsupportedOpError(f"BitCast: {own.value} as {dtype.value}")
    return call.cast(x, dtype)


ENTRIES = (
    Entry("Gelu", 20, _gelu),
    Entry("SwiGLU", 28, _swiglu),
    Entry("BitCast", 26, _bit_cast, halves=True),
)
