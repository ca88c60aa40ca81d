"""Random settings of the operators of com.microsoft: operands, attributes, what is left out.

Each generator of CASES makes a case of a NumPy generator's numbers. ONNX Runtime says what is
expected of it; where its CPU package has no kernel, the case does, by NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray
Rng = np.random.Generator
MICROSOFT = "com.microsoft"
OLDER = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32)
"""True for an ONNX Runtime that lacks some of the operators, operands and attributes."""


@dataclass
class Case:
    """A node with its operands."""

    op: str
    operands: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: Sequence[Any] = (np.float32,)
    """The dtype of each result, None for one that is left out."""
    known: Sequence[int] = ()
    """The operands that are initialisers."""
    expected: Sequence[Array | None] | None = None
    """The results, where ONNX Runtime does not say them; None for one that is not looked at."""
    domain: str = MICROSOFT
    hosted: bool = False
    """True where the host computes a part of it."""
    tolerance: float = 2e-5
    in_halves: bool = True
    """False where the operator has no float16."""
    compared: Mapping[int, Callable[[Array], Array]] = field(default_factory=dict)
    """What is compared of a result, by its number, where parts of it are left open."""

    def __str__(self) -> str:
        shapes = [None if a is None else f"{a.dtype}{list(a.shape)}" for a in self.operands]
        return f"{self.op} {shapes} {self.attributes} {self.results}"

    def model(self) -> onnx.ModelProto:
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.operands)]
        results = [f"y{i}" if t is not None else "" for i, t in enumerate(self.results)]
        node = helper.make_node(self.op, names, results, domain=self.domain, **self.attributes)
        there = [(i, a) for i, a in enumerate(self.operands) if a is not None]
        inputs = [
            helper.make_tensor_value_info(f"x{i}", _code(a.dtype), a.shape)
            for i, a in there
            if i not in self.known
        ]
        outputs = [
            helper.make_tensor_value_info(name, _code(np.dtype(t)), None)
            for name, t in zip(results, self.results, strict=True)
            if name
        ]
        weights = [numpy_helper.from_array(a, f"x{i}") for i, a in there if i in self.known]
        graph = helper.make_graph([node], self.op, inputs, outputs, weights)
        opsets = [helper.make_opsetid("", 16), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> dict[str, Array]:
        return {
            f"x{i}": a for i, a in enumerate(self.operands) if a is not None and i not in self.known
        }

    def of_halves(self, dtype: Any, tolerance: float) -> Case:
        """Return the case in a type of 16 bits, its numbers rounded, where there is such a one."""
        if not self.in_halves:
            return self
        halved = [a.astype(dtype) if _is_single(a) else a for a in self.operands]
        results = [dtype if t is np.float32 else t for t in self.results]
        return replace(self, operands=halved, results=results, tolerance=tolerance)

    def of_singles(self) -> Case:
        """Return a case in 16 bits as one of the same numbers in float32."""
        halves = (np.float16, ml_dtypes.bfloat16)
        widened = [
            a.astype(np.float32) if a is not None and a.dtype in halves else a
            for a in self.operands
        ]
        results = [np.float32 if t in halves else t for t in self.results]
        return replace(self, operands=widened, results=results)

    def runtime(self) -> list[Array]:
        """ONNX Runtime's results of those that have names."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # What saturates at 16 bits on some processors is computed otherwise then.
        options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(
            self.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, self.feeds())  # type: ignore[no-any-return]


SINGLE = np.dtype(np.float32)
"""The type of results that are float32 whatever operands are."""


def _code(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _is_single(array: Array | None) -> bool:
    return array is not None and array.dtype == np.float32


def maybe(rng: Rng, value: Any, share: float = 0.5) -> Any:
    """Return `value`, or None."""
    return value if rng.random() < share else None


def chosen(rng: Rng, *values: Any) -> Any:
    """Return one of the values."""
    return values[rng.integers(len(values))]


def numbers(rng: Rng, *shape: int, scale: float = 1.0) -> Array:
    """Return random numbers of float32, all of which float16 has, too."""
    return (scale * rng.standard_normal(shape)).astype(np.float16).astype(np.float32)


def size(rng: Rng, most: int = 9) -> int:
    return int(rng.integers(1, most + 1))


def shape_of(rng: Rng, least: int = 1, most: int = 4) -> tuple[int, ...]:
    return tuple(size(rng, 7) for _ in range(rng.integers(least, most + 1)))


def trimmed(operands: list[Array | None]) -> list[Array | None]:
    """Return operands without those at the end that are left out."""
    while operands and operands[-1] is None:
        operands.pop()
    return operands


def _gelu(rng: Rng) -> Case:
    return Case("Gelu", [numbers(rng, *shape_of(rng), scale=2)])


def _fast_gelu(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng), scale=2)
    return Case("FastGelu", trimmed([x, maybe(rng, numbers(rng, x.shape[-1]))]))


def _quick_gelu(rng: Rng) -> Case:
    attributes = chosen(rng, {}, {"alpha": float(rng.uniform(0.1, 3))})
    return Case("QuickGelu", [numbers(rng, *shape_of(rng), scale=2)], attributes)


def _bias_gelu(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng), scale=2)
    return Case("BiasGelu", [x, numbers(rng, x.shape[-1])])


def _bias_add(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng, 3, 3))
    bias, skip = numbers(rng, x.shape[-1]), numbers(rng, *x.shape)
    return Case("BiasAdd", [x, bias, skip], expected=[x.astype(np.float64) + bias + skip])


def gelu(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))))


def _bias_split_gelu(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng, 2, 2), 2 * size(rng))
    bias = numbers(rng, x.shape[-1])
    first, second = np.split(x.astype(np.float64) + bias, 2, axis=-1)
    return Case("BiasSplitGelu", [x, bias], expected=[first * gelu(second)])


def _epsilon(rng: Rng) -> dict[str, float]:
    return chosen(rng, {}, {"epsilon": float(10 ** rng.uniform(-6, -2))})


