"""Architectures of language models: what each has, and the graph of one.

One description an architecture, of parts that they have in common; sizes come from the model's
file. All are decoders: blocks of attention over earlier tokens and of a gated or plain feed-forward
network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend
from glnn.core.process import check_memory
from glnn.core.types import Array, DType, TensorType
from glnn.errors import ModelError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import (
    CachedAttention,
    CacheUpdate,
    Concat,
    Gather,
    GatherElements,
    Normalize,
    Pointwise,
    QuantizedMatmul,
    QuantizedRows,
    Reshape,
    Sample,
    Slice,
)
from glnn.graph.operators.quantized_matmul import GATES
from glnn.graph.operators.reductions import ArgReduce
from glnn.graph.operators.rotary import HALVES, PAIRS
from glnn.graph.operators.sample import NOT_A_NUMBER, RULES
from glnn.graph.quantization import QuantizedFormat
from glnn.kernels.op_spec import OpSpec

Packed = tuple[QuantizedFormat, NDArray[np.int32]]
ANGLE_BYTES = 20  # of the host's memory for each cosine or sine, while they are computed
RMS, LAYER = "rms", "layer"
GEMMA3_LOCAL_BASE = 10000.0
"""Base of the angles of Gemma 3's layers with a window, where a file does not say it."""


