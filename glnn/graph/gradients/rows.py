"""Gradients of operators on whole rows: softmax and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from glnn.graph.expression import Arg, call, formula
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import LocalResponseNorm, Normalize, Reduce, Resample, Softmax
from glnn.types import DType, Shape


def softmax(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of softmax, y (g - sum(g y)), or of its logarithm, g - exp(y) sum(g), for
    y the result.

    A row of NaN, as one that is masked altogether, gives 0 where nothing depends on it.
    """
    operator = back.node.operator
    assert isinstance(operator, Softmax)
    y, g = back.output, back.gradient
    if operator.log:
        total = back(Reduce("sum", (operator.axis,), True), g)
        return (back.pointwise("a - exp(b) * c", g, y, total),)
    product = formula("where(equal(a, 0.0), 0.0, a * b)")
    total = back(Reduce("sum", (operator.axis,), True, product), g, y)
    return (back.pointwise("where(equal(a, c), 0.0, b * (a - c))", g, y, total),)


def normalize(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of a normalisation: by x it is dy less its mean and less its projection
    on x, over the deviation.

    Reference: Ioffe and Szegedy 2015, Batch Normalization, section 3, of the rows' own statistics.
    """
    operator, given = back.node.operator, back.operands
    assert isinstance(operator, Normalize)
    x, weight, bias = given["x"], given.get("weight"), given.get("bias")
    shape = x.type.shape
    if not prod(shape):
        return back.by_name(**{n: back.zeros(v.type.shape) for n, v in given.items()})
    apart, axes, others, spread = _apart(operator, shape)
    g, x = back.reshape(back.gradient, apart), back.reshape(x, apart)
    found: dict[str, Value | None] = {}
    if bias is not None and back.wants(bias):
        found["bias"] = back.reshape(back(Reduce("sum", others), g), bias.type.shape)
    if not (back.wants(given["x"]) or back.wants(weight)):
        return back.by_name(**found)
    together = (prod(apart[: axes[0]]), prod(apart[axes[0] :]))
    alone = Normalize(1, centred=operator.centred, eps=operator.eps)
    rows = back.reshape(back(alone, back.reshape(x, together)), apart)
    if weight is not None and back.wants(weight):
        total = back(Reduce("sum", others, False, formula("a * b")), g, rows)
        found["weight"] = back.reshape(total, weight.type.shape)
    if back.wants(given["x"]):
        if weight is not None:
            g = back.pointwise("a * b", g, back.reshape(weight, spread))
        over = back(_deviation(operator, axes), *_centred(back, operator, x, axes))
        along = back(Reduce("mean", axes, True, formula("a * b")), g, rows)
        less = back.pointwise("a - b * c", g, rows, along)
        if operator.centred:
            less = back.pointwise("a - b", less, back(Reduce("mean", axes, True), g))
        found["x"] = back.reshape(back.pointwise("a * b", less, over), shape)
    return back.by_name(**found)


def _apart(operator: Normalize, x: Shape) -> tuple[Shape, tuple[int, ...], tuple[int, ...], Shape]:
    """x in few dimensions, those normalised together, those that a parameter is the same along,
    and the shape of parameters that broadcasts to it.
    """
    if operator.dims is not None:
        rows, extent = operator.grouped(x)
        return (rows, extent), (1,), (0,), (extent,)
    groups = operator.groups or x[1]
    each = x[1] // groups
    return (x[0], groups, each, prod(x[2:])), (2, 3), (0, 3), (groups, each, 1)


def _centred(
    back: Backward, operator: Normalize, x: Value, axes: tuple[int, ...]
) -> tuple[Value, ...]:
    """Return the operands of the mean square deviation: x, and its means where they are
    subtracted.
    """
    return (x, back(Reduce("mean", axes, True), x)) if operator.centred else (x,)


def _deviation(operator: Normalize, axes: tuple[int, ...]) -> Reduce:
    """Return the reduction that computes the reciprocal standard deviation."""
    square = formula("square(a - b)" if operator.centred else "a * a")
    finish = call("rsqrt", call("add", Arg(0), operator.eps))
    return Reduce("mean", axes, True, square, finish)


def local_response_norm(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of local response normalisation: g d**-beta less 2 alpha beta / size x
    times the sums of g x d**(-beta - 1), where d is k + alpha / size s, over the channels whose
    sums s have x in them.
    """
    operator, x = back.node.operator, back.operands["x"]
    assert isinstance(operator, LocalResponseNorm)
    if not prod(x.type.shape):
        return (back.zeros(x.type.shape),)
    channels, size = x.type.shape[1], operator.defines({"x": x.type.shape})["SIZE"]
    before, behind = size // 2, (size - 1) // 2
    alpha = operator.alpha / operator.size
    sums = _windows(back, back.pointwise("a * a", x), channels, before, behind)
    d = back.pointwise("b + c * a", sums, operator.k, alpha)
    each = back.pointwise("a * b * pow(c, d)", back.gradient, x, d, -operator.beta - 1)
    total = _windows(back, each, channels, behind, before)
    first = back.pointwise("a * pow(b, c)", back.gradient, d, -operator.beta)
    return (back.pointwise("a - d * b * c", first, x, total, 2 * alpha * operator.beta),)


def _windows(back: Backward, value: Value, channels: int, before: int, behind: int) -> Value:
    """Sum for each channel those from `before` before it to `behind` behind it."""
    taps = np.arange(-before, behind + 1)[:, None] + np.arange(channels)
    there = (taps >= 0) & (taps < channels)
    index = back.constant(np.where(there, taps, 0), DType.int32)
    return back(Resample(1), value, index, back.constant(there, DType.float32))


RULES: dict[type[Operator], Rule] = {
    Softmax: softmax,
    Normalize: normalize,
    LocalResponseNorm: local_response_norm,
}
