"""Operators of ONNX Runtime's operator set with a state from token to token."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.sliding_windows import conv
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Expand, Pad, Slice, Transpose
from glnn.onnx.operators.attention import linear_attention
from glnn.onnx.operators.call import (
    MICROSOFT,
    REQUIRED_INT,
    Converter,
    OperatorCall,
    Signature,
)
from glnn.onnx.operators.windows import add_channel_bias

CUDA_ONLY = {
    "input_channel_offset": 0,
    "input_channels": 0,
    "state_channels_last": -1,
    "state_length": 0,
    "state_update_capacity": 0,
}
"""Attributes of CausalConvWithState, with the only values that are supported."""
MOST_SLOTS = 8  # of a state_window, as in ONNX Runtime


def _causal_conv(
    call: OperatorCall,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    past: Value | None = None,
) -> tuple[Value, Value]:
    """Convolve each channel of x causally; return the result, and the last tokens as state.

    x: (batch, channels, length), or with `channels_last` (batch, length, ...). past: the state, the
    tokens before x that a window reaches; with `state_window` a stack of states after each of the
    last tokens, of which the last is used.
    """
    for name, value in CUDA_ONLY.items():
        if call.need(name) != value:
            raise UnsupportedOpError(f"{call.name}: {name} must be {value}, got {call.need(name)}")
    dilation, slots = call.need("dilation"), call.need("state_window")
    if call.need("ndim") != 1 or dilation < 1 or not 0 <= slots <= MOST_SLOTS:
        raise UnsupportedOpError(
            f"{call.name}: ndim must be 1, dilation 1 or more and state_window from 0 to "
            f"{MOST_SLOTS}, got {call.need('ndim')}, {dilation} and {slots}"
        )
    channels_last, shape = bool(call.need("channels_last")), x.type.shape
    reach = (weight.type.shape[-1] - 1) * dilation
    tokens = _channels_first(call, x, channels_last)
    channels, length = tokens.type.shape[1:]
    state_shape = (shape[0], reach, *shape[2:]) if channels_last else (shape[0], channels, reach)
    expected = (slots, *state_shape) if slots else state_shape
    if past is not None and past.type.shape != expected:
        raise ShapeError(f"{call.name}: past_state must be {expected}, got {past.type}")
    if past is not None and slots:
        past = call(Slice((slots - 1,), (slots,), (0,), (1,)), past)
        past = call.reshape(past, past.type.shape[1:])
    joined = tokens
    if reach and past is None:
        joined = call(Pad((0, 0, reach), (0, 0, 0)), tokens)
    elif reach and past is not None:
        joined = call(Concat(2), _channels_first(call, past, channels_last), tokens)
    y = conv(
        call, joined, weight, stride=(1,), padding=(0, 0), dilation=(dilation,), groups=channels
    )
    y = add_channel_bias(call, y, bias)
    activation = call.need("activation")
    if activation in ("silu", "swish"):
        y = call.pointwise("silu(a)", y)
    elif activation != "none":
        raise ShapeError(f"{call.name}: activation {activation!r} is not known")
    states = []
    for slot in range(max(slots, 1)):  # the state after each of the last tokens
        end = length - max(slots, 1) + slot + 1
        if end > 0:
            state = call(Slice((end,), (end + reach,), (2,), (1,)), joined)
        else:
            state = call(Expand((shape[0], channels, reach)), call.constant(0.0, "float32"))
        states.append(_restore_layout(call, state, shape, channels_last))
    if slots:
        states = [call.reshape(one, (1, *one.type.shape)) for one in states]
    present = states[0] if len(states) == 1 else call(Concat(0), *states)
    return _restore_layout(call, y, shape, channels_last), present


def _channels_first(call: OperatorCall, x: Value, channels_last: bool) -> Value:
    """Return x as (batch, channels, length)."""
    if not channels_last:
        return x
    batch, length, *channels = x.type.shape
    return call(Transpose((0, 2, 1)), call.reshape(x, (batch, length, prod(channels))))


def _restore_layout(
    call: OperatorCall, y: Value, shape: tuple[int, ...], channels_last: bool
) -> Value:
    """Return y (batch, channels, length) in the layout of x, which is of `shape`."""
    if not channels_last:
        return y
    return call.reshape(call(Transpose((0, 2, 1)), y), (shape[0], y.type.shape[2], *shape[2:]))


def _linear_attention(
    call: OperatorCall,
    query: Value,
    key: Value,
    value: Value,
    past: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
) -> tuple[Value, Value]:
    """Convert LinearAttention, also with fewer heads of queries than of keys."""
    if call.need("state_window"):
        raise UnsupportedOpError(f"{call.name}: with state_window")
    heads, groups = call.need("q_num_heads"), call.need("kv_num_heads")
    if 0 < heads < groups and groups % heads == 0:
        batch, length, width = query.type.shape
        shape = (batch, length, heads, groups // heads, width // heads)
        grouped = call.reshape(query, (batch, length, heads, 1, width // heads))
        query = call.reshape(call(Expand(shape), grouped), (batch, length, width * shape[3]))
        call = replace(call, attributes={**call.attributes, "q_num_heads": groups})
    return linear_attention(call, query, key, value, past, decay, beta)


_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row(
        "CausalConvWithState",
        convert=_causal_conv,
        signature=Signature(
            (2, 4),
            (2, 3),
            {
                **CUDA_ONLY,
                "activation": "none",
                "channels_last": 0,
                "dilation": 1,
                "ndim": 1,
                "state_window": 0,
            },
        ),
    ),
    _row(
        "LinearAttention",
        convert=_linear_attention,
        halves=True,
        dtypes=frozenset((DType.bfloat16,)),
        signature=Signature(
            (3, 6),
            (2, 2),
            {
                "chunk_size": 64,
                "kv_num_heads": REQUIRED_INT,
                "q_num_heads": REQUIRED_INT,
                "scale": 0.0,
                "state_window": 0,
                "update_rule": "gated_delta",
            },
            (0, 3),
        ),
    ),
)