def _layer_normalization(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng, 2))
    axis = int(rng.integers(-x.ndim + 1, 0))
    shape = x.shape[axis:]
    operands = trimmed([x, numbers(rng, *shape), maybe(rng, numbers(rng, *shape))])
    results = chosen(rng, (np.float32,), (np.float32, SINGLE, SINGLE))
    attributes = {**_epsilon(rng), "axis": axis}
    return Case("LayerNormalization", operands, attributes, results, domain="")


def _simplified(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng, 2))
    axis = int(rng.integers(-x.ndim + 1, 0))
    attributes = {**_epsilon(rng), "axis": axis}
    operands: list[Array | None] = [x, numbers(rng, *x.shape[axis:])]
    return Case("SimplifiedLayerNormalization", operands, attributes, domain="")


def _skip_of(rng: Rng, x: Array) -> Array:
    shapes = [x.shape]
    if x.ndim == 3:
        shapes += [(1, *x.shape[1:]), x.shape[1:]]
    return numbers(rng, *chosen(rng, *shapes))


def _skip_layer_normalization(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng, 2, 3))
    n = x.shape[-1]
    operands = [x, _skip_of(rng, x), numbers(rng, n)]
    operands += [maybe(rng, numbers(rng, n)), maybe(rng, numbers(rng, n))]
    results = chosen(rng, (np.float32,), (np.float32, None, None, np.float32))
    return Case("SkipLayerNormalization", trimmed(operands), _epsilon(rng), results)


def _skip_simplified(rng: Rng) -> Case:
    x = numbers(rng, *shape_of(rng, 2, 3))
    n = x.shape[-1]
    operands = trimmed([x, _skip_of(rng, x), numbers(rng, n), maybe(rng, numbers(rng, n))])
    results = chosen(rng, (np.float32,), (np.float32, None, None, np.float32))
    return Case("SkipSimplifiedLayerNormalization", operands, _epsilon(rng), results)


def _embed_layer_normalization(rng: Rng) -> Case:
    batch, length, n, rows = size(rng, 3), size(rng), size(rng, 16), 12
    segmented = rng.random() < 0.5
    ids = rng.integers(0, rows, (batch, length), np.int32)
    segments = rng.integers(0, 2, (batch, length), np.int32) if segmented else None
    table = numbers(rng, 2, n) if segmented else None
    mask = maybe(rng, rng.integers(0, 2, (batch, length), np.int32))
    places = maybe(rng, rng.integers(0, rows, (chosen(rng, 1, batch), length), np.int32))
    operands = [ids, segments, numbers(rng, rows, n), numbers(rng, rows, n), table]
    operands += [numbers(rng, n), numbers(rng, n), mask, places]
    results = chosen(rng, (np.float32, np.int32), (np.float32, np.int32, np.float32))
    return Case("EmbedLayerNormalization", trimmed(operands), _epsilon(rng), results)


def group_norm(x: Array, gamma: Array, beta: Array, attributes: Mapping[str, Any]) -> Array:
    """Group normalisation in float64, by com.microsoft's attributes."""
    last = attributes.get("channels_last", 1)
    x = np.moveaxis(x, -1, 1) if last else x
    groups = x.reshape(x.shape[0], attributes["groups"], -1).astype(np.float64)
    epsilon = attributes.get("epsilon", 1e-5)
    y = groups - groups.mean(-1, keepdims=True)
    y = y / np.sqrt(groups.var(-1, keepdims=True) + epsilon)
    spread = (-1, *(1,) * (x.ndim - 2))
    y = y.reshape(x.shape) * gamma.reshape(spread) + beta.reshape(spread)
    y = y / (1 + np.exp(-y)) if attributes["activation"] else y
    return np.moveaxis(y, 1, -1) if last else y


def _of_groups(rng: Rng) -> tuple[Array, int, dict[str, Any]]:
    groups, last = size(rng, 4), int(rng.integers(2))
    channels = groups * size(rng, 4)
    n, *pixels = size(rng, 3), size(rng, 6), size(rng, 6)
    shape = (n, *pixels, channels) if last else (n, channels, *pixels)
    attributes = {"groups": groups, "activation": int(rng.integers(2)), **_epsilon(rng)}
    if not last or rng.random() < 0.5:
        attributes["channels_last"] = last
    return numbers(rng, *shape), channels, attributes


def _group_norm(rng: Rng) -> Case:
    x, channels, attributes = _of_groups(rng)
    gamma, beta = numbers(rng, channels), numbers(rng, channels)
    expected = [group_norm(x, gamma, beta, attributes)]
    return Case("GroupNorm", [x, gamma, beta], attributes, expected=expected)


def _skip_group_norm(rng: Rng) -> Case:
    x, channels, attributes = _of_groups(rng)
    last = attributes.get("channels_last", 1)
    gamma, beta, n = numbers(rng, channels), numbers(rng, channels), x.shape[0]
    ones = (n, 1, 1, channels) if last else (n, channels, 1, 1)
    skip = numbers(rng, *chosen(rng, x.shape, ones, (n, channels)))
    bias = maybe(rng, numbers(rng, channels))
    spread = ones if skip.ndim == 2 else skip.shape
    total = x.astype(np.float64) + skip.reshape(spread)
    if bias is not None:
        total += bias if last else bias.reshape(-1, 1, 1)
    expected = [group_norm(total, gamma, beta, attributes), total]
    results = [np.float32, np.float32]
    operands = trimmed([x, gamma, beta, skip, bias])
    return Case("SkipGroupNorm", operands, attributes, results, expected=expected)


