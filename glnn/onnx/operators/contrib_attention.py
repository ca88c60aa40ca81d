"""Attention of ONNX Runtime's operator set: with packed operands, masks, caches and rotations."""

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
    GatherElements,
    Normalize,
    ScatterElements,
    Slice,
    Softmax,
    Transpose,
)
from glnn.onnx.operators.attention import (
    append_past,
    attention_scores,
    merge_heads,
    rotate,
    split_heads,
    weight_values,
)
from glnn.onnx.operators.call import (
    MICROSOFT,
    Attribute,
    Attributes,
    Converter,
    OperatorCall,
    Signature,
)

MASKED = -10000.0
"""What is added to the score of a key that a mask hides, unless the node says otherwise."""
LOWEST = -3.4028234663852886e38
"""The least number of float32: what is added to scores of later keys, as ONNX Runtime does it."""


def _rotary_embedding(
    call: OperatorCall, x: Value, positions: Value, cos: Value, sin: Value
) -> Value:
    """Rotate x (batch, heads, length, size) or (batch, length, heads size).

    positions: (batch, length), or (1,), that of the first token. cos, sin: (positions, half of
    what is turned).
    """
    shape, turned = x.type.shape, 2 * cos.type.shape[-1]
    packed = len(shape) == 3
    if packed:
        heads = call.need("num_heads")
        size = shape[2] // heads if heads else turned
        if shape[2] % max(size, 1) or size < turned:
            raise ShapeError(f"{call.name}: {turned} numbers of {heads} heads of {x.type}")
        x = call.reshape(x, (*shape[:2], shape[2] // size, size))
    if len(x.type.dims) != 4 or x.type.shape[3] < turned:
        raise ShapeError(
            f"{call.name}: x must have 3 or 4 dimensions and {turned} numbers a head, got {x.type}"
        )
    length = shape[1] if packed else shape[2]
    if len(positions.type.dims) < 2:
        first = call.reshape(call.cast(positions, DType.int32), (1, 1))
        behind = call.count_up(length, DType.int32, (1, length))
        positions = call.pointwise("a + b", first, behind)
    cos, sin = (call(Gather(0), one, positions) for one in (cos, sin))
    y = rotate(call, x, cos, sin, packed=packed, interleaved=bool(call.need("interleaved")))
    return call.reshape(y, shape)


@dataclass(frozen=True)
class _Attended:
    """What attention computes."""

    y: Value
    """The weighted values, (batch, heads, queries, size)."""
    scores: Value
    """The scores before the softmax, (batch, heads, queries, keys)."""
    weights: Value
    """The scores behind the softmax."""


def _attend(
    call: OperatorCall,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    *,
    softcap: float = 0.0,
    sink: Value | None = None,
) -> _Attended:
    """Weight values by the softmax of scaled products of queries and keys.

    q: (batch, heads, queries, size). k, v: (batch, groups, keys, size), with fewer heads where
    several share one. bias: is added to scores, broadcasts to them. softcap: scores s become
    softcap tanh(s / softcap); 0 for none. sink: (heads,), a score of no key, which takes a part of
    each softmax.
    """
    heads, size, keys = q.type.shape[1], q.type.shape[3], k.type.shape[2]
    scale = call.get("scale", 0.0) or size**-0.5
    if sink is not None:  # a key and a value of zeros more, with the sink as bias
        k, v = (call(Concat(2), one, _zeros(call, one, 1)) for one in (k, v))
        first = (1, 1, 1, keys) if bias is None else bias.type.shape
        shape = (first[0], heads, first[2], keys)
        known = call.constant(0.0, np.float32) if bias is None else bias
        last = call(Expand((*shape[:3], 1)), call.reshape(sink, (1, heads, 1, 1)))
        bias = call(Concat(3), call(Expand(shape), known), last)
    scores = attention_scores(call, q, k, scale)
    if softcap > 0:
        scores = call.pointwise("b * tanh(a / b)", scores, softcap)
    if bias is not None:
        scores = call.pointwise("a + b", scores, bias)
    weights = call(Softmax(-1), scores)
    y = weight_values(call, weights, v)
    if sink is not None:
        scores, weights = (_cut(call, one, 0, keys, 3) for one in (scores, weights))
    return _Attended(y, scores, weights)


def _zeros(call: OperatorCall, like: Value, rows: int) -> Value:
    """Return zeros as `like` (batch, heads, length, size), with `rows` for its length."""
    batch, heads, _, size = like.type.shape
    return call(Expand((batch, heads, rows, size)), call.constant(0.0, np.float32))


def _add(call: OperatorCall, *terms: Value | None) -> Value | None:
    """Return the sum of those terms that are there; None where none is."""
    result: Value | None = None
    for one in terms:
        if one is not None:
            result = one if result is None else call.pointwise("a + b", result, one)
    return result


def _causal_bias(call: OperatorCall, queries: int, keys: int, past: int) -> Value | None:
    """Return 0 for each query's keys up to its own, the `past` ones first, and LOWEST for later
    ones; None where there are none.
    """
    if queries == 1:
        return None
    own = call.count_up(queries, DType.int32, (queries, 1))
    key = call.count_up(keys, DType.int32, (1, keys))
    last = call.constant(past, np.int32)
    return call.pointwise("where(b > a + c, d, 0.0)", own, key, last, LOWEST)


def _mask_bias(
    call: OperatorCall, mask: Value | None, batch: int, queries: int, keys: int
) -> Value | None:
    """Return what a mask of int32 adds to scores, as it broadcasts to them.

    mask: (batch, keys) or (batch, queries, keys) with 0 for hidden keys; (batch, 1, longest,
    longest), of which the rows of the last queries are taken; (batch,), (2 batch,) or (3 batch +
    2,) with the numbers of keys and, of 2 batch, the first key of each sample behind them.
    """
    if mask is None:
        return None
    shape, hidden = mask.type.shape, float(call.get("mask_filter_value", MASKED))
    if len(shape) == 1:
        if shape[0] not in (batch, 2 * batch, 3 * batch + 2):
            raise ShapeError(f"{call.name}: a mask {mask.type} for {batch} samples")
        key = call.count_up(keys, DType.int32, (1, 1, 1, keys))
        parts = [
            call.reshape(_cut(call, mask, i * batch, (i + 1) * batch, 0), (-1,))
            for i in range(2 if shape[0] == 2 * batch else 1)
        ]
        ends = [call.reshape(one, (batch, 1, 1, 1)) for one in parts]
        if len(ends) == 1:
            return call.pointwise("where(a < b, 0.0, c)", key, ends[0], hidden)
        inside = call.pointwise("logical_and(a < b, a >= c)", key, *ends)
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
    spread = (batch, 1, shape[1] if len(shape) == 3 else 1, keys)
    return call.pointwise("where(a > 0, 0.0, b)", call.reshape(mask, spread), hidden)


def _cut(call: OperatorCall, x: Value, start: int, end: int, axis: int) -> Value:
    """Return the numbers of x from `start` to `end` along an axis."""
    return call(Slice((start,), (end,), (axis,), (1,)), x)


def _with_biases(
    call: OperatorCall, query: Value, key: Value, value: Value, bias: Value | None
) -> tuple[Value, Value, Value]:
    """Return query, key and value (batch, length, numbers) with their parts of `bias` added; keys
    and values of 4 dimensions have it already.
    """
    if bias is None:
        return query, key, value
    hidden, (total,) = query.type.shape[2], bias.type.shape
    query = call.pointwise("a + b", query, _cut(call, bias, 0, hidden, 0))
    if len(key.type.dims) == 4:
        return query, key, value
    key = call.pointwise("a + b", key, _cut(call, bias, hidden, 2 * hidden, 0))
    return query, key, call.pointwise("a + b", value, _cut(call, bias, 2 * hidden, total, 0))


def _unpacked(
    call: OperatorCall, query: Value, key: Value | None, value: Value | None
) -> tuple[Value, Value, Value]:
    """Return query, key and value as (batch, length, heads size), or key and value (batch, heads,
    length, size) as they are.

    query: may be (batch, length, heads, 3, size), all three; key (batch, length, heads, 2, size),
    key and value.
    """
    if len(query.type.dims) == 5 and key is None and value is None:
        packed, parts = query, 3
    elif key is not None and len(key.type.dims) == 5 and value is None:
        packed, parts = key, 2
    elif key is not None and value is not None:
        return query, key, value
    else:
        raise ShapeError(f"{call.name}: key and value must be there, or be packed in another")
    batch, length, heads, count, size = packed.type.shape
    if count != parts or heads != call.need("num_heads"):
        raise ShapeError(f"{call.name}: {parts} packed operands, got {packed.type}")
    last = [
        call.reshape(_cut(call, packed, i, i + 1, 3), (batch, length, heads * size))
        for i in range(parts)
    ]
    return (last[0], last[1], last[2]) if parts == 3 else (query, last[0], last[1])


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
    """Return the attended values, keys and values of before and now, and the scores."""
    if past_length is not None or beams is not None:
        raise UnsupportedOpError(f"{call.name}: with past_sequence_length or cache_indirection")
    heads = call.need("num_heads")
    query, key, value = _unpacked(call, query, key, value)
    if len(query.type.dims) != 3 or heads < 1:
        raise ShapeError(f"{call.name}: {heads} heads of queries {query.type}")
    batch, queries = query.type.shape[:2]
    query, key, value = _with_biases(call, query, key, value, bias)
    if (past_key is None) != (past_value is None):
        raise ShapeError(f"{call.name}: past_key goes with past_value")
    q, k, v = (split_heads(call, one, heads) for one in (query, key, value))
    past = 0 if past_key is None else past_key.type.shape[2]
    keys, values = append_past(call, past_key, k), append_past(call, past_value, v)
    count = keys.type.shape[2]
    causal = _causal_bias(call, queries, count, past) if call.need("unidirectional") else None
    hiding = _mask_bias(call, mask, batch, queries, count)
    attended = _attend(call, q, keys, values, _add(call, hiding, causal, attention_bias))
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
    """Project x to queries, keys and values by `weights`, and return the attended values, and the
    keys and values of before and now, (2, batch, heads, keys, size).
    """
    if call.need("do_rotary") or call.need("past_present_share_buffer") or past_length is not None:
        raise UnsupportedOpError(
            f"{call.name}: with do_rotary, past_present_share_buffer or past_sequence_length"
        )
    heads, (batch, queries, _), width = call.need("num_heads"), x.type.shape, weights.type.shape[1]
    sizes = tuple(call.get("qkv_hidden_sizes", (width // 3,) * 3))
    if len(sizes) != 3 or sum(sizes) != width or sizes[0] != sizes[1]:
        raise ShapeError(f"{call.name}: hidden sizes {sizes} of weights {weights.type}")
    y = matmul(call, x, weights)
    if bias is not None:
        y = call.pointwise("a + b", y, bias)
    starts = (0, sizes[0], 2 * sizes[0], width)
    q, k, v = (split_heads(call, _cut(call, y, i, j, 2), heads) for i, j in pairwise(starts))
    before = 0
    if past is not None:
        before = past.type.shape[3]
        k, v = (
            append_past(call, call.reshape(_of_stack(call, past, i), past.type.shape[1:]), one)
            for i, one in enumerate((k, v))
        )
    keys = k.type.shape[2]
    causal = _causal_bias(call, queries, keys, before) if call.need("unidirectional") else None
    hiding = _mask_bias(call, mask, batch, queries, keys)
    attended = _attend(call, q, k, v, _add(call, hiding, causal, attention_bias))
    results = [merge_heads(call, attended.y)]
    if any(call.used_outputs[1:]):
        shape = (1, batch, heads, keys, k.type.shape[3])
        results.append(call(Concat(0), *(call.reshape(one, shape) for one in (k, v))))
    return tuple(results)


def _of_stack(call: OperatorCall, stack: Value, number: int) -> Value:
    """Return one of the tensors that are along the first dimension of `stack`."""
    return _cut(call, stack, number, number + 1, 0)


def _group_query_attention(
    call: OperatorCall,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    last_places: Value,
    total_length: Value,
    cos: Value | None = None,
    sin: Value | None = None,
    positions: Value | None = None,
    attention_bias: Value | None = None,
    sink: Value | None = None,
    key_scale: Value | None = None,
    value_scale: Value | None = None,
    query_norm: Value | None = None,
    key_norm: Value | None = None,
    query_lengths: Value | None = None,
) -> tuple[Value, ...]:
    """Return the attended values, the caches with the new keys and values, and scores.

    last_places: `seqlens_k`, (batch,), the place of each sample's last token in its cache.
    """
    if key_scale is not None or value_scale is not None or query_lengths is not None:
        raise UnsupportedOpError(f"{call.name}: with k_scale, v_scale or query_seqlens")
    if call.need("sliding_window_cache") or {
        call.need("k_quant_type"),
        call.need("v_quant_type"),
    } != {"NONE"}:
        raise UnsupportedOpError(f"{call.name}: with quantized caches or such of a window")
    heads, groups = call.need("num_heads"), call.need("kv_num_heads")
    q, k, v = _grouped(call, query, key, value, heads, groups)
    batch, length = q.type.shape[:2]
    (total,) = call.integers(total_length, "total_sequence_length")
    cache = _Cache.of(call, past_key, last_places, batch, length, total)
    q, k = _normalized(call, q, query_norm, "q"), _normalized(call, k, key_norm, "k")
    if call.need("do_rotary"):
        if cos is None or sin is None:
            raise ShapeError(f"{call.name}: do_rotary needs cos_cache and sin_cache")
        if positions is None:
            cos, sin = (cache.angles(call, one) for one in (cos, sin))
        else:
            cos, sin = (call(Gather(0), one, positions) for one in (cos, sin))
        q, k = (
            rotate(
                call, one, cos, sin, packed=True, interleaved=bool(call.need("rotary_interleaved"))
            )
            for one in (q, k)
        )
    q, k, v = (call(Transpose((0, 2, 1, 3)), one) for one in (q, k, v))
    keys, values = cache.update(call, past_key, k), cache.update(call, past_value, v)
    seen = [
        one if one.type.shape[2] == total else _cut(call, one, 0, total, 2)
        for one in (keys, values)
    ]
    if call.need("smooth_softmax") == 1 and sink is None:
        sink = call(Expand((heads,)), call.constant(0.0, np.float32))
    bias = _add(call, cache.bias(call), attention_bias)
    softcap = float(call.need("softcap"))
    attended = _attend(call, q, seen[0], seen[1], bias, softcap=softcap, sink=sink)
    scores = attended.weights
    if call.need("qk_output") == 1:  # 0 where a key is hidden
        scores = call.pointwise("where(isinf(a), 0.0, a)", attended.scores)
    return merge_heads(call, attended.y), keys, values, scores


def _grouped(
    call: OperatorCall,
    query: Value,
    key: Value | None,
    value: Value | None,
    heads: int,
    groups: int,
) -> tuple[Value, Value, Value]:
    """Return queries, keys and values, (batch, length, heads, size) each.

    query: (batch, length, heads size), with keys and values behind the queries where `key` and
    `value` are left out.
    """
    if len(query.type.dims) != 3 or heads < 1 or groups < 1 or heads % groups:
        raise ShapeError(f"{call.name}: {heads} heads for {groups} of keys, of {query.type}")
    if (key is None) != (value is None):
        raise ShapeError(f"{call.name}: key goes with value")
    batch, length, width = query.type.shape
    counts = (heads, groups, groups)
    if key is None or value is None:
        size = width // sum(counts)
        starts = (0, heads * size, (heads + groups) * size, width)
        parts = [_cut(call, query, i, j, 2) for i, j in pairwise(starts)]
    else:
        size, parts = width // heads, [query, key, value]
    expected = [(batch, length, count * size) for count in counts]
    if [one.type.shape for one in parts] != expected:
        types = ", ".join(str(one.type) for one in parts)
        raise ShapeError(f"{call.name}: {heads} and {groups} heads of {types}")
    q, k, v = (
        call.reshape(one, (batch, length, count, size))
        for one, count in zip(parts, counts, strict=True)
    )
    return q, k, v


def _normalized(call: OperatorCall, x: Value, weight: Value | None, name: str) -> Value:
    """Return x with each head divided by the root of the mean of its squares, times `weight`."""
    if weight is None:
        return x
    epsilon = float(call.get(f"{name}_norm_epsilon", call.need("qk_norm_epsilon")))
    return call(Normalize(dims=1, centred=False, eps=epsilon), x, weight, None)


@dataclass(frozen=True)
class _Cache:
    """Where new tokens go in caches (batch, heads, rows, size), and which rows each may see."""

    length: int
    """The number of new tokens."""
    total: int
    """The largest number of tokens of a sample, the new ones too."""
    rows: int
    """Rows of a cache with the new tokens."""
    last_places: Value
    """The place of each sample's last token, (batch,)."""
    start: int | None
    """The place of all samples' first new token; None where `last_places` says it."""

    @classmethod
    def of(
        cls,
        call: OperatorCall,
        past: Value | None,
        last_places: Value,
        batch: int,
        length: int,
        total: int,
    ) -> _Cache:
        before = 0 if past is None else past.type.shape[2]
        if total < length:
            raise ShapeError(f"{call.name}: {length} new tokens of {total} in all")
        rows = max(before, total)
        start = None
        if length == total:
            start = 0
        elif batch == 1 and before + length == total:  # the cache grows, and all of it is in use
            start = before
        places = call.reshape(call.cast(last_places, DType.int32), (batch,))
        return cls(length, total, rows, places, start)

    def starts(self, call: OperatorCall) -> Value:
        """Return the places of first new tokens, (batch or 1,)."""
        if self.start is not None:
            return call.constant([self.start], np.int32)
        last = call.constant(self.length - 1, np.int32)
        return call.pointwise("maximum(a - b, 0)", self.last_places, last)

    def positions(self, call: OperatorCall) -> Value:
        """Return the positions of all new tokens, (batch or 1, length)."""
        starts = self.starts(call)
        own = call.count_up(self.length, DType.int32, (1, self.length))
        return call.pointwise("a + b", call.reshape(starts, (starts.type.shape[0], 1)), own)

    def angles(self, call: OperatorCall, table: Value) -> Value:
        """Return rows (batch or 1, length, numbers) of `table` at the positions of new tokens."""
        if self.start is None:
            return call(Gather(0), table, self.positions(call))
        end, rows = self.start + self.length, table.type.shape[0]
        if end > rows:
            raise ShapeError(f"{call.name}: {end} tokens, and cosines and sines of {rows}")
        part = _cut(call, table, self.start, end, 0)
        return call.reshape(part, (1, *part.type.shape))

    def update(self, call: OperatorCall, past: Value | None, new: Value) -> Value:
        """Return the cache `past` with new rows (batch, heads, length, size)."""
        before = 0 if past is None else past.type.shape[2]
        if self.start is not None:
            parts = [new]
            if past is not None and self.start:
                parts.insert(0, past)
            elif past is not None and before > self.length:
                parts.append(_cut(call, past, self.length, before, 2))
            return parts[0] if len(parts) == 1 else call(Concat(2), *parts)
        if past is None:
            raise ShapeError(f"{call.name}: {self.total} tokens, {self.length} new, and no cache")
        if self.rows > before:
            past = call(Concat(2), past, _zeros(call, past, self.rows - before))
        batch = new.type.shape[0]
        if self.length == 1:  # one pass over the cache, which may be updated in place
            starts = self.starts(call)
            place = call.reshape(starts, (starts.type.shape[0], 1, 1, 1))
            row = call.count_up(self.rows, DType.int32, (1, 1, self.rows, 1))
            return call.pointwise("where(equal(a, b), c, d)", row, place, new, past)
        index = call.reshape(self.positions(call), (batch, 1, self.length, 1))
        return call(ScatterElements(2), past, call(Expand(new.type.shape), index), new)

    def bias(self, call: OperatorCall) -> Value | None:
        """Return 0 for each query's keys that it may see and -inf for others, as it broadcasts to
        scores; None where it may see all.
        """
        window, causal = call.need("local_window_size"), bool(call.need("causal"))
        if not causal:
            key = call.count_up(self.total, DType.int32, (1, 1, 1, self.total))
            last = call.reshape(self.last_places, (self.last_places.type.shape[0], 1, 1, 1))
            return call.pointwise("where(a <= b, 0.0, c)", key, last, -inf)
        if self.length == 1 and self.start is not None and window <= 0:
            return None
        positions = self.positions(call)
        own = call.reshape(positions, (positions.type.shape[0], 1, self.length, 1))
        key = call.count_up(self.total, DType.int32, (1, 1, 1, self.total))
        if window <= 0:
            return call.pointwise("where(a <= b, 0.0, c)", key, own, -inf)
        seen = call.pointwise("logical_and(a <= b, a > b - c)", key, own, window)
        return call.pointwise("where(a, 0.0, b)", seen, -inf)


def _decoder_attention(
    call: OperatorCall,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_length: Value | None = None,
    beam_width: Value | None = None,
    beams: Value | None = None,
    bias: Value | None = None,
) -> tuple[Value, ...]:
    """Return the attended values of one new token a sequence, caches with it, and scores.

    query: (batch, 1, heads size), with key and value behind it where these are left out. key,
    value: the same of the new token, or all of (batch, heads, keys, size) for cross attention.
    past_key, past_value: (batch, heads, rows, size), of which the first `past_length` are in use
    where they are a shared buffer. beams: (samples, beam width, rows), which sequence of a sample
    has each token of a sequence.
    """
    heads, hidden = call.need("num_heads"), query.type.shape[2]
    if key is None and value is None:
        hidden //= 3
        query, key, value = (_cut(call, query, i * hidden, (i + 1) * hidden, 2) for i in range(3))
    if key is None or value is None or query.type.shape[1] != 1:
        raise ShapeError(f"{call.name}: one token's query, key and value, got {query.type}")
    batch, crossed = query.type.shape[0], len(key.type.dims) == 4
    query, key, value = _with_biases(call, query, key, value, bias)
    q, k, v = (split_heads(call, one, heads) for one in (query, key, value))
    keys, values = k, v
    if not crossed and past_key is not None and past_value is not None:
        rows = past = past_key.type.shape[2]
        if call.need("past_present_share_buffer"):
            if past_length is None:
                raise ShapeError(f"{call.name}: a shared buffer needs past_sequence_length")
            (past,) = call.integers(past_length, "past_sequence_length")
            if past >= rows:
                raise ShapeError(f"{call.name}: {past} tokens fill a buffer of {rows}")
        keys, values = (
            _put_row(call, old, new, past) for old, new in ((past_key, k), (past_value, v))
        )
        k, v = (_cut(call, one, 0, past + 1, 2) for one in (keys, values))
        if beams is not None:
            k, v = (_of_beams(call, one, beams, past) for one in (k, v))
    elif beams is not None or past_key is not None or past_value is not None:
        raise ShapeError(f"{call.name}: a cache of keys and of values, and no cross attention")
    hiding = _mask_bias(call, mask, batch, 1, k.type.shape[2])
    attended = _attend(call, q, k, v, _add(call, hiding, attention_bias))
    return merge_heads(call, attended.y), keys, values, attended.scores


def _put_row(call: OperatorCall, cache: Value, new: Value, row: int) -> Value:
    """Return `cache` (batch, heads, rows, size) with `new` in a row, perhaps one more."""
    rows = cache.type.shape[2]
    parts = [_cut(call, cache, 0, row, 2), new] if row else [new]
    if row + 1 < rows:
        parts.append(_cut(call, cache, row + 1, rows, 2))
    return call(Concat(2), *parts) if len(parts) > 1 else new


def _of_beams(call: OperatorCall, x: Value, beams: Value, past: int) -> Value:
    """Return x (batch, heads, past + 1, size) with each past token of the sequence that has it."""
    batch, heads, rows, size = x.type.shape
    samples, width, _ = beams.type.shape
    if samples * width != batch:
        raise ShapeError(f"{call.name}: {batch} sequences, and beams {beams.type}")
    if not past:
        return x
    first = call.constant(np.arange(samples)[:, None, None] * width, np.int32)
    place = call.pointwise("a + b", call.cast(beams, DType.int32), first)
    index = call.reshape(_cut(call, place, 0, past, 2), (batch, 1, past, 1))
    index = call(Expand((batch, heads, past, size)), index)
    old = _cut(call, x, 0, past, 2)
    new = _cut(call, x, past, rows, 2)
    return call(Concat(2), call(GatherElements(0), old, index), new)


_NEEDED, _FLOAT, _INTS = Attribute("INT", required=True), Attribute("FLOAT"), Attribute("INTS")
_OF_ATTENTION: Attributes = {"mask_filter_value": MASKED, "num_heads": _NEEDED, "scale": 0.0}
_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row(
        "RotaryEmbedding",
        convert=_rotary_embedding,
        signature=Signature(
            (4, 4),
            attributes={
                "interleaved": 0,
                "is_packed_batching": 0,
                "num_heads": 0,
                "rotary_embedding_dim": 0,
                "scale": 1.0,
            },
        ),
    ),
    _row(
        "MultiHeadAttention",
        convert=_multi_head_attention,
        signature=Signature((1, 10), (1, 4), {**_OF_ATTENTION, "unidirectional": 0}),
    ),
    _row(
        "Attention",
        convert=_attention,
        signature=Signature(
            (2, 7),
            (1, 2),
            {
                **_OF_ATTENTION,
                "do_rotary": 0,
                "past_present_share_buffer": 0,
                "qkv_hidden_sizes": _INTS,
                "rotary_embedding_dim": 0,
                "unidirectional": 0,
            },
        ),
    ),
    _row(
        "DecoderMaskedMultiHeadAttention",
        convert=_decoder_attention,
        shape_inputs=(7,),
        signature=Signature(
            (1, 11), (1, 4), {**_OF_ATTENTION, "output_qk": 0, "past_present_share_buffer": 0}
        ),
    ),
    _row(
        "GroupQueryAttention",
        convert=_group_query_attention,
        shape_inputs=(6,),
        signature=Signature(
            (7, 17),
            (1, 4),
            {
                "causal": 1,
                "do_rotary": 0,
                "k_norm_epsilon": _FLOAT,
                "k_quant_type": "NONE",
                "kv_cache_bit_width": 0,
                "kv_num_heads": _NEEDED,
                "local_window_size": -1,
                "num_heads": _NEEDED,
                "q_norm_epsilon": _FLOAT,
                "qk_norm_epsilon": 1e-6,
                "qk_output": 0,
                "rotary_interleaved": 0,
                "scale": 0.0,
                "sliding_window_cache": 0,
                "smooth_softmax": -1,
                "softcap": 0.0,
                "v_quant_type": "NONE",
            },
            (0, 3, 4, 0),
        ),
    ),
)
