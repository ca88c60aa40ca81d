"""Architectures of language models, and the graph of a model.

Each architecture is a row of properties; sizes come from the model's file. All are decoders: blocks
of causal attention and a gated or plain feed-forward network.
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
ANGLE_BYTES = 20  # of host memory for each cosine or sine, while they are computed
RMS, LAYER = "rms", "layer"
GEMMA3_LOCAL_BASE = 10000.0
"""Default base of the angles of Gemma 3's layers with a window."""


class WeightSource(Protocol):
    """A source of a model's weights, by GGUF's names of tensors."""

    def __contains__(self, name: str) -> bool:
        """Return True where there is such a tensor."""
        ...

    def packed(self, *names: str) -> Packed:
        """Return matrices of one format, stacked by rows, as one packed weight."""
        ...

    def array(self, name: str) -> Array:
        """Return a tensor as float32."""
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

    base: of the geometric sequence of frequencies. scaling: "none", "linear", "llama3" or "yarn",
    by `factor`, or "longrope". magnitude: factor of the cosines and sines. low_frequency,
    high_frequency: of llama3. beta_fast, beta_slow: of yarn; truncate: whether the ends of yarn's
    ramp are rounded to whole pairs of numbers. short, long: longrope's divisors of the frequencies,
    for contexts up to `original_context` and for longer ones.
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
        """Return the cosines, then the sines, of `count` / 2 angles for each position, (context,
        count) float32.

        divisors: of the frequencies, applied before scaling. Raises LimitError where the host has
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
        table = np.concatenate((np.cos(angles), np.sin(angles)), axis=1) * self.magnitude
        return table.astype(np.float32)

    def _llama3(self, inverse: Array) -> Array:
        """Return frequencies as Llama 3.1 scales them: divides low ones by the factor, keeps high
        ones, and interpolates those between.
        """
        wavelength = 2 * math.pi / inverse
        longest = self.original_context / self.low_frequency
        shortest = self.original_context / self.high_frequency
        share = (self.original_context / wavelength - self.low_frequency) / (
            self.high_frequency - self.low_frequency
        )
        interpolated = (1 - share) * inverse / self.factor + share * inverse
        scaled = np.where(wavelength > longest, inverse / self.factor, interpolated)
        return np.where(wavelength < shortest, inverse, scaled)

    def _yarn(self, inverse: Array, count: int) -> Array:
        """Return frequencies by YaRN (Peng et al. 2023): divides low ones by the factor."""

        def pair_index(turns: float) -> float:
            ratio = self.original_context / (turns * 2 * math.pi)
            return count * math.log(ratio) / (2 * math.log(self.base))

        low, high = pair_index(self.beta_fast), pair_index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, count - 1)
        ramp = np.clip((np.arange(count // 2) - low) / max(high - low, 0.001), 0, 1)
        return np.asarray(inverse / self.factor * ramp + inverse * (1 - ramp))


def yarn_magnitude(factor: float, share: float = 1.0) -> float:
    """Return YaRN's `Rope.magnitude`. share: the factor of the logarithm, mscale."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_magnitude(factor: float, original: int) -> float:
    """Return the `Rope.magnitude` of LongRoPE (Ding et al. 2024), as in Phi-3."""
    return math.sqrt(1 + math.log(factor) / math.log(max(original, 2))) if factor > 1 else 1.0


def every_nth(n: int, layers: int) -> frozenset[int]:
    """Return the numbers of every n-th layer, counted from 0: 1 and 3 of four for n = 2."""
    return frozenset(range(n - 1, layers, n))


@dataclass(frozen=True)
class Config:
    """Sizes and other numbers of one model."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    context: int
    """The most tokens of a sequence that the model was trained for."""
    eps: float
    rope: Rope = field(default_factory=Rope)
    rotary_width: int = 0
    """Numbers of a head that are rotated; 0 for all."""
    local_rope: Rope | None = None
    """Angles of layers with a window, where these differ."""
    window: int = 0
    """Tokens that layers with a window attend to; 0 without such layers."""
    global_layers: frozenset[int] = frozenset()
    """Layers without a window, in a model whose other layers have one."""
    scale: float = 0.0
    """Factor of scores; 0 for 1 / sqrt(head_width)."""
    attention_cap: float = 0.0
    logits_cap: float = 0.0
    tied: bool | None = None
    """Whether the matrix of logits is that of the embeddings; None: it is where the file has no
    other.
    """
    order: str = ""
    """Order of rotary pairs, where it is not the architecture's in GGUF; see `Architecture`."""

    def windowed(self, layer: int) -> bool:
        """Return True where a layer attends to a window of tokens only."""
        return self.window > 0 and layer not in self.global_layers


