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
    attributes = operator.stride, operator.padding, operator.dilation, operator.groups
    by_x = by_weight = None
    if ctx.requires_grad(x):
        by_x = ctx(Conv2dInputGradient((size[0], size[1]), *attributes), ctx.gradient, weight)
    if ctx.requires_grad(weight):
        gradient = Conv2dWeightGradient((kernel[0], kernel[1]), *attributes)
        by_weight = ctx(gradient, x, ctx.gradient)
    return ctx.in_input_order(x=by_x, weight=by_weight)


def matmul_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a matrix product: by x dy times the weight, by the weight dy
    transposed times x, for each matrix of a batch.

    The products have the shapes of x and of the weight, so that no result is transposed; kernels
    read transposed operands in place.
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
    """Transpose a matrix, or each of a stack."""
    rank = len(value.type.dims)
    return ctx(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)


def pool2d_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Pool2d: average pooling spreads dy over the window, maximum pooling
    adds it at the maximum, which x and the result tell.
    """
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, Pool2d)
    gradient = Pool2dGradient(operator, (x.type.shape[2], x.type.shape[3]))
    operands = (x, ctx.output) if operator.mode == "max" else ()
    return [ctx(gradient, ctx.gradient, *operands)]


def subsample_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of Subsample: by each number of a window its share of dy; by the weight
    the sums of dy times the means; by the bias the sums of dy.
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
        windows = ctx(Expand((n, c, oh, kh, ow, kw)), ctx.reshape(scaled, (n, c, oh, 1, ow, 1)))
        by_x = ctx.reshape(windows, (n, c, oh * kh, ow * kw))
        uncovered = (0, 0, h - oh * kh, w - ow * kw)
        gradients["x"] = ctx(Pad((0, 0, 0, 0), uncovered), by_x) if any(uncovered) else by_x
    if ctx.requires_grad(weight):
        means = ctx(Pool2d("average", (kh, kw), (kh, kw)), x)
        gradients["weight"] = ctx(Reduce("sum", (0, 2, 3), False, formula("a * b")), g, means)
    if ctx.requires_grad(operands["bias"]):
        gradients["bias"] = ctx(Reduce("sum", (0, 2, 3)), g)
    return ctx.in_input_order(**gradients)


def fold_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of fold: each number has dy of the number that it was added to."""
    operator = ctx.node.operator
    assert isinstance(operator, FoldWindows)
    return (unfold(ctx, ctx.gradient, operator.windows),)


def batch_norm_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of batch normalisation: by x, dy less its mean and less its projection
    on x, divided by the deviation.

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
        fraction = 1 / samples_per_channel(x.type.shape)
        statistics = mean, variance, total, inner
        by_x = ctx.pointwise(GRADIENT, by_y, x, *statistics, fraction, operator.eps)
        if weight is not None:
            by_x = ctx.pointwise("a * b", by_x, ctx.reshape(weight, spread))
        gradients["x"] = by_x
    return ctx.in_input_order(**gradients)


