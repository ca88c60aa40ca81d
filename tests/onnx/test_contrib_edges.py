"""Operators of com.microsoft at the edges of what they take: ONNX Runtime's numbers, or errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glnn
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.graph.operators import Gather
from tests.onnx.contrib_cases import OLDER, Array, Case, expected, numbers, packed_bits

RNG = np.random.default_rng(11)
SINGLE, NEWER = np.float32, pytest.mark.skipif(OLDER, reason="earlier versions lack attributes")


def new(*shape: int) -> Array:
    return numbers(RNG, *shape)


def integers(*values: int) -> Array:
    return np.array(values, np.int32)


def _packed_experts(hidden: int, inner: int, block: int, *, zeroed: bool) -> Case:
    """Return QMoE of 4 experts, each row of whose weights has blocks and a rest."""
    operands: list[Array | None] = [new(3, hidden), new(3, 4)]
    points: list[Array | None] = []
    for outputs, inputs in ((inner, hidden), (hidden, inner)):
        shape = (4, outputs, -(-inputs // block))
        operands.append(packed_bits(RNG.integers(0, 16, (4, outputs, inputs)), 4))
        operands += [np.abs(numbers(RNG, *shape, scale=0.05)), None]
        points.append(packed_bits(RNG.integers(0, 16, shape), 4) if zeroed else None)
    operands += [None, None, None, *points] if zeroed else []
    attributes = {"k": 2, "normalize_routing_weights": 1, "block_size": block}
    attributes |= {"expert_weight_bits": 4, "weights_prepacked": 0}
    known = [i for i, one in enumerate(operands) if i > 1 and one is not None]
    return Case("QMoE", operands, attributes, known=known, tolerance=5e-5)


def _one_sure_expert(tokens: int) -> Case:
    """Return MoE whose logits are -inf but one."""
    logits = np.full((tokens, 16), -np.inf, SINGLE)
    logits[:, 0] = 1
    return Case("MoE", [new(tokens, 3), logits, new(16, 3, 3), None, new(16, 3, 3)], {"k": 2})


def _moe(kind: str, **attributes: int) -> Case:
    """Return MoE of an activation that ONNX Runtime's CPU package lacks, beside NumPy."""
    x, logits, second = new(3, 4), new(3, 5), new(5, 4, 6)
    first = new(5, 12 if kind == "geglu" else 6, 4)
    y = np.einsum("ti,eoi->teo", x, first, dtype=np.float64)
    if kind == "geglu":
        interleaved = attributes["swiglu_fusion"] == 1
        gate, up = (y[..., ::2], y[..., 1::2]) if interleaved else np.split(y, 2, -1)
        tanh = np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))
        y = 0.5 * gate * (1 + tanh) * up
    else:
        y = np.maximum(y, 0) ** 2
    shares = np.exp(logits.astype(np.float64))
    shares /= shares.sum(-1, keepdims=True)
    shares[shares < np.sort(shares, -1)[:, -2:-1]] = 0
    wanted = np.einsum("teo,eio,te->ti", y, second, shares)
    operands = [x, logits, first, None, second]
    return Case("MoE", operands, {"k": 2, "activation_type": kind} | attributes, expected=[wanted])


def _crop(size: int, to: int) -> Case:
    x = np.arange(size * size, dtype=SINGLE).reshape(1, 1, size, size)
    operands = [x, np.array([[0, 0, 1, 1]], SINGLE), integers(0), integers(to, to)]
    return Case("CropAndResize", operands, {"mode": "nearest"}, known=(3,))


def _rotary(x: Array, first: int, half: int, **attributes: float) -> Case:
    angles = RNG.uniform(-3, 3, (4, half)).astype(SINGLE)
    operands = [x, np.array([first]), np.cos(angles), np.sin(angles)]
    return Case("RotaryEmbedding", operands, attributes, known=(1, 2, 3))


