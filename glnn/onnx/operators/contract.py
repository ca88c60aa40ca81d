"""Products of matrices."""

from __future__ import annotations

from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import Transpose
from glnn.onnx.call import Call
from glnn.onnx.entry import Entry


def _gemm(call: Call, a: Value, b: Value, c: Value | None = None) -> Value:
    if call.get("transA", 0):
        a = call(Transpose((1, 0)), a)
    y = matmul(call, a, b, transposed=bool(call.get("transB", 0)))
    if (alpha := call.get("alpha", 1.0)) != 1.0:
        y = call.pointwise("a * b", y, float(alpha))
    beta = call.get("beta", 1.0)
    if c is None or beta == 0.0:
        return y
    return call.pointwise("a + b", y, c if beta == 1.0 else call.pointwise("a * b", c, float(beta)))


def _matmul(call: Call, a: Value, b: Value) -> Value:
    return matmul(call, a, b)


ENTRIES = (
    Entry("Gemm", 1, _gemm),
    Entry("MatMul", 1, _matmul),
)