class WeightSource(Protocol):
    """Source of a model's weights, by GGUF's names of tensors."""

    def __contains__(self, name: str) -> bool:
        """Return True where there is such a tensor."""
        ...

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other, as one packed weight; they are of one format."""
        ...

    def array(self, name: str) -> Array:
        """Return a tensor's numbers as float32."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        ...

    def have_same_format(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        ...


@dataclass(frozen=True)
class Rope:
    """Angles of rotary embeddings.

    base: of the geometric row of frequencies. scaling: "none", "linear", "llama3" or "yarn", by
    `factor`, or "longrope". magnitude: what rotated numbers are multiplied by. The others are
    llama3's and yarn's parameters; truncate: whether yarn's ramp is from a whole pair of numbers to
    another. short, long: divisors of the frequencies for contexts up to the original one, and for
    longer ones, by longrope.
    """

    base: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    truncate: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def table(self, context: int, count: int, divisors: Array | None = None) -> Array:
        """Return cosines and sines of `count` / 2 angles by position, (context, count) float32.

        divisors: of the frequencies, before they are scaled. Raises LimitError where the host has
        too little memory.
        """
        check_memory(
            ANGLE_BYTES * context * count, lambda: f"the table of angles of {context} tokens"
        )
        inverse = 1.0 / self.base ** (np.arange(0, count, 2) / count)
        if divisors is not None:
            inverse = inverse / divisors.astype(np.float64)
        if self.scaling == "linear":
            inverse = inverse / self.factor
        elif self.scaling == "llama3":
            inverse = self._llama3(inverse)
        elif self.scaling == "yarn":
            inverse = self._yarn(inverse, count)
        elif self.scaling == "longrope":
            inverse = inverse / (self.long if context > self.original_context else self.short)
        angles = np.arange(context)[:, None] * inverse
        both = np.concatenate((np.cos(angles), np.sin(angles)), axis=1) * self.magnitude
        return both.astype(np.float32)

    def _llama3(self, inverse: Array) -> Array:
        """Frequencies as Llama 3.1 scales them: low ones by the factor, high ones not at all."""
        length = 2 * math.pi / inverse
        longest = self.original_context / self.low_frequency
        shortest = self.original_context / self.high_frequency
        share = (self.original_context / length - self.low_frequency) / (
            self.high_frequency - self.low_frequency
        )
        between = (1 - share) * inverse / self.factor + share * inverse
        scaled = np.where(length > longest, inverse / self.factor, between)
        return np.where(length < shortest, inverse, scaled)

    def _yarn(self, inverse: Array, count: int) -> Array:
        """Frequencies by YaRN (Peng et al. 2023): those that turn seldom by the factor."""

        def place(turns: float) -> float:
            ratio = self.original_context / (turns * 2 * math.pi)
            return count * math.log(ratio) / (2 * math.log(self.base))

        low, high = place(self.beta_fast), place(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, count - 1)
        ramp = np.clip((np.arange(count // 2) - low) / max(high - low, 0.001), 0, 1)
        return np.asarray(inverse / self.factor * ramp + inverse * (1 - ramp))


def yarn_magnitude(factor: float, share: float = 1.0) -> float:
    """Return what YaRN multiplies rotated numbers by; share: of the logarithm."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_magnitude(factor: float, original: int) -> float:
    """Return what LongRoPE (Ding et al. 2024) multiplies rotated numbers by, as Phi-3 has it."""
    return math.sqrt(1 + math.log(factor) / math.log(max(original, 2))) if factor > 1 else 1.0


def every_nth(n: int, layers: int) -> frozenset[int]:
    """Return each n-th of so many layers, counted from 0: 1 and 3 of four for n = 2."""
    return frozenset(range(n - 1, layers, n))


@dataclass(frozen=True)
class Config:
    """Sizes and numbers of one model."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    context: int
    """Tokens of a sequence that the model was trained for."""
    eps: float
    rope: Rope = field(default_factory=Rope)
    rotary_width: int = 0
    """Numbers of a head that are rotated; 0 for all."""
    local_rope: Rope | None = None
    """Angles of layers with a window, where they have others."""
    window: int = 0
    """Tokens that layers with a window see; 0 without such layers."""
    global_layers: frozenset[int] = frozenset()
    """Layers without a window, where others have one."""
    scale: float = 0.0
    """Factor of scores; 0 for 1 / sqrt(head_width)."""
    attention_cap: float = 0.0
    logits_cap: float = 0.0
    tied: bool | None = None
    """Whether logits are made by the embeddings' matrix; None where that is as the file's tensors
    say.
    """
    order: str = ""
    """Order of rotary numbers, where the weights have another than the architecture's in GGUF."""

    def windowed(self, layer: int) -> bool:
        """Return True where a layer sees a window of tokens only."""
        return self.window > 0 and layer not in self.global_layers


@dataclass(frozen=True)
class Architecture:
    """Properties that models of one architecture have in common.

    name: GGUF's. order: of rotary numbers, as the file's weights lie. norm: "rms" or "layer".
    activation: the name of a function in `glnn.graph.functions`. gated: the feed-forward network is
    a product of two. post_norms: results of attention and feed-forward network are normalised, too.
    embedding_scale: embeddings are multiplied by the root of the width. learned_positions:
    positions have embeddings.
    """

    name: str
    order: str = HALVES
    norm: str = RMS
    activation: str = "silu"
    gated: bool = True
    post_norms: bool = False
    embedding_scale: bool = False
    learned_positions: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    one.name: one
    for one in (
        Architecture("llama", PAIRS),
        Architecture("mistral", PAIRS),
        Architecture("qwen2"),
        Architecture("qwen3"),
        Architecture("gemma2", activation="gelu_tanh", post_norms=True, embedding_scale=True),
        Architecture("gemma3", activation="gelu_tanh", post_norms=True, embedding_scale=True),
        Architecture("phi3"),
        Architecture(
            "gpt2", norm=LAYER, activation="gelu_tanh", gated=False, learned_positions=True
        ),
    )
}
"""The architectures by GGUF's names."""


def architecture_named(name: str) -> Architecture:
    """Return the architecture called `name`. Raises ModelError, with those that are there."""
    if name not in ARCHITECTURES:
        raise ModelError(
            f"architecture {name!r:.60} does not run here: those that do are "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


@dataclass(frozen=True)
class Decoder:
    """A graph that computes the next tokens, and the states that it updates.

    Inputs: tokens (T,), their places in the caches (T,), and logit_rows (R,), the numbers of the
    tokens whose logits are computed, int32. Outputs: logits (R, vocabulary), the greatest's number,
    "next" (R,), NOT_A_NUMBER where that is not finite, and what they are made of, "output_norm" (R,
    width). caches: the shape of each
    state, by name; updates: the output of each. chosen: the last layer's result for all tokens, and
    for those of logit_rows.
    """

    graph: Graph
    caches: Mapping[str, tuple[int, int]]
    updates: Mapping[str, str]
    chosen: tuple[Value, Value]

    @property
    def logits(self) -> Value:
        """The logits' value."""
        return next(value for value in self.graph.outputs if value.name == "logits")

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        _, count = self.logits.type.dims
        assert isinstance(count, int)
        return count

    def following(self, count: int, longest: int, sampled: bool, backend: Backend) -> Graph:
        """Return the graph of the next tokens of `count` sequences whose last ones are a state.

        That state is "tokens" (count,), to be updated by the output "next"; the other inputs are
        places and, where the tokens are `sampled`, what `Sample` takes: rules and random. longest:
        tokens that a sequence has at most; attention is planned for so many. Where kernels of
        `backend` suit that, attention takes the tokens' own keys and values from where they were
        made, so that it does not wait for the caches' update.
        """
        rows, chosen = self.chosen
        type, kept = TensorType((count,), DType.int32), {*self.updates.values(), "next"}
        instead, inputs = {chosen: rows}, []
        for value in self.graph.inputs:
            if value.name in ("tokens", "places"):
                instead[value] = Value(value.name, type, Kind.INPUT)
            if value.name != "logit_rows":
                inputs.append(instead.get(value, value))
        producers = {node.outputs[0]: node for node in self.graph.nodes}
        suits = cache(backend.suits)
        nodes = []
        for node in self.graph.nodes:
            attention = node.operator
            if isinstance(attention, CachedAttention):
                window = min(attention.window or longest, longest)
                node = replace(node, operator=replace(attention, window=window))
                with_own = _with_own_keys(node, producers)
                node = with_own if suits(_spec_of_tokens(with_own, count)) else node
            if sampled and node.outputs[0].name == "next":
                rules = Value("rules", TensorType((count, len(RULES))), Kind.INPUT)
                random = Value("random", TensorType((count,)), Kind.INPUT)
                inputs += [rules, random]
                node = replace(node, operator=Sample(), inputs=(self.logits, rules, random))
            if chosen not in node.outputs:
                nodes.append(node.with_values(instead))
        outputs = tuple(value for value in self.graph.outputs if value.name in kept)
        return Graph(
            tuple(nodes),
            tuple(inputs),
            outputs,
            f"{self.graph.name}, next tokens",
        )


def _with_own_keys(node: Node, producers: Mapping[Value, Node]) -> Node:
    """Return attention that takes the tokens' keys and values from what updates its cache.

    It reads the cache before the update then. The same node, where the update is of other numbers
    or rotates them in another way.
    """
    attention, operands = node.operator, node.operator.named(node.inputs)
    producer = producers.get(operands["cache"])
    if producer is None or not isinstance(update := producer.operator, CacheUpdate):
        return node
    assert isinstance(attention, CachedAttention)
    updated = update.named(producer.inputs)
    alike = all(operands.get(name) is updated.get(name) for name in ("x", "places", "rotary"))
    ways = ((one.width, one.context, one.order) for one in (attention, update))
    if not alike or len(set(ways)) > 1 or attention.kv_heads != update.heads:
        return node
    operator = replace(attention, keys_start=update.start, values_start=update.values_start)
    return replace(node, operator=operator).with_values({operands["cache"]: updated["cache"]})


def _spec_of_tokens(node: Node, count: int) -> OpSpec:
    """Return the spec of attention for `count` tokens."""
    types = {
        name: TensorType((count, *value.type.dims[1:]), value.type.dtype)
        if name in ("x", "places")
        else value.type
        for name, value in node.operator.named(node.inputs).items()
    }
    return OpSpec.create(node.operator, types, {})


class GraphWriter:
    """Writes the graph of a model."""

    def __init__(
        self,
        architecture: Architecture,
        config: Config,
        weights: WeightSource,
        context: int,
        sequences: int,
    ) -> None:
        self.architecture, self.config, self.weights = architecture, config, weights
        self.context, self.rows = context, context * sequences
        self.builder = Builder(config.architecture)
        self.tables: dict[bool, Value] = {}

    def __call__(self, name: str, operator: Any, *inputs: Value | None) -> Value:
        return self.builder.add(operator, *inputs, name=name)[0]

    def pointwise(self, name: str, text: str, *inputs: Value) -> Value:
        """Apply a formula."""
        return self(name, Pointwise(formula(text)), *inputs)

    def constant(self, name: str) -> Value:
        """Return a tensor of the file as a constant."""
        return constant(self.weights.array(name))

    def optional(self, name: str) -> Value | None:
        """Return a tensor of the file; None where it has none."""
        return self.constant(name) if name in self.weights else None

    def norm(self, name: str, x: Value, weight: str) -> Value:
        """Normalise rows by the weights called `weight`."""
        operator = Normalize(dims=1, centred=self.architecture.norm == LAYER, eps=self.config.eps)
        return self(
            name, operator, x, self.constant(f"{weight}.weight"), self.optional(f"{weight}.bias")
        )

    def product(
        self, name: str, x: Value, *tensors: str, norm: str | None = None, gate: str = ""
    ) -> Value:
        """Multiply by matrices one below the other, and add their biases.

        norm: the weights by which x is normalised before. gate: see `QuantizedMatmul`.
        """
        if norm is not None and self.architecture.norm == LAYER:
            x, norm = self.norm(f"{name}.norm", x, norm), None
        if not self.weights.have_same_format(*(f"{one}.weight" for one in tensors)):
            parts = [
                self.product(f"{name}.{i}", x, one, norm=norm) for i, one in enumerate(tensors)
            ]
            return self.join(name, parts)
        format, packed = self.weights.packed(*(f"{one}.weight" for one in tensors))
        n = sum(self.weights.shape(f"{one}.weight")[0] for one in tensors)
        k = self.weights.shape(f"{tensors[0]}.weight")[1]
        scale = None if norm is None else self.constant(f"{norm}.weight")
        eps = 0.0 if norm is None else self.config.eps
        operator = QuantizedMatmul(format.name, n // 2 if gate else n, k, eps, gate)
        y = self(name, operator, x, constant(packed), scale)
        if any(f"{one}.bias" in self.weights for one in tensors):
            bias = np.concatenate([self.bias(one) for one in tensors])
            y = self.pointwise(f"{name}.biased", "a + b", y, constant(bias))
        return y

    def bias(self, tensor: str) -> Array:
        """Return the bias of a matrix; zeros where it has none."""
        name = f"{tensor}.bias"
        if name in self.weights:
            return self.weights.array(name)
        return np.zeros(self.weights.shape(f"{tensor}.weight")[0], np.float32)

    def join(self, name: str, parts: list[Value]) -> Value:
        """Put rows of several results behind one another."""
        return self(name, Concat(1), *parts)

    def columns(self, name: str, x: Value, start: int, end: int) -> Value:
        """Return the numbers from `start` to `end` of each row."""
        return self(name, Slice((start,), (end,), (1,), (1,)), x)

    def rotary(self, local: bool) -> Value | None:
        """Return the table of angles; None for an architecture with learned positions."""
        if self.architecture.learned_positions:
            return None
        config = self.config
        rope = config.local_rope if local and config.local_rope is not None else config.rope
        key = rope is config.local_rope
        if key not in self.tables:
            name = "rope_freqs.weight"
            divisors = self.weights.array(name) if name in self.weights else None
            count = config.rotary_width or config.head_width
            self.tables[key] = constant(rope.table(self.context, count, divisors))
        return self.tables[key]

    def attention(self, layer: int, x: Value, places: Value, cache: Value) -> tuple[Value, Value]:
        """Return what the heads found, and the cache with the new tokens."""
        config, block = self.config, f"blk.{layer}"
        heads, kv, width = config.heads, config.kv_heads, config.head_width
        names = [f"{block}.attn_{part}" for part in "qkv"]
        if f"{block}.attn_qkv.weight" in self.weights:
            names = [f"{block}.attn_qkv"]
        qkv = self.product(f"{block}.qkv", x, *names, norm=f"{block}.attn_norm")
        starts = 0, heads * width, (heads + kv) * width
        if f"{block}.attn_q_norm.weight" in self.weights:
            qkv = self.normed_heads(layer, qkv)
        windowed = config.windowed(layer)
        table, order = self.rotary(windowed), config.order or self.architecture.order
        update = CacheUpdate(kv, width, self.context, starts[1], starts[2], order)
        kept = self(f"{block}.cache", update, qkv, table, cache, places)
        attention = CachedAttention(
            heads, kv, width, self.context, config.scale or 1 / math.sqrt(width),
            config.window if windowed else 0, config.attention_cap, 0, order,
        )  # fmt: skip
        return self(f"{block}.attention", attention, qkv, table, kept, places), kept

    def normed_heads(self, layer: int, qkv: Value) -> Value:
        """Normalise queries and keys by head."""
        config, block = self.config, f"blk.{layer}"
        width, parts, start = config.head_width, [], 0
        for part, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
            end = start + heads * width
            one = self.columns(f"{block}.{part}", qkv, start, end)
            if part != "v":
                rows = self(f"{block}.{part} heads", Reshape((-1, width)), one)
                normed = self.norm(f"{block}.{part}_norm", rows, f"{block}.attn_{part}_norm")
                one = self(f"{block}.{part} rows", Reshape((-1, heads * width)), normed)
            parts.append(one)
            start = end
        return self.join(f"{block}.normed", parts)

    def cross_attention(self, layer: int, x: Value, places: Value) -> Value:
        """Return x; a model with an encoder adds what heads found in its results."""
        return x

    def feed_forward(self, layer: int, x: Value) -> Value:
        """Return the block's feed-forward network of x, which it normalises."""
        block, activation = f"blk.{layer}", self.architecture.activation
        norm = f"{block}.ffn_norm"
        if not self.architecture.gated:
            hidden = self.product(f"{block}.up", x, f"{block}.ffn_up", norm=norm)
            hidden = self.pointwise(f"{block}.activation", f"{activation}(a)", hidden)
        else:
            names = [f"{block}.ffn_gate", f"{block}.ffn_up"]
            if f"{block}.ffn_gate.weight" not in self.weights:  # one matrix has both
                names = [f"{block}.ffn_up"]
            biased = any(f"{one}.bias" in self.weights for one in names)
            alike = self.weights.have_same_format(*(f"{one}.weight" for one in names))
            if activation in GATES and alike and not biased and self.architecture.norm == RMS:
                hidden = self.product(f"{block}.gated", x, *names, norm=norm, gate=activation)
            else:
                parts = [self.product(f"{block}.{one}", x, one, norm=norm) for one in names]
                both = parts if len(parts) == 2 else self.halves(layer, parts[0])
                hidden = self.pointwise(f"{block}.gated", f"{activation}(a) * b", *both)
        return self.product(f"{block}.down", hidden, f"{block}.ffn_down")

    def halves(self, layer: int, x: Value) -> list[Value]:
        """Return the first and the second half of rows."""
        middle = self.weights.shape(f"blk.{layer}.ffn_up.weight")[0] // 2
        spans = (("gate", 0, middle), ("up", middle, 2 * middle))
        return [self.columns(f"blk.{layer}.{name}", x, *span) for name, *span in spans]

    def residual(self, layer: int, part: str, x: Value, y: Value) -> Value:
        """Add what a part of a block found, normalised where the architecture has that."""
        block = f"blk.{layer}"
        if self.architecture.post_norms:
            y = self.norm(f"{block}.post_{part}", y, f"{block}.post_{part}_norm")
        return self.pointwise(f"{block}.{part}_sum", "a + b", x, y)

    def decoder(self) -> Decoder:
        """Return the whole graph."""
        config, add = self.config, self.builder.input
        tokens = add("tokens", TensorType(("T",), DType.int32))
        places = add("places", TensorType(("T",), DType.int32))
        logit_rows = add("logit_rows", TensorType(("R",), DType.int32))
        format, packed = self.weights.packed("token_embd.weight")
        table = constant(packed)
        rows = QuantizedRows(format.name, config.vocabulary, config.width)
        x = self("embedding", rows, tokens, table)
        if self.architecture.embedding_scale:
            x = self.pointwise("scaled", f"a * {math.sqrt(config.width)!r}", x)
        if self.architecture.learned_positions:
            x = self.positions(x, places)
        caches, updates = {}, {}
        outputs: list[Value] = []
        for layer in range(config.layers):
            block = f"blk.{layer}"
            shape = (self.rows, 2 * config.kv_heads * config.head_width)
            cache = add(f"cache.{layer}", TensorType(shape))
            caches[cache.name] = shape
            attended, kept = self.attention(layer, x, places, cache)
            updates[cache.name] = kept.name
            outputs.append(kept)
            y = self.product(f"{block}.output", attended, f"{block}.attn_output")
            x = self.residual(layer, "attention", x, y)
            x = self.cross_attention(layer, x, places)
            x = self.residual(layer, "ffw", x, self.feed_forward(layer, x))
        chosen = x, self("last", Gather(0), x, logit_rows)
        x = self.norm("output_norm", chosen[1], "output_norm")
        if "output.weight" in self.weights:
            format, packed = self.weights.packed("output.weight")
            table = constant(packed)
        product = QuantizedMatmul(format.name, config.vocabulary, config.width)
        cap = config.logits_cap
        logits = self("scores" if cap else "logits", product, x, table)
        if cap:
            logits = self.pointwise("logits", f"{cap!r} * tanh(a / {cap!r})", logits)
        graph = self.builder.graph([logits, self.likeliest(logits), x, *outputs])
        return Decoder(graph, caches, updates, chosen)

    def likeliest(self, logits: Value) -> Value:
        """Return the number of the greatest logit of each row, as `Sample` has it: NOT_A_NUMBER
        where that is not finite.
        """
        index = self("likeliest", ArgReduce("max", 1, False), logits)
        column = self("likeliest column", Reshape((-1, 1)), index)
        found = self("greatest column", GatherElements(1), logits, column)
        greatest = self("greatest", Reshape((-1,)), found)
        return self.pointwise("next", f"where(isfinite(a), b, {NOT_A_NUMBER})", greatest, index)

    def positions(self, x: Value, places: Value) -> Value:
        """Add embeddings of positions."""
        position = self.pointwise("position", f"remainder(a, {self.context})", places)
        table = constant(self.weights.array("position_embd.weight")[: self.context])
        return self.pointwise("placed", "a + b", x, self("positions", Gather(0), table, position))


def decoder(config: Config, weights: WeightSource, context: int, sequences: int = 1) -> Decoder:
    """Return the graph of a model for `sequences` sequences of up to `context` tokens each.

    Raises ModelError where the architecture does not run here, or a tensor is missing.
    """
    architecture = architecture_named(config.architecture)
    return GraphWriter(architecture, config, weights, context, sequences).decoder()
