"""Normalisations of ONNX Runtime's operator set, most of a sum (skip connections)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Gather, Normalize, Reduce, Slice
from glnn.onnx.operators.call import (
    MICROSOFT,
    REQUIRED_INT,
    Attributes,
    Converter,
    OperatorCall,
    Signature,
)
from glnn.onnx.operators.reduce import layer_normalization, moments, rms_normalization

EPSILON = 1e-12


def _simplified(call: OperatorCall, x: Value, scale: Value) -> Sequence[Value]:
    """Return the RMS normalisation, and the factor of each row."""
    results = [rms_normalization(call, x, scale)]
    if any(call.used_outputs[1:]):
        widened = call.widened(x)
        axis = call.axis(call.need("axis"), widened)
        axes = tuple(range(axis, len(widened.type.dims)))
        squares = call(Reduce("mean", axes, True, formula("square(a)")), widened)
        results.append(call.pointwise("rsqrt(a + b)", squares, float(call.need("epsilon"))))
    return results


def _sum(call: OperatorCall, x: Value, skip: Value, bias: Value | None) -> Value:
    """Return x + skip + bias. skip: as x, or one sample for all; bias: (size,)."""
    shape, skip_shape = x.type.shape, skip.type.shape
    if skip_shape != shape and (len(shape) != 3 or skip_shape not in ((1, *shape[1:]), shape[1:])):
        raise ShapeError(
            f"{call.name}: skip must be {x.type}, for each sample or all, got {skip_shape}"
        )
    total = call.pointwise("a + b", x, skip)
    return total if bias is None else call.add_bias(total, bias)


def _normalize_sum(
    call: OperatorCall, total: Value, gamma: Value, beta: Value | None, *, centred: bool
) -> tuple[Value, ...]:
    """Return `total` normalised along its last axis, each row's mean and factor, and `total`."""
    for one in (gamma, beta):
        if one is not None and one.type.shape != total.type.shape[-1:]:
            raise ShapeError(
                f"{call.name}: gamma and beta must be {total.type.shape[-1:]}, got {one.type}"
            )
    epsilon = float(call.need("epsilon"))
    y = call(Normalize(dims=1, centred=centred, eps=epsilon), total, gamma, beta)
    mean = factor = total
    if any(call.used_outputs[1:3]):
        mean, variance = moments(call, total, (-1,))
        if not centred:
            variance = call(Reduce("mean", (-1,), True, formula("square(a)")), total)
        factor = call.pointwise("rsqrt(a + b)", variance, epsilon)
    return y, mean, factor, total


def _skip_layer_normalization(
    call: OperatorCall,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
) -> tuple[Value, ...]:
    return _normalize_sum(call, _sum(call, x, skip, bias), gamma, beta, centred=True)


def _skip_simplified_layer_normalization(
    call: OperatorCall, x: Value, skip: Value, gamma: Value, bias: Value | None = None
) -> tuple[Value, ...]:
    return _normalize_sum(call, _sum(call, x, skip, bias), gamma, None, centred=False)


def embedding_rows(
    call: OperatorCall,
    words: Value,
    segments: Value | None,
    word_table: Value,
    position_table: Value,
    segment_table: Value | None,
    positions: Value | None = None,
) -> list[Value]:
    """Return the embeddings of words, positions and, if any, segments."""
    length = words.type.shape[1]
    rows = [call(Gather(0), word_table, words)]
    if positions is None:
        count = position_table.type.shape[0]
        if length > count:
            raise ShapeError(f"{call.name}: {length} tokens, and positions of {count}")
        rows.append(call(Slice((0,), (length,), (0,), (1,)), position_table))
    else:
        rows.append(call(Gather(0), position_table, positions))
    if (segments is None) != (segment_table is None):
        raise ShapeError(f"{call.name}: segment_ids go with segment_embedding")
    if segments is not None and segment_table is not None:
        rows.append(call(Gather(0), segment_table, segments))
    return rows


def normalize_embeddings(
    call: OperatorCall, rows: Sequence[Value], gamma: Value, beta: Value, mask: Value | None
) -> tuple[Value, ...]:
    """Return the normalised sum of `rows`, the number of tokens of each sample, and the sum.

    rows: of `embedding_rows`, as floats. mask: 1 for each token; None to count 0.
    """
    total = rows[0]
    for row in rows[1:]:
        total = call.pointwise("a + b", total, row)
    if mask is None:
        count = call(Expand((total.type.shape[0],)), call.constant(0, np.int32))
    else:
        is_token = call.cast(call.pointwise("equal(a, b)", mask, 1), DType.int32)
        count = call(Reduce("sum", (1,)), is_token)
    y = call(Normalize(dims=1, eps=float(call.need("epsilon"))), total, gamma, beta)
    return y, count, total