def _grouped(rows: int, last: int, total: int, results: int = 3, **attributes: int) -> Case:
    """Return GroupQueryAttention of a token more in caches of so many rows, of 4 without any."""
    length = 1 if rows else 4
    operands = [new(1, length, 32) for _ in range(3)]
    operands += [new(1, 2, rows, 16) for _ in range(2)] if rows else [None, None]
    attributes = {"num_heads": 2, "kv_num_heads": 2, **attributes}
    return Case(
        "GroupQueryAttention",
        [*operands, integers(last), integers(total)],
        attributes,
        [SINGLE] * results,
        known=(5, 6),
    )


def _at_position(place: int) -> Case:
    """Return GroupQueryAttention of a token with a place in a table of 8 rows."""
    one = _grouped(3, 3, 4, do_rotary=1)
    one.operands += [new(8, 8), new(8, 8), np.array([[place]])]
    one.known = (5, 6, 9)
    return one


def _decoder(past: int, keys: Array, values: Array) -> Case:
    """Return DecoderMaskedMultiHeadAttention of 2 heads over a buffer of 5 rows."""
    caches = [new(1, 2, 5, 4) for _ in range(2)]
    operands = [new(1, 1, 8), keys, values, None, None, *caches, integers(past)]
    attributes = {"num_heads": 2, "past_present_share_buffer": 1}
    op = "DecoderMaskedMultiHeadAttention"
    return Case(op, operands, attributes, [SINGLE] * 3, known=(7,))


def _masked(mask: tuple[int, ...], hidden: float) -> Case:
    operands = [new(1, 3, 8), new(8, 24), None, np.array([mask], np.int32)]
    attributes = {"num_heads": 2, "unidirectional": 1, "mask_filter_value": hidden}
    return Case("Attention", operands, attributes)


def _fused_conv(activation: str, *parameters: float) -> Case:
    attributes: dict[str, Any] = {"activation": activation}
    attributes |= {"activation_params": list(parameters)} if parameters else {}
    return Case("FusedConv", [new(1, 1, 4, 4), new(1, 1, 2, 2)], attributes)


def _skip_group_norm(skip: tuple[int, ...], bias: int = 4, groups: int = 2) -> Case:
    operands = [new(1, 2, 2, 4), new(4), new(4), new(*skip), new(bias)]
    return Case("SkipGroupNorm", operands, {"groups": groups, "activation": 0})


def _causal_conv(*past: int, **attributes: int) -> Case:
    operands = [new(1, 2, 4), new(2, 1, 3), None, new(*past)]
    return Case("CausalConvWithState", operands, attributes, [SINGLE] * 2)


LOWEST = float(np.finfo(SINGLE).min)
TOKEN = new(1, 1, 8)
HEADS = {"num_heads": 2}

LIKE_ONNX_RUNTIME = {
    "Attention, a query without a key, by the lowest number": _masked((0, 0, 1), LOWEST),
    "Attention, a query without a key, by -10000": _masked((0, 0, 1), -10000.0),
    "MultiHeadAttention, unidirectional": Case(
        "MultiHeadAttention", [new(1, 3, 8)] * 3, {"num_heads": 2, "unidirectional": 1}
    ),
    "FusedConv, parameters of an activation without any": _fused_conv("Relu", 0.5),
    "FusedGemm, parameters of an activation with fewer": Case(
        "FusedGemm",
        [new(2, 3), new(3, 2)],
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "activation_beta": 0.5},
    ),
    "GroupQueryAttention, a cache that grows": _grouped(3, 3, 4),
    "GroupQueryAttention, the last row of a buffer": _grouped(3, 2, 3),
    "GroupQueryAttention, scores without later keys": _grouped(0, 3, 4, 4, qk_output=1),
    "GroupQueryAttention, weights": _grouped(0, 3, 4, 4, qk_output=2),
    "GroupQueryAttention, all keys are seen": _grouped(0, 3, 4, causal=0),
    "GroupQueryAttention, the last position": _at_position(7),
    "GroupQueryAttention, a window of one": _grouped(0, 3, 4, local_window_size=1),
    "RotaryEmbedding, the last positions": _rotary(new(1, 2, 8), 2, 4),
    "RotaryEmbedding, half of each head": _rotary(
        new(1, 2, 16), 0, 2, num_heads=2, rotary_embedding_dim=4
    ),
    "QMoE, rows that end within a block": _packed_experts(48, 80, 32, zeroed=False),
    "QMoE, the same with zero points": _packed_experts(48, 80, 32, zeroed=True),
    "MoE, one expert that is not -inf, few tokens": _one_sure_expert(1),
    "MoE, one expert that is not -inf, many tokens": _one_sure_expert(8),
    "MoE, squares of ReLU": _moe("relu2"),
    "MoE, a gate by GELU, interleaved": _moe("geglu", swiglu_fusion=1),
    "MoE, a gate by GELU, in halves": _moe("geglu", swiglu_fusion=2),
    "MoE, a gate's limit": Case(
        "MoE",
        [new(3, 4), new(3, 5), new(5, 12, 4), None, new(5, 4, 6)],
        {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 0.3},
    ),
    "CropAndResize, 2 to 1": _crop(2, 1),
    "CropAndResize, 6 to 3": _crop(6, 3),
}


