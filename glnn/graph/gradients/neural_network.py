"""Gradients of convolutions, products, pools, normalisations, softmax and recurrent layers.

References: Dumoulin and Visin 2016, A guide to convolution arithmetic, chapter 4; Giles 2008,
Collected matrix derivative results for forward and reverse mode algorithmic differentiation,
section 2.2.1; Werbos 1990, Backpropagation through time: what it does and how to do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from glnn.core.types import DType, Shape
from glnn.graph.compose.batch_norm import (
    GRADIENT,
    BatchNorm,
    channel_axes,
    samples_per_channel,
)
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.sliding_windows import FoldWindows, unfold
from glnn.graph.expression import Arg, Expr, call, formula
from glnn.graph.gradients.gradient_context import GradientContext, GradientRule
from glnn.graph.gradients.pointwise import differentiate_expression, multiply_derivative
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Expand,
    LocalResponseNorm,
    Matmul,
    Normalize,
    NormalizeGradient,
    Pad,
    Pool2d,
    Pool2dGradient,
    RecurrentStep,
    Reduce,
    Resample,
    Slice,
    Softmax,
    SoftmaxGradient,
    Subsample,
    Transpose,
)


def conv2d_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a convolution: by x the transposed convolution of dy by the weight;
    by the weight sums of products of dy and x.
    """
    operator, x, weight = ctx.node.operator, ctx.operands["x"], ctx.operands["weight"]
    assert isinstance(operator, Conv2d)
    size, kernel = x.type.shape[2:], weight.type.shape[2:]
    how = operator.stride, operator.padding, operator.dilation, operator.groups
    by_x = by_weight = None
    if ctx.requires_grad(x):
        by_x = ctx(Conv2dInputGradient((size[0], size[1]), *how), ctx.gradient, weight)
    if ctx.requires_grad(weight):
        gradient = Conv2dWeightGradient((kernel[0], kernel[1]), *how)
        by_weight = ctx(gradient, x, ctx.gradient)
    return ctx.in_input_order(x=by_x, weight=by_weight)


def matmul_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a matrix product: by x dy times the weight, by the weight dy
    transposed times x, for each matrix of a batch.

    The products have the shapes of x and of the weight as they lie, so that no result is
    transposed. The operands that are instead kernels take as they lie.
    """
    x, weight = ctx.operands["x"], ctx.operands["weight"]
    dy = ctx.gradient
    by_x = ctx(Matmul(), dy, _transpose_matrix(ctx, weight)) if ctx.requires_grad(x) else None
    by_weight = None
    if ctx.requires_grad(weight):
        *stack, n, k = weight.type.shape
        m = dy.type.shape[0] // max(prod(stack), 1)
        columns = _transpose_matrix(ctx, ctx.reshape(dy, (*stack, m, n)))
        columns = ctx.reshape(columns, (prod(stack) * n, m))
        product = ctx(Matmul(), columns, _transpose_matrix(ctx, ctx.reshape(x, (*stack, m, k))))
        by_weight = ctx.reshape(product, weight.type.shape)
    return ctx.in_input_order(x=by_x, weight=by_weight)


def _transpose_matrix(ctx: GradientContext, value: Value) -> Value:
    """A matrix, or each of a stack, with its rows as columns."""
    rank = len(value.type.dims)
    return ctx(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)


def pool2d_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Pool2d: average pooling spreads dy over the window, maximum pooling
    adds it at the place of the maximum, for which x and the result are read.
    """
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, Pool2d)
    gradient = Pool2dGradient(operator, (x.type.shape[2], x.type.shape[3]))
    looked_at = (x, ctx.output) if operator.mode == "max" else ()
    return [ctx(gradient, ctx.gradient, *looked_at)]