def _fused_matmul(rng: Rng) -> Case:
    m, n, k = size(rng), size(rng), size(rng)
    stack = shape_of(rng, 0, 2)
    attributes: dict[str, Any] = {}
    operands: list[Array | None] = []
    for letter, rows, columns in (("A", m, k), ("B", k, n)):
        batched, turned = (int(flag) for flag in rng.integers(2, size=2))
        matrix = [columns, rows] if turned else [rows, columns]
        if batched and stack:
            shape = [matrix[0], *stack, matrix[1]]
            attributes[f"transBatch{letter}"] = 1
        else:
            shape = [*stack, *matrix]
        if turned:
            attributes[f"trans{letter}"] = 1
        operands.append(numbers(rng, *shape))
    if not any(name.startswith("transBatch") for name in attributes) and rng.random() < 0.4:
        weight = operands[1]
        assert weight is not None
        operands[1] = weight.reshape(-1, *weight.shape[-2:])[0]  # one for the whole stack
    attributes |= chosen(rng, {}, {"alpha": float(rng.uniform(-2, 2))})
    return Case("FusedMatMul", operands, attributes, known=chosen(rng, (), (1,)))


ACTIVATIONS: dict[str, int] = {
    "Relu": 0, "Tanh": 0, "Sigmoid": 0, "LeakyRelu": 1, "HardSigmoid": 2
}  # fmt: skip


def _fused_gemm(rng: Rng) -> Case:
    m, n, k = size(rng), size(rng), size(rng)
    flags = [int(flag) for flag in rng.integers(2, size=2)]
    a = numbers(rng, *((k, m) if flags[0] else (m, k)))
    b = numbers(rng, *((n, k) if flags[1] else (k, n)))
    c = maybe(rng, numbers(rng, *chosen(rng, (m, n), (n,), (1, n), (m, 1))))
    name = chosen(rng, *ACTIVATIONS, "Elu", "Softplus")
    attributes: dict[str, Any] = {"transA": flags[0], "transB": flags[1], "activation": name}
    attributes |= chosen(rng, {}, {"alpha": float(rng.uniform(0.5, 2)), "beta": 0.5})
    if name in ("LeakyRelu", "Elu", "HardSigmoid"):
        attributes["activation_alpha"] = float(rng.uniform(0.1, 0.5))
    if name == "HardSigmoid":
        attributes["activation_beta"] = float(rng.uniform(0.1, 0.5))
    return Case("FusedGemm", trimmed([a, b, c]), attributes)


def _windows(rng: Rng) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if rng.random() < 0.5:
        attributes["strides"] = [size(rng, 2), size(rng, 2)]
    if rng.random() < 0.5:
        attributes["pads"] = [int(n) for n in rng.integers(0, 2, 4)]
    elif rng.random() < 0.3:
        attributes["auto_pad"] = chosen(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    return attributes


def _convolution(rng: Rng) -> tuple[Array, Array, Array | None, dict[str, Any]]:
    group = size(rng, 2)
    channels, filters = group * size(rng, 3), group * size(rng, 3)
    x = numbers(rng, size(rng, 2), channels, *(5 + rng.integers(0, 5, 2)))
    weight = numbers(rng, filters, channels // group, size(rng, 3), size(rng, 3))
    return x, weight, maybe(rng, numbers(rng, filters)), {**_windows(rng), "group": group}


def _plain_conv(x: Array, w: Array, bias: Array | None, attributes: Mapping[str, Any]) -> Array:
    """ONNX's Conv, by ONNX Runtime."""
    return Case("Conv", trimmed([x, w, bias]), dict(attributes), domain="").runtime()[0]


def _fused_conv(rng: Rng) -> Case:
    x, weight, bias, attributes = _convolution(rng)
    name = chosen(rng, *ACTIVATIONS, "Clip")
    count = ACTIVATIONS.get(name, 2)
    z = None
    if rng.random() < 0.4:
        z = numbers(rng, *_plain_conv(x, weight, bias, attributes).shape)
    attributes["activation"] = name
    if count:
        attributes["activation_params"] = sorted(float(n) for n in rng.uniform(0.1, 0.9, count))
    operands = trimmed([x, weight, bias, z])
    return Case("FusedConv", operands, attributes, known=(1, 2))


def _nhwc_conv(rng: Rng) -> Case:
    x, weight, bias, attributes = _convolution(rng)
    y = _plain_conv(x, weight, bias, attributes)
    operands = trimmed([np.ascontiguousarray(np.moveaxis(x, 1, -1)), weight, bias])
    return Case("NhwcConv", operands, attributes, expected=[np.moveaxis(y, 1, -1)], known=(1, 2))


def _nhwc_max_pool(rng: Rng) -> Case:
    attributes = {**_windows(rng), "kernel_shape": [2 + size(rng, 2), 2 + size(rng, 2)]}
    if "auto_pad" not in attributes:
        attributes["ceil_mode"] = int(rng.integers(2))
    dtype = chosen(rng, np.int8, np.uint8)
    shape = (size(rng, 2), *(5 + rng.integers(0, 5, 2)), size(rng, 4))
    x = rng.integers(0, 255, shape).astype(dtype)
    return Case("NhwcMaxPool", [x], attributes, [dtype])


def _angles(rng: Rng, rows: int, half: int) -> tuple[Array, Array]:
    """Return cosines and sines, (rows, half) each."""
    turned = rng.uniform(-3, 3, (rows, half))
    cos, sin = (
        one.astype(np.float16).astype(np.float32) for one in (np.cos(turned), np.sin(turned))
    )
    return cos, sin


def _rotary(rng: Rng) -> Case:
    batch, heads, length, half, rows = size(rng, 3), size(rng, 3), size(rng, 6), size(rng, 4), 12
    partly = rng.random() < 0.4
    width = 2 * half + (2 * size(rng, 3) if partly else 0)
    attributes: dict[str, Any] = {"interleaved": int(rng.integers(2))}
    if partly:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    elif rng.random() < 0.5:
        attributes["num_heads"] = heads
    packed = rng.random() < 0.6
    shape = (batch, length, heads * width) if packed else (batch, heads, length, width)
    first = rng.integers(0, rows - length + 1, 1)
    places = chosen(rng, first, rng.integers(0, rows, (batch, length)))
    cos, sin = _angles(rng, rows, half)
    return Case(
        "RotaryEmbedding", [numbers(rng, *shape), places, cos, sin], attributes, known=(2, 3)
    )


def relative_buckets(distance: Array, count: int, most: int, both: bool) -> Array:
    """The bucket of each distance of a key from a query, as T5's paper has it, in float64."""
    first = np.zeros_like(distance)
    if both:
        count //= 2
        first, distance = np.where(distance > 0, count, 0), np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1) / exact) / np.log(most / exact)
    later = np.minimum(exact + (ratio * (count - exact) + 1e-6).astype(np.int64), count - 1)
    return np.asarray(first + np.where(distance < exact, distance, later))


