"""The graphs of whisper: an encoder of features, and a decoder that attends to its results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from glnn.core.types import DType, TensorType
from glnn.generation.architectures import (
    LAYER,
    Architecture,
    Decoder,
    GraphWriter,
    WeightSource,
)
from glnn.generation.speech.whisper_files import WhisperConfig
from glnn.graph.builder import Builder, constant
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import (
    Attention,
    CachedAttention,
    Conv2d,
    Gather,
    Matmul,
    Reshape,
    Transpose,
)
from glnn.graph.operators.attention import StridedView

WHISPER = Architecture(
    "whisper", norm=LAYER, activation="gelu", gated=False, learned_positions=True
)


@dataclass(frozen=True)
class Encoder:
    """A graph that computes the keys and values of the decoder's cross-attention from features.

    Input: features (bins, 2 frames). states: the shape of each state, the keys and values of one of
    the decoder's layers, by name. updates: the output that updates each state.
    """

    graph: Graph
    states: Mapping[str, tuple[int, int]]
    updates: Mapping[str, str]


class _EncoderWriter(GraphWriter):
    """Writes the encoder. Its weights are unpacked: each product multiplies all frames at once."""

    def __init__(self, config: WhisperConfig, weights: WeightSource, decoder: WeightSource) -> None:
        super().__init__(WHISPER, config.encoder, weights, config.frames, 1)
        self.sizes, self.decoder_weights = config, decoder

    def product(
        self, name: str, x: Value, *tensors: str, norm: str | None = None, gate: str = ""
    ) -> Value:
        if norm is not None:
            x = self.norm(f"{name}.norm", x, norm)
        return self.dense(name, x, self.weights, *tensors)

    def dense(self, name: str, x: Value, weights: WeightSource, *tensors: str) -> Value:
        """Multiply by matrices of `weights`, stacked by rows, and add their biases."""
        matrices = [weights.array(f"{tensor}.weight") for tensor in tensors]
        biases = [
            weights.array(f"{tensor}.bias")
            if f"{tensor}.bias" in weights
            else np.zeros(weights.shape(f"{tensor}.weight")[0], np.float32)
            for tensor in tensors
        ]
        y = self(name, Matmul(), x, constant(np.concatenate(matrices)))
        return self.pointwise(f"{name}.biased", "a + b", y, constant(np.concatenate(biases)))

    def convolution(self, name: str, x: Value, stride: int) -> Value:
        """Convolve (1, channels, 1, frames) by filters of three frames; apply the activation."""
        weight, bias = self.weights.array(f"{name}.weight"), self.weights.array(f"{name}.bias")
        operator = Conv2d(stride=(1, stride), padding=(0, 1, 0, 1))
        y = self(name, operator, x, constant(np.ascontiguousarray(weight[:, :, None])))
        text = f"{self.architecture.activation}(a + b)"
        return self.pointwise(f"{name}.activation", text, y, constant(bias[:, None, None]))

    def bidirectional(self, layer: int, x: Value) -> Value:
        """Return the heads' results; each frame attends to all frames."""
        config, block = self.config, f"blk.{layer}"
        names = [f"{block}.attn_{part}" for part in "qkv"]
        if f"{block}.attn_qkv.weight" in self.weights:
            names = [f"{block}.attn_qkv"]
        qkv = self.product(f"{block}.qkv", x, *names, norm=f"{block}.attn_norm")
        frames, heads, width = self.context, config.heads, config.head_width
        views = tuple(
            StridedView(part * config.width, 0, width, 3 * config.width) for part in range(3)
        )
        attention = Attention(1, heads, frames, frames, width, width, views, 1 / math.sqrt(width))
        heads_result = self(f"{block}.attention", attention, qkv, qkv, qkv)
        return self(f"{block}.heads", Reshape((frames, config.width)), heads_result)

    def encoder(self) -> Encoder:
        """Write the graph; return the encoder."""
        config, frames = self.config, self.context
        features = self.builder.input("features", TensorType((self.sizes.bins, 2 * frames)))
        x = self("image", Reshape((1, self.sizes.bins, 1, 2 * frames)), features)
        x = self.convolution("conv2", self.convolution("conv1", x, 1), 2)
        x = self("rows", Transpose((1, 0)), self("flat", Reshape((config.width, frames)), x))
        x = self.pointwise("placed", "a + b", x, self.constant("position_embd.weight"))
        for layer in range(config.layers):
            block = f"blk.{layer}"
            y = self.product(
                f"{block}.output", self.bidirectional(layer, x), f"{block}.attn_output"
            )
            x = self.residual(layer, "attention", x, y)
            x = self.residual(layer, "ffw", x, self.feed_forward(layer, x))
        x = self.norm("output_norm", x, "output_norm")
        updates, weights = {}, self.decoder_weights
        for layer in range(self.sizes.decoder.layers):
            names = [f"blk.{layer}.cross_{part}" for part in "kv"]
            if f"blk.{layer}.cross_kv.weight" in weights:
                names = [f"blk.{layer}.cross_kv"]
            updates[f"cross.{layer}"] = self.dense(f"blk.{layer}.cross_kv", x, weights, *names)
        graph = self.builder.graph(list(updates.values()))
        states = dict.fromkeys(updates, (frames, 2 * config.width))
        return Encoder(graph, states, {name: value.name for name, value in updates.items()})


