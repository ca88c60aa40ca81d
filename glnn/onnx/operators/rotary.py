"""Rotary embeddings: pairs of numbers turned by the angles of their places."""

from __future__ import annotations

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Flip, Gather, Slice
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry


def _rotary_embedding(
    call: Call, x: Value, cos: Value, sin: Value, positions: Value | None = None
) -> Value:
    """x (batch, heads, length, size) or (batch, length, heads size). Su et al. 2021, RoFormer.

    cos, sin: (batch, length, half of what is turned), or (places, half) for `positions`.
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
    turned = call.get("rotary_embedding_dim", 0) or size
    if turned % 2 or turned > size:
        raise ShapeError(f"{call.name}: {turned} of {size} numbers cannot be turned in pairs")
    if positions is not None:
        cos, sin = (call(Gather(0), angles, positions) for angles in (cos, sin))
    first = x if turned == size else call(Slice((0,), (turned,), (3,), (1,)), x)
    y = _turned(call, first, cos, sin, packed)
    if turned < size:
        y = call(Concat(3), y, call(Slice((turned,), (size,), (3,), (1,)), x))
    return call.reshape(y, shape)


def _turned(call: Call, x: Value, cos: Value, sin: Value, packed: bool) -> Value:
    """Return x with all pairs rotated: (batch, length, heads, size) if `packed`, else (batch,
    heads, length, size).

    A pair (a, b) becomes (a cos - b sin, b cos + a sin): the pair by cos and, swapped, by sin.

    Of a pair (a, b): (a cos - b sin, b cos + a sin), which is the pair by cos and, swapped, by sin.
    """
    shape, half = x.type.shape, x.type.shape[3] // 2
    length = shape[1] if packed else shape[2]
    if any(one.type.shape != (shape[0], length, half) for one in (cos, sin)):
        expected = (shape[0], length, half)
        raise ShapeError(f"{call.name}: cos and sin must be {expected}, got {cos.type}, {sin.type}")
    interleaved = bool(call.get("interleaved", 0))
    pair = (half, 2) if interleaved else (2, half)
    angles = (shape[0], *((length, 1) if packed else (1, length)))
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


ENTRIES = (Entry("RotaryEmbedding", 23, _rotary_embedding),)
