"""Whisper by its definition: float64, whole texts at once, nothing of glnn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Definition:
    """A model by the tensors that Hugging Face's files have."""

    def __init__(self, tensors: Mapping[str, Array], heads: int, layers: int) -> None:
        self.wide = {name: one.astype(np.float64) for name, one in tensors.items()}
        self.heads, self.layers = heads, layers

    def linear(self, x: Array, name: str) -> Array:
        y = x @ self.wide[f"{name}.weight"].T
        return y + self.wide.get(f"{name}.bias", 0.0)

    def norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * self.wide[f"{name}.weight"] + self.wide[f"{name}.bias"]

    def gelu(self, x: Array) -> Array:
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    def attention(self, x: Array, seen: Array, name: str, causal: bool = False) -> Array:
        q, k, v = (
            self.linear(a, f"{name}.{p}_proj") for a, p in ((x, "q"), (seen, "k"), (seen, "v"))
        )
        width = q.shape[1] // self.heads
        found = np.empty_like(q)
        for head in range(self.heads):
            part = slice(head * width, (head + 1) * width)
            scores = q[:, part] @ k[:, part].T / math.sqrt(width)
            if causal:
                scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
            powers = np.exp(scores - scores.max(1, keepdims=True))
            found[:, part] = powers @ v[:, part] / powers.sum(1, keepdims=True)
        return self.linear(found, f"{name}.out_proj")

    def feed_forward(self, x: Array, block: str) -> Array:
        hidden = self.gelu(self.linear(self.norm(x, f"{block}.final_layer_norm"), f"{block}.fc1"))
        return x + self.linear(hidden, f"{block}.fc2")

    def convolution(self, x: Array, name: str, step: int) -> Array:
        """x: (channels, frames)."""
        weight, bias = self.wide[f"{name}.weight"], self.wide[f"{name}.bias"]
        padded = np.pad(x, ((0, 0), (1, 1)))
        columns = [padded[:, i : i + 3] for i in range(0, x.shape[1], step)]
        return np.array([(weight * one).sum((1, 2)) + bias for one in columns]).T

    def encode(self, features: Array) -> Array:
        """The encoder's results for (bins, 2 frames), (frames, width)."""
        whole = "model.encoder"
        x = self.gelu(self.convolution(features.astype(np.float64), f"{whole}.conv1", 1))
        x = self.gelu(self.convolution(x, f"{whole}.conv2", 2)).T
        x = x + self.wide[f"{whole}.embed_positions.weight"]
        for layer in range(self.layers):
            block = f"{whole}.layers.{layer}"
            normed = self.norm(x, f"{block}.self_attn_layer_norm")
            x = self.feed_forward(x + self.attention(normed, normed, f"{block}.self_attn"), block)
        return self.norm(x, f"{whole}.layer_norm")

    def logits(self, encoded: Array, tokens: Sequence[int]) -> Array:
        """The logits behind each of `tokens`, (tokens, vocabulary)."""
        whole = "model.decoder"
        embeddings = self.wide[f"{whole}.embed_tokens.weight"]
        x = embeddings[list(tokens)] + self.wide[f"{whole}.embed_positions.weight"][: len(tokens)]
        for layer in range(self.layers):
            block = f"{whole}.layers.{layer}"
            y = self.norm(x, f"{block}.self_attn_layer_norm")
            x = x + self.attention(y, y, f"{block}.self_attn", causal=True)
            y = self.norm(x, f"{block}.encoder_attn_layer_norm")
            x = self.feed_forward(x + self.attention(y, encoded, f"{block}.encoder_attn"), block)
        return self.norm(x, f"{whole}.layer_norm") @ embeddings.T
