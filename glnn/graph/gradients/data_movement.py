"""Gradients of moves, views, gathers and scatters: each number of dy is added to its source.

All sums are in a fixed order: the gradient of a gather is a sparse sum, a product or a scatter, and
the kernels of all of these add in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from glnn.core.types import Array, DType
from glnn.graph.compose.matmul import matmul
from glnn.graph.gradients.gradient_context import GradientContext, GradientRule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Detached,
    Expand,
    Flatten,
    Flip,
    Gather,
    GatherElements,
    GatherND,
    Identity,
    Images,
    Pad,
    Rearrange,
    Reduce,
    Reorder,
    Resample,
    Reshape,
    Roll,
    Rows,
    ScatterElements,
    ScatterND,
    Slice,
    Split,
    Squeeze,
    Tile,
    Transpose,
    Unflatten,
    Unsqueeze,
    Within,
)
from glnn.graph.operators.gather import clamp_index
from glnn.graph.operators.scatter import Put, Reduction, ScatterSorted, table

MOST_PADDING = 4  # most entries of a table of sums for each of its used entries


@dataclass(frozen=True)
class SparseMap:
    """A sparse linear map along an axis: triples of source index, result index and weight."""

    sources: Array
    """The index of the source of each triple."""
    results: Array
    """The index of the result of each triple."""
    weights: Array
    """The factor of each triple, float32."""

    @classmethod
    def from_index(cls, index: Array, weights: Array | None = None) -> SparseMap:
        """Return the map of which result i is the weighted sum of the sources `index[:, i]`.

        index: (taps, results), negative for no source. weights: of the same shape; None: 1.
        """
        results = np.broadcast_to(np.arange(index.shape[1]), index.shape)
        weights = np.ones(index.shape, np.float32) if weights is None else weights
        used = (index >= 0) & (weights != 0)
        return cls(index[used], results[used], weights[used])


def scatter_add(
    ctx: GradientContext, x: Value, axis: int, sparse_map: SparseMap, size: int
) -> Value:
    """Apply the transpose of `sparse_map` to `x` along `axis`: each number is added, in order, to
    the sources of its result, of which there are `size`.
    """
    shape = x.type.shape
    if not sparse_map.sources.size or not prod(shape):
        return ctx.zeros((*shape[:axis], size, *shape[axis + 1 :]))
    order = np.argsort(sparse_map.sources, kind="stable")
    counts = np.bincount(sparse_map.sources, minlength=size)
    most = int(counts.max())
    if most * size > MOST_PADDING * max(order.size, size) and (sparse_map.weights == 1).all():
        return _add_by_scatter(ctx, x, axis, sparse_map, size)
    sources = sparse_map.sources[order]
    taps = np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)
    index, weights = np.zeros((most, size), np.int32), np.zeros((most, size), np.float32)
    index[taps, sources] = sparse_map.results[order]
    weights[taps, sources] = sparse_map.weights[order]
    operands = ctx.constant(index, DType.int32), ctx.constant(weights, DType.float32)
    return ctx(Resample(axis), x, *operands)


def _add_by_scatter(
    ctx: GradientContext, gradient: Value, axis: int, sparse_map: SparseMap, size: int
) -> Value:
    """Compute `scatter_add` by ScatterSorted, where some sources have many more results than others
    and all weights are 1.
    """
    shape = gradient.type.shape
    before, behind = prod(shape[:axis]), prod(shape[axis + 1 :])
    rows = ctx.reshape(gradient, (before, shape[axis], behind))
    rows = ctx.reshape(ctx(Transpose((1, 0, 2)), rows), (shape[axis], before * behind))
    starts = table(sparse_map.sources, size)
    # The updates are rows of dy: of each result that has a source.
    starts[size + 1 :] = sparse_map.results[starts[size + 1 :]]
    index = ctx.constant(starts, DType.int32)
    zeros = ctx.zeros((size, before * behind))
    sums = ctx(ScatterSorted(1, "add"), zeros, index, rows)
    sums = ctx(Transpose((1, 0, 2)), ctx.reshape(sums, (size, before, behind)))
    return ctx.reshape(sums, (*shape[:axis], size, *shape[axis + 1 :]))


MOST_ONE_HOT = 1 << 20  # numbers of a one-hot matrix of indices


def gather_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of Gather: each number of dy is added to the number that was gathered.

    Constant indices give a sparse sum. Other indices give the product of their one-hot matrix by
    dy, up to `MOST_ONE_HOT` numbers, else a scatter. So rows of an embedding are added in the order
    of their indices.
    """
    operator, x, index = ctx.node.operator, ctx.operands["x"], ctx.operands["index"]
    assert isinstance(operator, Gather)
    shape = x.type.shape
    axis = operator.axis % len(shape)
    before, size, behind = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    count = prod(index.type.shape)
    if not before * size * behind * count:
        return (ctx.zeros(shape), None)
    dy = ctx.reshape(ctx.gradient, (before, count, behind))
    if isinstance(index.data, np.ndarray):
        sparse_map = SparseMap.from_index(clamp_index(index.data, (size,)).reshape(1, -1))
        return (ctx.reshape(scatter_add(ctx, dy, 1, sparse_map, size), shape), None)
    if before > 1:
        dy = ctx(Transpose((1, 0, 2)), dy)
    dy = ctx.reshape(dy, (count, before * behind))
    if size * count <= MOST_ONE_HOT:
        gradient = matmul(ctx, _one_hot(ctx, index, size), dy)
    else:
        zeros = ctx.zeros((size, before * behind))
        gradient = ctx(ScatterND("add"), zeros, ctx.reshape(index, (count, 1)), dy)
    if before > 1:
        gradient = ctx(Transpose((1, 0, 2)), ctx.reshape(gradient, (size, before, behind)))
    return (ctx.reshape(gradient, shape), None)


