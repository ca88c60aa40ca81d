"""Mixtures of experts of ONNX Runtime's operator set (Shazeer et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Value
from glnn.graph.operators import (
    ArgReduce,
    Concat,
    Expand,
    Gather,
    Reduce,
    Slice,
    Softmax,
    Transpose,
)
from glnn.onnx.operators.call import (
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


@dataclass(frozen=True)
class _Routing:
    """The experts of each token, the likeliest ones."""

    index: Value
    """(tokens, k), int32."""
    weights: Value
    """(tokens, k), by which the experts' results are weighted."""
    shares: Value
    """(tokens, experts), the same with 0 for all other experts."""


def _route(call: OperatorCall, logits: Value) -> _Routing:
    """Choose `k` experts for each token by their logits (tokens, experts): of equal ones the
    first.
    """
    experts, k = logits.type.shape[1], call.need("k")
    if not 1 <= k <= experts:
        raise ShapeError(f"{call.name}: k must be from 1 to {experts}, got {k}")
    shares = call(Softmax(-1), logits)
    number = call.count_up(experts, DType.int32, (1, experts))
    left, indices, chosen = logits, [], None
    for _ in range(k):
        index = call(ArgReduce("max", 1, True), left)
        indices.append(index)
        here = call.pointwise("equal(a, b)", index, number)
        left = call.pointwise("where(a, b, c)", here, -inf, left)
        chosen = here if chosen is None else call.pointwise("logical_or(a, b)", chosen, here)
    assert chosen is not None
    shares = call.pointwise("where(a, b, 0.0)", chosen, shares)
    if call.need("normalize_routing_weights"):
        shares = call.pointwise("a / b", shares, call(Reduce("sum", (1,), True), shares))
    each = [
        call(
            Reduce("sum", (1,), True),
            call.pointwise("where(equal(a, b), c, 0.0)", index, number, shares),
        )
        for index in indices
    ]
    if k == 1:
        return _Routing(indices[0], each[0], shares)
    return _Routing(call(Concat(1), *indices), call(Concat(1), *each), shares)


def _activated(call: OperatorCall, y: Value, up: Value | None) -> Value:
    """Apply the node's activation to y (..., numbers); up: the other half where that is apart."""
    name, fusion = call.need("activation_type"), call.need("swiglu_fusion")
    if call.need("swiglu_limit_after_activation"):
        raise UnsupportedOpError(f"{call.name}: with swiglu_limit_after_activation")
    if name in ACTIVATIONS:
        if up is not None:
            raise UnsupportedOpError(f"{call.name}: fc3 with the activation {name}")
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
    """Return the sum of each token's experts, weighted by their shares.

    x: (tokens, size) or (batch, length, size). logits: (tokens, experts). Weights of experts are
    (experts, outputs, inputs): those of a few tokens are gathered; for many all are computed.
    """
    if call.need("use_sparse_mixer"):
        raise UnsupportedOpError(f"{call.name}: with use_sparse_mixer")
    shape = x.type.shape
    experts, size = weight1.type.shape[0], weight1.type.shape[2]
    tokens, count = logits.type.shape
    rows = call.reshape(x, (tokens, size))
    if count != experts or len(shape) not in (2, 3):
        raise ShapeError(f"{call.name}: {logits.type} logits of {weight1.type} experts of {x.type}")
    routing = _route(call, logits)
    layers = (_Layer(weight1, bias1), _Layer(weight2, bias2))
    third = None if weight3 is None else _Layer(weight3, bias3)
    if tokens * call.need("k") <= experts // 2:
        y = _of_chosen(call, rows, routing, layers, third)
    else:
        y = _of_all(call, rows, routing, layers, third)
    return call.reshape(y, shape)


def _of_all(
    call: OperatorCall,
    rows: Value,
    routing: _Routing,
    layers: tuple[_Layer, _Layer],
    third: _Layer | None,
) -> Value:
    """Compute every expert for every token."""

    def linear(x: Value, layer: _Layer) -> Value:
        y = matmul(call, x, layer.weight, transposed=True)
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


def _of_chosen(
    call: OperatorCall,
    rows: Value,
    routing: _Routing,
    layers: tuple[_Layer, _Layer],
    third: _Layer | None,
) -> Value:
    """Compute the experts of each token by their weights, which are gathered."""
    tokens, k = routing.index.type.shape
    index = call.reshape(routing.index, (tokens * k,))

    def linear(x: Value, layer: _Layer) -> Value:
        y = matmul(call, x, call(Gather(0), layer.weight, index), transposed=True)
        if layer.bias is None:
            return y
        bias = call(Gather(0), layer.bias, index)
        return call.pointwise("a + b", y, call.reshape(bias, y.type.shape))

    size = rows.type.shape[1]
    each = call(Expand((tokens, k, size)), call.reshape(rows, (tokens, 1, size)))
    x = call.reshape(each, (tokens * k, 1, size))
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
    """Apply both layers with the activation between them; linear: applies a layer."""
    up = None if third is None else linear(x, third)
    return linear(_activated(call, linear(x, layers[0]), up), layers[1])


_ROUTED: Attributes = {
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
    "activation_type": "relu",
    "k": 1,
    "normalize_routing_weights": 0,
    "swiglu_fusion": 0,
    "swiglu_limit": Attribute("FLOAT"),
    "swiglu_limit_after_activation": 0,
    "use_sparse_mixer": 0,
}
_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (_row("MoE", convert=_moe, signature=Signature((5, 8), attributes=_ROUTED)),)
