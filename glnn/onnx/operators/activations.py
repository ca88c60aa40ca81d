"""Activations of several forms."""

from __future__ import annotations

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.onnx.call import Call
from glnn.onnx.entry import Entry


def _gelu(call: Call, x: Value) -> Value:
    form = call.get("approximate", "none")
    if form not in ("none", "tanh"):
        raise ShapeError(f"Gelu: approximate must be none or tanh, got {form!r}")
    return call.pointwise("gelu(a)" if form == "none" else "gelu_tanh(a)", x)


def _swiglu(call: Call, gate: Value, x: Value) -> Value:
    return call.pointwise("a * sigmoid(a * c) * b", gate, x, float(call.get("alpha", 1.0)))


ENTRIES = (
    Entry("Gelu", 20, _gelu),
    Entry("SwiGLU", 28, _swiglu),
)
