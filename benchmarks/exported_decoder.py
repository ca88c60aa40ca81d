"""A decoder of Llama's architecture as Optimum exports it to ONNX, with seeded weights.

Operators, their order and the names of inputs and outputs are those of optimum-onnx 0.1.0 for a
LlamaForCausalLM of transformers 4.57 (task "text-generation-with-past", opset 18): caches
past_key_values.N.key and .value of (batch, heads, tokens, width), which a Concat makes present.N.…
of. Sizes are computed in the graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from glnn.generation.architectures import Config, Packed
from glnn.graph.quantization import GGML_FORMATS

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSET, IR_VERSION = 18, 8
LAST = np.iinfo(np.int64).max  # where a slice ends that has no end


class FloatWeights:
    """Seeded float32 weights of a shape; see `glnn.generation.architectures.WeightSource`."""

    def __init__(self, config: Config, hidden: int, seed: int = 0) -> None:
        """hidden: the width of the feed-forward network."""
        generator = np.random.default_rng(seed)
        width, heads = config.width, config.heads * config.head_width
        kv = config.kv_heads * config.head_width
        shapes = {
            "attn_q": (heads, width), "attn_k": (kv, width), "attn_v": (kv, width),
            "attn_output": (width, heads), "ffn_gate": (hidden, width),
            "ffn_up": (hidden, width), "ffn_down": (width, hidden),
        }  # fmt: skip
        self._arrays = {"output_norm.weight": np.ones(width, np.float32)}
        matrices = {"token_embd.weight": (config.vocabulary, width)}
        for layer in range(config.layers):
            for norm in ("attn_norm", "ffn_norm"):
                self._arrays[f"blk.{layer}.{norm}.weight"] = np.ones(width, np.float32)
            matrices |= {f"blk.{layer}.{name}.weight": one for name, one in shapes.items()}
        for name, shape in matrices.items():
            numbers = generator.standard_normal(shape, np.float32)
            self._arrays[name] = numbers / np.float32(shape[1] ** 0.5)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._arrays[name].shape

    def have_same_format(self, *names: str) -> bool:
        """Return True: all are float32."""
        return True

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a tensor's numbers."""
        return self._arrays[name]

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other."""
        joined, format = np.concatenate([self._arrays[name] for name in names]), GGML_FORMATS["f32"]
        return format, format.pack(
            joined.view(np.uint8).reshape(-1, format.block_bytes), *joined.shape
        )


class DecoderWriter:
    """The nodes and initialisers of one exported decoder."""

    def __init__(self, config: Config, weights: FloatWeights) -> None:
        self._config, self._weights = config, weights
        self._nodes: list[Any] = []
        self._initialisers: list[Any] = []

    def _node(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        out = out or f"{op}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [out], out, **attributes))
        return out

    def _constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self._node("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def _float(self, value: float) -> str:
        return self._constant(value, np.float32)

    def _initialiser(self, name: str, array: NDArray[np.float32]) -> str:
        self._initialisers.append(numpy_helper.from_array(array, name))
        return name

    def _product(self, x: str, name: str, out: str = "") -> str:
        """Multiply by the transpose of a matrix."""
        table = np.ascontiguousarray(self._weights.array(name).T)
        return self._node("MatMul", x, self._initialiser(f"onnx::MatMul {name}", table), out=out)

    def _size(self, x: str, axis: int) -> str:
        return self._node("Gather", self._node("Shape", x), self._constant(axis), axis=0)

    def _unsqueeze(self, x: str, axis: int) -> str:
        return self._node("Unsqueeze", x, self._constant([axis]))

    def _cast(self, x: str, to: int) -> str:
        return self._node("Cast", x, to=to)

    def _sizes(self, *sizes: str | int) -> str:
        """Join sizes, of which those that are numbers are constants, to one shape."""
        parts = [
            self._unsqueeze(one, 0) if isinstance(one, str) else self._constant([one])
            for one in sizes
        ]
        return self._node("Concat", *parts, axis=0)

    def _reshape(self, x: str, *sizes: str | int) -> str:
        return self._node("Reshape", x, self._sizes(*sizes), allowzero=0)

    def _expand(self, x: str, shape: str) -> str:
        """Expand to a shape in which -1 stands for a size that stays."""
        flat = self._node("Reshape", shape, self._constant([-1]), allowzero=0)
        one = numpy_helper.from_array(np.ones(1, np.int64))
        ones = self._node("ConstantOfShape", self._node("Shape", flat), value=one)
        absent = self._node("Mul", ones, self._constant(-1))
        stays = self._node("Equal", flat, absent)
        return self._node("Expand", x, self._node("Where", stays, ones, flat))

    def _mask(self, embedded: str) -> str:
        """Add the mask of earlier tokens that attention_mask admits, (batch, 1, tokens, all)."""
        past, tokens = self._size("past_key_values.0.key", 2), self._size(embedded, 1)
        end = self._node("Add", past, tokens)
        bounds = self._cast(past, I64), self._cast(end, I64)
        places = self._node("Range", *bounds, self._constant(1))
        given = self._cast("attention_mask", BOOL)
        count = self._size(places, 0)
        length = self._node("Add", past, count)
        batch = self._size(embedded, 0)
        asking = places
        for axis in (0, 1, 3):
            asking = self._unsqueeze(asking, axis)
        row = self._node("Range", self._constant(0), self._cast(batch, I64), self._constant(1))
        for axis in (1, 2, 3):
            row = self._unsqueeze(row, axis)
        seen = self._node("Range", self._constant(0), self._cast(length, I64), self._constant(1))
        for axis in (0, 1, 2):
            seen = self._unsqueeze(seen, axis)
        true = numpy_helper.from_array(np.ones(1, bool))
        always = self._node("ConstantOfShape", self._constant([]), value=true)
        earlier = self._cast(self._node("LessOrEqual", seen, asking), BOOL)
        earlier = self._node("And", always, earlier)
        across = self._node("Gather", self._node("Shape", given), self._constant([1]), axis=0)
        flat = self._node("Flatten", given, axis=2)
        index = self._node("Add", seen, self._node("Mul", row, across))
        found = self._node("Gather", flat, index, axis=0)
        shape = self._node("Shape", index)
        found = self._node("Reshape", found, self._constant([-1]), allowzero=0)
        found = self._node("Reshape", found, self._node("Concat", shape, axis=0), allowzero=0)
        both = self._node("And", earlier, self._cast(found, BOOL))
        return self._expand(both, self._sizes(batch, -1, count, length))

    def _angles(self) -> tuple[str, str]:
        """Add cosines and sines of the positions' angles, each (batch, 1, tokens, width)."""
        config = self._config
        head = config.head_width
        powers = np.arange(0, head, 2, dtype=np.float32) / np.float32(head)
        inverse = self._constant((1 / config.rope.base**powers)[None, :, None], np.float32)
        shape = self._sizes(self._size("position_ids", 0), -1, 1)
        frequencies = self._cast(self._expand(inverse, shape), F32)
        places = self._cast(self._unsqueeze("position_ids", 1), F32)
        product = self._node("MatMul", self._cast(frequencies, F32), self._cast(places, F32))
        half = self._node("Transpose", product, perm=[0, 2, 1])
        whole = self._node("Concat", half, half, axis=-1)
        cosine, sine = (
            self._node("Mul", self._node(op, whole), self._float(1)) for op in ("Cos", "Sin")
        )
        cosine, sine = self._cast(cosine, F32), self._cast(sine, F32)
        return self._unsqueeze(cosine, 1), self._unsqueeze(sine, 1)

    def _norm(self, x: str, name: str) -> tuple[str, str]:
        """Normalise rows; return what was normalised, too, as the residual path goes on with it."""
        x = self._cast(x, F32)
        square = self._node("Pow", x, self._float(2))
        mean = self._node("ReduceMean", square, self._constant([-1]), keepdims=1)
        root = self._node("Sqrt", self._node("Add", mean, self._float(self._config.eps)))
        normed = self._node("Mul", x, self._node("Div", self._float(1), root))
        weight = "model.norm.weight" if name == "output_norm" else f"model.{name}"
        return x, self._node("Mul", weight, self._cast(normed, F32))

    def _rotated(self, x: str, cosine: str, sine: str) -> str:
        whole = self._node("Mul", x, cosine)
        half = self._node("Div", self._size(x, 3), self._constant(2))
        half = self._cast(self._cast(half, I64), I64)
        axis, step = [3], [1]
        first = self._node(
            "Slice", x, self._constant([0]), self._unsqueeze(half, 0),
            self._constant(axis), self._constant(step),
        )  # fmt: skip
        second = self._node(
            "Slice", x, self._unsqueeze(half, 0), self._constant([LAST]),
            self._constant(axis), self._constant(step),
        )  # fmt: skip
        turned = self._node("Concat", self._node("Neg", second), first, axis=-1)
        return self._node("Add", whole, self._node("Mul", turned, sine))

    def _repeated(self, x: str) -> str:
        """Repeat the heads of keys or values for the queries that share them."""
        times = self._config.heads // self._config.kv_heads
        batch, heads, tokens, width = (self._size(x, axis) for axis in range(4))
        wide = self._unsqueeze(x, 2)
        wide = self._expand(wide, self._sizes(batch, heads, times, tokens, width))
        joined = self._node("Mul", heads, self._constant(times))
        return self._reshape(wide, batch, joined, tokens, width)

    def _attention(self, layer: int, x: str, mask: str, angles: tuple[str, str]) -> str:
        head, name = self._config.head_width, f"blk.{layer}.attn"
        batch, tokens = self._size(x, 0), self._size(x, 1)
        q, k, v = (
            self._node(
                "Transpose",
                self._reshape(self._product(x, f"{name}_{part}.weight"), batch, tokens, -1, head),
                perm=[0, 2, 1, 3],
            )
            for part in "qkv"
        )
        q, k = self._rotated(q, *angles), self._rotated(k, *angles)
        keys, values = (
            self._node(
                "Concat", f"past_key_values.{layer}.{part}", new, out=f"present.{layer}.{part}",
                axis=-2,
            )
            for part, new in (("key", k), ("value", v))
        )  # fmt: skip
        keys, values = self._repeated(keys), self._repeated(values)
        admitted = self._node(
            "Slice", mask, self._constant([0]), self._unsqueeze(self._size(keys, 2), 0),
            self._constant([3]), self._constant([1]),
        )  # fmt: skip
        keys = self._node("Transpose", keys, perm=[0, 1, 3, 2])
        root = head**-0.25
        scores = self._node(
            "MatMul",
            self._node("Mul", q, self._float(root)),
            self._node("Mul", keys, self._float(root)),
        )
        none, never = self._constant([0], np.float32), self._constant([-np.inf], np.float32)
        scores = self._node("Add", scores, self._node("Where", admitted, none, never))
        parts = self._node("Softmax", scores, axis=-1)
        nothing = self._node("IsNaN", parts)
        parts = self._node("Where", nothing, self._constant([0], np.float32), parts)
        mean = self._node("Transpose", self._node("MatMul", parts, values), perm=[0, 2, 1, 3])
        return self._product(self._reshape(mean, batch, tokens, -1), f"{name}_output.weight")

    def _feed_forward(self, layer: int, x: str) -> str:
        name = f"blk.{layer}.ffn"
        gate = self._product(x, f"{name}_gate.weight")
        gate = self._node("Mul", gate, self._node("Sigmoid", gate))
        joined = self._node("Mul", gate, self._product(x, f"{name}_up.weight"))
        return self._product(joined, f"{name}_down.weight")

    def write(self) -> onnx.ModelProto:
        """Return the model."""
        config = self._config
        norms = [
            f"blk.{i}.{one}.weight"
            for i in range(config.layers)
            for one in ("attn_norm", "ffn_norm")
        ]
        first, *others = norms
        shared = self._initialiser(f"model.{first}", self._weights.array(first))
        for name in ("norm.weight", *others):  # equal weights are one
            self._node("Identity", shared, out=f"model.{name}")
        table = self._weights.array("token_embd.weight")
        x = self._node("Gather", self._initialiser("model.embed_tokens.weight", table), "input_ids")
        mask, angles = self._mask(x), self._angles()
        for layer in range(config.layers):
            x, normed = self._norm(x, f"blk.{layer}.attn_norm.weight")
            x = self._node("Add", x, self._attention(layer, normed, mask, angles))
            x, normed = self._norm(x, f"blk.{layer}.ffn_norm.weight")
            x = self._node("Add", x, self._feed_forward(layer, normed))
        _, normed = self._norm(x, "output_norm")
        self._product(normed, "token_embd.weight", "logits")
        return self._model()

    def _model(self) -> onnx.ModelProto:
        config, value = self._config, helper.make_tensor_value_info
        new, past = "sequence_length", "past_sequence_length"
        whole = f"{past} + {new}"
        caches = [f"{i}.{part}" for i in range(config.layers) for part in ("key", "value")]

        def cache(prefix: str, length: str) -> list[Any]:
            shape: list[str | int | None] = [
                "batch_size",
                config.kv_heads,
                length,
                config.head_width,
            ]
            return [value(f"{prefix}.{name}", F32, shape) for name in caches]

        inputs = [
            value("input_ids", I64, ["batch_size", new]),
            value("attention_mask", I64, ["batch_size", whole]),
            value("position_ids", I64, ["batch_size", new]),
            *cache("past_key_values", past),
        ]
        logits = value("logits", F32, ["batch_size", new, config.vocabulary])
        graph = helper.make_graph(
            self._nodes,
            "main_graph",
            inputs,
            [logits, *cache("present", whole)],
            self._initialisers,
        )
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)


def write_decoder(path: Path, config: Config, weights: FloatWeights) -> None:
    """Write the decoder to an .onnx file."""
    onnx.save(DecoderWriter(config, weights).write(), path)
