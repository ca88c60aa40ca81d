"""Activations of ONNX Runtime's operator set, some with a bias."""

from __future__ import annotations

from functools import partial

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Slice
from glnn.onnx.operators.call import MICROSOFT, Converter, OperatorCall, Signature


def _activation(call: OperatorCall, x: Value, bias: Value | None = None, *, formula: str) -> Value:
    """Apply `formula` to x, or to x plus a bias along its last dimension."""
    if bias is None:
        return call.pointwise(formula, x)
    return call.pointwise(formula, call.add_bias(x, bias))


def _quick_gelu(call: OperatorCall, x: Value) -> Value:
    return call.pointwise("a * sigmoid(a * b)", x, float(call.need("alpha")))


def _bias_add(call: OperatorCall, x: Value, bias: Value, skip: Value) -> Value:
    if skip.type.shape != x.type.shape:
        raise ShapeError(f"{call.name}: skip must be {x.type}, got {skip.type}")
    return call.pointwise("a + b", call.add_bias(x, bias), skip)


def _bias_split_gelu(call: OperatorCall, x: Value, bias: Value) -> Value:
    """Return the first half of x + bias along the last dimension, times Gelu of the second one."""
    size = x.type.shape[-1]
    if size % 2:
        raise ShapeError(f"{call.name}: the last dimension must be even, got {x.type}")
    y, half = call.add_bias(x, bias), size // 2
    first, second = (call(Slice((start,), (start + half,), (-1,), (1,)), y) for start in (0, half))
    return call.pointwise("a * gelu(b)", first, second)


_GELU = partial(_activation, formula="gelu(a)")
_FAST_GELU = partial(_activation, formula="gelu_tanh(a)")
_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row("Gelu", convert=_GELU, signature=Signature((1, 1))),
    _row("BiasGelu", convert=_GELU, signature=Signature((2, 2))),
    _row("FastGelu", convert=_FAST_GELU, signature=Signature((1, 2))),
    _row(
        "QuickGelu", convert=_quick_gelu, signature=Signature((1, 1), attributes={"alpha": 1.702})
    ),
    _row("BiasAdd", convert=_bias_add, signature=Signature((3, 3))),
    _row("BiasSplitGelu", convert=_bias_split_gelu, signature=Signature((2, 2))),
)