def _relative_position_bias(rng: Rng) -> Case:
    both, count = int(rng.integers(2)), 4 * size(rng, 4)
    queries, keys, heads = size(rng, 9), size(rng, 30), size(rng, 3)
    most = count + size(rng, 20)
    table = numbers(rng, count, heads)
    distance = np.arange(keys) - np.arange(queries)[:, None]
    buckets = relative_buckets(distance, count, most, bool(both))
    return Case(
        "RelativePositionBias",
        [table, np.array([queries]), np.array([keys])],
        {"max_distance": most, **({"is_bidirectional": 1} if both else {})},
        known=chosen(rng, (1, 2), (0, 1, 2)),
        expected=[table.reshape(heads, count)[:, buckets][None]],
    )


def _mask(rng: Rng, batch: int, queries: int, keys: int, *, causal: bool) -> Array | None:
    """Return a mask that leaves each query a key, the first one if `causal`."""
    ends = rng.integers(1, keys + 1, batch).astype(np.int32)
    starts = (0 if causal else rng.integers(0, ends)) * np.ones(batch, np.int32)
    raw = rng.integers(0, 2, chosen(rng, (batch, keys), (batch, queries, keys))).astype(np.int32)
    raw[..., 0] = 1
    both = np.concatenate([ends, starts]).astype(np.int32)
    return chosen(rng, None, ends, both, raw, raw)  # type: ignore[no-any-return]


def _bias_of_scores(rng: Rng, batch: int, heads: int, queries: int, keys: int) -> Array | None:
    shape = (chosen(rng, 1, batch), chosen(rng, 1, heads), queries, keys)
    return maybe(rng, numbers(rng, *shape), 0.3)


def _multi_head_attention(rng: Rng) -> Case:
    batch, heads, queries, width = size(rng, 2), size(rng, 3), size(rng, 5), 4 * size(rng, 3)
    columns = chosen(rng, width, 4 * size(rng, 3))
    form = chosen(rng, "apart", "apart", "past", "crossed", "packed keys", "packed")
    keys, past, causal = size(rng, 6), 0, int(rng.integers(2))
    if form in ("past", "packed"):
        keys, columns = queries, width
    if form != "apart":
        columns = width
    query = numbers(rng, batch, queries, heads * width)
    key: Array | None = numbers(rng, batch, keys, heads * width)
    value: Array | None = numbers(rng, batch, keys, heads * columns)
    past_key = past_value = None
    biased = rng.random() < 0.5 and form != "packed keys"
    if form == "past":
        past = size(rng, 5)
        past_key, past_value = (numbers(rng, batch, heads, past, n) for n in (width, columns))
    elif form == "crossed":
        key, value = (numbers(rng, batch, heads, keys, width) for _ in range(2))
        causal = 0
    elif form == "packed keys":
        key, value = numbers(rng, batch, keys, heads, 2, width), None
        causal = 0
    elif form == "packed":
        query, key, value = numbers(rng, batch, queries, heads, 3, width), None, None
    if keys != queries:  # ONNX Runtime's last query sees all keys then
        causal = 0
    total = past + keys
    bias = numbers(rng, heads * (2 * width + columns)) if biased else None
    mask = _mask(rng, batch, queries, total, causal=bool(causal))
    if mask is not None and mask.ndim == 1 and len(mask) == 2 * batch:
        mask = mask[:batch]
    added = _bias_of_scores(rng, batch, heads, queries, total)
    operands = trimmed([query, key, value, bias, mask, added, past_key, past_value])
    attributes: dict[str, Any] = {"num_heads": heads}
    attributes |= chosen(rng, {}, {"unidirectional": causal})
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 1))})
    attributes |= chosen(rng, {}, {"mask_filter_value": -500.0})
    results: list[Any] = [np.float32]
    if past or (rng.random() < 0.3 and form == "apart"):
        results += [np.float32, np.float32]
        results += chosen(rng, [], [np.float32])
    one = Case("MultiHeadAttention", operands, attributes, results)
    if form.startswith("packed"):  # not by ONNX Runtime's CPU package
        whole = query if form == "packed" else key
        assert whole is not None
        parts = [p.reshape(batch, keys, heads * width) for p in np.moveaxis(whole, 3, 0)]
        apart = [*parts] if form == "packed" else [query, *parts]
        one.expected = replace(one, operands=[*apart, *operands[3:]]).runtime()
    return one


def _attention(rng: Rng) -> Case:
    batch, heads, queries, width = size(rng, 2), size(rng, 3), size(rng, 5), 4 * size(rng, 3)
    columns = chosen(rng, width, width, 4 * size(rng, 3))
    past = size(rng, 5) if columns == width and rng.random() < 0.4 else 0
    hidden, causal = size(rng, 12), int(rng.integers(2))
    total = past + queries
    wide = heads * (2 * width + columns)
    mask = _mask(rng, batch, queries, total, causal=bool(causal))
    if large := rng.random() < 0.15:
        causal = 0
        mask = rng.integers(0, 2, (batch, 1, total + 2, total + 2)).astype(np.int32)
        mask[..., 0] = 1
    operands = [
        numbers(rng, batch, queries, hidden),
        numbers(rng, hidden, wide),
        maybe(rng, numbers(rng, wide), 0.7),
        mask,
        numbers(rng, 2, batch, heads, past, width) if past else None,
        None if past else _bias_of_scores(rng, batch, heads, queries, total),
    ]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": causal}
    if columns != width:
        attributes["qkv_hidden_sizes"] = [heads * n for n in (width, width, columns)]
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 0.5))})
    results = (np.float32, np.float32) if past else (np.float32,)
    known = chosen(rng, (), (1, 2))
    one = Case("Attention", trimmed(operands), attributes, results, known)
    if large and mask is not None:  # not by ONNX Runtime's CPU package
        part = np.ascontiguousarray(mask[:, 0, past:total, :total])
        one.expected = replace(one, operands=[*operands[:3], part, *operands[4:]]).runtime()
    return one


