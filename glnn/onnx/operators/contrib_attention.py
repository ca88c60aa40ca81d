"""Attention of ONNX Runtime's operator set, with masks and packed operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import (
    Concat,
    Expand,
    Gather,
    Slice,
    Softmax,
)
from glnn.onnx.operators.attention import (
    append_past,
    attention_scores,
    merge_heads,
    split_heads,
    weight_values,
)
from glnn.onnx.operators.call import (
    INTS,
    MICROSOFT,
    REQUIRED_INT,
    Attributes,
    Converter,
    OperatorCall,
    Signature,
)

MASKED = -10000.0
"""The default of `mask_filter_value`, which is added to the scores of masked keys."""
LOWEST = -3.4028234663852886e38
"""The lowest number of float32, which ONNX Runtime adds to scores of keys behind the query."""


@dataclass(frozen=True)
class AttentionResult:
    """Results of attention."""

    y: Value
    """The weighted values, (batch, heads, queries, size)."""
    scores: Value
    """The scores before the softmax, (batch, heads, queries, keys)."""
    weights: Value
    """The softmax of the scores."""


def attend(
    call: OperatorCall,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    *,
    softcap: float = 0.0,
    sink: Value | None = None,
) -> AttentionResult:
    """Weight values by the softmax of scaled products of queries and keys.

    q: (batch, heads, queries, size). k, v: (batch, groups, keys, size); heads / groups heads share
    one. bias: is added to scores, broadcasts to them. softcap: scores s become
    softcap tanh(s / softcap); 0 for none. sink: (heads,), the score of a virtual key, which takes
    part in each softmax and has no value.
    """
    heads, size, keys = q.type.shape[1], q.type.shape[3], k.type.shape[2]
    scale = call.get("scale", 0.0) or size**-0.5
    if sink is not None:  # appended as a key and a value of zeros, with the sink as bias
        k, v = (call(Concat(2), one, zero_rows(call, one, 1)) for one in (k, v))
        bias_shape = (1, 1, 1, keys) if bias is None else bias.type.shape
        shape = (bias_shape[0], heads, bias_shape[2], keys)
        key_bias = call.constant(0.0, np.float32) if bias is None else bias
        sink_bias = call(Expand((*shape[:3], 1)), call.reshape(sink, (1, heads, 1, 1)))
        bias = call(Concat(3), call(Expand(shape), key_bias), sink_bias)
    scores = attention_scores(call, q, k, scale)
    if softcap > 0:
        scores = call.pointwise("b * tanh(a / b)", scores, softcap)
    if bias is not None:
        scores = call.pointwise("a + b", scores, bias)
    weights = call(Softmax(-1), scores)
    y = weight_values(call, weights, v)
    if sink is not None:
        scores, weights = (cut(call, one, 0, keys, 3) for one in (scores, weights))
    return AttentionResult(y, scores, weights)


def zero_rows(call: OperatorCall, like: Value, rows: int) -> Value:
    """Return zeros (batch, heads, rows, size), in the sizes of `like`."""
    batch, heads, _, size = like.type.shape
    return call(Expand((batch, heads, rows, size)), call.constant(0.0, np.float32))


def add_terms(call: OperatorCall, *terms: Value | None) -> Value | None:
    """Return the sum of the terms that are not None; None where all are."""
    result: Value | None = None
    for term in terms:
        if term is not None:
            result = term if result is None else call.pointwise("a + b", result, term)
    return result


def check_bias(
    call: OperatorCall, bias: Value | None, batch: int, heads: int, queries: int, keys: int
) -> Value | None:
    """Return `bias`. Raises ShapeError unless it is (batch or 1, heads or 1, queries, keys)."""
    if bias is not None:
        shape = bias.type.shape
        fits = len(shape) == 4 and shape[0] in (1, batch) and shape[1] in (1, heads)
        if not fits or shape[2:] != (queries, keys):
            raise ShapeError(
                f"{call.name}: attention_bias must be ({batch} or 1, {heads} or 1, {queries}, "
                f"{keys}), got {bias.type}"
            )
    return bias


def _causal_bias(
    call: OperatorCall, bias: Value | None, queries: int, keys: int, past: int
) -> Value | None:
    """Return a mask's bias with LOWEST in its place for keys behind the query.

    past: the number of cached keys, which come before the queries'. `bias` itself where
    `unidirectional` is 0 or there are no such keys.
    """
    if queries == 1 or not call.need("unidirectional"):
        return bias
    query = call.count_up(queries, DType.int32, (queries, 1))
    key = call.count_up(keys, DType.int32, (1, keys))
    offset = call.constant(past, np.int32)
    # Not the sum of both, which may be -inf for all keys of a query.
    visible = 0.0 if bias is None else bias
    is_later = call.pointwise("b > a + c", query, key, offset)
    return call.pointwise("where(a, b, c)", is_later, LOWEST, visible)


def mask_bias(
    call: OperatorCall, mask: Value | None, batch: int, queries: int, keys: int
) -> Value | None:
    """Return the bias of an int32 mask, which broadcasts to scores.

    mask: one of: (batch, keys) or (batch, queries, keys), 0 for masked keys; (batch, 1, longest,
    longest), whose last rows are the queries'; (batch,) or (3 batch + 2,), which begins with the
    number of keys of each sample; (2 batch,), these and then the first key of each sample.
    """
    if mask is None:
        return None
    shape, hidden = mask.type.shape, float(call.get("mask_filter_value", MASKED))
    if len(shape) == 1:
        if shape[0] not in (batch, 2 * batch, 3 * batch + 2):
            raise ShapeError(f"{call.name}: a mask {mask.type} for {batch} samples")
        key = call.count_up(keys, DType.int32, (1, 1, 1, keys))
        numbers = [
            call.reshape(cut(call, mask, i * batch, (i + 1) * batch, 0), (-1,))
            for i in range(2 if shape[0] == 2 * batch else 1)
        ]
        bounds = [call.reshape(one, (batch, 1, 1, 1)) for one in numbers]
        if len(bounds) == 1:
            return call.pointwise("where(a < b, 0.0, c)", key, bounds[0], hidden)
        inside = call.pointwise("logical_and(a < b, a >= c)", key, *bounds)
        return call.pointwise("where(a, 0.0, b)", inside, hidden)
    if len(shape) == 4:
        if shape[:2] != (batch, 1) or shape[2] < keys or shape[3] < keys:
            raise ShapeError(f"{call.name}: a mask {mask.type} for {batch} samples, {keys} keys")
        part = Slice((keys - queries, 0), (keys, keys), (2, 3), (1, 1))
        return call.pointwise("where(a > 0, 0.0, b)", call(part, mask), hidden)
    if shape not in ((batch, keys), (batch, queries, keys)):
        raise ShapeError(
            f"{call.name}: a mask of {batch} samples, {queries} queries and {keys} keys, "
            f"got {mask.type}"
        )
    broadcast_shape = (batch, 1, shape[1] if len(shape) == 3 else 1, keys)
    return call.pointwise("where(a > 0, 0.0, b)", call.reshape(mask, broadcast_shape), hidden)


def cut(call: OperatorCall, x: Value, start: int, end: int, axis: int) -> Value:
    """Return the numbers of x from `start` to `end` along an axis."""
    return call(Slice((start,), (end,), (axis,), (1,)), x)


def with_biases(
    call: OperatorCall, query: Value, key: Value, value: Value, bias: Value | None
) -> tuple[Value, Value, Value]:
    """Return query, key and value (batch, length, numbers) plus their parts of `bias`.

    Keys and values of 4 dimensions already include it.
    """
    if bias is None:
        return query, key, value
    hidden = query.type.shape[2]
    total = sum(one.type.shape[2] for one in (query, key, value))
    if len(key.type.dims) == 4:
        total = hidden + 2 * key.type.shape[1] * key.type.shape[3]
    call.check_bias_size(bias, total)
    query = call.pointwise("a + b", query, cut(call, bias, 0, hidden, 0))
    if len(key.type.dims) == 4:
        return query, key, value
    key = call.pointwise("a + b", key, cut(call, bias, hidden, 2 * hidden, 0))
    return query, key, call.pointwise("a + b", value, cut(call, bias, 2 * hidden, total, 0))


def _unpack_operands(
    call: OperatorCall, query: Value, key: Value | None, value: Value | None
) -> tuple[Value, Value, Value]:
    """Return query, key and value as (batch, length, heads * size).

    query: may be all three, (batch, length, heads, 3, size). key: may be key and value, (batch,
    length, heads, 2, size). Key and value (batch, heads, length, size) are returned unchanged.
    """
    if len(query.type.dims) == 5 and key is None and value is None:
        packed, parts = query, 3
    elif key is not None and len(key.type.dims) == 5 and value is None:
        packed, parts = key, 2
    elif key is not None and value is not None:
        if len(key.type.dims) != len(value.type.dims):
            raise ShapeError(
                f"{call.name}: key and value must both have 3 or 4 dimensions, got {key.type} and "
                f"{value.type}"
            )
        return query, key, value
    else:
        raise ShapeError(f"{call.name}: key and value must be there, or be packed in another")
    batch, length, heads, count, size = packed.type.shape
    if count != parts or heads != call.need("num_heads"):
        raise ShapeError(f"{call.name}: {parts} packed operands, got {packed.type}")
    unpacked = [
        call.reshape(cut(call, packed, i, i + 1, 3), (batch, length, heads * size))
        for i in range(parts)
    ]
    if parts == 3:
        return unpacked[0], unpacked[1], unpacked[2]
    return query, unpacked[0], unpacked[1]


def _multi_head_attention(
    call: OperatorCall,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_length: Value | None = None,
    beams: Value | None = None,
) -> tuple[Value, ...]:
    """Return the result, the caches with the new keys and values, and the scores."""
    if past_length is not None or beams is not None:
        raise UnsupportedOpError(f"{call.name}: with past_sequence_length or cache_indirection")
    heads = call.need("num_heads")
    query, key, value = _unpack_operands(call, query, key, value)
    if len(query.type.dims) != 3 or heads < 1:
        raise ShapeError(f"{call.name}: {heads} heads of queries {query.type}")
    batch, queries = query.type.shape[:2]
    query, key, value = with_biases(call, query, key, value, bias)
    if (past_key is None) != (past_value is None):
        raise ShapeError(f"{call.name}: past_key goes with past_value")
    q, k, v = (split_heads(call, one, heads) for one in (query, key, value))
    past = 0 if past_key is None else past_key.type.shape[2]
    keys, values = append_past(call, past_key, k), append_past(call, past_value, v)
    count = keys.type.shape[2]
    bias = mask_bias(call, mask, batch, queries, count)
    bias = _causal_bias(call, bias, queries, count, past)
    attention_bias = check_bias(call, attention_bias, batch, heads, queries, count)
    attended = attend(call, q, keys, values, add_terms(call, bias, attention_bias))
    return merge_heads(call, attended.y), keys, values, attended.scores


def _attention(
    call: OperatorCall,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_length: Value | None = None,
) -> tuple[Value, ...]:
    """Project x to queries, keys and values by `weights`.

    Return the result of attention, and the cache of old and new keys and values, (2, batch, heads,
    keys, size).
    """
    if call.need("do_rotary") or call.need("past_present_share_buffer") or past_length is not None:
        raise UnsupportedOpError(
            f"{call.name}: with do_rotary, past_present_share_buffer or past_sequence_length"
        )
    sizes = _hidden_sizes(call, weights)
    y = matmul(call, x, weights)
    if bias is not None:
        y = call.add_bias(y, bias)
    return self_attention(call, y, sizes, mask, past, attention_bias)


def self_attention(
    call: OperatorCall,
    y: Value,
    sizes: tuple[int, ...],
    mask: Value | None,
    past: Value | None,
    attention_bias: Value | None = None,
) -> tuple[Value, ...]:
    """Return the results of `_attention` for queries, keys and values.

    y: these along the last dimension, (batch, queries, sum of `sizes`).
    """
    heads, (batch, queries, _) = call.need("num_heads"), y.type.shape
    starts = (0, sizes[0], 2 * sizes[0], sum(sizes))
    q, k, v = (split_heads(call, cut(call, y, i, j, 2), heads) for i, j in pairwise(starts))
    past_length = 0
    if past is not None:
        past_length = past.type.shape[3] if len(past.type.dims) == 5 else 0
        expected = (2, batch, heads, past_length, k.type.shape[3])
        if past.type.shape != expected or v.type.shape != k.type.shape:
            raise ShapeError(
                f"{call.name}: past must be (2, {batch}, {heads}, rows, {k.type.shape[3]}) for "
                f"keys {k.type} and values {v.type}, got {past.type}"
            )
        k, v = (
            append_past(call, call.reshape(_unstack(call, past, i), past.type.shape[1:]), one)
            for i, one in enumerate((k, v))
        )
    keys = k.type.shape[2]
    bias = mask_bias(call, mask, batch, queries, keys)
    bias = _causal_bias(call, bias, queries, keys, past_length)
    attention_bias = check_bias(call, attention_bias, batch, heads, queries, keys)
    attended = attend(call, q, k, v, add_terms(call, bias, attention_bias))
    results = [merge_heads(call, attended.y)]
    if any(call.used_outputs[1:]):
        shape = (1, batch, heads, keys, k.type.shape[3])
        results.append(call(Concat(0), *(call.reshape(one, shape) for one in (k, v))))
    return tuple(results)


def _unstack(call: OperatorCall, stack: Value, number: int) -> Value:
    """Return tensor `number` of a stack along the first dimension, which stays as 1."""
    return cut(call, stack, number, number + 1, 0)


def _packed_multi_head_attention(
    call: OperatorCall,
    query: Value,
    key: Value | None,
    value: Value | None,
    bias: Value | None,
    offsets: Value,
    cumulative_lengths: Value,
    attention_bias: Value | None = None,
) -> Value:
    """Attend within packed sequences; the result is (tokens, heads * size).

    query: may be all three operands, (tokens, heads, 3, size). offsets: see `_attend_packed`.
    cumulative_lengths: (sequences + 1,), the first 0.
    """
    query = call.reshape(query, (1, *query.type.shape))
    key, value = (one and call.reshape(one, (1, *one.type.shape)) for one in (key, value))
    query, key, value = _unpack_operands(call, query, key, value)
    query, key, value = with_biases(call, query, key, value, bias)
    return _attend_packed(call, query, key, value, offsets, cumulative_lengths, attention_bias)


def _packed_attention(
    call: OperatorCall,
    x: Value,
    weights: Value,
    bias: Value,
    offsets: Value,
    cumulative_lengths: Value,
    attention_bias: Value | None = None,
) -> Value:
    """Project tokens x (tokens, numbers) by `weights`, and attend within their sequences."""
    if len(x.type.dims) != 2:
        raise ShapeError(f"{call.name}: x must be (tokens, numbers), got {x.type}")
    sizes = _hidden_sizes(call, weights)
    y = call.add_bias(matmul(call, x, weights), bias)
    y = call.reshape(y, (1, *y.type.shape))
    starts = (0, sizes[0], 2 * sizes[0], sum(sizes))
    q, k, v = (cut(call, y, i, j, 2) for i, j in pairwise(starts))
    return _attend_packed(call, q, k, v, offsets, cumulative_lengths, attention_bias)


def _hidden_sizes(call: OperatorCall, weights: Value) -> tuple[int, int, int]:
    """Return the sizes of a token's query, key and value, all heads together."""
    width = weights.type.shape[1]
    sizes = tuple(call.get("qkv_hidden_sizes", (width // 3,) * 3))
    if len(sizes) != 3 or sum(sizes) != width or sizes[0] != sizes[1]:
        raise ShapeError(f"{call.name}: hidden sizes {sizes} of weights {weights.type}")
    return sizes


def _attend_packed(
    call: OperatorCall,
    query: Value,
    key: Value,
    value: Value,
    offsets: Value,
    cumulative_lengths: Value,
    attention_bias: Value | None,
) -> Value:
    """Attend within packed sequences (1, tokens, numbers); the result is (tokens, numbers).

    Each sequence is padded to the longest, so that scores take the square of that length, not of
    the number of tokens. offsets: (sequences, longest), its first numbers are the positions of the
    tokens in the padded rows.
    """
    heads, tokens, (batch, longest) = (
        call.need("num_heads"),
        query.type.shape[1],
        offsets.type.shape,
    )
    if cumulative_lengths.type.shape != (batch + 1,) or tokens > batch * longest:
        raise ShapeError(
            f"{call.name}: {batch} sequences of up to {longest} of {tokens} tokens, with ends "
            f"{cumulative_lengths.type}"
        )
    starts, stops = (
        call.reshape(cut(call, cumulative_lengths, i, i + batch, 0), (batch, 1)) for i in range(2)
    )
    index = call.pointwise("a + b", starts, call.count_up(longest, DType.int32, (1, longest)))
    padding = call.pointwise("where(a < b, 0.0, c)", index, stops, -inf)
    padding = call.reshape(padding, (batch, 1, 1, longest))
    index = call.pointwise("clip(a, 0, b)", index, tokens - 1)

    def pad(x: Value) -> Value:
        numbers = x.type.shape[2]
        rows = call(Gather(0), call.reshape(x, (tokens, numbers)), index)
        return split_heads(call, call.reshape(rows, (batch, longest, numbers)), heads)

    attention_bias = check_bias(call, attention_bias, batch, heads, longest, longest)
    bias = add_terms(call, attention_bias, padding)
    y = merge_heads(call, attend(call, pad(query), pad(key), pad(value), bias).y)
    rows = call.reshape(y, (batch * longest, y.type.shape[2]))
    positions = cut(call, call.reshape(offsets, (batch * longest,)), 0, tokens, 0)
    return call(Gather(0), rows, positions)


ATTRIBUTES: Attributes = {"mask_filter_value": MASKED, "num_heads": REQUIRED_INT, "scale": 0.0}
_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row(
        "MultiHeadAttention",
        convert=_multi_head_attention,
        signature=Signature((1, 10), (1, 4), {**ATTRIBUTES, "unidirectional": 0}),
    ),
    _row(
        "Attention",
        convert=_attention,
        signature=Signature(
            (2, 7),
            (1, 2),
            {
                **ATTRIBUTES,
                "do_rotary": 0,
                "past_present_share_buffer": 0,
                "qkv_hidden_sizes": INTS,
                "rotary_embedding_dim": 0,
                "unidirectional": 0,
            },
        ),
    ),
    _row(
        "PackedMultiHeadAttention",
        convert=_packed_multi_head_attention,
        signature=Signature((6, 7), attributes=ATTRIBUTES),
    ),
    _row(
        "PackedAttention",
        convert=_packed_attention,
        signature=Signature(
            (5, 6), attributes={"num_heads": REQUIRED_INT, "qkv_hidden_sizes": INTS, "scale": 0.0}
        ),
    ),
)