def _embed_layer_normalization(
    call: OperatorCall,
    words: Value,
    segments: Value | None,
    word_table: Value,
    position_table: Value,
    segment_table: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    positions: Value | None = None,
) -> tuple[Value, ...]:
    tables = word_table, position_table, segment_table
    rows = embedding_rows(call, words, segments, *tables, positions)
    return normalize_embeddings(call, rows, gamma, beta, mask)


def _group_norm(
    call: OperatorCall,
    x: Value,
    gamma: Value,
    beta: Value,
    skip: Value | None = None,
    bias: Value | None = None,
) -> tuple[Value, ...]:
    """Return the normalised sum of x, `skip` and `bias`, with SiLU if `activation`, and the sum."""
    channels_last, activation = bool(call.need("channels_last")), call.need("activation")
    rank, groups = len(x.type.dims), call.need("groups")
    if rank < 3 or activation not in (0, 1):
        raise ShapeError(
            f"{call.name}: x must have channels and pixels and activation be 0 or 1, got "
            f"{x.type} and {activation}"
        )
    n, channels, ones = x.type.shape[0], x.type.shape[-1 if channels_last else 1], (1,) * (rank - 2)
    if groups < 1:
        raise ShapeError(f"{call.name}: groups must be 1 or more, got {groups}")
    total = x
    if skip is not None:
        broadcast_shape = (n, *ones, channels) if channels_last else (n, channels, *ones)
        if skip.type.shape not in (x.type.shape, broadcast_shape, (n, channels)):
            raise ShapeError(
                f"{call.name}: skip must be {x.type}, or of these sizes {broadcast_shape} or "
                f"{(n, channels)}, got {skip.type}"
            )
        if len(skip.type.dims) == 2:
            skip = call.reshape(skip, broadcast_shape)
        total = call.pointwise("a + b", total, skip)
    if bias is not None:
        call.check_bias_size(bias, channels)
        bias = call.reshape(bias, (channels,) if channels_last else (channels, *ones))
        total = call.pointwise("a + b", total, bias)
    channels_first = call.channels_first(total) if channels_last else total
    y = call(Normalize(groups=groups, eps=float(call.need("epsilon"))), channels_first, gamma, beta)
    if activation:
        y = call.pointwise("silu(a)", y)
    if channels_last:
        y = call.channels_last(y)
    return y, total


def _skip_group_norm(
    call: OperatorCall,
    x: Value,
    gamma: Value,
    beta: Value,
    skip: Value,
    bias: Value | None = None,
) -> tuple[Value, ...]:
    return _group_norm(call, x, gamma, beta, skip, bias)


_LAYER_ATTRIBUTES: Attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
_GROUP_ATTRIBUTES: Attributes = {
    "activation": REQUIRED_INT,
    "channels_last": 1,
    "epsilon": 1e-5,
    "groups": REQUIRED_INT,
}
_halves = partial(Converter, since=1, halves=True, dtypes=frozenset((DType.bfloat16,)))
_row = partial(Converter, since=1, domain=MICROSOFT)
_TOTALS = (0, DType.float32, DType.float32, 0)
ENTRIES = (
    # ONNX Runtime puts these two into ONNX's operator set, the first below version 17.
    _halves(
        "LayerNormalization",
        convert=layer_normalization,
        signature=Signature((2, 3), (1, 3), _LAYER_ATTRIBUTES, (0, DType.float32)),
    ),
    _halves(
        "SimplifiedLayerNormalization",
        convert=_simplified,
        signature=Signature((2, 2), (1, 2), _LAYER_ATTRIBUTES, (1, DType.float32)),
    ),
    _row(
        "SkipLayerNormalization",
        convert=_skip_layer_normalization,
        signature=Signature((3, 5), (1, 4), {"epsilon": EPSILON}, _TOTALS),
    ),
    _row(
        "SkipSimplifiedLayerNormalization",
        convert=_skip_simplified_layer_normalization,
        signature=Signature((3, 4), (1, 4), {"epsilon": EPSILON}, _TOTALS),
    ),
    _row(
        "EmbedLayerNormalization",
        convert=_embed_layer_normalization,
        signature=Signature(
            (7, 9), (1, 3), {"epsilon": EPSILON, "mask_index_type": 0}, (2, DType.int32, 2)
        ),
    ),
    _row(
        "GroupNorm", convert=_group_norm, signature=Signature((3, 3), attributes=_GROUP_ATTRIBUTES)
    ),
    _row(
        "SkipGroupNorm",
        convert=_skip_group_norm,
        signature=Signature((4, 5), (1, 2), _GROUP_ATTRIBUTES),
    ),
)
