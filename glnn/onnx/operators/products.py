"""Products of matrices."""

from __future__ import annotations

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.integer import integer_matmul
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import Slice, Transpose
from glnn.graph.operators.pointwise import broadcast
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry


def product(call: Call, a: Value, b: Value, *, transposed: bool = False) -> Value:
    """a (..., m, k) times b (..., k, n), or (..., n, k) where that is transposed, in their type.

    Sums of nothing are 0.
    """
    if a.type.dtype is not b.type.dtype:
        raise ShapeError(f"{call.name}: factors must be of one type, got {a.type} and {b.type}")
    if a.type.dtype.kind == "float" and a.type.dims[-1:] != (0,):
        return matmul(call, a, b, transposed=transposed)
    if transposed:
        b = call(Transpose((*range(len(b.type.dims) - 2), -1, -2)), b)
    return integer_matmul(call, a, b)


def _matmul(call: Call, a: Value, b: Value) -> Value:
    return product(call, a, b)


def _scaled(call: Call, x: Value, by: float) -> Value:
    """x by a float attribute, which must be whole where x is of integers."""
    if by == 1.0:
        return x
    if x.type.dtype.kind == "float":
        return call.pointwise("a * b", x, float(by))
    if by != int(by):
        raise UnsupportedOpError(f"{call.name}: integers by {by}")
    return call.pointwise("a * b", x, int(by))


def _gemm(call: Call, a: Value, b: Value, c: Value | None = None) -> Value:
    """alpha a b + beta c, a and b turned where that is asked for; c broadcasts."""
    if len(a.type.dims) != 2 or len(b.type.dims) != 2:
        raise ShapeError(f"Gemm: factors must be matrices, got {a.type} and {b.type}")
    if call.get("transA", 0):
        a = call(Transpose((1, 0)), a)
    y = product(call, a, b, transposed=bool(call.get("transB", 0)))
    y = _scaled(call, y, call.get("alpha", 1.0))
    beta = call.get("beta", 1.0)
    if c is None or beta == 0.0:
        return y
    if broadcast({"c": c.type.shape, "y": y.type.shape}) != y.type.shape:
        raise ShapeError(f"Gemm: c {c.type} does not broadcast to {y.type}")
    return call.pointwise("a + b", y, _scaled(call, c, beta))


def _det(call: Call, x: Value) -> Value:
    """Return determinants of matrices of up to 3 rows by the rule of Sarrus; the host computes
    larger ones.
    """
    *stack, n, m = x.type.shape
    if n != m or not 1 <= n <= 3:
        raise UnsupportedOpError(f"Det: of {n} x {m} matrices")
    rows = [
        [call(Slice((i, j), (i + 1, j + 1), (-2, -1), (1, 1)), x) for j in range(n)]
        for i in range(n)
    ]
    if n == 1:
        found = rows[0][0]
    elif n == 2:
        found = call.pointwise("a * d - b * c", *rows[0], *rows[1])
    else:
        (a, b, c), second, third = rows
        minors = [
            call.pointwise("a * d - b * c", second[i], second[j], third[i], third[j])
            for i, j in ((1, 2), (0, 2), (0, 1))
        ]
        found = call.pointwise("a * d - b * da + c * db", a, b, c, *minors)
    return call.reshape(found, tuple(stack))


ENTRIES = (
    Entry("MatMul", 1, _matmul),
    Entry("Gemm", 1, _gemm),
    Entry("Det", 11, _det),
)