def subsample_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of Subsample: by each number of a window its share of dy, by the weight
    sums of dy times the means, by the bias sums of dy.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, Subsample)
    x, weight = operands["x"], operands["weight"]
    kh, kw = operator.kernel
    n, c, h, w = x.type.shape
    g = ctx.gradient
    oh, ow = g.type.shape[2:]
    gradients: dict[str, Value | None] = {}
    if ctx.requires_grad(x):
        scaled = ctx.pointwise("a * b * c", g, ctx.reshape(weight, (c, 1, 1)), 1 / (kh * kw))
        apart = ctx.reshape(scaled, (n, c, oh, 1, ow, 1))
        spread = ctx.reshape(ctx(Expand((n, c, oh, kh, ow, kw)), apart), (n, c, oh * kh, ow * kw))
        rest = (0, 0, h - oh * kh, w - ow * kw)
        gradients["x"] = ctx(Pad((0, 0, 0, 0), rest), spread) if any(rest) else spread
    if ctx.requires_grad(weight):
        means = ctx(Pool2d("average", (kh, kw), (kh, kw)), x)
        gradients["weight"] = ctx(Reduce("sum", (0, 2, 3), False, formula("a * b")), g, means)
    if ctx.requires_grad(operands["bias"]):
        gradients["bias"] = ctx(Reduce("sum", (0, 2, 3)), g)
    return ctx.in_input_order(**gradients)


def fold_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of fold: each number gets dy of the place that it was added to."""
    operator = ctx.node.operator
    assert isinstance(operator, FoldWindows)
    return (unfold(ctx, ctx.gradient, operator.windows),)


def batch_norm_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of batch normalisation: by x it is dy less its mean and less its
    projection on x, over the deviation.

    Reference: Ioffe and Szegedy 2015, Batch Normalization, section 3.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, BatchNorm)
    by_y, *by_statistics = ctx.gradients
    if any(by_statistics) or by_y is None:
        raise ctx.no_gradient_error("of its means and variances")
    x, weight = operands["x"], operands.get("weight")
    axes, spread = channel_axes(x.type.shape)
    mean, variance = (ctx.reshape(one, spread) for one in ctx.node.outputs[1:])
    total = ctx(Reduce("sum", axes, True), by_y)
    inner = ctx(Reduce("sum", axes, True, formula("a * (b - c)")), by_y, x, mean)
    gradients: dict[str, Value | None] = {}
    channels = (x.type.shape[1],)
    if ctx.requires_grad(operands.get("bias")):
        gradients["bias"] = ctx.reshape(total, channels)
    if ctx.requires_grad(weight):
        gradients["weight"] = ctx.reshape(
            ctx.pointwise("a * rsqrt(b + c)", inner, variance, operator.eps), channels
        )
    if ctx.requires_grad(x):
        part = 1 / samples_per_channel(x.type.shape)
        by = ctx.pointwise(GRADIENT, by_y, x, mean, variance, total, inner, part, operator.eps)
        if weight is not None:
            by = ctx.pointwise("a * b", by, ctx.reshape(weight, spread))
        gradients["x"] = by
    return ctx.in_input_order(**gradients)


def softmax_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of softmax, y (g - sum(g y)), or of its logarithm, g - exp(y) sum(g), for
    y the result.

    A row of NaN, as one that is masked altogether, gives 0 where nothing depends on it.
    """
    operator = ctx.node.operator
    assert isinstance(operator, Softmax)
    y, g = ctx.output, ctx.gradient
    if operator.log:
        total = ctx(Reduce("sum", (operator.axis,), True), g)
        return (ctx.pointwise("a - exp(b) * c", g, y, total),)
    shape = y.type.shape
    if operator.axis % len(shape) == len(shape) - 1:
        rows = prod(shape[:-1]), shape[-1]
        by_rows = ctx(SoftmaxGradient(), ctx.reshape(g, rows), ctx.reshape(y, rows))
        return (ctx.reshape(by_rows, shape),)
    product = formula("where(equal(a, 0.0), 0.0, a * b)")
    total = ctx(Reduce("sum", (operator.axis,), True, product), g, y)
    return (ctx.pointwise("where(equal(a, c), 0.0, b * (a - c))", g, y, total),)