@NEWER
@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize("name", LIKE_ONNX_RUNTIME)
def test_like_onnx_runtime(name: str, backend: str) -> None:
    one = LIKE_ONNX_RUNTIME[name]
    try:
        session = glnn.InferenceSession(one.model().SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    for got, right in zip(session.run(None, one.feeds()), expected(one), strict=True):
        assert right is not None
        most = np.abs(right).max(initial=0.0)
        np.testing.assert_allclose(got, right, one.tolerance, one.tolerance * most)


@pytest.mark.parametrize(("tokens", "gathered"), [(1, 2), (4, 2), (5, 0)])
def test_weights_are_gathered_for_few_tokens(tokens: int, gathered: int) -> None:
    """Where these have no more experts in all than half of those there are."""
    operands = [new(tokens, 8), new(tokens, 16), new(16, 12, 8), None, new(16, 8, 12)]
    case = Case("MoE", operands, {"k": 2}, known=(2, 4))
    session = glnn.InferenceSession(case.model().SerializeToString(), "cpu")
    steps = session.plan({name: x.shape for name, x in case.feeds().items()}).steps
    assert sum(isinstance(step.op, Gather) for step in steps) == gathered


def _scales(shape: tuple[int, ...], **attributes: int) -> Case:
    """Return QMoE of 4 experts of 48 inputs with scales of a shape for its first layer."""
    one = _packed_experts(48, 48, 16, zeroed=False)
    one.operands[3] = np.ones(shape, SINGLE)
    del one.attributes["block_size"]
    one.attributes |= attributes
    return one


MOE = [new(2, 8), new(2, 4), new(4, 8, 8), None, new(4, 8, 8)]

REFUSED = {
    "Attention, a past of three": (
        Case("Attention", [new(1, 3, 8), new(8, 24), None, None, new(3, 1, 2, 5, 4)], HEADS),
        r"past must be \(2, 1, 2, rows, 4\) .*, got float32 \(3, 1, 2, 5, 4\)",
    ),
    "Attention, a past of fewer dimensions": (
        Case("Attention", [new(1, 3, 8), new(8, 24), None, None, new(2, 1, 4)], HEADS),
        r"past must be \(2, 1, 2, rows, 4\) .*, got float32 \(2, 1, 4\)",
    ),
    "MultiHeadAttention, values unlike keys": (
        Case("MultiHeadAttention", [new(1, 2, 8), new(1, 2, 3, 4), new(1, 3, 8)], HEADS),
        r"both have 3 or 4 dimensions, got float32 \(1, 2, 3, 4\) and float32 \(1, 3, 8\)",
    ),
    "PackedAttention, tokens of samples": (
        Case(
            "PackedAttention",
            [new(1, 3, 8), new(8, 24), new(24), np.arange(3, dtype=np.int32)[None], integers(0, 3)],
            HEADS,
        ),
        r"x must be \(tokens, numbers\), got float32 \(1, 3, 8\)",
    ),
    "FusedConv, no slope": (_fused_conv("LeakyRelu"), "'LeakyRelu' takes 1 parameters, got 0"),
    "FusedConv, one limit": (_fused_conv("Clip", 0.5), "'Clip' takes 2 parameters, got 1"),
    "FusedConv, one of two": (_fused_conv("HardSigmoid", 0.5), "takes 2 parameters, got 1"),
    "FusedConv, three of two": (_fused_conv("Clip", 0.1, 0.5, 0.6), "takes 2 parameters, got 3"),
    "FusedGemm, the second parameter alone": (
        Case(
            "FusedGemm",
            [new(2, 3), new(3, 2)],
            {"activation": "HardSigmoid", "activation_beta": 0.1},
        ),
        "activation 'HardSigmoid' needs activation_alpha",
    ),
    "FusedGemm, no parameters": (
        Case("FusedGemm", [new(2, 3), new(3, 2)], {"activation": "HardSigmoid"}),
        "activation 'HardSigmoid' needs activation_alpha and activation_beta",
    ),
    "SkipGroupNorm, more samples": (
        _skip_group_norm((3, 2, 2, 4)),
        r"skip must be float32 \(1, 2, 2, 4\), .*, got float32 \(3, 2, 2, 4\)",
    ),
    "SkipGroupNorm, a bias of other channels": (
        _skip_group_norm((1, 2, 2, 4), bias=1),
        r"the bias must be \(4,\), got float32 \(1,\)",
    ),
    "SkipGroupNorm, no groups": (
        _skip_group_norm((1, 2, 2, 4), groups=0),
        "groups must be 1 or more, got 0",
    ),
    "CausalConvWithState, a longer past": (
        _causal_conv(1, 2, 5),
        r"past_state must be \(1, 2, 2\), got float32 \(1, 2, 5\)",
    ),
    "CausalConvWithState, a shorter past": (
        _causal_conv(1, 2, 1),
        r"past_state must be \(1, 2, 2\), got float32 \(1, 2, 1\)",
    ),
    "CausalConvWithState, fewer states": (
        _causal_conv(2, 1, 2, 2, state_window=3),
        r"past_state must be \(3, 1, 2, 2\), got float32 \(2, 1, 2, 2\)",
    ),
    "GroupQueryAttention, a total behind the cache": (
        _grouped(8, 12, 13),
        "must be 9 for a cache that grows by 1 tokens, or from 1 to 8 in one of 8 rows, got 13",
    ),
    "GroupQueryAttention, a place behind the cache": (
        _grouped(3, 9, 3),
        "seqlens_k must be from 0 to 2, got 9",
    ),
    "GroupQueryAttention, a position before the table": (
        _at_position(-1),
        "position_ids must be from 0 to 7, got -1",
    ),
    "GroupQueryAttention, a window of keys that all see": (
        _grouped(0, 3, 4, causal=0, local_window_size=2),
        "local_window_size must be -1, or from 1 on with causal, got 2 and causal 0",
    ),
    "GroupQueryAttention, an empty window": (
        _grouped(0, 3, 4, local_window_size=0),
        "local_window_size must be -1, or from 1 on with causal, got 0 and causal 1",
    ),
    "GroupQueryAttention, unknown scores": (
        _grouped(0, 3, 4, 4, qk_output=3),
        "qk_output must be 0, 1 or 2, and 1 or 2 for a fourth result, got 3 and a fourth result",
    ),
    "GroupQueryAttention, scores that are not asked for": (
        _grouped(0, 3, 4, 4),
        "and 1 or 2 for a fourth result, got 0 and a fourth result",
    ),
    "DecoderMaskedMultiHeadAttention, a negative past": (
        _decoder(-1, TOKEN, TOKEN),
        "past_sequence_length must be from 0 to 4 in a buffer of 5 rows, got -1",
    ),
    "DecoderMaskedMultiHeadAttention, a full buffer": (
        _decoder(5, TOKEN, TOKEN),
        "past_sequence_length must be from 0 to 4 in a buffer of 5 rows, got 5",
    ),
    "DecoderMaskedMultiHeadAttention, several tokens": (
        _decoder(1, new(1, 3, 8), new(1, 3, 8)),
        r"must be \(1, 1, 8\).*, got float32 \(1, 3, 8\) and float32 \(1, 3, 8\)",
    ),
    "DecoderMaskedMultiHeadAttention, values unlike keys": (
        _decoder(1, new(1, 2, 3, 4), TOKEN),
        r"must be \(1, 1, 8\).*, got float32 \(1, 2, 3, 4\) and float32 \(1, 1, 8\)",
    ),
    "RotaryEmbedding, cosines of another half": (
        _rotary(new(1, 2, 8), 0, 4, num_heads=1, rotary_embedding_dim=4),
        r"\(positions, 2\), half of 4 numbers, got float32 \(4, 4\) and float32 \(4, 4\)",
    ),
    "RotaryEmbedding, cosines for a part": (
        _rotary(new(1, 2, 8), 0, 2, num_heads=1),
        r"\(positions, 4\), half of 8 numbers, got float32 \(4, 2\)",
    ),
    "RotaryEmbedding, a part of unknown heads": (
        _rotary(new(1, 2, 8), 0, 2, rotary_embedding_dim=4),
        "rotary_embedding_dim 4 needs num_heads",
    ),
    "RotaryEmbedding, behind the table": (
        _rotary(new(1, 2, 8), 3, 4),
        "position_ids must be from 0 to 2, got 3",
    ),
    "RotaryEmbedding, packed batches": (
        _rotary(new(1, 2, 8), 0, 4, is_packed_batching=1),
        "is_packed_batching must be 0 and scale 1, got 1 and 1.0",
    ),
    "RotaryEmbedding, scaled": (
        _rotary(new(1, 2, 8), 0, 4, scale=0.5),
        "is_packed_batching must be 0 and scale 1, got 0 and 0.5",
    ),
    "QMoE, blocks of another size": (
        _scales((4, 48, 2), block_size=16),
        r"must be \(4, 48, 3\) with block_size 16, got float32 \(4, 48, 2\)",
    ),
    "QMoE, blocks of no size": (
        _scales((4, 48, 3)),
        r"must be \(4, 48\) with block_size 0, got float32 \(4, 48, 3\)",
    ),
    "QMoE, a negative size": (_scales((4, 48), block_size=-16), "block_size must be 0 or more"),
    "MoE, fewer experts in the second layer": (
        Case("MoE", [*MOE[:4], new(3, 8, 8)]),
        r"must have 4 experts, got float32 \(3, 8, 8\)",
    ),
    "MoE, a bias of fewer experts": (
        Case("MoE", [*MOE, new(3, 8)]),
        r"must have 4 experts, got float32 \(4, 8, 8\), float32 \(3, 8\)",
    ),
    "MoE, fewer experts in the third layer": (
        Case("MoE", [*MOE, None, new(3, 8, 8)], {"activation_type": "swiglu"}),
        r"must have 4 experts, got float32 \(3, 8, 8\)",
    ),
    "MoE, fused without a gate": (
        Case("MoE", MOE, {"swiglu_fusion": 1}),
        "the activation relu takes no swiglu_fusion and no swiglu_limit, got 1 and inf",
    ),
    "MoE, a limit without a gate": (
        Case("MoE", MOE, {"swiglu_limit": 0.5}),
        "the activation relu takes no swiglu_fusion and no swiglu_limit, got 0 and 0.5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    one, message = REFUSED[name]
    with pytest.raises((ModelError, ShapeError), match=message):
        glnn.InferenceSession(one.model().SerializeToString(), "cpu").run(None, one.feeds())
