"""Mixtures of experts of ONNX Runtime's operator set (Shazeer et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import (
    Expand,
    Gather,
    GatherElements,
    Pad,
    Reduce,
    ScatterElements,
    Slice,
    Softmax,
    TopK,
    Transpose,
)
from glnn.onnx.operators.call import (
    FLOAT,
    MICROSOFT,
    Attribute,
    Attributes,
    Converter,
    OperatorCall,
    Signature,
)

ACTIVATIONS = {
    "relu": "relu(a)",
    "relu2": "square(relu(a))",
    "gelu": "gelu_tanh(a)",
    "silu": "silu(a)",
    "identity": "a",
}
GATED = {"swiglu": "a * sigmoid(a * c) * (b + d)", "geglu": "gelu_tanh(a) * b"}
"""Activations of two halves: the gate a and b; c and d are attributes."""


@dataclass(frozen=True)
class _Layer:
    """A linear layer of each expert."""

    weight: Value
    """(experts, outputs, inputs)."""
    bias: Value | None
    """(experts, outputs)."""

    @property
    def operands(self) -> tuple[Value, ...]:
        """The tensors whose first dimension is the experts."""
        return tuple(one for one in (self.weight, self.bias) if one is not None)

    def weights(self, call: OperatorCall, index: Value | None) -> Value:
        """Return the weights of the experts `index`; None for all."""
        return self.weight if index is None else call(Gather(0), self.weight, index)


@dataclass(frozen=True)
class _PackedLayer(_Layer):
    """A linear layer of each expert, with unsigned integers packed in bytes, low bits first."""

    scales: Value
    """(experts, outputs), or (experts, outputs, blocks)."""
    zeros: Value | None
    """The zero points, packed along their last dimension; None for the middle of the range."""
    bits: int
    block: int
    """The number of inputs of a block; a row's last block may be shorter. 0 without blocks."""

    def weights(self, call: OperatorCall, index: Value | None) -> Value:
        packed, scales, zeros = self.weight, self.scales, self.zeros
        if index is not None:
            packed, scales = (call(Gather(0), one, index) for one in (packed, scales))
            zeros = zeros and call(Gather(0), zeros, index)
        integers = _unpack(call, packed, self.bits)
        experts, outputs, inputs = integers.type.shape
        block = self.block or inputs
        blocks = -(-inputs // block)
        expected = (experts, outputs, blocks) if self.block else (experts, outputs)
        if scales.type.shape != expected:
            raise ShapeError(
                f"{call.name}: scales of weights {integers.type} must be {expected} with "
                f"block_size {self.block}, got {scales.type}"
            )
        padding = blocks * block - inputs
        if padding:
            integers = call(Pad((0, 0, 0), (0, 0, padding)), integers)
        zero: Value | float = 2.0 ** (self.bits - 1)
        if zeros is not None:
            count = blocks if self.block else outputs
            zero = _unpack(call, zeros, self.bits)
            zero = call(Slice((0,), (count,), (-1,), (1,)), zero)
            zero = call.reshape(zero, (experts, outputs, blocks, 1))
        numbers = call.reshape(integers, (experts, outputs, blocks, block))
        scale = call.reshape(scales, (experts, outputs, blocks, 1))
        y = call.pointwise("(a - c) * b", numbers, scale, zero)
        y = call.reshape(y, (experts, outputs, blocks * block))
        return call(Slice((0,), (inputs,), (2,), (1,)), y) if padding else y


def _unpack(call: OperatorCall, packed: Value, bits: int) -> Value:
    """Unpack integers of `bits` bits from bytes (..., n); return float32 (..., 8 n / bits)."""
    if bits == 8:
        return call.cast(packed, DType.float32)
    if bits not in (2, 4):
        raise UnsupportedOpError(f"{call.name}: weights of {bits} bits")
    byte = call.reshape(call.cast(packed, DType.int32), (*packed.type.shape, 1))
    shifts = call.constant(np.arange(0, 8, bits), np.int32)
    formula = f"cast_float32(bitwise_and(right_shift(a, b), {(1 << bits) - 1}))"
    unpacked = call.pointwise(formula, byte, shifts)
    *outer, count = packed.type.shape
    return call.reshape(unpacked, (*outer, count * 8 // bits))


@dataclass(frozen=True)
class _Routing:
    """The experts that are chosen for each token."""

    index: Value
    """(tokens, k), int32."""
    weights: Value
    """(tokens, k), the factors of the experts' results."""
    shares: Value
    """(tokens, experts), the same factors, 0 for experts that are not chosen."""


def _route(call: OperatorCall, logits: Value, mixing: Value | None) -> _Routing:
    """Choose the `k` experts of the largest logits (tokens, experts) for each token.

    mixing: the factors of experts; None for the softmax of the logits.
    """
    experts, k = logits.type.shape[1], call.need("k")
    if not 1 <= k <= experts:
        raise ShapeError(f"{call.name}: k must be from 1 to {experts}, got {k}")
    shares = call(Softmax(-1), logits) if mixing is None else mixing
    index = call(TopK(k), logits)
    weights = call(GatherElements(1), shares, index)
    if call.need("normalize_routing_weights"):
        weights = call.pointwise("a / b", weights, call(Reduce("sum", (1,), True), weights))
    none = call(Expand(logits.type.shape), call.constant([[0]], np.float32))
    return _Routing(index, weights, call(ScatterElements(1), none, index, weights))


def _activate(call: OperatorCall, y: Value, up: Value | None) -> Value:
    """Apply the node's activation to y (..., numbers).

    up: the second operand of a gated activation; None where y has both halves.
    """
    name, fusion = call.need("activation_type"), call.need("swiglu_fusion")
    if call.need("swiglu_limit_after_activation"):
        raise UnsupportedOpError(f"{call.name}: with swiglu_limit_after_activation")
    if name in ACTIVATIONS:
        if up is not None:
            raise UnsupportedOpError(f"{call.name}: fc3 with the activation {name}")
        if fusion or call.get("swiglu_limit", inf) != inf:
            raise ShapeError(
                f"{call.name}: the activation {name} takes no swiglu_fusion and no swiglu_limit, "
                f"got {fusion} and {call.get('swiglu_limit', inf)}"
            )
        return call.pointwise(ACTIVATIONS[name], y)
    if name not in GATED or fusion not in (0, 1, 2) or (up is None) != (fusion > 0):
        raise ShapeError(
            f"{call.name}: activation {name!r} with swiglu_fusion {fusion} and "
            f"{'no ' if up is None else ''}fc3"
        )
    gate = y
    if up is None:
        size = y.type.shape[-1]
        starts, step = ((0, 1), 2) if fusion == 1 else ((0, size // 2), 1)
        ends = (size, size) if fusion == 1 else (size // 2, size)
        gate, up = (
            call(Slice((start,), (end,), (-1,), (step,)), y)
            for start, end in zip(starts, ends, strict=True)
        )
    if name == "swiglu" and "swiglu_limit" in call.attributes:
        limit = float(call.attributes["swiglu_limit"])
        gate = call.pointwise("minimum(a, b)", gate, limit)
        up = call.pointwise("clip(a, b, c)", up, -limit, limit)
    numbers = [float(call.need(f"activation_{one}")) for one in ("alpha", "beta")]
    return call.pointwise(GATED[name], gate, up, *(numbers if name == "swiglu" else ()))


def _moe(
    call: OperatorCall,
    x: Value,
    logits: Value,
    weight1: Value,
    bias1: Value | None,
    weight2: Value,
    bias2: Value | None = None,
    weight3: Value | None = None,
    bias3: Value | None = None,
) -> Value:
    """Return the weighted sum of each token's experts. Weights are (experts, outputs, inputs)."""
    third = None if weight3 is None else _Layer(weight3, bias3)
    return _mixture(call, x, logits, None, (_Layer(weight1, bias1), _Layer(weight2, bias2)), third)


def _quantized_moe(
    call: OperatorCall,
    x: Value,
    logits: Value,
    weight1: Value,
    scales1: Value | None,
    bias1: Value | None,
    weight2: Value,
    scales2: Value | None,
    bias2: Value | None = None,
    weight3: Value | None = None,
    scales3: Value | None = None,
    bias3: Value | None = None,
    zeros1: Value | None = None,
    zeros2: Value | None = None,
    zeros3: Value | None = None,
    mixing: Value | None = None,
    *others: Value | None,
) -> Value:
    """Convert MoE of integer weights with a scale for each output or block of inputs."""
    if call.need("quant_type") != "int" or call.need("weights_prepacked") == 1 or any(others):
        raise UnsupportedOpError(f"{call.name}: with weights that are no integers, or rearranged")
    bits, block = call.need("expert_weight_bits"), call.get("block_size", 0)
    if block < 0:
        raise ShapeError(f"{call.name}: block_size must be 0 or more, got {block}")
    layers = []
    for number, weight, scales, bias, zeros in (
        (1, weight1, scales1, bias1, zeros1),
        (2, weight2, scales2, bias2, zeros2),
        (3, weight3, scales3, bias3, zeros3),
    ):
        if weight is not None and scales is None:
            raise ShapeError(f"{call.name}: the scales of fc{number} are missing")
        if weight is not None and scales is not None:
            layer_bits = call.get(f"fc{number}_expert_weight_bits", bits)
            layers.append(_PackedLayer(weight, bias, scales, zeros, layer_bits, block))
    third = layers[2] if len(layers) > 2 else None
    return _mixture(call, x, logits, mixing, (layers[0], layers[1]), third)


def _mixture(
    call: OperatorCall,
    x: Value,
    logits: Value,
    mixing: Value | None,
    layers: tuple[_Layer, _Layer],
    third: _Layer | None,
) -> Value:
    """Return the weighted sum of each token's experts.

    x: (tokens, size) or (batch, length, size). logits: (tokens, experts). For few tokens the
    weights of their experts are gathered; for many tokens all experts are computed.
    """
    if call.need("use_sparse_mixer"):
        raise UnsupportedOpError(f"{call.name}: with use_sparse_mixer")
    shape, (tokens, count) = x.type.shape, logits.type.shape
    experts = layers[0].weight.type.shape[0]
    if count != experts or len(shape) not in (2, 3):
        raise ShapeError(f"{call.name}: {logits.type} logits of {experts} experts of {x.type}")
    for layer in (*layers, third):
        parts = () if layer is None else layer.operands
        if any(one.type.dims[:1] != (experts,) for one in parts):
            types = ", ".join(str(one.type) for one in parts)
            raise ShapeError(f"{call.name}: each layer must have {experts} experts, got {types}")
    rows, routing = call.reshape(x, (tokens, shape[-1])), _route(call, logits, mixing)
    few = tokens * call.need("k") <= experts // 2
    y = (_compute_chosen if few else _compute_all)(call, rows, routing, layers, third)
    return call.reshape(y, shape)


def _compute_all(
    call: OperatorCall,
    rows: Value,
    routing: _Routing,
    layers: tuple[_Layer, _Layer],
    third: _Layer | None,
) -> Value:
    """Compute every expert for every token."""

    def linear(x: Value, layer: _Layer) -> Value:
        y = matmul(call, x, layer.weights(call, None), transposed=True)
        if layer.bias is None:
            return y
        experts, outputs = layer.bias.type.shape
        return call.pointwise("a + b", y, call.reshape(layer.bias, (experts, 1, outputs)))

    tokens, experts = routing.shares.type.shape
    x = call.reshape(rows, (1, *rows.type.shape))
    y = _expert(call, x, linear, layers, third)
    shares = call.reshape(call(Transpose((1, 0)), routing.shares), (experts, tokens, 1))
    weighted = call.pointwise("a * b", y, shares)
    return call(Reduce("sum", (0,)), weighted)


def _compute_chosen(
    call: OperatorCall,
    rows: Value,
    routing: _Routing,
    layers: tuple[_Layer, _Layer],
    third: _Layer | None,
) -> Value:
    """Compute only the chosen experts of each token, with gathered weights."""
    tokens, k = routing.index.type.shape
    index = call.reshape(routing.index, (tokens * k,))

    def linear(x: Value, layer: _Layer) -> Value:
        y = matmul(call, x, layer.weights(call, index), transposed=True)
        if layer.bias is None:
            return y
        bias = call(Gather(0), layer.bias, index)
        return call.pointwise("a + b", y, call.reshape(bias, y.type.shape))

    size = rows.type.shape[1]
    repeated = call(Expand((tokens, k, size)), call.reshape(rows, (tokens, 1, size)))
    x = call.reshape(repeated, (tokens * k, 1, size))
    y = _expert(call, x, linear, layers, third)
    weights = call.reshape(routing.weights, (tokens, k, 1))
    y = call.reshape(y, (tokens, k, y.type.shape[2]))
    return call(Reduce("sum", (1,)), call.pointwise("a * b", y, weights))


def _expert(
    call: OperatorCall,
    x: Value,
    linear: Callable[[Value, _Layer], Value],
    layers: tuple[_Layer, _Layer],
    third: _Layer | None,
) -> Value:
    """Apply both layers with the activation in between. linear: applies a layer."""
    up = None if third is None else linear(x, third)
    return linear(_activate(call, linear(x, layers[0]), up), layers[1])


_ROUTED: Attributes = {
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
    "activation_type": "relu",
    "k": 1,
    "normalize_routing_weights": 0,
    "swiglu_fusion": 0,
    "swiglu_limit": FLOAT,
    "swiglu_limit_after_activation": 0,
    "use_sparse_mixer": 0,
}
_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row("MoE", convert=_moe, signature=Signature((5, 8), attributes=_ROUTED)),
    _row(
        "QMoE",
        convert=_quantized_moe,
        signature=Signature(
            (6, 21),
            attributes={
                **_ROUTED,
                **{f"fc{i}_expert_weight_bits": Attribute("INT") for i in (1, 2, 3)},
                "accuracy_level": 0,
                "block_size": Attribute("INT"),
                "expert_weight_bits": 4,
                "quant_type": "int",
                "weights_prepacked": -1,
            },
        ),
    ),
)
