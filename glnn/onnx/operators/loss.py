"""Losses, and what classes are compared by."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import ArgReduce, Gather, GatherElements, Reduce, Softmax
from glnn.onnx.operators.call import Call, Converter
from glnn.types import MOST, DType


def _loss(call: Call, scores: Value, target: Value, weight: Value | None) -> Value:
    """Return the negative log-likelihood loss of scores (n, c, ...) for target classes (n, ...).

    weight: of each class, (c,).

    A target that is `ignore_index` has no weight.
    """
    shape = scores.type.shape
    if len(shape) < 2 or target.type.shape != (shape[0], *shape[2:]):
        raise ShapeError(f"{call.name}: a target {target.type} for scores {scores.type}")
    reduction = call.get("reduction", "mean")
    if reduction not in ("none", "mean", "sum"):
        raise ShapeError(f"{call.name}: reduction must be none, mean or sum, got {reduction!r}")
    ignored = call.get("ignore_index", None)
    known = target  # one that is ignored may be no class at all
    if ignored is not None:
        known = call.pointwise("where(equal(a, b), 0, a)", target, ignored)
    index = call.reshape(known, (shape[0], 1, *shape[2:]))
    found = call.reshape(call(GatherElements(1), scores, index), target.type.shape)
    found = call.pointwise("-a", found)
    factor: Value | None = None
    if weight is not None:
        factor = call(Gather(0), weight, known)
    if ignored is not None:
        own: Value | float = 1.0 if factor is None else factor
        factor = call.pointwise("where(equal(a, b), 0.0, c)", target, ignored, own)
    axes = tuple(range(len(target.type.dims)))
    if factor is None:
        if reduction == "none":
            return found
        return call(Reduce("sum" if reduction == "sum" else "mean", axes), found)
    # An ignored score may be infinite, or NaN.
    lost = call.pointwise("where(equal(b, 0.0), 0.0, a * b)", found, factor)
    if reduction == "none":
        return lost
    total = call(Reduce("sum", axes), lost)
    if reduction == "sum":
        return total
    return call.pointwise("a / b", total, call(Reduce("sum", axes), factor))


def _nll(call: Call, scores: Value, target: Value, weight: Value | None = None) -> Value:
    return _loss(call, scores, target, weight)


def _cross_entropy(
    call: Call, scores: Value, target: Value, weight: Value | None = None
) -> tuple[Value, Value]:
    """The loss, and the logarithms of the probabilities."""
    logarithms = call(Softmax(1, True), scores)
    return _loss(call, logarithms, target, weight), logarithms


def _hardmax(call: Call, x: Value) -> Value:
    """1 where the first largest number along the axis lies. Before version 13 all dimensions from
    the axis on are one.
    """
    shape = x.type.shape
    axis = call.axis(call.get("axis", -1 if call.version >= 13 else 1), x)
    if call.version < 13 and axis < len(shape) - 1:
        x = call.reshape(x, (*shape[:axis], int(np.prod(shape[axis:]))))
    first = call(ArgReduce("max", axis, True), x)
    places = np.arange(x.type.shape[axis]).reshape(-1, *(1,) * (len(x.type.dims) - axis - 1))
    found = call.pointwise("equal(a, b)", first, call.constant(places, np.int32))
    return call.reshape(call.cast(found, x.type.dtype), shape)


def _one_hot(call: Call, index: Value, depth: Value, values: Value) -> Value:
    """Return values[1] where an index points along a new axis, values[0] elsewhere."""
    count = int(call.array(depth, "depth").ravel()[0])
    axis = call.axis(call.get("axis", -1), index, 1)
    if index.type.dtype.kind == "float":
        index = call.cast(index, DType.int32)
    shape = index.type.shape
    if not 0 <= count * prod(shape) <= MOST:
        raise ShapeError(f"OneHot: {index.type} of depth {count} would hold more than {MOST}")
    index = call.reshape(index, (*shape[:axis], 1, *shape[axis:]))
    dtype = index.type.dtype
    if dtype not in (DType.int32, DType.int64):
        index = call.cast(index, DType.int32 if dtype.numpy.itemsize < 4 else DType.int64)
    spread = (-1, *(1,) * (len(shape) - axis))
    places = call.count_up(count, index.type.dtype, spread)
    here = call.pointwise("equal(a, b)", index, places)
    if dtype.value.startswith("int"):
        behind = call.pointwise("a - b", places, count)
        here = call.pointwise("logical_or(a, equal(b, c))", here, index, behind)
    off, on = (call(Gather(0), values, call.constant(i, np.int32)) for i in (0, 1))
    return call.pointwise("where(a, b, c)", here, on, off)


ENTRIES = (
    Converter("NegativeLogLikelihoodLoss", 12, _nll),
    Converter("SoftmaxCrossEntropyLoss", 12, _cross_entropy),
    Converter("Hardmax", 1, _hardmax),
    Converter("OneHot", 9, _one_hot, shape_inputs=(1,)),
)
