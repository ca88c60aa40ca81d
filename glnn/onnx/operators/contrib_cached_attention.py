"""Attention with caches of ONNX Runtime's operator set; rotary embeddings, relative biases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf, log

import numpy as np

from glnn.core.types import Array, DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import (
    Concat,
    Expand,
    Gather,
    GatherElements,
    Normalize,
    ScatterElements,
    Transpose,
)
from glnn.onnx.operators.attention import merge_heads, rotate, split_heads
from glnn.onnx.operators.call import (
    FLOAT,
    MICROSOFT,
    REQUIRED_INT,
    Converter,
    OperatorCall,
    Signature,
)
from glnn.onnx.operators.contrib_attention import (
    ATTRIBUTES,
    add_terms,
    attend,
    check_bias,
    cut,
    mask_bias,
    with_biases,
    zero_rows,
)


def _rotary_embedding(
    call: OperatorCall, x: Value, positions: Value, cos: Value, sin: Value
) -> Value:
    """Rotate x (batch, heads, length, size) or (batch, length, heads * size).

    positions: (batch, length), or (1,) for the first token's. cos, sin: tables (positions, pairs).
    The first `rotary_embedding_dim` numbers of each head are rotated, all for 0.
    """
    if call.need("is_packed_batching") or call.need("scale") != 1.0:
        raise UnsupportedOpError(
            f"{call.name}: is_packed_batching must be 0 and scale 1, got "
            f"{call.need('is_packed_batching')} and {call.need('scale')}"
        )
    shape, heads, rotary_dim = (
        x.type.shape,
        call.need("num_heads"),
        call.need("rotary_embedding_dim"),
    )
    packed = len(shape) == 3
    if packed:
        if rotary_dim and not heads:
            raise ShapeError(f"{call.name}: rotary_embedding_dim {rotary_dim} needs num_heads")
        size = shape[2] // heads if heads else 2 * cos.type.shape[-1]
        if size < 1 or shape[2] % size:
            raise ShapeError(f"{call.name}: {size} numbers of {heads} heads of {x.type}")
        x = call.reshape(x, (*shape[:2], shape[2] // size, size))
    if len(x.type.dims) != 4:
        raise ShapeError(f"{call.name}: x must have 3 or 4 dimensions, got {x.type}")
    rotary_dim, rows = rotary_dim or x.type.shape[3], cos.type.shape[0]
    if rotary_dim % 2 or any(one.type.shape != (rows, rotary_dim // 2) for one in (cos, sin)):
        raise ShapeError(
            f"{call.name}: cos_cache and sin_cache must be (positions, {rotary_dim // 2}), half of "
            f"{rotary_dim} numbers, got {cos.type} and {sin.type}"
        )
    length = shape[1] if packed else shape[2]
    first_only = len(positions.type.dims) < 2
    _check_positions(call, positions, rows - length + 1 if first_only else rows, "position_ids")
    if first_only:
        first = call.reshape(call.cast(positions, DType.int32), (1, 1))
        steps = call.count_up(length, DType.int32, (1, length))
        positions = call.pointwise("a + b", first, steps)
    cos, sin = (call(Gather(0), one, positions) for one in (cos, sin))
    y = rotate(call, x, cos, sin, packed=packed, interleaved=bool(call.need("interleaved")))
    return call.reshape(y, shape)


def _check_positions(call: OperatorCall, positions: Value, end: int, what: str) -> None:
    """Raise ShapeError where constant positions are not from 0 to below `end`."""
    if positions.kind is not Kind.CONSTANT:
        return
    for position in call.integers(positions):
        if not 0 <= position < end:
            raise ShapeError(f"{call.name}: {what} must be from 0 to {end - 1}, got {position}")


def _relative_position_bias(
    call: OperatorCall, table: Value, query_length: Value, key_length: Value
) -> Value:
    """Return the bias of scores by the distance of query and key, (1, heads, queries, keys).

    table: has the shape (buckets, heads), but its numbers are those of (heads, buckets) in
    row-major order. The first buckets are for one distance each, further ones for growing ranges.
    Source: Raffel et al. 2020, T5.
    """
    (queries,), (keys,) = call.integers(query_length), call.integers(key_length)
    count, heads = table.type.shape
    table = call.reshape(table, (heads, count))
    bidirectional, most = bool(call.need("is_bidirectional")), call.need("max_distance")
    if not 0 < most <= MOST_DISTANCE or count < (4 if bidirectional else 2):
        raise ShapeError(
            f"{call.name}: max_distance must be from 1 to {MOST_DISTANCE}, and buckets 2 for each "
            f"direction or more, got {most} and {table.type}"
        )
    query, key = (
        call.count_up(n, DType.int32, shape)
        for n, shape in ((queries, (queries, 1)), (keys, (1, keys)))
    )
    buckets = call.constant(
        _distance_buckets(count // 2 if bidirectional else count, most), np.int32
    )
    distance = "abs(b - a)" if bidirectional else "maximum(a - b, 0)"
    limit = call.constant(most, np.int32)
    bucket = call(Gather(0), buckets, call.pointwise(f"minimum({distance}, c)", query, key, limit))
    if bidirectional:  # the second half of the buckets is for keys behind the query
        half = call.constant(count // 2, np.int32)
        bucket = call.pointwise("where(b > a, c + d, c)", query, key, bucket, half)
    return call.reshape(call(Gather(1), table, bucket), (1, heads, queries, keys))


MOST_DISTANCE = 1 << 20  # tokens: the greatest `max_distance`


def _distance_buckets(count: int, most: int) -> Array:
    """Return the bucket of each distance from 0 to `most`, of `count` buckets."""
    exact, distance = count // 2, np.arange(most + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # In float32, as PyTorch: rounding decides at the bounds of buckets.
        ratio = np.log(distance.astype(np.float32) / exact) / np.float32(log(most / exact))
    logarithmic = np.nan_to_num(exact + ratio * (count - exact), nan=count, neginf=0, posinf=count)
    return np.where(distance < exact, distance, np.minimum(logarithmic.astype(np.int64), count - 1))


def _group_query_attention(
    call: OperatorCall,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    last_positions: Value,
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
    """Return the result, the caches with the new keys and values, and scores.

    last_positions: `seqlens_k`, (batch,), the position of each sample's last token.
    """
    if key_scale is not None or value_scale is not None or query_lengths is not None:
        raise UnsupportedOpError(f"{call.name}: with k_scale, v_scale or query_seqlens")
    if {call.need("k_quant_type"), call.need("v_quant_type")} != {"NONE"}:
        raise UnsupportedOpError(f"{call.name}: with quantized caches")
    _check_settings(call)
    heads, groups = call.need("num_heads"), call.need("kv_num_heads")
    q, k, v = _split_operands(call, query, key, value, heads, groups)
    batch, length, _, size = q.type.shape
    _check_caches(call, past_key, past_value, (batch, groups, size))
    (total,) = call.integers(total_length, "total_sequence_length")
    kind = _WindowCache if call.need("sliding_window_cache") else _Cache
    cache = kind.create(call, past_key, last_positions, batch, length, total)
    q, k = _normalize_heads(call, q, query_norm, "q"), _normalize_heads(call, k, key_norm, "k")
    if call.need("do_rotary"):
        if cos is None or sin is None:
            raise ShapeError(f"{call.name}: do_rotary needs cos_cache and sin_cache")
        if positions is None:
            cos, sin = (cache.angles(call, one) for one in (cos, sin))
        else:
            _check_positions(call, positions, cos.type.shape[0], "position_ids")
            cos, sin = (call(Gather(0), one, positions) for one in (cos, sin))
        q, k = (
            rotate(
                call, one, cos, sin, packed=True, interleaved=bool(call.need("rotary_interleaved"))
            )
            for one in (q, k)
        )
    q, k, v = (call(Transpose((0, 2, 1, 3)), one) for one in (q, k, v))
    keys, values = cache.update(call, past_key, k), cache.update(call, past_value, v)
    visible_keys = cache.visible_rows(call, past_key, k, keys)
    visible_values = cache.visible_rows(call, past_value, v, values)
    if call.need("smooth_softmax") == 1 and sink is None:
        sink = call(Expand((heads,)), call.constant(0.0, np.float32))
    count = visible_keys.type.shape[2]
    attention_bias = check_bias(call, attention_bias, batch, heads, length, count)
    bias = add_terms(call, cache.bias(call), attention_bias)
    softcap = float(call.need("softcap"))
    attended = attend(call, q, visible_keys, visible_values, bias, softcap=softcap, sink=sink)
    scores = attended.weights
    if call.need("qk_output") == 1:  # with 0 for masked keys
        scores = call.pointwise("where(isinf(a), 0.0, a)", attended.scores)
    return merge_heads(call, attended.y), keys, values, scores


def _check_settings(call: OperatorCall) -> None:
    """Raise ShapeError for a window without `causal`, or a result of scores without `qk_output`."""
    window, causal = call.need("local_window_size"), call.need("causal")
    if window != -1 and (window < 1 or not causal):
        raise ShapeError(
            f"{call.name}: local_window_size must be -1, or from 1 on with causal, got {window} "
            f"and causal {causal}"
        )
    scores, wanted = call.need("qk_output"), any(call.used_outputs[3:])
    if scores not in (0, 1, 2) or (wanted and not scores):
        raise ShapeError(
            f"{call.name}: qk_output must be 0, 1 or 2, and 1 or 2 for a fourth result, got "
            f"{scores} and {'a' if wanted else 'no'} fourth result"
        )


def _check_caches(
    call: OperatorCall, keys: Value | None, values: Value | None, sizes: tuple[int, int, int]
) -> None:
    """Raise ShapeError unless both caches are left out, or have one shape.

    sizes: the batch, the heads, and the numbers of a head.
    """
    batch, heads, size = sizes
    if keys is None and values is None:
        return
    rows = keys.type.shape[2] if keys and len(keys.type.dims) == 4 else 0
    if any(one is None or one.type.shape != (batch, heads, rows, size) for one in (keys, values)):
        raise ShapeError(
            f"{call.name}: past_key and past_value must both be ({batch}, {heads}, rows, {size}), "
            f"got {keys and keys.type} and {values and values.type}"
        )


def _split_operands(
    call: OperatorCall,
    query: Value,
    key: Value | None,
    value: Value | None,
    heads: int,
    groups: int,
) -> tuple[Value, Value, Value]:
    """Return queries, keys and values, (batch, length, heads, size) each.

    query: (batch, length, heads * size); where `key` and `value` are left out, queries, keys and
    values along the last dimension.
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
        parts = [cut(call, query, i, j, 2) for i, j in pairwise(starts)]
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


