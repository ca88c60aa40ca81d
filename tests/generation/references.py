"""Language models by their definitions: float64, a token at a time, nothing of glnn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def logits(
    metadata: Mapping[str, Any], weights: Mapping[str, Array], tokens: Sequence[int]
) -> Array:
    """The logits behind each of `tokens`, (tokens, vocabulary)."""
    name = str(metadata["general.architecture"])
    wide = {key: one.astype(np.float64) for key, one in weights.items()}

    def said(key: str, default: Any = None) -> Any:
        return metadata.get(f"{name}.{key}", default)

    layers, width = said("block_count"), said("embedding_length")
    heads, kv, head = (
        said("attention.head_count"), said("attention.head_count_kv"), said("attention.key_length")
    )  # fmt: skip
    gemma, layered = name.startswith("gemma"), name == "gpt2"

    def norm(x: Array, key: str) -> Array:
        if layered:
            x = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
            return x * wide[f"{key}.weight"] + wide[f"{key}.bias"]
        return x / math.sqrt((x * x).mean() + 1e-5) * wide[f"{key}.weight"]

    def linear(x: Array, key: str) -> Array:
        bias = wide.get(f"{key}.bias")
        y = wide[f"{key}.weight"] @ x
        return y if bias is None else y + bias

    def turned(x: Array, position: int, base: float) -> Array:
        if layered:
            return x
        count, y = said("rope.dimension_count", head), x.copy()
        for i in range(count // 2):
            a, b = (2 * i, 2 * i + 1) if name in ("llama", "mistral") else (i, i + count // 2)
            angle = position / base ** (2 * i / count)
            y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
            y[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
        return y

    def gelu(x: Array) -> Array:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def silu(x: Array) -> Array:
        return x / (1 + np.exp(-x))

    activation = gelu if gemma or layered else silu
    cache: list[list[tuple[Array, Array]]] = [[] for _ in range(layers)]
    found = []
    for position, token in enumerate(tokens):
        x = wide["token_embd.weight"][token]
        if gemma:
            x = x * math.sqrt(width)
        if layered:
            x = x + wide["position_embd.weight"][position]
        for layer in range(layers):
            block = f"blk.{layer}"
            h = norm(x, f"{block}.attn_norm")
            if f"{block}.attn_qkv.weight" in wide:
                parts = np.split(
                    linear(h, f"{block}.attn_qkv"), [heads * head, (heads + kv) * head]
                )
            else:
                parts = [linear(h, f"{block}.attn_{part}") for part in "qkv"]
            q, k, v = (part.reshape(-1, head) for part in parts)
            if f"{block}.attn_q_norm.weight" in wide:
                q = np.array([norm(one, f"{block}.attn_q_norm") for one in q])
                k = np.array([norm(one, f"{block}.attn_k_norm") for one in k])
            window, base = said("attention.sliding_window", 0), said("rope.freq_base", 10000.0)
            if name == "gemma2" and layer % 2 == 1:
                window = 0
            if name == "gemma3":
                window, base = (window, 10000.0) if (layer + 1) % 6 else (0, base)
            q = np.array([turned(one, position, base) for one in q])
            k = np.array([turned(one, position, base) for one in k])
            cache[layer].append((k, v))
            seen = cache[layer][-window:] if window else cache[layer]
            heads_found = []
            for i in range(heads):
                at = i * kv // heads
                scores = np.array([q[i] @ key[at] for key, _ in seen]) / math.sqrt(head)
                if cap := said("attn_logit_softcapping", 0.0):
                    scores = cap * np.tanh(scores / cap)
                powers = np.exp(scores - scores.max())
                shares = powers / powers.sum()
                heads_found.append(
                    sum(s * one[at] for s, (_, one) in zip(shares, seen, strict=True))
                )
            y = linear(np.concatenate(heads_found), f"{block}.attn_output")
            if f"{block}.post_attention_norm.weight" in wide:
                y = norm(y, f"{block}.post_attention_norm")
            x = x + y
            h = norm(x, f"{block}.ffn_norm")
            if layered:
                y = activation(linear(h, f"{block}.ffn_up"))
            elif f"{block}.ffn_gate.weight" in wide:
                y = activation(linear(h, f"{block}.ffn_gate")) * linear(h, f"{block}.ffn_up")
            else:
                gate, up = np.split(linear(h, f"{block}.ffn_up"), 2)
                y = activation(gate) * up
            y = linear(y, f"{block}.ffn_down")
            if f"{block}.post_ffw_norm.weight" in wide:
                y = norm(y, f"{block}.post_ffw_norm")
            x = x + y
        last = norm(x, "output_norm")
        head_weight = wide.get("output.weight", wide["token_embd.weight"])
        scores = head_weight @ last
        if cap := said("final_logit_softcapping", 0.0):
            scores = cap * np.tanh(scores / cap)
        found.append(scores)
    return np.array(found)