@dataclass(frozen=True)
class SpeechDecoder(Decoder):
    """A decoder with the states of `Encoder` as inputs, too, and without "next" and "output_norm".

    queries: of each layer's cross-attention, for every token, (T, width).
    """

    queries: tuple[Value, ...]

    def aligning(self, layers: Iterable[int]) -> Graph:
        """Return the graph with the queries of some layers as outputs, too."""
        queries = (self.queries[layer] for layer in layers)
        graph = self.graph
        return Graph(graph.nodes, graph.inputs, (*graph.outputs, *queries), graph.name)


class _DecoderWriter(GraphWriter):
    """Writes the decoder: a language model's, whose blocks also have cross-attention."""

    def __init__(self, config: WhisperConfig, weights: WeightSource, beams: int) -> None:
        super().__init__(WHISPER, config.decoder, weights, config.decoder.context, beams)
        self.frames = config.frames
        self.queries: list[Value] = []

    def cross_attention(self, layer: int, x: Value, places: Value) -> Value:
        """Add attention to the encoder's results; each token attends to all frames."""
        config, block = self.config, f"blk.{layer}"
        width = config.head_width
        cross = self.builder.input(f"cross.{layer}", TensorType((self.frames, 2 * config.width)))
        queries = self.product(
            f"{block}.cross_q", x, f"{block}.cross_q", norm=f"{block}.cross_norm"
        )
        self.queries.append(queries)
        last = self.pointwise(f"{block}.last_frame", f"0 * a + {self.frames - 1}", places)
        attention = CachedAttention(
            config.heads, config.heads, width, self.frames, 1 / math.sqrt(width)
        )
        attended = self(f"{block}.cross", attention, queries, None, cross, last)
        y = self.product(f"{block}.cross_output", attended, f"{block}.cross_output")
        return self.residual(layer, "cross", x, y)


def encoder(config: WhisperConfig, weights: WeightSource, decoder: WeightSource) -> Encoder:
    """Return the encoder. decoder: has the weights of the cross-attention's keys and values."""
    return _EncoderWriter(config, weights, decoder).encoder()


def decoder(config: WhisperConfig, weights: WeightSource, beams: int) -> SpeechDecoder:
    """Return the decoder of `beams` texts."""
    writer = _DecoderWriter(config, weights, beams)
    base = writer.decoder()
    graph, names = base.graph, {"logits", *base.updates.values()}
    outputs = tuple(value for value in graph.outputs if value.name in names)
    return SpeechDecoder(
        Graph(graph.nodes, graph.inputs, outputs, graph.name), base.caches, base.updates,
        base.hidden_states, tuple(writer.queries),
    )  # fmt: skip


def reordering(caches: Mapping[str, tuple[int, int]]) -> tuple[Graph, Mapping[str, str]]:
    """Return a graph that gathers the rows of `caches`, and the output that updates each.

    The input `rows`, (n,) int32, has for each row i of a cache the row that it becomes.
    """
    builder = Builder("order of texts")
    count = next(iter(caches.values()))[0]
    rows = builder.input("rows", TensorType((count,), DType.int32))
    updates = {}
    for name, shape in caches.items():
        cache = builder.input(name, TensorType(shape))
        (updates[name],) = builder.add(Gather(0), cache, rows, name=f"{name}.ordered")
    graph = builder.graph(list(updates.values()))
    return graph, {name: value.name for name, value in updates.items()}