def _normalize_heads(call: OperatorCall, x: Value, weight: Value | None, name: str) -> Value:
    """Return x with the RMS normalisation of each head, times `weight`."""
    if weight is None:
        return x
    epsilon = float(call.get(f"{name}_norm_epsilon", call.need("qk_norm_epsilon")))
    return call(Normalize(dims=1, centred=False, eps=epsilon), x, weight, None)


MOST_WINDOW = 1 << 30  # tokens, so that positions minus the window are int32


@dataclass(frozen=True)
class _Cache:
    """Caches (batch, heads, rows, size), in which the row of a token is its position."""

    length: int
    """The number of new tokens."""
    total: int
    """The largest number of tokens of a sample, including the new ones."""
    rows: int
    """Rows of a cache after the new tokens."""
    last_positions: Value
    """The position of each sample's last token, (batch,)."""
    start: int | None
    """The position of the first new token; None where samples differ, see `last_positions`."""

    @classmethod
    def create(
        cls,
        call: OperatorCall,
        past: Value | None,
        last_positions: Value,
        batch: int,
        length: int,
        total: int,
    ) -> _Cache:
        past_rows = 0 if past is None else past.type.shape[2]
        if total < length or (total > past_rows and total != past_rows + length):
            raise ShapeError(
                f"{call.name}: total_sequence_length must be {past_rows + length} for a cache that "
                f"grows by {length} tokens, or from {length} to {past_rows} in one of "
                f"{past_rows} rows, got {total}"
            )
        _check_positions(call, last_positions, total, "seqlens_k")
        rows = max(past_rows, total)
        start = None
        if length == total:
            start = 0
        elif batch == 1 and past_rows + length == total:  # the cache is full, and grows
            start = past_rows
        last = call.reshape(call.cast(last_positions, DType.int32), (batch,))
        return cls(length, total, rows, last, start)

    def starts(self, call: OperatorCall) -> Value:
        """Return the positions of the first new tokens, (batch or 1,)."""
        if self.start is not None:
            return call.constant([self.start], np.int32)
        last = call.constant(self.length - 1, np.int32)
        return call.pointwise("maximum(a - b, 0)", self.last_positions, last)

    def positions(self, call: OperatorCall) -> Value:
        """Return the positions of all new tokens, (batch or 1, length)."""
        starts = self.starts(call)
        steps = call.count_up(self.length, DType.int32, (1, self.length))
        return call.pointwise("a + b", call.reshape(starts, (starts.type.shape[0], 1)), steps)

    def angles(self, call: OperatorCall, table: Value) -> Value:
        """Return rows (batch or 1, length, numbers) of `table` at the positions of new tokens."""
        if self.start is None:
            return call(Gather(0), table, self.positions(call))
        end, rows = self.start + self.length, table.type.shape[0]
        if end > rows:
            raise ShapeError(f"{call.name}: {end} tokens, and cosines and sines of {rows}")
        part = cut(call, table, self.start, end, 0)
        return call.reshape(part, (1, *part.type.shape))

    def update(self, call: OperatorCall, past: Value | None, new: Value) -> Value:
        """Return the cache `past` with new rows (batch, heads, length, size)."""
        past_rows = 0 if past is None else past.type.shape[2]
        if self.start is not None:
            parts = [new]
            if past is not None and self.start:
                parts.insert(0, past)
            elif past is not None and past_rows > self.length:
                parts.append(cut(call, past, self.length, past_rows, 2))
            return parts[0] if len(parts) == 1 else call(Concat(2), *parts)
        if past is None:
            raise ShapeError(f"{call.name}: {self.total} tokens, {self.length} new, and no cache")
        if self.rows > past_rows:
            past = call(Concat(2), past, zero_rows(call, past, self.rows - past_rows))
        batch = new.type.shape[0]
        if self.length == 1:  # one pass over the cache, which may be updated in place
            starts = self.starts(call)
            position = call.reshape(starts, (starts.type.shape[0], 1, 1, 1))
            row = call.count_up(self.rows, DType.int32, (1, 1, self.rows, 1))
            return call.pointwise("where(equal(a, b), c, d)", row, position, new, past)
        index = call.reshape(self.positions(call), (batch, 1, self.length, 1))
        return call(ScatterElements(2), past, call(Expand(new.type.shape), index), new)

    def visible_rows(
        self, call: OperatorCall, past: Value | None, new: Value, present: Value
    ) -> Value:
        """Return the rows that queries may attend to. present: the cache `past` with `new` rows."""
        return present if self.rows == self.total else cut(call, present, 0, self.total, 2)

    def bias(self, call: OperatorCall) -> Value | None:
        """Return the bias of causality and windows: 0 for visible keys, -inf for others.

        It broadcasts to scores. None where all keys are visible.
        """
        window = min(call.need("local_window_size"), MOST_WINDOW)
        if not call.need("causal"):
            key = call.count_up(self.total, DType.int32, (1, 1, 1, self.total))
            last = call.reshape(self.last_positions, (self.last_positions.type.shape[0], 1, 1, 1))
            return call.pointwise("where(a <= b, 0.0, c)", key, last, -inf)
        if self.length == 1 and self.start is not None and window <= 0:
            return None
        positions = self.positions(call)
        query = call.reshape(positions, (positions.type.shape[0], 1, self.length, 1))
        key = call.count_up(self.total, DType.int32, (1, 1, 1, self.total))
        if window <= 0:
            return call.pointwise("where(a <= b, 0.0, c)", key, query, -inf)
        visible = call.pointwise("logical_and(a <= b, a > b - c)", key, query, window)
        return call.pointwise("where(a, 0.0, b)", visible, -inf)