def normalize_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a normalisation: by x it is dy less its mean and less its projection
    on x, over the deviation.

    Reference: Ioffe and Szegedy 2015, Batch Normalization, section 3, of the rows' own statistics.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, Normalize)
    x, weight, bias = operands["x"], operands.get("weight"), operands.get("bias")
    shape = x.type.shape
    if not prod(shape):
        return ctx.in_input_order(**{n: ctx.zeros(v.type.shape) for n, v in operands.items()})
    apart, axes, others, spread = _normalized_view(operator, shape)
    g, x = ctx.reshape(ctx.gradient, apart), ctx.reshape(x, apart)
    gradients: dict[str, Value | None] = {}
    if bias is not None and ctx.requires_grad(bias):
        gradients["bias"] = ctx.reshape(ctx(Reduce("sum", others), g), bias.type.shape)
    together = (prod(apart[: axes[0]]), prod(apart[axes[0] :]))
    if weight is not None and ctx.requires_grad(weight):
        alone = Normalize(1, centred=operator.centred, eps=operator.eps)
        rows = ctx.reshape(ctx(alone, ctx.reshape(x, together)), apart)
        total = ctx(Reduce("sum", others, False, formula("a * b")), g, rows)
        gradients["weight"] = ctx.reshape(total, weight.type.shape)
    if ctx.requires_grad(operands["x"]):
        by_row = weight is not None and operator.dims is not None
        if weight is not None and not by_row:
            g = ctx.pointwise("a * b", g, ctx.reshape(weight, spread))
        gradient = NormalizeGradient(operator.centred, operator.eps)
        g, x = ctx.reshape(g, together), ctx.reshape(x, together)
        by_x = ctx(gradient, g, ctx.reshape(weight, spread) if by_row and weight else None, x)
        gradients["x"] = ctx.reshape(by_x, shape)
    return ctx.in_input_order(**gradients)


def _normalized_view(
    operator: Normalize, x: Shape
) -> tuple[Shape, tuple[int, ...], tuple[int, ...], Shape]:
    """x in few dimensions, those normalised together, those that a parameter is the same along,
    and the shape of parameters that broadcasts to it.
    """
    if operator.dims is not None:
        rows, extent = operator.grouped_shape(x)
        return (rows, extent), (1,), (0,), (extent,)
    groups = operator.groups or x[1]
    each = x[1] // groups
    return (x[0], groups, each, prod(x[2:])), (2, 3), (0, 3), (groups, each, 1)


