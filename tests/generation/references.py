"""Language models by their definitions: float64, whole sequences at once, nothing of glnn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def frequencies(
    count: int,
    base: float,
    scaling: str = "none",
    factor: float = 1.0,
    original: int = 0,
    *,
    low: float = 1.0,
    high: float = 4.0,
    fast: float = 32.0,
    slow: float = 1.0,
    divisors: Sequence[float] | None = None,
) -> list[float]:
    """The angles of `count` / 2 pairs of rotary numbers from one position to the next.

    One after the other, as the texts have them: position interpolation (Chen et al. 2023) as
    "linear"; Llama 3.1 as "llama3", by wavelengths; YaRN (Peng et al. 2023) as "yarn", whose ramp
    is over whole dimensions in its authors' program.
    """

    def dimension(turns: float) -> float:
        """The pair that turns so often within the original context."""
        return count * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    found = []
    for pair in range(count // 2):
        angle = base ** (-2 * pair / count)
        if divisors is not None:
            angle /= float(divisors[pair])
        kept = 0.0  # the share that is not scaled
        if scaling == "none":
            kept = 1.0
        elif scaling == "llama3":
            turns = original * angle / (2 * math.pi)
            kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        elif scaling == "yarn":
            first = max(math.floor(dimension(fast)), 0)
            last = min(math.ceil(dimension(slow)), count - 1)
            kept = 1.0 - min(max((pair - first) / max(last - first, 1e-3), 0.0), 1.0)
        else:
            assert scaling == "linear"
        found.append(kept * angle + (1 - kept) * angle / factor)
    return found


def magnitude(scaling: str, factor: float) -> float:
    """What YaRN multiplies rotated queries and keys by: 0.1 ln(s) + 1."""
    return 0.1 * math.log(factor) + 1 if scaling == "yarn" and factor > 1 else 1.0


class Definition:
    """A model as a GGUF file describes it.

    `global_layers` is none of GGUF's keys: the layers without a window, where it is not the
    architecture that says which.
    """

    def __init__(self, metadata: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.name, self.metadata = str(metadata["general.architecture"]), metadata
        self.wide = {key: one.astype(np.float64, copy=False) for key, one in weights.items()}
        self.layered = self.name == "gpt2"
        eps = "layer_norm_epsilon" if self.layered else "layer_norm_rms_epsilon"
        self.eps = float(self.said(f"attention.{eps}"))
        self.heads = self.said("attention.head_count")
        self.kv = self.said("attention.head_count_kv", self.heads)
        width = self.said("embedding_length")
        self.head = self.said("attention.key_length", width // self.heads)

    def said(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.name}.{key}", default)

    def norm(self, x: Array, key: str) -> Array:
        if self.layered:
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.wide[f"{key}.weight"]
        return x + self.wide[f"{key}.bias"] if self.layered else x

    def linear(self, x: Array, key: str) -> Array:
        y = x @ self.wide[f"{key}.weight"].T
        return y + self.wide[f"{key}.bias"] if f"{key}.bias" in self.wide else y

    def activation(self, x: Array) -> Array:
        if self.name.startswith("gemma") or self.layered:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    def turned(self, x: Array, local: bool) -> Array:
        """Rotary embeddings of (tokens, heads, numbers). local: of a layer with a window."""
        if self.layered:
            return x
        count = self.said("rope.dimension_count", self.head)
        if self.name == "gemma3" and local:
            row, size = frequencies(count, self.said("rope.freq_base_swa", 10000.0)), 1.0
        else:
            scaling = self.said("rope.scaling.type", "none")
            factor = self.said("rope.scaling.factor", 1.0)
            row = frequencies(
                count,
                self.said("rope.freq_base", 10000.0),
                scaling,
                factor,
                self.said("rope.scaling.original_context_length", self.said("context_length")),
                fast=self.said("rope.scaling.yarn_beta_fast", 32.0),
                slow=self.said("rope.scaling.yarn_beta_slow", 1.0),
                divisors=self.wide.get("rope_freqs.weight"),
            )
            size = magnitude(scaling, factor) * self.said("rope.scaling.attn_factor", 1.0)
        angles = np.outer(np.arange(len(x)), row)[:, None, :]
        cosine, sine = size * np.cos(angles), size * np.sin(angles)
        pairs = np.arange(count // 2)
        a, b = (2 * pairs, 2 * pairs + 1)
        if self.name not in ("llama", "mistral"):
            a, b = pairs, pairs + count // 2
        y = x.copy()
        y[..., a] = x[..., a] * cosine - x[..., b] * sine
        y[..., b] = x[..., b] * cosine + x[..., a] * sine
        return y

    def window(self, layer: int) -> int:
        """How many tokens a layer sees; 0 for all."""
        every = {"gemma2": 2, "gemma3": 6}.get(self.name, self.said("block_count") + 1)
        whole = self.said("global_layers", range(every - 1, self.said("block_count"), every))
        return 0 if layer in whole else int(self.said("attention.sliding_window", 0))

    def attention(self, layer: int, x: Array) -> Array:
        block, heads, kv, head = f"blk.{layer}.attn", self.heads, self.kv, self.head
        if f"{block}_qkv.weight" in self.wide:
            parts = np.split(self.linear(x, f"{block}_qkv"), [heads * head, (heads + kv) * head], 1)
        else:
            parts = [self.linear(x, f"{block}_{part}") for part in "qkv"]
        q, k, v = (part.reshape(len(x), -1, head) for part in parts)
        if f"{block}_q_norm.weight" in self.wide:
            q, k = self.norm(q, f"{block}_q_norm"), self.norm(k, f"{block}_k_norm")
        window = self.window(layer)
        q, k = self.turned(q, window > 0), self.turned(k, window > 0)
        ago = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
        seen = (ago >= 0) & (ago < (window or len(x)))
        found = np.empty_like(q)
        for i in range(heads):
            at = i * kv // heads
            scores = q[:, i] @ k[:, at].T * self.said("attention.scale", 1 / math.sqrt(head))
            if cap := self.said("attn_logit_softcapping", 0.0):
                scores = cap * np.tanh(scores / cap)
            scores = np.where(seen, scores, -np.inf)
            powers = np.exp(scores - scores.max(1, keepdims=True))
            found[:, i] = powers @ v[:, at] / powers.sum(1, keepdims=True)
        return self.linear(found.reshape(len(x), -1), f"{block}_output")

    def feed_forward(self, layer: int, x: Array) -> Array:
        block = f"blk.{layer}.ffn"
        if self.layered:
            y = self.activation(self.linear(x, f"{block}_up"))
        elif f"{block}_gate.weight" in self.wide:
            y = self.activation(self.linear(x, f"{block}_gate")) * self.linear(x, f"{block}_up")
        else:
            gate, up = np.split(self.linear(x, f"{block}_up"), 2, 1)
            y = self.activation(gate) * up
        return self.linear(y, f"{block}_down")

    def hidden(self, tokens: Sequence[int]) -> Array:
        """What logits are made of, (tokens, width)."""
        x = self.wide["token_embd.weight"][list(tokens)]
        if self.name.startswith("gemma"):
            x = x * math.sqrt(x.shape[1])
        if self.layered:
            x = x + self.wide["position_embd.weight"][: len(x)]
        for layer in range(self.said("block_count")):
            block = f"blk.{layer}"
            y = self.attention(layer, self.norm(x, f"{block}.attn_norm"))
            after = f"{block}.post_attention_norm"
            x = x + (self.norm(y, after) if f"{after}.weight" in self.wide else y)
            y = self.feed_forward(layer, self.norm(x, f"{block}.ffn_norm"))
            after = f"{block}.post_ffw_norm"
            x = x + (self.norm(y, after) if f"{after}.weight" in self.wide else y)
        return self.norm(x, "output_norm")

    def scores(self, hidden: Array) -> Array:
        """The logits of what `hidden` returned, (tokens, vocabulary)."""
        found = hidden @ self.wide.get("output.weight", self.wide["token_embd.weight"]).T
        cap = self.said("final_logit_softcapping", 0.0)
        return cap * np.tanh(found / cap) if cap else found


def logits(
    metadata: Mapping[str, Any], weights: Mapping[str, Array], tokens: Sequence[int]
) -> Array:
    """The logits behind each of `tokens`, (tokens, vocabulary)."""
    definition = Definition(metadata, weights)
    return definition.scores(definition.hidden(tokens))