@dataclass(frozen=True)
class _WindowCache(_Cache):
    """Caches of few rows, which hold the last tokens in order, from row 0 on.

    All T tokens are resident while the rows suffice, then T minus a multiple of rows - window + 1:
    this does not depend on the steps in which tokens were added.
    """

    @classmethod
    def create(
        cls,
        call: OperatorCall,
        past: Value | None,
        last_positions: Value,
        batch: int,
        length: int,
        total: int,
    ) -> _WindowCache:
        window, rows = call.need("local_window_size"), 0 if past is None else past.type.shape[2]
        if window < 1 or rows < window or not call.need("causal"):
            raise ShapeError(
                f"{call.name}: a sliding cache needs causal and a local_window_size from 1 to its "
                f"{rows} rows, got {window}"
            )
        if total < length:
            raise ShapeError(f"{call.name}: {length} new tokens of {total} in all")
        _check_positions(call, last_positions, total, "seqlens_k")
        last = call.reshape(call.cast(last_positions, DType.int32), (batch,))
        return cls(length, total, rows, last, 0 if length == total else None)

    def _resident(self, call: OperatorCall, tokens: Value) -> Value:
        """Return how many of a sample's `tokens` are resident, (batch or 1,)."""
        freed = self.rows - call.need("local_window_size") + 1
        numbers = (call.constant(n, np.int32) for n in (self.rows, freed))
        remainder = "a - (a - b + c - 1) / c * c"
        return call.pointwise(f"where(a <= b, a, {remainder})", tokens, *numbers)

    def _first(self, call: OperatorCall) -> Value:
        """Return the position of row 0 before the new tokens, (batch or 1,)."""
        starts = self.starts(call)
        return call.pointwise("a - b", starts, self._resident(call, starts))

    def update(self, call: OperatorCall, past: Value | None, new: Value) -> Value:
        """Return the cache after the new tokens. Rows behind the last token are undefined."""
        assert past is not None
        batch, _, length, _ = new.type.shape
        tokens = call.pointwise("a + 1", self.last_positions)
        first = call.pointwise("a - b", tokens, self._resident(call, tokens))
        row = call.count_up(self.rows, DType.int32, (1, self.rows))
        position = call.pointwise("a + b", call.reshape(first, (batch, 1)), row)
        starts, old_first = (
            call.reshape(one, (one.type.shape[0], 1))
            for one in (self.starts(call), self._first(call))
        )
        rows, last = (call.constant(n, np.int32) for n in (self.rows, self.rows + length - 1))
        index = call.pointwise("where(a < b, a - c, a - b + d)", position, starts, old_first, rows)
        index = call.pointwise("clip(a, 0, b)", index, last)
        index = call.reshape(index, (batch, 1, self.rows, 1))
        index = call(Expand(past.type.shape), index)
        return call(GatherElements(2), call(Concat(2), past, new), index)

    def visible_rows(
        self, call: OperatorCall, past: Value | None, new: Value, present: Value
    ) -> Value:
        return new if past is None or self.start == 0 else call(Concat(2), past, new)

    def bias(self, call: OperatorCall) -> Value | None:
        positions = self.positions(call)
        keys, (batch, length) = positions, positions.type.shape
        if self.start is None:
            starts, first = self.starts(call), self._first(call)
            row = call.count_up(self.rows, DType.int32, (1, self.rows))
            starts, first = (call.reshape(one, (batch, 1)) for one in (starts, first))
            old = call.pointwise("a + b", first, row)
            nowhere = call.constant(-self.total - self.rows, np.int32)
            old = call.pointwise("where(a < b, a, c)", old, starts, nowhere)
            keys = call(Concat(1), old, positions)
        key = call.reshape(keys, (batch, 1, 1, keys.type.shape[1]))
        query = call.reshape(positions, (batch, 1, length, 1))
        window = call.need("local_window_size")
        visible = call.pointwise("logical_and(a <= b, a > b - c)", key, query, window)
        return call.pointwise("where(a, 0.0, b)", visible, -inf)


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
    """Return the result for one new token of each sequence, the caches with it, and scores.

    query: (batch, 1, heads * size); where `key` and `value` are left out, all three along the last
    dimension. key, value: (batch, 1, heads * size), or for cross attention all of (batch, heads,
    keys, size). past_key, past_value: (batch, heads, rows, size); of a shared buffer the first
    `past_length` rows are in use. beams: (samples, beam width, rows), for each token of a sequence
    the sequence of the sample that has it.
    """
    heads, hidden = call.need("num_heads"), query.type.shape[2]
    if key is None and value is None:
        hidden //= 3
        query, key, value = (cut(call, query, i * hidden, (i + 1) * hidden, 2) for i in range(3))
    if key is None or value is None or query.type.shape[1] != 1:
        raise ShapeError(f"{call.name}: one token's query, key and value, got {query.type}")
    batch, crossed = query.type.shape[0], len(key.type.dims) == 4
    if any(
        len(one.type.dims) != 4 if crossed else one.type.shape != (batch, 1, hidden)
        for one in (key, value)
    ):
        raise ShapeError(
            f"{call.name}: key and value must be ({batch}, 1, {hidden}), or both (batch, heads, "
            f"keys, size), got {key.type} and {value.type}"
        )
    query, key, value = with_biases(call, query, key, value, bias)
    q, k, v = (split_heads(call, one, heads) for one in (query, key, value))
    keys, values = k, v
    if not crossed and past_key is not None and past_value is not None:
        rows = past = past_key.type.shape[2]
        if call.need("past_present_share_buffer"):
            if past_length is None:
                raise ShapeError(f"{call.name}: a shared buffer needs past_sequence_length")
            (past,) = call.integers(past_length, "past_sequence_length")
            if not 0 <= past < rows:
                raise ShapeError(
                    f"{call.name}: past_sequence_length must be from 0 to {rows - 1} in a buffer "
                    f"of {rows} rows, got {past}"
                )
        keys, values = (
            _write_row(call, old, new, past) for old, new in ((past_key, k), (past_value, v))
        )
        k, v = (cut(call, one, 0, past + 1, 2) for one in (keys, values))
        if beams is not None:
            k, v = (_gather_beams(call, one, beams, past) for one in (k, v))
    elif beams is not None or past_key is not None or past_value is not None:
        raise ShapeError(f"{call.name}: a cache of keys and of values, and no cross attention")
    masked = mask_bias(call, mask, batch, 1, k.type.shape[2])
    attention_bias = check_bias(call, attention_bias, batch, heads, 1, k.type.shape[2])
    attended = attend(call, q, k, v, add_terms(call, masked, attention_bias))
    return merge_heads(call, attended.y), keys, values, attended.scores