def _one_hot(ctx: GradientContext, index: Value, size: int) -> Value:
    """Return the one-hot matrix (size, indices): 1 where an index equals the row, else 0."""
    flat = ctx.reshape(index, (prod(index.type.shape),))
    rows = ctx.constant(np.arange(size)[:, None], index.type.dtype)
    is_equal = "where(equal(clip(where(a < 0, a + c, a), 0, d), b), 1.0, 0.0)"
    return ctx.pointwise(is_equal, flat, rows, size, size - 1)


def gather_elements_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of GatherElements: dy scattered and added up, in order."""
    operator, x, index = ctx.node.operator, ctx.operands["x"], ctx.operands["index"]
    assert isinstance(operator, GatherElements)
    scatter = ScatterElements(operator.axis, "add")
    return (ctx(scatter, ctx.zeros(x.type.shape), index, ctx.gradient), None)


def gather_nd_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of GatherND: slices of dy scattered and added up, in order."""
    operator, x, index = ctx.node.operator, ctx.operands["x"], ctx.operands["index"]
    assert isinstance(operator, GatherND)
    if operator.batch:
        index = _prepend_batch_indices(ctx, index, operator.batch)
    return (ctx(ScatterND("add"), ctx.zeros(x.type.shape), index, ctx.gradient), None)


def _prepend_batch_indices(ctx: GradientContext, index: Value, batch: int) -> Value:
    """Prepend the indices of the first `batch` dimensions to tuples of indices."""
    shape = index.type.shape
    batch_indices = np.indices(shape[:-1])[:batch]
    first = np.moveaxis(batch_indices, 0, -1).astype(index.type.dtype.numpy)
    if isinstance(index.data, np.ndarray):
        return ctx.constant(np.concatenate([first, index.data], -1), index.type.dtype)
    return ctx(Concat(len(shape) - 1), ctx.constant(first, index.type.dtype), index)


def resample_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Resample: each number of dy, times its weights, is added to the
    numbers of x that it was computed from.
    """
    operator, operands = ctx.node.operator, ctx.operands
    assert isinstance(operator, Resample)
    x, index, weight = operands["x"], operands["index"].data, operands["weight"].data
    if ctx.requires_grad(operands["weight"]):
        raise ctx.no_gradient_error("weights are constants")
    if not isinstance(index, np.ndarray) or not isinstance(weight, np.ndarray):
        raise ctx.no_gradient_error("index and weight must be constants")
    axis = operator.axis % len(x.type.dims)
    size = x.type.shape[axis]
    sparse_map = SparseMap.from_index(np.clip(index, 0, size - 1), weight)
    return (scatter_add(ctx, ctx.gradient, axis, sparse_map, size), None, None)


def transpose_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Transpose: dy by the inverse permutation."""
    operator = ctx.node.operator
    assert isinstance(operator, Transpose)
    rank = len(operator.perm)
    order = [axis % rank for axis in operator.perm]
    inverse = tuple(sorted(range(rank), key=order.__getitem__))
    return (ctx(Transpose(inverse), ctx.gradient) if rank else ctx.gradient,)