def softmax_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of softmax, y (g - sum(g y)), or of its logarithm, g - exp(y) sum(g),
    where y is the result and g is dy.

    A row of NaN, as a wholly masked one gives, has gradients of 0 where dy is 0.
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
    """Return the gradients of a normalisation: by x, dy less its mean and less its projection on x,
    divided by the deviation.

    Reference: Ioffe and Szegedy 2015, Batch Normalization, section 3, of the rows' own statistics.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, Normalize)
    x, weight, bias = operands["x"], operands.get("weight"), operands.get("bias")
    shape = x.type.shape
    if not prod(shape):
        return ctx.in_input_order(**{n: ctx.zeros(v.type.shape) for n, v in operands.items()})
    view, axes, others, spread = _normalized_view(operator, shape)
    g, x = ctx.reshape(ctx.gradient, view), ctx.reshape(x, view)
    gradients: dict[str, Value | None] = {}
    if bias is not None and ctx.requires_grad(bias):
        gradients["bias"] = ctx.reshape(ctx(Reduce("sum", others), g), bias.type.shape)
    matrix = (prod(view[: axes[0]]), prod(view[axes[0] :]))
    if weight is not None and ctx.requires_grad(weight):
        normalize = Normalize(1, centred=operator.centred, eps=operator.eps)
        rows = ctx.reshape(ctx(normalize, ctx.reshape(x, matrix)), view)
        total = ctx(Reduce("sum", others, False, formula("a * b")), g, rows)
        gradients["weight"] = ctx.reshape(total, weight.type.shape)
    if ctx.requires_grad(operands["x"]):
        by_row = weight is not None and operator.dims is not None
        if weight is not None and not by_row:
            g = ctx.pointwise("a * b", g, ctx.reshape(weight, spread))
        gradient = NormalizeGradient(operator.centred, operator.eps)
        g, x = ctx.reshape(g, matrix), ctx.reshape(x, matrix)
        by_x = ctx(gradient, g, ctx.reshape(weight, spread) if by_row and weight else None, x)
        gradients["x"] = ctx.reshape(by_x, shape)
    return ctx.in_input_order(**gradients)


def _normalized_view(
    operator: Normalize, x: Shape
) -> tuple[Shape, tuple[int, ...], tuple[int, ...], Shape]:
    """Return the shape of a view of x, the view's axes that are normalised together, the axes that
    parameters are shared along, and the shape in which parameters broadcast to the view.
    """
    if operator.dims is not None:
        rows, extent = operator.grouped_shape(x)
        return (rows, extent), (1,), (0,), (extent,)
    groups = operator.groups or x[1]
    each = x[1] // groups
    return (x[0], groups, each, prod(x[2:])), (2, 3), (0, 3), (groups, each, 1)


def local_response_norm_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of local response normalisation:
    g d**-beta - (2 alpha beta / size) x sum(g x d**(-beta - 1)).

    g is dy, d is k + (alpha / size) s, s the sum of squares over a window of channels; the sum is
    over the channels whose windows contain x.
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
    terms = ctx.pointwise("a * b * pow(c, d)", ctx.gradient, x, d, -operator.beta - 1)
    total = _sum_windows(ctx, terms, channels, behind, before)
    first = ctx.pointwise("a * pow(b, c)", ctx.gradient, d, -operator.beta)
    return (ctx.pointwise("a - d * b * c", first, x, total, 2 * alpha * operator.beta),)


def _sum_windows(
    ctx: GradientContext, value: Value, channels: int, before: int, behind: int
) -> Value:
    """Sum for each channel the window from `before` channels before it to `behind` behind it."""
    taps = np.arange(-before, behind + 1)[:, None] + np.arange(channels)
    is_inside = (taps >= 0) & (taps < channels)
    index = ctx.constant(np.where(is_inside, taps, 0), DType.int32)
    return ctx(Resample(1), value, index, ctx.constant(is_inside, DType.float32))


def recurrent_step_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a recurrent step by x, weight and state, from those by the new state.

    The sums over units are matrix products, one for each direction; all else is pointwise.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, RecurrentStep)
    x, weight, state = operands["x"], operands["weight"], operands["state"]
    d, _, b, i, h = x.type.shape
    g, s = weight.type.shape[1], state.type.shape[3]
    old_states = [_unpack_state(ctx, state, index, (d, b, h)) for index in range(s)]
    gates = ctx.reshape(weight, (d, g * h, h))
    sums = matmul(ctx, old_states[operator.summed], gates, transposed=True)
    inputs = _take_piece(ctx, x, 1, operator.step, (d, b, i, h))
    arguments = [_take_piece(ctx, sums, 2, gate, (d, b, h), h) for gate in range(g)]
    arguments += [_take_piece(ctx, inputs, 2, index, (d, b, h)) for index in range(i)]
    arguments += old_states
    by_new_states = [
        _zero_padding_units(ctx, _unpack_state(ctx, ctx.gradient, index, (d, b, h)), operator.units)
        for index in range(len(operator.exprs))
    ]
    by_arguments = [
        _argument_gradient(ctx, operator.exprs, index, arguments, by_new_states)
        for index in range(len(arguments))
    ]
    by_sums = ctx(Concat(2), *by_arguments[:g]) if g > 1 else by_arguments[0]
    gradients: dict[str, Value | None] = {}
    if ctx.requires_grad(x):
        by_inputs = by_arguments[g : g + i]
        stacked = ctx(Concat(2), *(ctx.reshape(value, (d, b, 1, h)) for value in by_inputs))
        steps = x.type.shape[1]
        other_steps = (0, operator.step, 0, 0, 0), (0, steps - operator.step - 1, 0, 0, 0)
        gradients["x"] = ctx(Pad(*other_steps), ctx.reshape(stacked, (d, 1, b, i, h)))
    if ctx.requires_grad(weight):
        transposed = ctx(Transpose((0, 2, 1)), by_sums)
        product = matmul(ctx, transposed, old_states[operator.summed])
        gradients["weight"] = ctx.reshape(product, weight.type.shape)
    if ctx.requires_grad(state):
        by_states = by_arguments[g + i :]
        through_sums = matmul(ctx, by_sums, gates)
        summed = by_states[operator.summed]
        by_states[operator.summed] = ctx.pointwise("a + b", summed, through_sums)
        packed = [ctx.reshape(value, (d, b, h // 4, 1, 4)) for value in by_states]
        gradients["state"] = ctx(Concat(3), *packed) if s > 1 else packed[0]
    return ctx.in_input_order(**gradients)


def _unpack_state(ctx: GradientContext, packed: Value, index: int, shape: tuple[int, ...]) -> Value:
    """Return state number `index` of packed states."""
    return _take_piece(ctx, packed, 3, index, shape)


def _take_piece(
    ctx: GradientContext, value: Value, axis: int, index: int, shape: tuple[int, ...], size: int = 1
) -> Value:
    """Return piece number `index` of the pieces of `size` along `axis`, reshaped to `shape`."""
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
    index: int,
    arguments: Sequence[Value],
    by_results: Sequence[Value],
) -> Value:
    """Return the gradient by argument `index` of all expressions.

    by_results: the gradient by the result of each expression.
    """
    total: Expr | None = None
    for i, expr in enumerate(exprs):
        slope = differentiate_expression(expr, index)
        if slope is not None:
            term = multiply_derivative(slope, Arg(len(arguments) + i))
            total = term if total is None else call("add", total, term)
    if total is None:
        return ctx.zeros(arguments[index].type.shape)
    return ctx.expression(total, *arguments, *by_results)


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