def _write_row(call: OperatorCall, cache: Value, new: Value, row: int) -> Value:
    """Return `cache` (batch, heads, rows, size) with `new` in `row`, which may be one behind it."""
    rows = cache.type.shape[2]
    parts = [cut(call, cache, 0, row, 2), new] if row else [new]
    if row + 1 < rows:
        parts.append(cut(call, cache, row + 1, rows, 2))
    return call(Concat(2), *parts) if len(parts) > 1 else new


def _gather_beams(call: OperatorCall, x: Value, beams: Value, past: int) -> Value:
    """Return x (batch, heads, past + 1, size) with past tokens taken from the beams' sequences."""
    batch, heads, rows, size = x.type.shape
    samples, width, _ = beams.type.shape
    if samples * width != batch:
        raise ShapeError(f"{call.name}: {batch} sequences, and beams {beams.type}")
    if not past:
        return x
    first = call.constant(np.arange(samples)[:, None, None] * width, np.int32)
    sequence = call.pointwise("a + b", call.cast(beams, DType.int32), first)
    index = call.reshape(cut(call, sequence, 0, past, 2), (batch, 1, past, 1))
    index = call(Expand((batch, heads, past, size)), index)
    old = cut(call, x, 0, past, 2)
    new = cut(call, x, past, rows, 2)
    return call(Concat(2), call(GatherElements(0), old, index), new)


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
        "RelativePositionBias",
        convert=_relative_position_bias,
        shape_inputs=(1, 2),
        signature=Signature(
            (3, 3), attributes={"is_bidirectional": 0, "max_distance": REQUIRED_INT}
        ),
    ),
    _row(
        "DecoderMaskedMultiHeadAttention",
        convert=_decoder_attention,
        shape_inputs=(7,),
        signature=Signature(
            (1, 11), (1, 4), {**ATTRIBUTES, "output_qk": 0, "past_present_share_buffer": 0}
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
                "k_norm_epsilon": FLOAT,
                "k_quant_type": "NONE",
                "kv_cache_bit_width": 0,
                "kv_num_heads": REQUIRED_INT,
                "local_window_size": -1,
                "num_heads": REQUIRED_INT,
                "q_norm_epsilon": FLOAT,
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