def expand_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Expand: dy summed over the axes that were broadcast."""
    return (ctx.sum_to(ctx.gradient, ctx.operands["x"].type.shape),)


def slice_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Slice: dy with zeros before, behind and between its numbers."""
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, Slice)
    shape, gradient = x.type.shape, ctx.gradient
    axes = [factors[0] for factors in operator.map(shape).dims]
    flipped = tuple(i for i, axis in enumerate(axes) if axis.step < 0)
    if not prod(gradient.type.shape):
        return (ctx.zeros(shape),)
    if flipped:
        gradient = ctx(Flip(flipped), gradient)
    before, after = [0] * len(shape), [0] * len(shape)
    for i, axis in enumerate(axes):
        step = abs(axis.step)
        first = min(axis.start, axis.start + (axis.size - 1) * axis.step)
        if step > 1 and axis.size > 1:
            gradient = _insert_zeros(ctx, gradient, i, step)
        before[i], after[i] = first, shape[i] - first - gradient.type.shape[i]
    return (_pad_with_zeros(ctx, gradient, before, after),)


def _insert_zeros(ctx: GradientContext, value: Value, axis: int, step: int) -> Value:
    """Insert step - 1 zeros behind each number of `value` along `axis`."""
    shape = value.type.shape
    before, behind = prod(shape[:axis]), prod(shape[axis + 1 :])
    rows = ctx.reshape(value, (before * shape[axis], 1, behind))
    padded = ctx(Pad((0, 0, 0), (0, step - 1, 0)), rows)
    return ctx.reshape(padded, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))


def _pad_with_zeros(
    ctx: GradientContext, value: Value, before: Sequence[int], after: Sequence[int]
) -> Value:
    """Pad `value` with zeros, or crop it where a number is negative."""
    needed = any(before) or any(after)
    return ctx(Pad(tuple(before), tuple(after)), value) if needed else value


def flip_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Flip: dy flipped again."""
    return (ctx(ctx.node.operator, ctx.gradient),)


def roll_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Roll: dy rolled back."""
    operator = ctx.node.operator
    assert isinstance(operator, Roll)
    return (ctx(Roll(tuple(-n for n in operator.shifts), operator.axes), ctx.gradient),)


def pad_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Pad: dy without the padding, where that is a constant; else the sum of
    dy over all copies of each number of x.
    """
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, Pad)
    gradient = ctx.gradient
    pairs = list(zip(operator.before, operator.after, strict=True))
    if operator.edge == "constant":
        return (_pad_with_zeros(ctx, gradient, [-b for b, _ in pairs], [-a for _, a in pairs]),)
    for i, (before, after) in enumerate(pairs):
        if before or after:
            size = x.type.shape[i]
            index = Pad((before,), (after,), operator.edge).move(np.arange(size))
            gradient = scatter_add(ctx, gradient, i, SparseMap.from_index(index[None]), size)
    return (gradient,)


def tile_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Tile: the sum of dy over all repetitions."""
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, Tile)
    shape = list(ctx.gradient.type.shape)
    gradient = ctx.gradient
    for i, (count, size) in enumerate(zip(operator.repeats, x.type.shape, strict=True)):
        if count != 1:
            before, behind = prod(shape[:i]), prod(shape[i + 1 :])
            shape[i] = size
            repetitions = ctx.reshape(gradient, (before, count, size * behind))
            gradient = ctx.reshape(ctx(Reduce("sum", (1,)), repetitions), tuple(shape))
    return (gradient,)