def _decoder_attention(rng: Rng) -> Case:
    samples, beams, heads = size(rng, 2), size(rng, 3), size(rng, 3)
    width = 4 * size(rng, 3)
    batch, rows, hidden = samples * beams, 2 + size(rng, 8), heads * width
    query, key, value = (numbers(rng, batch, 1, hidden) for _ in range(3))
    caches = [numbers(rng, batch, heads, rows, width) for _ in range(2)]
    attributes: dict[str, Any] = {"num_heads": heads}
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 0.5))})
    if rng.random() < 0.3:  # cross attention
        mask = maybe(rng, _raw_mask(rng, batch, rows))
        asked = chosen(rng, {}, {"output_qk": 1})
        results = [np.float32, None, None, np.float32] if asked else [np.float32]
        operands = trimmed([query, *caches, mask])
        return Case("DecoderMaskedMultiHeadAttention", operands, attributes | asked, results)
    attributes["past_present_share_buffer"] = 1
    past = int(rng.integers(1, rows))
    operands = [query, key, value, maybe(rng, _raw_mask(rng, batch, past + 1))]
    operands += [_bias_of_scores(rng, 1, heads, 1, past + 1), *caches, np.array([past], np.int32)]
    if beams > 1:
        turned = rng.integers(0, beams, (samples, beams, rows)).astype(np.int32)
        operands += [np.array([beams], np.int32), turned]
    else:
        operands += [None, None]
    operands.append(maybe(rng, numbers(rng, 3 * hidden)))
    used: dict[int, Callable[[Array], Array]] = {i: lambda y: y[:, :, : past + 1] for i in (1, 2)}
    return Case(
        "DecoderMaskedMultiHeadAttention",
        trimmed(operands),
        attributes,
        [np.float32] * 3,
        compared=used,
    )


def _raw_mask(rng: Rng, batch: int, keys: int) -> Array:
    mask = rng.integers(0, 2, (batch, keys)).astype(np.int32)
    mask[:, 0] = 1
    return mask


def _group_query_attention(rng: Rng) -> Case:
    groups, width = size(rng, 3), 16 * size(rng, 2)
    heads = groups * size(rng, 3)
    step = chosen(rng, "prompt", "prompt", "decode", "decode", "chunk")
    batch = 1 if step == "chunk" else size(rng, 3)
    shared = rng.random() < 0.5
    if step == "prompt":
        length = size(rng, 6)
        lengths = rng.integers(1, length + 1, batch)
        lengths[rng.integers(batch)] = length
        past = length + size(rng, 4) if shared else 0
    else:
        length = 1 if step == "decode" else 2 + size(rng, 4)
        lengths = length + rng.integers(1, 8, batch)
        past = int(lengths.max()) - length
        past += length + size(rng, 4) if shared else 0
    total = int(lengths.max())
    packed = rng.random() < 0.4
    counts = (heads + 2 * groups,) if packed else (heads, groups, groups)
    new: list[Array | None] = [numbers(rng, batch, length, n * width) for n in counts]
    caches: list[Array | None] = [None, None]
    if past or shared:
        caches = [numbers(rng, batch, groups, past, width) for _ in range(2)]
    window = size(rng, 6)
    if sliding := rng.random() < 0.2:
        rows = window + size(rng, 5) - 1
        lengths = np.maximum(lengths, length)
        caches = [numbers(rng, batch, groups, rows, width) for _ in range(2)]
    operands = [*new, *(None,) * (3 - len(new)), *caches]
    operands += [(lengths - 1).astype(np.int32), np.array([total], np.int32)]
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    if rng.random() < 0.5:
        operands += [*_angles(rng, 24, width // 2)]
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        if rng.random() < 0.3:
            places = np.maximum(lengths - length, 0)[:, None] + np.arange(length)
            operands.append(np.minimum(places, 23).astype(np.int64))
    else:
        operands += [None, None]
    operands += [None] * (10 - len(operands))
    operands.append(None if sliding else _bias_of_scores(rng, batch, heads, length, total))
    if rng.random() < 0.25:
        operands.append(numbers(rng, heads))
    elif rng.random() < 0.3:
        attributes["smooth_softmax"] = 1
    if sliding:
        attributes |= {"sliding_window_cache": 1, "local_window_size": window}
    elif rng.random() < 0.8:
        attributes |= chosen(rng, {}, {"local_window_size": window})
    else:
        attributes["causal"] = 0
    attributes |= chosen(rng, {}, {}, {"softcap": float(rng.uniform(1, 5))})
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 0.5))})
    there = np.array([resident(n, rows, window) for n in lengths]) if sliding else lengths
    compared = _of_samples(lengths, there, length, step == "prompt")
    results = [np.float32] * 3
    if not sliding and rng.random() < 0.2 and int(lengths.min()) == total:
        attributes["qk_output"] = 1 + int(rng.integers(2))
        results.append(np.float32)
    return Case("GroupQueryAttention", trimmed(operands), attributes, results, compared=compared)


