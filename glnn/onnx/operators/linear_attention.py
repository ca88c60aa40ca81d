"""Attention without a softmax: a state that goes from token to token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.compose.control import Scan
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Transpose
from glnn.onnx.operators.call import Call, Converter
from glnn.types import DType

GATED, DELTA = ("gated", "gated_delta"), ("delta", "gated_delta")


@dataclass(frozen=True)
class _Sizes:
    batch: int
    length: int
    heads: int
    """The number of heads of keys and values, each with a state."""
    group: int
    """Heads of queries that share one."""
    key: int
    """Numbers of a key of one head."""
    value: int
    scale: float
    """Factor of the results."""


def _sizes(call: Call, query: Value, key: Value, value: Value) -> _Sizes:
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
    call: Call, sizes: _Sizes, state: Value, token: Sequence[Value | None]
) -> tuple[Value, Value]:
    """The state (batch, heads, value, key) after a token, and what its queries read.

    token: query, key, value, decay and beta, (batch, numbers) each.
    """
    s = sizes
    query, key, value, decay, beta = token
    assert query is not None and key is not None and value is not None
    key = call.reshape(key, (s.batch, s.heads, 1, s.key))
    value = call.reshape(value, (s.batch, s.heads, s.value, 1))
    if decay is not None:
        each = decay.type.shape[1] // s.heads
        decay = call.reshape(decay, (s.batch, s.heads, 1, each))
        state = call.pointwise("a * exp(b)", state, decay)
    if beta is not None:
        beta = call.reshape(beta, (s.batch, beta.type.shape[1], 1, 1))
        there = call.reshape(matmul(call, key, state, transposed=True), value.type.shape)
        value = call.pointwise("c * (a - b)", value, there, beta)
    state = call.pointwise("a + b * c", state, key, value)
    rows = call.reshape(query, (s.batch, s.heads, s.group, s.key))
    read = call.pointwise("a * b", matmul(call, rows, state, transposed=True), s.scale)
    return state, call.reshape(read, (s.batch, s.heads * s.group * s.value))


def _linear_attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    past: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
) -> tuple[Value, Value]:
    """Return each token's result, and the state after the last token.

    Yang et al. 2024, Gated Delta Networks. The state is kept with values before keys, as products
    want it. Several tokens are a loop.
    """
    rule = call.get("update_rule", "gated_delta")
    if rule not in ("linear", *GATED, *DELTA):
        raise ShapeError(f"{call.name}: update_rule {rule!r} is not known")
    if (decay is not None) != (rule in GATED) or (beta is not None) != (rule in DELTA):
        raise ShapeError(f"{call.name}: decay and beta do not go with update_rule {rule!r}")
    dtype = query.type.dtype
    kept = dtype if past is None else past.type.dtype
    given = [v and call.cast(v, DType.float32) for v in (query, key, value, decay, beta)]
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
        token = [v and call.reshape(v, (s.batch, v.type.shape[2])) for v in given]
        state, read = _step(call, s, state, token)
        output = call.reshape(read, (s.batch, 1, read.type.shape[1]))
    else:
        output, state = _tokens(call, s, state, given)
    after = call(Transpose((0, 1, 3, 2)), state)
    return call.cast(output, dtype), call.cast(after, kept)


def _tokens(
    call: Call, sizes: _Sizes, state: Value, operands: Sequence[Value | None]
) -> tuple[Value, Value]:
    """Scan the tokens: return all results, (batch, length, numbers), and the last state."""
    scanned = [v for v in operands if v is not None]
    scan = Scan(call.builder, [state], scanned, (1,) * len(scanned), name=call.name)
    inside = replace(call, builder=scan.body)
    places = iter(scan.places)
    token = [None if v is None else next(places) for v in operands]
    after, read = _step(inside, sizes, scan.states[0], token)
    last, reads = scan.results([after], [read])
    return call(Transpose((1, 0, 2)), reads), last


ENTRIES = (
    Converter(
        "LinearAttention", 27, _linear_attention, halves=True, dtypes=frozenset((DType.bfloat16,))
    ),
)