@dataclass(frozen=True)
class Architecture:
    """Properties that models of one architecture have in common.

    name: GGUF's. order: which two numbers of a head rotate together, as GGUF stores the
    weights. norm: "rms" or "layer". activation: the name of a function in `glnn.graph.functions`.
    gated: the feed-forward network multiplies `up` by the activation of `gate`. post_norms: results
    of attention and of the feed-forward network are normalised, too. embedding_scale: embeddings
    are multiplied by the square root of the width. learned_positions: positions have embeddings, in
    the place of rotary angles.
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
    architecture.name: architecture
    for architecture in (
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
    """Return the architecture called `name`. Raises ModelError where there is none."""
    if name not in ARCHITECTURES:
        raise ModelError(
            f"architecture {name!r:.60} does not run here: those that do are "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


@dataclass(frozen=True)
class Decoder:
    """A graph that computes the next tokens of sequences, and the caches that it updates.

    Inputs, int32: tokens (T,), places (T,), the row of the caches of each token, and logit_rows
    (R,), the indices in `tokens` of those whose logits are computed. Outputs: logits (R,
    vocabulary); "next" (R,), the index of the greatest logit, or NOT_A_NUMBER where that is not
    finite; "output_norm" (R, width), from which logits are computed. caches: the shape of each
    state, by name. updates: the output that updates each state. hidden_states: the last layer's
    results for all tokens, and for those of logit_rows.
    """

    graph: Graph
    caches: Mapping[str, tuple[int, int]]
    updates: Mapping[str, str]
    hidden_states: tuple[Value, Value]

    @property
    def logits(self) -> Value:
        """The output of logits."""
        return next(value for value in self.graph.outputs if value.name == "logits")

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        _, count = self.logits.type.dims
        assert isinstance(count, int)
        return count

    def following(self, count: int, longest: int, sampled: bool, backend: Backend) -> Graph:
        """Return the graph that computes one token for each of `count` sequences, their last tokens
        being a state.

        That state is "tokens" (count,), updated by the output "next". The other inputs are places
        and, where tokens are `sampled`, the operands of `Sample`: rules and random. longest: the
        most tokens of a sequence, for which attention is planned. Where a kernel of `backend`
        supports it, attention reads the keys and values of the new tokens from the projection's
        result, so that it does not depend on the update of the caches.
        """
        hidden, gathered = self.hidden_states  # alike here: each token has logits
        type, outputs = TensorType((count,), DType.int32), {*self.updates.values(), "next"}
        replacements, inputs = {gathered: hidden}, []
        for value in self.graph.inputs:
            if value.name in ("tokens", "places"):
                replacements[value] = Value(value.name, type, Kind.INPUT)
            if value.name != "logit_rows":
                inputs.append(replacements.get(value, value))
        producers = {node.outputs[0]: node for node in self.graph.nodes}
        suits = cache(backend.suits)
        nodes = []
        for node in self.graph.nodes:
            attention = node.operator
            if isinstance(attention, CachedAttention):
                window = min(attention.window or longest, longest)
                node = replace(node, operator=replace(attention, window=window))
                direct = _without_cache_update(node, producers)
                node = direct if suits(_spec_of_tokens(direct, count)) else node
            if sampled and node.outputs[0].name == "next":
                rules = Value("rules", TensorType((count, len(RULES))), Kind.INPUT)
                random = Value("random", TensorType((count,)), Kind.INPUT)
                inputs += [rules, random]
                node = replace(node, operator=Sample(), inputs=(self.logits, rules, random))
            if gathered not in node.outputs:
                nodes.append(node.with_values(replacements))
        return Graph(
            tuple(nodes),
            tuple(inputs),
            tuple(value for value in self.graph.outputs if value.name in outputs),
            f"{self.graph.name}, next tokens",
        )


def _without_cache_update(node: Node, producers: Mapping[Value, Node]) -> Node:
    """Return attention that reads the cache before its update, and the new tokens' keys and values
    from the operand `x` of that update.

    Returns `node` where attention and update differ in `x`, places or rotary embedding.
    """
    attention, operands = node.operator, node.operator.named(node.inputs)
    producer = producers.get(operands["cache"])
    if producer is None or not isinstance(update := producer.operator, CacheUpdate):
        return node
    assert isinstance(attention, CachedAttention)
    updated = update.named(producer.inputs)
    alike = all(operands.get(name) is updated.get(name) for name in ("x", "places", "rotary"))
    layouts = {(o.width, o.context, o.order) for o in (attention, update)}
    if not alike or len(layouts) > 1 or attention.kv_heads != update.heads:
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
        """Tables of angles: of layers with a window, where these have others, and of the rest."""

    def __call__(self, name: str, operator: Any, *inputs: Value | None) -> Value:
        return self.builder.add(operator, *inputs, name=name)[0]

    def pointwise(self, name: str, text: str, *inputs: Value) -> Value:
        """Apply a formula."""
        return self(name, Pointwise(formula(text)), *inputs)

    def constant(self, name: str) -> Value:
        """Return a tensor of the weights as a constant."""
        return constant(self.weights.array(name))

    def optional(self, name: str) -> Value | None:
        """Return a tensor of the weights as a constant; None where there is none."""
        return self.constant(name) if name in self.weights else None

    def norm(self, name: str, x: Value, weight: str) -> Value:
        """Normalise rows, by the tensors `weight`.weight and, where there is one, `weight`.bias."""
        operator = Normalize(dims=1, centred=self.architecture.norm == LAYER, eps=self.config.eps)
        return self(
            name, operator, x, self.constant(f"{weight}.weight"), self.optional(f"{weight}.bias")
        )

    def product(
        self, name: str, x: Value, *tensors: str, norm: str | None = None, gate: str = ""
    ) -> Value:
        """Multiply by matrices stacked by rows, and add their biases.

        norm: the norm to apply to x first. gate: see `QuantizedMatmul`.
        """
        if norm is not None and self.architecture.norm == LAYER:
            x, norm = self.norm(f"{name}.norm", x, norm), None
        names = [f"{tensor}.weight" for tensor in tensors]
        if not self.weights.have_same_format(*names):
            parts = [
                self.product(f"{name}.{i}", x, tensor, norm=norm)
                for i, tensor in enumerate(tensors)
            ]
            return self.join(name, parts)
        format, packed = self.weights.packed(*names)
        n = sum(self.weights.shape(weight)[0] for weight in names)
        k = self.weights.shape(names[0])[1]
        scale = None if norm is None else self.constant(f"{norm}.weight")
        eps = 0.0 if norm is None else self.config.eps
        operator = QuantizedMatmul(format.name, n // 2 if gate else n, k, eps, gate)
        y = self(name, operator, x, constant(packed), scale)
        if any(f"{tensor}.bias" in self.weights for tensor in tensors):
            bias = np.concatenate([self.bias(tensor) for tensor in tensors])
            y = self.pointwise(f"{name}.biased", "a + b", y, constant(bias))
        return y

    def bias(self, tensor: str) -> Array:
        """Return the bias of a matrix; zeros where it has none."""
        name = f"{tensor}.bias"
        if name in self.weights:
            return self.weights.array(name)
        return np.zeros(self.weights.shape(f"{tensor}.weight")[0], np.float32)

    def join(self, name: str, parts: list[Value]) -> Value:
        """Concatenate the rows of several results."""
        return self(name, Concat(1), *parts)

    def columns(self, name: str, x: Value, start: int, end: int) -> Value:
        """Return columns `start` to `end` of x."""
        return self(name, Slice((start,), (end,), (1,), (1,)), x)

    def rotary(self, local: bool) -> Value | None:
        """Return the table of rotary angles; None for an architecture with learned positions.

        local: True for a layer with a window.
        """
        if self.architecture.learned_positions:
            return None
        config = self.config
        rope = config.local_rope if local and config.local_rope is not None else config.rope
        is_local = rope is config.local_rope
        if is_local not in self.tables:
            name = "rope_freqs.weight"
            divisors = self.weights.array(name) if name in self.weights else None
            count = config.rotary_width or config.head_width
            self.tables[is_local] = constant(rope.table(self.context, count, divisors))
        return self.tables[is_local]

    def attention(self, layer: int, x: Value, places: Value, cache: Value) -> tuple[Value, Value]:
        """Return the heads' results, and the updated cache."""
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
        updated = self(f"{block}.cache", update, qkv, table, cache, places)
        attention = CachedAttention(
            heads, kv, width, self.context, config.scale or 1 / math.sqrt(width),
            config.window if windowed else 0, config.attention_cap, 0, order,
        )  # fmt: skip
        return self(f"{block}.attention", attention, qkv, table, updated, places), updated

    def normed_heads(self, layer: int, qkv: Value) -> Value:
        """Normalise the queries and keys of each head."""
        config, block = self.config, f"blk.{layer}"
        width, parts, start = config.head_width, [], 0
        for part, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
            end = start + heads * width
            columns = self.columns(f"{block}.{part}", qkv, start, end)
            if part != "v":
                rows = self(f"{block}.{part} heads", Reshape((-1, width)), columns)
                normed = self.norm(f"{block}.{part}_norm", rows, f"{block}.attn_{part}_norm")
                columns = self(f"{block}.{part} rows", Reshape((-1, heads * width)), normed)
            parts.append(columns)
            start = end
        return self.join(f"{block}.normed", parts)

    def cross_attention(self, layer: int, x: Value, places: Value) -> Value:
        """Return x; a model with an encoder adds cross-attention to the encoder's results."""
        return x

    def feed_forward(self, layer: int, x: Value) -> Value:
        """Normalise x and apply the block's feed-forward network; the residual is not added."""
        block, activation = f"blk.{layer}", self.architecture.activation
        norm = f"{block}.ffn_norm"
        if not self.architecture.gated:
            hidden = self.product(f"{block}.up", x, f"{block}.ffn_up", norm=norm)
            hidden = self.pointwise(f"{block}.activation", f"{activation}(a)", hidden)
        else:
            names = [f"{block}.ffn_gate", f"{block}.ffn_up"]
            if f"{block}.ffn_gate.weight" not in self.weights:  # one matrix has both
                names = [f"{block}.ffn_up"]
            has_bias = any(f"{name}.bias" in self.weights for name in names)
            same_format = self.weights.have_same_format(*(f"{name}.weight" for name in names))
            can_fuse = same_format and not has_bias and self.architecture.norm == RMS
            if activation in GATES and can_fuse:
                hidden = self.product(f"{block}.gated", x, *names, norm=norm, gate=activation)
            else:
                parts = [self.product(f"{block}.{name}", x, name, norm=norm) for name in names]
                gate_and_up = parts if len(parts) == 2 else self.halves(layer, parts[0])
                hidden = self.pointwise(f"{block}.gated", f"{activation}(a) * b", *gate_and_up)
        return self.product(f"{block}.down", hidden, f"{block}.ffn_down")

    def halves(self, layer: int, x: Value) -> list[Value]:
        """Return the halves of rows: the gate, and what it multiplies."""
        middle = self.weights.shape(f"blk.{layer}.ffn_up.weight")[0] // 2
        spans = (("gate", 0, middle), ("up", middle, 2 * middle))
        return [self.columns(f"blk.{layer}.{name}", x, *span) for name, *span in spans]

    def residual(self, layer: int, part: str, x: Value, y: Value) -> Value:
        """Add y, the result of a part of a block, to x; with post-norms y is normalised first."""
        block = f"blk.{layer}"
        if self.architecture.post_norms:
            y = self.norm(f"{block}.post_{part}", y, f"{block}.post_{part}_norm")
        return self.pointwise(f"{block}.{part}_sum", "a + b", x, y)

    def decoder(self) -> Decoder:
        """Write the graph; return the decoder."""
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
            attended, updated = self.attention(layer, x, places, cache)
            updates[cache.name] = updated.name
            outputs.append(updated)
            y = self.product(f"{block}.output", attended, f"{block}.attn_output")
            x = self.residual(layer, "attention", x, y)
            x = self.cross_attention(layer, x, places)
            x = self.residual(layer, "ffw", x, self.feed_forward(layer, x))
        gathered = self("last", Gather(0), x, logit_rows)
        hidden_states = x, gathered
        x = self.norm("output_norm", gathered, "output_norm")
        if "output.weight" in self.weights:
            format, packed = self.weights.packed("output.weight")
            table = constant(packed)
        product = QuantizedMatmul(format.name, config.vocabulary, config.width)
        cap = config.logits_cap
        logits = self("scores" if cap else "logits", product, x, table)
        if cap:
            logits = self.pointwise("logits", f"{cap!r} * tanh(a / {cap!r})", logits)
        graph = self.builder.graph([logits, self.likeliest(logits), x, *outputs])
        return Decoder(graph, caches, updates, hidden_states)

    def likeliest(self, logits: Value) -> Value:
        """Return the index of the greatest logit of each row, or NOT_A_NUMBER where that logit is
        not finite, as `Sample` does.
        """
        index = self("likeliest", ArgReduce("max", 1, False), logits)
        column = self("likeliest column", Reshape((-1, 1)), index)
        gathered = self("greatest column", GatherElements(1), logits, column)
        greatest = self("greatest", Reshape((-1,)), gathered)
        return self.pointwise("next", f"where(isfinite(a), b, {NOT_A_NUMBER})", greatest, index)

    def positions(self, x: Value, places: Value) -> Value:
        """Add the embeddings of positions, the offsets of places in the rows of a sequence."""
        position = self.pointwise("position", f"remainder(a, {self.context})", places)
        table = constant(self.weights.array("position_embd.weight")[: self.context])
        return self.pointwise("placed", "a + b", x, self("positions", Gather(0), table, position))


def decoder(config: Config, weights: WeightSource, context: int, sequences: int = 1) -> Decoder:
    """Return the decoder of a model for `sequences` sequences of up to `context` tokens each.

    Raises ModelError where the architecture does not run here, or a tensor is missing.
    """
    architecture = architecture_named(config.architecture)
    return GraphWriter(architecture, config, weights, context, sequences).decoder()
