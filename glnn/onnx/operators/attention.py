"""Attention, linear attention, and rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError
from glnn.graph.compose.control_flow import Scan
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import (
    Concat,
    Expand,
    Flip,
    Gather,
    Identity,
    Pad,
    Reduce,
    Slice,
    Softmax,
    Transpose,
)
from glnn.onnx.operators.call import Converter, OperatorCall


def _rotary_embedding(
    call: OperatorCall, x: Value, cos: Value, sin: Value, positions: Value | None = None
) -> Value:
    """Rotate x (batch, heads, length, size) or (batch, length, heads size). Su et al. 2021,
    RoFormer.

    cos, sin: (batch, length, pairs), or tables (rows, pairs) that `positions` index.
    """
    shape = x.type.shape
    packed = len(shape) == 3
    if packed:
        heads = call.get("num_heads", 0)
        if not heads or shape[2] % heads:
            raise ShapeError(f"{call.name}: {heads} heads of {x.type}")
        x = call.reshape(x, (*shape[:2], heads, shape[2] // heads))
    if len(x.type.dims) != 4:
        raise ShapeError(f"{call.name}: x must have 3 or 4 dimensions, got {x.type}")
    size = x.type.shape[3]
    rotary_dim = call.get("rotary_embedding_dim", 0) or size
    if rotary_dim % 2 or rotary_dim > size:
        raise ShapeError(f"{call.name}: {rotary_dim} of {size} numbers cannot be rotated in pairs")
    if positions is not None:
        cos, sin = (call(Gather(0), angles, positions) for angles in (cos, sin))
    interleaved = bool(call.get("interleaved", 0))
    if cos.type.shape[-1:] != (rotary_dim // 2,):
        raise ShapeError(f"{call.name}: cosines of {rotary_dim // 2} pairs, got {cos.type}")
    y = rotate(call, x, cos, sin, packed=packed, interleaved=interleaved)
    return call.reshape(y, shape)


def rotate(
    call: OperatorCall,
    x: Value,
    cos: Value,
    sin: Value,
    *,
    packed: bool,
    interleaved: bool,
) -> Value:
    """Return x with the first numbers of each head rotated, as many pairs as there are angles.

    x: (batch, length, heads, size) if `packed`, else (batch, heads, length, size). cos, sin:
    (batch or 1, length, pairs). interleaved: pairs are neighbours, else number i of the first half
    and of the second.
    """
    size, rotary_dim = x.type.shape[3], 2 * cos.type.shape[-1]
    if rotary_dim > size:
        raise ShapeError(f"{call.name}: {rotary_dim} of {size} numbers cannot be rotated in pairs")
    first = x if rotary_dim == size else call(Slice((0,), (rotary_dim,), (3,), (1,)), x)
    y = _rotate_pairs(call, first, cos, sin, packed, interleaved)
    if rotary_dim < size:
        y = call(Concat(3), y, call(Slice((rotary_dim,), (size,), (3,), (1,)), x))
    return y


def _rotate_pairs(
    call: OperatorCall, x: Value, cos: Value, sin: Value, packed: bool, interleaved: bool
) -> Value:
    """Return x with all pairs rotated.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin): the pair times cos, plus the swapped pair
    times (-sin, sin).
    """
    shape, half = x.type.shape, x.type.shape[3] // 2
    length = shape[1] if packed else shape[2]
    batch = cos.type.shape[0]
    if batch not in (1, shape[0]) or any(
        one.type.shape != (batch, length, half) for one in (cos, sin)
    ):
        expected = (shape[0], length, half)
        raise ShapeError(f"{call.name}: cos and sin must be {expected}, got {cos.type}, {sin.type}")
    pair = (half, 2) if interleaved else (2, half)
    angles = (batch, *((length, 1) if packed else (1, length)))
    cos, sin = (
        call.reshape(one, (*angles, half, 1) if interleaved else (*angles, 1, half))
        for one in (cos, sin)
    )
    sign = call.constant([-1.0, 1.0], "float32")
    sign = sign if interleaved else call.reshape(sign, (2, 1))
    pairs = call.reshape(x, (*shape[:3], *pair))
    swapped = call(Flip((4 if interleaved else 3,)), pairs)
    y = call.pointwise("a * c + b * (d * da)", pairs, swapped, cos, sin, sign)
    return call.reshape(y, shape)


TABLE = 32  # bytes for each query and key of a mask, with temporary arrays


@dataclass(frozen=True)
class _Bias:
    """The bias that is added to scores."""

    value: Value | None
    """Broadcasts to (batch, heads, queries, keys); None for no bias."""
    empty: Value | None
    """Mask with size 1 for keys: True for queries without any key; None where each has one."""


def split_heads(call: OperatorCall, x: Value, heads: int | None) -> Value:
    """Return x (batch, length, heads * size) as (batch, heads, length, size).

    One of 4 dimensions is returned unchanged.
    """
    if len(x.type.dims) == 4:
        return x
    if len(x.type.dims) != 3 or not heads or x.type.shape[2] % heads:
        raise ShapeError(f"{call.name}: {heads} heads of an operand of {x.type}")
    batch, length, size = x.type.shape
    split = call.reshape(x, (batch, length, heads, size // heads))
    return call(Transpose((0, 2, 1, 3)), split)


def append_past(call: OperatorCall, past: Value | None, new: Value) -> Value:
    """Concatenate the cached `past`, if any, and the new keys or values along the sequence."""
    return new if past is None else call(Concat(2), past, new)


def attention_scores(call: OperatorCall, q: Value, k: Value, scale: float) -> Value:
    """Return scaled products of q (b, h, t, d) and k (b, g, s, d), h a multiple of g: (b, h, t, s).

    The queries of h / g heads that share keys are stacked to one matrix: no key is repeated.
    """
    batch, heads, length, size = q.type.shape
    if k.type.shape[0] != batch or k.type.shape[3] != size or heads % max(k.type.shape[1], 1):
        raise ShapeError(f"{call.name}: queries {q.type} and keys {k.type} do not fit")
    groups, keys = k.type.shape[1:3]
    rows = call.reshape(q, (batch, groups, heads // groups * length, size))
    result = call.pointwise("a * b", matmul(call, rows, k, transposed=True), scale)
    return call.reshape(result, (batch, heads, length, keys))


def weight_values(call: OperatorCall, weights: Value, v: Value) -> Value:
    """Return the products of weights (b, h, t, s) and v (b, g, s, d): (b, h, t, d)."""
    batch, heads, length, keys = weights.type.shape
    if v.type.shape[0] != batch or v.type.shape[2] != keys or heads % max(v.type.shape[1], 1):
        raise ShapeError(f"{call.name}: weights {weights.type} and values {v.type} do not fit")
    groups, _, size = v.type.shape[1:]
    rows = call.reshape(weights, (batch, groups, heads // groups * length, keys))
    return call.reshape(matmul(call, rows, v), (batch, heads, length, size))


def merge_heads(call: OperatorCall, x: Value) -> Value:
    """Return x (batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = x.type.shape
    return call.reshape(call(Transpose((0, 2, 1, 3)), x), (batch, length, heads * size))


def _position_mask(
    call: OperatorCall, queries: int, keys: int, offset: int, valid: Value | None
) -> Value | None:
    """Return the bool mask of causality and windows, which broadcasts to scores.

    offset: the position of the first query among the keys. valid: (batch,), the number of keys of
    each sample; then the last query is at the last of these, and `offset` is not used.
    """
    causal = bool(call.get("is_causal", 0))
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    if min(left, right) < -1:
        raise ShapeError(f"{call.name}: windows must be -1 or more, got {left} and {right}")
    right = 0 if causal else right
    if valid is None and right < 0 and left < 0:
        return None
    call.check_tables(queries * keys, TABLE)
    distance = np.arange(keys) - np.arange(queries)[:, None]
    key_index = call.constant(np.arange(keys), np.int64)
    if valid is None:
        distance = distance - offset
        allowed = np.full(distance.shape, True)
        if right >= 0:
            allowed &= distance <= right
        if left >= 0:
            allowed &= distance >= -left
        return None if allowed.all() else call.constant(allowed)
    valid = call.reshape(valid, (prod(valid.type.shape), 1, 1, 1))
    result = call.pointwise("a < b", key_index, valid)
    if right >= 0:
        upper = call.constant(distance + queries - right, np.int64)
        result = call.pointwise("logical_and(a, b <= c)", result, upper, valid)
    if left >= 0:
        lower = call.constant(distance + queries + left, np.int64)
        result = call.pointwise("logical_and(a, b >= c)", result, lower, valid)
    return result


def _bias(call: OperatorCall, mask: Value | None, keys: int, position_mask: Value | None) -> _Bias:
    """Combine the node's mask, of bools or of numbers to add, and the position mask."""
    if mask is not None and mask.type.shape[-1] < keys:
        boolean = mask.type.dtype is DType.bool
        no_padding, missing_keys = (0,) * (len(mask.type.dims) - 1), keys - mask.type.shape[-1]
        pad = Pad(
            (*no_padding, 0), (*no_padding, missing_keys), "constant", False if boolean else -inf
        )
        mask = call(pad, mask if boolean else call.cast(mask, DType.float32))
    if mask is not None and mask.type.dtype is not DType.bool:
        bias = call.cast(mask, DType.float32)
        if position_mask is not None:
            bias = call.pointwise("where(a, b, c)", position_mask, bias, -inf)
        return _Bias(bias, _empty_rows(call, call.pointwise("a > b", bias, -inf)))
    allowed = position_mask
    if mask is not None and position_mask is not None:
        allowed = call.pointwise("logical_and(a, b)", mask, position_mask)
    elif mask is not None:
        allowed = mask
    if allowed is None:
        return _Bias(None, None)
    return _Bias(call.pointwise("where(a, b, c)", allowed, 0.0, -inf), _empty_rows(call, allowed))


def _empty_rows(call: OperatorCall, allowed: Value) -> Value | None:
    """Return the mask of rows of `allowed` without a key; None where each is known to have one."""
    if allowed.kind is Kind.CONSTANT and call.array(allowed).any(-1).all():
        return None
    number = call.cast(allowed, DType.int32)
    return call.pointwise("equal(a, b)", call(Reduce("max", (-1,), True), number), 0)


def _clear_empty_rows(call: OperatorCall, x: Value, bias: _Bias) -> Value:
    """Return x with 0 in rows without any key."""
    return x if bias.empty is None else call.pointwise("where(a, b, c)", bias.empty, 0.0, x)


def _softmax(call: OperatorCall, x: Value) -> Value:
    """Apply softmax in `softmax_precision`: float16 or, for all others, float32."""
    if call.get("softmax_precision", 1) != 10:
        return call(Softmax(-1), x)
    result = call(Softmax(-1), _round_to_float16(call, x))
    return _round_to_float16(call, result)


def _round_to_float16(call: OperatorCall, x: Value) -> Value:
    return call.cast(call.cast(x, DType.float16), DType.float32)


def _attention(
    call: OperatorCall,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    valid: Value | None = None,
) -> tuple[Value, ...]:
    """Return Y, the caches with the new keys and values, and an intermediate result.

    The latter is selected by `qk_matmul_output_mode`.
    """
    dtype, value_dtype = q.type.dtype, v.type.dtype
    q, k, v = call.widened(q), call.widened(k), call.widened(v)
    past_key, past_value = call.widened(past_key), call.widened(past_value)
    if (past_key is None) != (past_value is None) or (valid is not None and past_key is not None):
        raise ShapeError("Attention: past_key goes with past_value, and without nonpad_kv_seqlen")
    packed = len(q.type.dims) == 3
    q = split_heads(call, q, call.get("q_num_heads", None))
    k, v = (split_heads(call, one, call.get("kv_num_heads", None)) for one in (k, v))
    keys, values = append_past(call, past_key, k), append_past(call, past_value, v)
    scale = call.get("scale", None)
    scores = attention_scores(call, q, keys, q.type.shape[3] ** -0.5 if scale is None else scale)
    intermediates = [scores]
    softcap = call.get("softcap", 0.0)
    if softcap > 0:
        scores = call.pointwise("b * tanh(a / b)", scores, softcap)
    intermediates.append(scores)
    offset = past_key.type.shape[2] if past_key is not None else 0
    position_mask = _position_mask(call, q.type.shape[2], keys.type.shape[2], offset, valid)
    bias = _bias(call, mask, keys.type.shape[2], position_mask)
    if bias.value is not None:
        scores = call.pointwise("a + b", scores, bias.value)
    intermediates.append(scores)
    weights = _softmax(call, scores)
    mode = call.get("qk_matmul_output_mode", 0)
    if not 0 <= mode <= 3:
        raise ShapeError(f"Attention: qk_matmul_output_mode must be from 0 to 3, got {mode}")
    if mode == 3 and call.used_outputs[3:]:
        weights = _clear_empty_rows(call, weights, bias)
        y = weight_values(call, weights, values)
    else:
        y = _clear_empty_rows(call, weight_values(call, weights, values), bias)
    intermediates.append(weights)
    y = merge_heads(call, y) if packed else y
    result = (y, call(Identity(), keys), call(Identity(), values), intermediates[mode])
    return tuple(map(call.cast, result, (dtype, dtype, value_dtype, dtype)))


def _flex_attention(call: OperatorCall, q: Value, k: Value, v: Value) -> Value:
    """Convert FlexAttention of the preview operator set, without its subgraphs."""
    if "score_mod" in call.attributes or "prob_mod" in call.attributes:
        raise ShapeError("FlexAttention: score_mod and prob_mod are the host's")
    scale = call.get("scale", None)
    scores = attention_scores(call, q, k, q.type.shape[3] ** -0.5 if scale is None else scale)
    return weight_values(call, _softmax(call, scores), v)


GATED, DELTA = ("gated", "gated_delta"), ("delta", "gated_delta")


@dataclass(frozen=True)
class _Sizes:
    batch: int
    length: int
    heads: int
    """The number of heads of keys and values, each with a state."""
    group: int
    """The number of heads of queries for each of these."""
    key: int
    """Numbers of a key of one head."""
    value: int
    """Numbers of a value of one head."""
    scale: float
    """Factor of the results."""


def _sizes(call: OperatorCall, query: Value, key: Value, value: Value) -> _Sizes:
    heads, group = call.need("kv_num_heads"), call.need("q_num_heads")
    shapes = [one.type.shape for one in (query, key, value)]
    if any(len(shape) != 3 or shape[:2] != shapes[0][:2] for shape in shapes):
        raise ShapeError(f"{call.name}: query, key and value must be (batch, length, n)")
    if heads < 1 or group < 1 or group % heads:
        raise ShapeError(f"{call.name}: {group} heads of queries for {heads} of keys")
    size, extent = shapes[1][2] // heads, shapes[2][2] // heads
    if [shape[2] for shape in shapes] != [group * size, heads * size, heads * extent]:
        raise ShapeError(f"{call.name}: {group} and {heads} heads of {shapes}")
    scale = call.get("scale", 0.0) or size**-0.5
    batch, length, _ = shapes[0]
    return _Sizes(batch, length, heads, group // heads, size, extent, scale)


def _step(
    call: OperatorCall, sizes: _Sizes, state: Value, token: Sequence[Value | None]
) -> tuple[Value, Value]:
    """Return the state (batch, heads, value, key) after a token, and the token's result.

    token: its query, key, value, decay and beta, (batch, numbers) each.
    """
    s = sizes
    query, key, value, decay, beta = token
    assert query is not None and key is not None and value is not None
    key = call.reshape(key, (s.batch, s.heads, 1, s.key))
    value = call.reshape(value, (s.batch, s.heads, s.value, 1))
    if decay is not None:
        size = decay.type.shape[1] // s.heads
        decay = call.reshape(decay, (s.batch, s.heads, 1, size))
        state = call.pointwise("a * exp(b)", state, decay)
    if beta is not None:
        beta = call.reshape(beta, (s.batch, beta.type.shape[1], 1, 1))
        old_value = call.reshape(matmul(call, key, state, transposed=True), value.type.shape)
        value = call.pointwise("c * (a - b)", value, old_value, beta)
    state = call.pointwise("a + b * c", state, key, value)
    rows = call.reshape(query, (s.batch, s.heads, s.group, s.key))
    read = call.pointwise("a * b", matmul(call, rows, state, transposed=True), s.scale)
    return state, call.reshape(read, (s.batch, s.heads * s.group * s.value))


def linear_attention(
    call: OperatorCall,
    query: Value,
    key: Value,
    value: Value,
    past: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
) -> tuple[Value, Value]:
    """Return each token's result, and the state after the last token.

    Source: Yang et al. 2024, Gated Delta Networks. In between the state is transposed, values
    before keys, as matrix products need it. Several tokens are a loop.
    """
    rule = call.get("update_rule", "gated_delta")
    if rule not in ("linear", *GATED, *DELTA):
        raise ShapeError(f"{call.name}: update_rule {rule!r} is not known")
    if (decay is not None) != (rule in GATED) or (beta is not None) != (rule in DELTA):
        raise ShapeError(f"{call.name}: decay and beta do not go with update_rule {rule!r}")
    dtype = query.type.dtype
    state_dtype = dtype if past is None else past.type.dtype
    operands = [v and call.cast(v, DType.float32) for v in (query, key, value, decay, beta)]
    s = _sizes(call, query, key, value)
    shape = (s.batch, s.heads, s.key, s.value)
    if past is None:
        zero = call.constant(0.0, np.float32)
        state = call(Expand((s.batch, s.heads, s.value, s.key)), zero)
    elif past.type.shape == shape:
        state = call(Transpose((0, 1, 3, 2)), call.cast(past, DType.float32))
    else:
        raise ShapeError(f"{call.name}: past_state must be {shape}, got {past.type}")
    if s.length == 1:
        token = [v and call.reshape(v, (s.batch, v.type.shape[2])) for v in operands]
        state, read = _step(call, s, state, token)
        output = call.reshape(read, (s.batch, 1, read.type.shape[1]))
    else:
        output, state = _tokens(call, s, state, operands)
    after = call(Transpose((0, 1, 3, 2)), state)
    return call.cast(output, dtype), call.cast(after, state_dtype)


def _tokens(
    call: OperatorCall, sizes: _Sizes, state: Value, operands: Sequence[Value | None]
) -> tuple[Value, Value]:
    """Scan the tokens; return all results, (batch, length, numbers), and the last state."""
    scanned = [v for v in operands if v is not None]
    scan = Scan(call.builder, [state], scanned, (1,) * len(scanned), name=call.name)
    body_call = replace(call, builder=scan.body)
    slices = iter(scan.slices)
    token = [None if v is None else next(slices) for v in operands]
    after, read = _step(body_call, sizes, scan.states[0], token)
    last, reads = scan.results([after], [read])
    return call(Transpose((1, 0, 2)), reads), last


ENTRIES = (
    Converter("Attention", 23, _attention, halves=True, dtypes=frozenset((DType.bfloat16,))),
    Converter("FlexAttention", 1, _flex_attention, domain="ai.onnx.preview"),
    Converter("RotaryEmbedding", 23, _rotary_embedding),
    Converter(
        "LinearAttention", 27, linear_attention, halves=True, dtypes=frozenset((DType.bfloat16,))
    ),
)
