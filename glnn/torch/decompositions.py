"""Operators that PyTorch uses at inference and its ONNX exporter has not, made of others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.nn import functional


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return functions that compute operators by others, as `run_decompositions` takes them."""
    aten = torch.ops.aten
    return {
        aten._native_multi_head_attention.default: attention,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten.split.Tensor: split,
        aten.split_with_sizes.default: split_with_sizes,
    }


def split(x: Any, split_size: int, dim: int = 0) -> Any:
    """Parts of `x` of the same size: the exporter makes a sequence of them, which is the host's."""
    size = x.shape[dim]
    if type(size) is not int or type(split_size) is not int or not split_size:
        return NotImplemented
    whole, last = divmod(size, split_size)
    return split_with_sizes(x, [split_size] * whole + [last] * (last > 0) or [0], dim)


def split_with_sizes(x: Any, split_sizes: list[int], dim: int = 0) -> Any:
    """Parts of `x` of these sizes."""
    starts = accumulate(split_sizes, initial=0)
    return [x.narrow(dim, start, size) for start, size in zip(starts, split_sizes, strict=False)]


def attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Compute nn.MultiheadAttention of (batch, length, embed_dim); return the result and the
    weights.

    mask: what is not looked at is True, or not 0: of (length, length) where mask_type is 0, of
    (batch, length) where it is 1, of all four dimensions where it is 2.
    """
    batch, size = query.shape[0], embed_dim // num_head
    projected = [
        functional.linear(x, weight, bias).reshape(batch, -1, num_head, size).transpose(1, 2)
        for x, weight, bias in zip(
            (query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True
        )
    ]
    scores = projected[0] @ projected[1].transpose(2, 3) * size**-0.5
    if mask is not None:
        hidden = mask.to(torch.bool)
        hidden = hidden[:, None, None] if mask_type == 1 else hidden
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    mixed = (weights @ projected[2]).transpose(1, 2).reshape(batch, -1, embed_dim)
    shown = weights.mean(1) if average_attn_weights else weights
    return functional.linear(mixed, proj_weight, proj_bias), shown


def encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Compute nn.TransformerEncoderLayer at inference."""

    def first(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    given = first(src) if norm_first else src
    packed = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    seen, _ = attention(
        *(given, given, given, embed_dim, num_heads, *packed, mask), mask_type=mask_type
    )
    x = src + seen if norm_first else first(src + seen)
    hidden = functional.linear(second(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
    result = x + functional.linear(hidden, ffn_weight_2, ffn_bias_2)
    return result if norm_first else second(result)