def resident(tokens: int, rows: int, window: int) -> int:
    """Return how many tokens a cache of so many rows has, by GroupQueryAttention's description."""
    freed = rows - window + 1
    return tokens if tokens <= rows else tokens - freed * -(-(tokens - rows) // freed)


def _of_samples(
    lengths: Array, there: Array, new: int, prompt: bool
) -> dict[int, Callable[[Array], Array]]:
    """Return what to compare of GroupQueryAttention: not what belongs to no token."""

    def tokens(y: Array) -> Array:
        counts = lengths if prompt else np.full(len(lengths), new)
        return np.concatenate([one[:n] for one, n in zip(y, counts, strict=True)])

    def rows(y: Array) -> Array:
        return np.concatenate([one[:, :n].ravel() for one, n in zip(y, there, strict=True)])

    return {0: tokens, 1: rows, 2: rows}


def _causal_conv(rng: Rng) -> Case:
    batch, channels, length, taps = size(rng, 2), size(rng, 5), size(rng, 7), size(rng, 4)
    last, slots = int(rng.integers(2)), chosen(rng, 0, 0, size(rng, 4))
    attributes: dict[str, Any] = chosen(rng, {}, {"activation": chosen(rng, "silu", "swish")})
    attributes |= chosen(rng, {}, {"dilation": size(rng, 3)})
    reach = (taps - 1) * attributes.get("dilation", 1)
    if last:
        attributes["channels_last"] = 1
    if slots:
        attributes["state_window"] = slots
    shape = (batch, length, channels) if last else (batch, channels, length)
    kept = (batch, reach, channels) if last else (batch, channels, reach)
    past = numbers(rng, *((slots,) if slots else ()), *kept) if rng.random() < 0.5 else None
    operands = [numbers(rng, *shape), numbers(rng, channels, 1, taps)]
    operands += [maybe(rng, numbers(rng, channels)), past]
    results = [np.float32, np.float32]
    one = Case("CausalConvWithState", trimmed(operands), attributes, results, known=(1, 2))
    if slots:  # not by ONNX Runtime's CPU package, but the state after each token is
        del attributes["state_window"]
        x, *others = operands
        assert x is not None
        others[2:] = [None if past is None else past[-1]]
        axis, states = 1 if last else 2, []
        for end in range(length - slots + 1, length + 1):
            part = np.take(x, range(max(end, 0)), axis)
            alone = replace(one, operands=trimmed([part, *others]), attributes=dict(attributes))
            y, state = alone.runtime() if end > 0 else (None, np.zeros(kept, np.float32))
            states.append(state)
        one.expected = [y, np.stack(states)]
        attributes["state_window"] = slots
    return one


def _linear_attention(rng: Rng) -> Case:
    rule = chosen(rng, "linear", "gated", "delta", "gated_delta")
    few, share = size(rng, 3), size(rng, 3)
    heads, groups = chosen(rng, (few * share, few), (few, few * share))
    batch, length, width, columns = size(rng, 2), size(rng, 4), 4 * size(rng, 2), 4 * size(rng, 2)
    query = numbers(rng, batch, length, heads * width, scale=0.5)
    key = numbers(rng, batch, length, groups * width, scale=0.3)
    value = numbers(rng, batch, length, groups * columns)
    past = maybe(rng, numbers(rng, batch, groups, width, columns))
    decay = beta = None
    if "gated" in rule:
        decay = -np.abs(numbers(rng, batch, length, groups * chosen(rng, 1, width)))
    if "delta" in rule:
        beta = np.abs(numbers(rng, batch, length, chosen(rng, 1, groups), scale=0.3))
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups}
    attributes["update_rule"] = rule
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 1))})
    operands = trimmed([query, key, value, past, decay, beta])
    return Case("LinearAttention", operands, attributes, [np.float32, np.float32])


def _pad(rng: Rng) -> Case:
    mode = chosen(rng, "constant", "reflect", "edge")
    x = numbers(rng, *(3 + rng.integers(0, 4, size(rng, 3))))
    pads = rng.integers(-1 if mode == "constant" else 0, 3, 2 * x.ndim)
    filled = mode == "constant" and rng.random() < 0.5
    operands = [x, pads.reshape(chosen(rng, (-1,), (1, -1)))]
    operands += [numbers(rng, 1)] if filled else []
    return Case(
        "Pad",
        operands,
        chosen(rng, {}, {"mode": mode}) if mode == "constant" else {"mode": mode},
        known=chosen(rng, (), (1,)),
    )


def _grid_sample(rng: Rng) -> Case:
    n, channels = size(rng, 2), size(rng, 3)
    x = numbers(rng, n, channels, 2 + size(rng, 5), 2 + size(rng, 5))
    grid = rng.uniform(-1.3, 1.3, (n, size(rng, 5), size(rng, 5), 2)).astype(np.float32)
    attributes: dict[str, Any] = {"mode": chosen(rng, "bilinear", "nearest", "bicubic")}
    attributes["padding_mode"] = chosen(rng, "zeros", "border", "reflection")
    attributes["align_corners"] = int(rng.integers(2))
    return Case("GridSample", [x, grid], attributes)


def _crop_and_resize(rng: Rng) -> Case:
    n, count = size(rng, 3), size(rng, 4)
    x = numbers(rng, n, size(rng, 4), 1 + size(rng, 6), 1 + size(rng, 6))
    regions = rng.uniform(-0.2, 1.2, (count, 4)).astype(np.float32)
    images = rng.integers(0, n, count).astype(np.int32)
    crop = np.array([size(rng, 5), size(rng, 5)], np.int32)
    attributes: dict[str, Any] = {"mode": chosen(rng, "bilinear", "nearest")}
    attributes |= chosen(rng, {}, {"extrapolation_value": 2.5})
    return Case("CropAndResize", [x, regions, images, crop], attributes, known=(3,))


def _inverse(rng: Rng) -> Case:
    n = size(rng, 5)
    x = numbers(rng, *shape_of(rng, 0, 2), n, n) + 3 * np.eye(n, dtype=np.float32)
    return Case("Inverse", [x], hosted=True, tolerance=1e-4)