def rearrange_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Rearrange: of each number of x the sum of dy over its copies."""
    operator = ctx.node.operator
    assert isinstance(operator, Rearrange)
    size = prod(operator.shape)
    index = operator.move(np.arange(1, size + 1).reshape(operator.shape)) - 1
    row = ctx.reshape(ctx.gradient, (index.size,))
    gradient = scatter_add(ctx, row, 0, SparseMap.from_index(index.reshape(1, -1)), size)
    return (ctx.reshape(gradient, operator.shape),)


def concat_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of Concat: the piece of dy that came from each operand."""
    operator = ctx.node.operator
    assert isinstance(operator, Concat)
    result: list[Value | None] = []
    start = 0
    for value in ctx.node.inputs:
        assert value is not None
        end = start + value.type.shape[operator.axis]
        cut = Slice((start,), (end,), (operator.axis,), (1,))
        result.append(ctx(cut, ctx.gradient) if ctx.requires_grad(value) else None)
        start = end
    return result


def split_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Split: the gradients by all pieces, concatenated; zeros where nothing
    depends on a piece.
    """
    operator = ctx.node.operator
    assert isinstance(operator, Split)
    outputs = ctx.node.outputs
    pieces = [
        ctx.zeros(value.type.shape) if gradient is None else gradient
        for gradient, value in zip(ctx.gradients, outputs, strict=True)
    ]
    return (ctx(Concat(operator.axis), *pieces) if len(pieces) > 1 else pieces[0],)


GatherUpdates = Callable[[Value], Value]
"""Function that gathers, for each update, the number of a tensor like x at its index."""
ScatterUpdates = Callable[[Reduction, Value, Value], Value]
"""Function that scatters updates into a tensor like x, with a reduction."""


def scatter_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a scatter: each update has dy at its index.

    Of several updates at an index, the last has dy where updates replace, and all have it where
    they are added; equal extremes share it evenly; of a product each has dy times the others.
    """
    operands = ctx.operands
    x, index, updates = operands["x"], operands["index"], operands["updates"]
    operator = ctx.node.operator
    assert isinstance(operator, Put)
    if not prod(updates.type.shape):
        return (ctx.gradient, None, ctx.zeros(updates.type.shape))
    gather, scatter = _access_functions(ctx, index, updates)
    by_x, by_updates = SCATTER_GRADIENTS[operator.reduction](ctx, x, updates, gather, scatter)
    return ctx.in_input_order(x=by_x, updates=by_updates)


Pair = tuple[Value, Value]


def _overwrite_gradients(
    ctx: GradientContext, x: Value, updates: Value, gather: GatherUpdates, scatter: ScatterUpdates
) -> Pair:
    shape = updates.type.shape
    by_x = scatter("none", ctx.gradient, ctx.zeros(shape))
    numbers = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    update_numbers = ctx.constant(numbers, DType.int32)
    zeros = ctx.constant(np.zeros(x.type.shape, np.int32), DType.int32)
    last = gather(scatter("none", zeros, update_numbers))  # the number of the last update there
    by_updates = ctx.pointwise(
        "where(equal(a, b), c, 0.0)", last, update_numbers, gather(ctx.gradient)
    )
    return by_x, by_updates


def _add_gradients(
    ctx: GradientContext, x: Value, updates: Value, gather: GatherUpdates, scatter: ScatterUpdates
) -> Pair:
    return ctx.gradient, gather(ctx.gradient)


def _multiply_gradients(
    ctx: GradientContext, x: Value, updates: Value, gather: GatherUpdates, scatter: ScatterUpdates
) -> Pair:
    """Return the gradients of a product: dy times the product of all other factors, computed from
    the product of all factors but zeros and the number of zeros.
    """
    nonzero = "where(equal(a, 0.0), 1.0, a)"
    product = scatter("mul", ctx.pointwise(nonzero, x), ctx.pointwise(nonzero, updates))
    is_zero = "where(equal(a, 0.0), 1.0, 0.0)"
    zeros = scatter("add", ctx.pointwise(is_zero, x), ctx.pointwise(is_zero, updates))
    scaled = ctx.pointwise("a * b", product, ctx.gradient)

    def gradient_by(factor: Value, scaled: Value, zeros: Value) -> Value:
        text = (
            "where(equal(a, 0.0), where(equal(c, 1.0), b, 0.0), where(equal(c, 0.0), b / a, 0.0))"
        )
        return ctx.pointwise(text, factor, scaled, zeros)

    return gradient_by(x, scaled, zeros), gradient_by(updates, gather(scaled), gather(zeros))