def local_response_norm_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of local response normalisation: g d**-beta less 2 alpha beta / size x
    times the sums of g x d**(-beta - 1), where d is k + alpha / size s, over the channels whose
    sums s have x in them.
    """
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, LocalResponseNorm)
    if not prod(x.type.shape):
        return (ctx.zeros(x.type.shape),)
    channels, size = x.type.shape[1], operator.defines({"x": x.type.shape})["SIZE"]
    before, behind = size // 2, (size - 1) // 2
    alpha = operator.alpha / operator.size
    sums = _sum_windows(ctx, ctx.pointwise("a * a", x), channels, before, behind)
    d = ctx.pointwise("b + c * a", sums, operator.k, alpha)
    each = ctx.pointwise("a * b * pow(c, d)", ctx.gradient, x, d, -operator.beta - 1)
    total = _sum_windows(ctx, each, channels, behind, before)
    first = ctx.pointwise("a * pow(b, c)", ctx.gradient, d, -operator.beta)
    return (ctx.pointwise("a - d * b * c", first, x, total, 2 * alpha * operator.beta),)


def _sum_windows(
    ctx: GradientContext, value: Value, channels: int, before: int, behind: int
) -> Value:
    """Sum for each channel those from `before` before it to `behind` behind it."""
    taps = np.arange(-before, behind + 1)[:, None] + np.arange(channels)
    there = (taps >= 0) & (taps < channels)
    index = ctx.constant(np.where(there, taps, 0), DType.int32)
    return ctx(Resample(1), value, index, ctx.constant(there, DType.float32))


def recurrent_step_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a step by the inputs, the weight and the states, from those of the
    new states.

    The sums over the units are products of matrices, one for each direction; what is made of them
    at each unit is pointwise.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, RecurrentStep)
    x, weight, state = operands["x"], operands["weight"], operands["state"]
    d, _, b, i, h = x.type.shape
    g, s = weight.type.shape[1], state.type.shape[3]
    before = [_unpack_state(ctx, state, index, (d, b, h)) for index in range(s)]
    gates = ctx.reshape(weight, (d, g * h, h))
    sums = matmul(ctx, before[operator.summed], gates, transposed=True)
    now = _take_piece(ctx, x, 1, operator.step, (d, b, i, h))
    arguments = [_take_piece(ctx, sums, 2, gate, (d, b, h), h) for gate in range(g)]
    arguments += [_take_piece(ctx, now, 2, one, (d, b, h)) for one in range(i)]
    arguments += before
    new = [
        _zero_padding_units(ctx, _unpack_state(ctx, ctx.gradient, index, (d, b, h)), operator.units)
        for index in range(len(operator.exprs))
    ]
    by = [
        _argument_gradient(ctx, operator.exprs, place, arguments, new)
        for place in range(len(arguments))
    ]
    by_sums = ctx(Concat(2), *by[:g]) if g > 1 else by[0]
    gradients: dict[str, Value | None] = {}
    if ctx.requires_grad(x):
        stacked = ctx(Concat(2), *(ctx.reshape(one, (d, b, 1, h)) for one in by[g : g + i]))
        steps = x.type.shape[1]
        around = (0, operator.step, 0, 0, 0), (0, steps - operator.step - 1, 0, 0, 0)
        gradients["x"] = ctx(Pad(*around), ctx.reshape(stacked, (d, 1, b, i, h)))
    if ctx.requires_grad(weight):
        transposed = ctx(Transpose((0, 2, 1)), by_sums)
        product = matmul(ctx, transposed, before[operator.summed])
        gradients["weight"] = ctx.reshape(product, weight.type.shape)
    if ctx.requires_grad(state):
        states = by[g + i :]
        through = matmul(ctx, by_sums, gates)
        states[operator.summed] = ctx.pointwise("a + b", states[operator.summed], through)
        packed = [ctx.reshape(one, (d, b, h // 4, 1, 4)) for one in states]
        gradients["state"] = ctx(Concat(3), *packed) if s > 1 else packed[0]
    return ctx.in_input_order(**gradients)


def _unpack_state(ctx: GradientContext, packed: Value, index: int, shape: tuple[int, ...]) -> Value:
    """Return state number `index` of packed states."""
    return _take_piece(ctx, packed, 3, index, shape)


def _take_piece(
    ctx: GradientContext, value: Value, axis: int, index: int, shape: tuple[int, ...], size: int = 1
) -> Value:
    """The piece number `index` of `size` places along `axis`, as `shape`."""
    if value.type.shape[axis] != size:
        bounds = (index * size,), ((index + 1) * size,)
        value = ctx(Slice(*bounds, (axis,), (1,)), value)
    return ctx.reshape(value, shape)


def _zero_padding_units(ctx: GradientContext, value: Value, units: int) -> Value:
    """Return `value` with zeros at padding units, whose states are always 0."""
    h = value.type.shape[2]
    if not units or units == h:
        return value
    kept = ctx(Slice((0,), (units,), (2,), (1,)), value)
    return ctx(Pad((0, 0, 0), (0, 0, h - units)), kept)


def _argument_gradient(
    ctx: GradientContext,
    exprs: Sequence[Expr],
    place: int,
    arguments: Sequence[Value],
    new: Sequence[Value],
) -> Value:
    """The gradient by an argument of all expressions."""
    total: Expr | None = None
    for i, expr in enumerate(exprs):
        slope = differentiate_expression(expr, place)
        if slope is not None:
            one = multiply_derivative(slope, Arg(len(arguments) + i))
            total = one if total is None else call("add", total, one)
    if total is None:
        return ctx.zeros(arguments[place].type.shape)
    return ctx.expression(total, *arguments, *new)


RULES: dict[type[Operator], GradientRule] = {
    Conv2d: conv2d_backward,
    Matmul: matmul_backward,
    Pool2d: pool2d_backward,
    Subsample: subsample_backward,
    FoldWindows: fold_backward,
    BatchNorm: batch_norm_backward,
    Softmax: softmax_backward,
    Normalize: normalize_backward,
    LocalResponseNorm: local_response_norm_backward,
    RecurrentStep: recurrent_step_backward,
}
"""Gradient rules by kind of operator."""