def _unique(rng: Rng) -> Case:
    x = rng.integers(0, 6, size(rng, 12)).astype(np.float32)
    return Case("Unique", [x], results=[np.float32, np.int64, np.int64], hosted=True)


def _sequences(rng: Rng) -> tuple[list[int], Array, Array]:
    """Return lengths of sequences, where they begin and end, and the offsets of their tokens."""
    lengths = [size(rng, 5), *(int(rng.integers(6)) for _ in range(rng.integers(3)))]
    batch, longest = len(lengths), max(lengths)
    there = np.arange(longest) < np.array(lengths)[:, None]
    places = np.arange(batch * longest).reshape(batch, longest)
    offsets = np.concatenate([places[there], places[~there]]).reshape(batch, longest)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return lengths, ends.astype(np.int32), offsets.astype(np.int32)


def attended(
    query: Array, key: Array, value: Array, heads: int, scale: float, bias: Array | None
) -> Array:
    """Attention of one sequence in float64, (tokens, heads size) each. bias: (heads or 1, ...)."""
    q, k, v = (
        one.astype(np.float64).reshape(len(one), heads, -1).swapaxes(0, 1)
        for one in (query, key, value)
    )
    scores = q @ k.swapaxes(1, 2) * (scale or q.shape[-1] ** -0.5)
    scores = scores if bias is None else scores + bias[:, : len(query), : len(key)]
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    y = powers / powers.sum(-1, keepdims=True) @ v
    return np.asarray(y.swapaxes(0, 1).reshape(len(query), -1))


def _packed_results(
    parts: Sequence[Array], ends: Array, heads: int, scale: float, bias: Array | None
) -> Array:
    """Return attention within each sequence. bias: (sequences or 1, heads or 1, ...)."""
    results = []
    for number, (start, end) in enumerate(pairwise(ends)):
        if start == end:
            continue
        added = None if bias is None else bias[number if len(bias) > 1 else 0]
        results.append(attended(*(one[start:end] for one in parts), heads, scale, added))
    return np.concatenate(results)


def _packed_multi_head_attention(rng: Rng) -> Case:
    lengths, ends, offsets = _sequences(rng)
    heads, width, tokens = size(rng, 3), 4 * size(rng, 3), int(ends[-1])
    parts = [numbers(rng, tokens, heads * width) for _ in range(3)]
    bias = maybe(rng, numbers(rng, 3 * heads * width))
    added = _bias_of_scores(rng, len(lengths), heads, max(lengths), max(lengths))
    attributes: dict[str, Any] = {"num_heads": heads}
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 0.5))})
    biased = parts if bias is None else [
        one.astype(np.float64) + part for one, part in zip(parts, np.split(bias, 3), strict=True)
    ]  # fmt: skip
    expected = _packed_results(biased, ends, heads, attributes.get("scale", 0.0), added)
    operands: list[Array | None] = [*parts]
    if rng.random() < 0.4:
        each = [one.reshape(tokens, heads, width) for one in parts]
        operands = [np.stack(each, 2), None, None]
    operands += [bias, offsets, ends, added]
    return Case("PackedMultiHeadAttention", trimmed(operands), attributes, expected=[expected])


def _packed_attention(rng: Rng) -> Case:
    lengths, ends, offsets = _sequences(rng)
    heads, width, tokens, hidden = size(rng, 3), 4 * size(rng, 3), int(ends[-1]), size(rng, 9)
    x, weights = numbers(rng, tokens, hidden), numbers(rng, hidden, 3 * heads * width)
    bias = numbers(rng, 3 * heads * width)
    added = _bias_of_scores(rng, len(lengths), heads, max(lengths), max(lengths))
    attributes: dict[str, Any] = {"num_heads": heads}
    attributes |= chosen(rng, {}, {"scale": float(rng.uniform(0.1, 0.5))})
    parts = np.split(x.astype(np.float64) @ weights + bias, 3, axis=1)
    expected = _packed_results(parts, ends, heads, attributes.get("scale", 0.0), added)
    operands = trimmed([x, weights, bias, offsets, ends, added])
    return Case("PackedAttention", operands, attributes, known=(1, 2), expected=[expected])


def _moe(rng: Rng) -> Case:
    experts, hidden, inner = 1 + size(rng, 9), size(rng, 9), size(rng, 9)
    batch, length, k = size(rng, 2), size(rng, 4), size(rng, min(4, experts))
    k = min(k, experts)
    kind = chosen(rng, "relu", "gelu", "silu", "identity", "swiglu", "swiglu")
    gated = kind == "swiglu"
    form = chosen(rng, 0, 1, 2) if gated else 0
    x = numbers(rng, *chosen(rng, (batch, length, hidden), (batch * length, hidden)))
    logits = numbers(rng, batch * length, experts)
    fc1 = numbers(rng, experts, (2 if gated else 1) * inner, hidden, scale=0.4)
    bias1 = maybe(rng, numbers(rng, experts, fc1.shape[1]))
    fc2 = numbers(rng, experts, hidden, inner, scale=0.4)
    operands = [x, logits, fc1, bias1, fc2, maybe(rng, numbers(rng, experts, hidden))]
    attributes: dict[str, Any] = {"k": k, "activation_type": kind}
    attributes |= chosen(rng, {}, {"normalize_routing_weights": 1})
    if gated:
        attributes |= chosen(rng, {}, {"activation_alpha": 1.7, "activation_beta": 1.0})
        attributes |= chosen(rng, {}, {"swiglu_limit": 0.7})
        attributes["swiglu_fusion"] = 1
    one = Case("MoE", trimmed(operands), attributes, known=chosen(rng, (), (2, 4)))
    if gated and form != 1:  # not by ONNX Runtime's CPU package: halves that are not interleaved
        one.expected = one.runtime()
        gate, up = fc1[:, ::2], fc1[:, 1::2]
        biases = [None, None] if bias1 is None else [bias1[:, ::2], bias1[:, 1::2]]
        one.attributes = {**attributes, "swiglu_fusion": form}
        whole = [*one.operands, *(None,) * (6 - len(one.operands))]
        if form == 2:
            whole[2] = np.concatenate([gate, up], 1)
            whole[3] = None if bias1 is None else np.concatenate([bias1[:, ::2], bias1[:, 1::2]], 1)
        else:
            whole[2], whole[3] = np.ascontiguousarray(gate), biases[0]
            whole += [np.ascontiguousarray(up), biases[1]]
        one.operands = trimmed(whole)
    return one