def _extreme_gradients(
    ctx: GradientContext, x: Value, updates: Value, gather: GatherUpdates, scatter: ScatterUpdates
) -> Pair:
    """Return the gradients of a maximum or minimum: equal extremes share dy evenly, as in
    torch.scatter_reduce.
    """
    is_equal = "where(equal(a, b), 1.0, 0.0)"
    x_mask = ctx.pointwise(is_equal, x, ctx.output)
    update_mask = ctx.pointwise(is_equal, updates, gather(ctx.output))
    count = scatter("add", x_mask, update_mask)
    share = ctx.pointwise("a / maximum(b, 1.0)", ctx.gradient, count)
    by_x = ctx.pointwise("a * b", x_mask, share)
    return by_x, ctx.pointwise("a * b", update_mask, gather(share))


SCATTER_GRADIENTS = {
    "none": _overwrite_gradients,
    "add": _add_gradients,
    "mul": _multiply_gradients,
    "max": _extreme_gradients,
    "min": _extreme_gradients,
}


def _access_functions(
    ctx: GradientContext, index: Value, updates: Value
) -> tuple[GatherUpdates, ScatterUpdates]:
    """Return functions that gather at the operator's indices, and that scatter updates to them."""
    operator = ctx.node.operator
    match operator:
        case ScatterElements(axis=axis):
            return (
                lambda value: ctx(GatherElements(axis), value, index),
                lambda reduction, x, new: ctx(ScatterElements(axis, reduction), x, index, new),
            )
        case ScatterND():
            return (
                lambda value: ctx(GatherND(), value, index),
                lambda reduction, x, new: ctx(ScatterND(reduction), x, index, new),
            )
    assert isinstance(operator, ScatterSorted)
    leading, shape = operator.leading, ctx.operands["x"].type.shape
    count = prod(shape[:leading])
    if not isinstance(index.data, np.ndarray):
        raise ctx.no_gradient_error("index must be a constant")
    starts, order = index.data[: count + 1], index.data[count + 1 :]
    row_of_update = np.empty(order.size, np.int32)
    row_of_update[order] = np.repeat(np.arange(count, dtype=np.int32), np.diff(starts))
    row_index = ctx.constant(row_of_update, DType.int32)

    def gather_updates(value: Value) -> Value:
        rows = ctx(Reshape((count, *shape[leading:]), True), value)
        return ctx.reshape(ctx(Gather(0), rows, row_index), updates.type.shape)

    def scatter_updates(reduction: Reduction, x: Value, new: Value) -> Value:
        return ctx(ScatterSorted(leading, reduction), x, index, new)

    return gather_updates, scatter_updates


def reshape_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return dy in the operand's shape."""
    (x,) = ctx.node.inputs
    assert x is not None
    return (ctx.reshape(ctx.gradient, x.type.shape),)


def identity_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return dy itself."""
    return (ctx.gradient,)


def detached_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return no gradient: the operand counts as a constant."""
    return (None,)


def rows_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of Rows: channels of each pixel back to images."""
    n, c, h, w = ctx.operands["x"].type.shape
    return (ctx(Transpose((0, 3, 1, 2)), ctx.reshape(ctx.gradient, (n, h, w, c))),)


def images_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of a view as images: a matrix of a row, or a column, for each pixel."""
    operator = ctx.node.operator
    assert isinstance(operator, Images)
    perm = (1, 0, 2, 3) if operator.transposed else (0, 2, 3, 1)
    transposed = ctx(Transpose(perm), ctx.gradient)
    return (ctx.reshape(transposed, ctx.operands["x"].type.shape),)


RULES: dict[type[Operator], GradientRule] = {
    Gather: gather_backward,
    GatherElements: gather_elements_backward,
    GatherND: gather_nd_backward,
    Resample: resample_backward,
    Transpose: transpose_backward,
    Expand: expand_backward,
    Slice: slice_backward,
    Flip: flip_backward,
    Roll: roll_backward,
    Pad: pad_backward,
    Tile: tile_backward,
    Rearrange: rearrange_backward,
    Concat: concat_backward,
    Split: split_backward,
    **dict.fromkeys((ScatterElements, ScatterND, ScatterSorted), scatter_backward),
    **dict.fromkeys((Reshape, Flatten, Squeeze, Unflatten, Unsqueeze), reshape_backward),
    **dict.fromkeys((Identity, Within, Reorder), identity_backward),
    Detached: detached_backward,
    Rows: rows_backward,
    Images: images_backward,
}
"""Gradient rules by kind of operator."""
