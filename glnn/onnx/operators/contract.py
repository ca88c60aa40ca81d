"""Convolutions, products and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import Conv2d, LocalResponseNorm, Pool2d, Squeeze, Transpose, Unsqueeze
from glnn.onnx.call import Call
from glnn.onnx.entry import Entry


def pads(
    call: Call,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is added before and behind each spatial dimension, as `pads` or `auto_pad` says."""
    count = len(kernel)
    mode = call.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * count, (0,) * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            small, large = total // 2, total - total // 2
            before.append(small if mode == "SAME_UPPER" else large)
            after.append(large if mode == "SAME_UPPER" else small)
        return tuple(before), tuple(after)
    if mode != "NOTSET":
        raise ShapeError(f"{call.name}: auto_pad {mode!r} is not known")
    found = call.get("pads", (0,) * (2 * count))
    if len(found) != 2 * count:
        raise ShapeError(f"{call.name}: {count} dimensions need {2 * count} pads, got {found}")
    return tuple(found[:count]), tuple(found[count:])


def _conv(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    sizes, kernel = x.type.shape[2:], weight.type.shape[2:]
    count = len(kernel)
    if len(sizes) != count or not count:
        raise ShapeError(f"Conv: x {x.type} and weight {weight.type} do not fit")
    strides = call.get("strides", (1,) * count)
    dilations = call.get("dilations", (1,) * count)
    before, after = pads(call, sizes, kernel, strides, dilations)
    if count > 2:
        raise UnsupportedOpError(f"Conv: of {count} dimensions")
    if count == 1:
        x, weight = call(Unsqueeze((2,)), x), call(Unsqueeze((2,)), weight)
        strides, dilations = (1, *strides), (1, *dilations)
        before, after = (0, *before), (0, *after)
    op = Conv2d(tuple(strides), (*before, *after), tuple(dilations), call.get("group", 1))
    y = call(op, x, weight)
    if count == 1:
        y = call(Squeeze((2,)), y)
    if bias is None:
        return y
    return call.pointwise("a + b", y, call.reshape(bias, (prod(bias.type.shape), *(1,) * count)))


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


def _batch_normalization(
    call: Call, x: Value, scale: Value, bias: Value, mean: Value, var: Value
) -> Value:
    if call.get("training_mode", 0) or (call.version < 7 and not call.get("is_test", 0)):
        raise UnsupportedOpError("BatchNormalization: training")
    factor = call.pointwise("a / sqrt(b + c)", scale, var, float(call.get("epsilon", 1e-5)))
    shift = call.pointwise("a - b * c", bias, mean, factor)
    spread = (x.type.shape[1] if len(x.type.dims) > 1 else 1, *(1,) * (len(x.type.dims) - 2))
    return call.pointwise("a * b + c", x, call.reshape(factor, spread), call.reshape(shift, spread))


def _lrn(call: Call, x: Value) -> Value:
    alpha, beta, bias = (
        call.get(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    return call(LocalResponseNorm(call.need("size"), alpha, beta, bias), x)


def _pool(call: Call, x: Value, *, mode: str) -> Value:
    sizes, kernel = x.type.shape[2:], call.need("kernel_shape")
    count = len(kernel)
    strides = call.get("strides", (1,) * count)
    dilations = call.get("dilations", (1,) * count)
    before, after = pads(call, sizes, kernel, strides, dilations)
    if count > 2:
        raise UnsupportedOpError(f"{call.name}: of {count} dimensions")
    if count == 1:
        x = call(Unsqueeze((2,)), x)
        kernel, strides, dilations = (1, *kernel), (1, *strides), (1, *dilations)
        before, after = (0, *before), (0, *after)
    y = call(
        Pool2d(
            mode,
            tuple(kernel),
            tuple(strides),
            (*before, *after),
            tuple(dilations),
            bool(call.get("ceil_mode", 0)),
            bool(call.get("count_include_pad", 0)),
        ),
        x,
    )
    return call(Squeeze((2,)), y) if count == 1 else y


def _max_pool(call: Call, x: Value) -> Value:
    return _pool(call, x, mode="max")


def _average_pool(call: Call, x: Value) -> Value:
    return _pool(call, x, mode="average")


ENTRIES = (
    Entry("Conv", 1, _conv),
    Entry("Gemm", 1, _gemm),
    Entry("MatMul", 1, _matmul),
    Entry("BatchNormalization", 1, _batch_normalization),
    Entry("LRN", 1, _lrn),
    Entry("MaxPool", 1, _max_pool),
    Entry("AveragePool", 1, _average_pool),
)