def packed_bits(numbers: Array, bits: int) -> Array:
    """Return integers packed in bytes along the last dimension, the first in the low bits."""
    each = 8 // bits
    behind = -numbers.shape[-1] % each
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, behind)])
    grouped = padded.reshape(*padded.shape[:-1], -1, each).astype(np.int64)
    return np.asarray((grouped << np.arange(0, 8, bits)).sum(-1), np.uint8)


def _qmoe(rng: Rng) -> Case:
    """Return a case of QMoE.

    Weights of 8 bits are held beside MoE of the same as floats, as ONNX Runtime's CPU package
    rounds tokens to 8 bits, too; and so are shares that are not normalised, which it normalises.
    """
    experts, block, bits = 1 + size(rng, 9), chosen(rng, 0, 16), chosen(rng, 4, 4, 8)
    tokens, k = size(rng, 4), min(size(rng, 3), experts)
    hidden, inner = 16 * size(rng, 2), 16 * size(rng, 2)
    gated = rng.random() < 0.5
    zeroed, biased = rng.random() < 0.5, rng.random() < 0.5
    floats: list[Array | None] = []
    layers = []
    for outputs, inputs in ((inner * (2 if gated else 1), hidden), (hidden, inner)):
        blocks = inputs // block if block else 1
        whole = rng.integers(0, 2**bits, (experts, outputs, inputs))
        scales = np.abs(numbers(rng, experts, outputs, blocks, scale=0.5 / 2**bits))
        zeros = rng.integers(0, 2**bits, scales.shape) if zeroed else np.full(
            scales.shape, 2 ** (bits - 1)
        )  # fmt: skip
        spread = (np.repeat(one, inputs // blocks, 2) for one in (zeros, scales))
        zero, scale = spread
        floats.append(((whole - zero) * scale).astype(np.float32))
        shape = scales.shape if block else scales.shape[:2]
        points = packed_bits(zeros if block else zeros[:, :, 0], bits) if zeroed else None
        bias = numbers(rng, experts, outputs) if biased else None
        layers.append((packed_bits(whole, bits), scales.reshape(shape), bias, points))
    x, logits = numbers(rng, tokens, hidden), numbers(rng, tokens, experts)
    normalized = int(rng.random() < 0.7)
    attributes: dict[str, Any] = {"k": k, "normalize_routing_weights": normalized}
    attributes |= {"activation_type": "swiglu", "swiglu_fusion": 1} if gated else {}
    (first, scales1, bias1, zeros1), (second, scales2, bias2, zeros2) = layers
    plain = Case("MoE", trimmed([x, logits, floats[0], bias1, floats[1], bias2]), attributes)
    operands = [x, logits, first, scales1, bias1, second, scales2, bias2, None, None, None]
    packing: dict[str, Any] = {"expert_weight_bits": bits, "weights_prepacked": 0}
    packing |= {"block_size": block} if block else {}
    return Case(
        "QMoE",
        trimmed([*operands, zeros1, zeros2]),
        attributes | packing,
        known=(2, 3, 5, 6, 11, 12),
        expected=None if bits == 4 and normalized else plain.runtime(),
        tolerance=5e-5,
    )


CASES: dict[str, Callable[[Rng], Case]] = {
    "Gelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasGelu": _bias_gelu,
    "BiasAdd": _bias_add,
    "BiasSplitGelu": _bias_split_gelu,
    "LayerNormalization": _layer_normalization,
    "SimplifiedLayerNormalization": _simplified,
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "GroupNorm": _group_norm,
    "SkipGroupNorm": _skip_group_norm,
    "RotaryEmbedding": _rotary,
    "RelativePositionBias": _relative_position_bias,
    "MultiHeadAttention": _multi_head_attention,
    "Attention": _attention,
    "DecoderMaskedMultiHeadAttention": _decoder_attention,
    "PackedMultiHeadAttention": _packed_multi_head_attention,
    "PackedAttention": _packed_attention,
    "GroupQueryAttention": _group_query_attention,
    "MoE": _moe,
    "QMoE": _qmoe,
    "CausalConvWithState": _causal_conv,
    "LinearAttention": _linear_attention,
    "Pad": _pad,
    "GridSample": _grid_sample,
    "CropAndResize": _crop_and_resize,
    "Inverse": _inverse,
    "Unique": _unique,
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "NhwcConv": _nhwc_conv,
    "NhwcMaxPool": _nhwc_max_pool,
}
"""Generators of cases, by operator."""


def case(op: str, seed: int, generators: Mapping[str, Callable[[Rng], Case]] = CASES) -> Case:
    """Return a case of an operator; of ten seeds the fifth is in float16, the tenth in bfloat16
    where ONNX Runtime says what is expected.
    """
    made = generators[op](np.random.default_rng([seed, *op.encode()]))
    if seed % 10 == 9 and made.expected is None:
        return made.of_halves(ml_dtypes.bfloat16, 4e-2)
    return made.of_halves(np.float16, 4e-3) if seed % 5 == 4 else made


def expected(one: Case) -> list[Array | None]:
    """Return what is expected of a case, rounded to the types of its results."""
    wanted = one.of_singles().runtime() if one.expected is None else one.expected
    types = [t for t in one.results if t is not None]
    with np.errstate(over="ignore"):  # of masked scores
        return [None if a is None else a.astype(t) for a, t in zip(wanted, types, strict=True)]
