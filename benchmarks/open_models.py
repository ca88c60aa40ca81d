"""Models whose sizes are open, with weights from a seed, written as PyTorch's exporter writes them.

    python -m benchmarks.open_models encoder encoder.onnx
    python -m benchmarks.open_models detector detector.onnx --seed 3
    python -m benchmarks.open_models growing growing.onnx --layers 30 --width 576 --tokens 49152

encoder: a BERT-like one, batch and length open. detector: fully convolutional, height and width
open, with a pyramid whose parts are enlarged to each other's sizes. growing, fixed: a decoder whose
cache is an input that grows, and one whose cache has --places places and whose position is an
input. The last example has the shape of SmolLM2-135M.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import onnx
import rich_click as click
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import run
from glnn.errors import GlnnError

OPSET = 17
LEAST = 43  # tokens: the prompt of benchmarks.tokens has the number 42
Dims = list[int | str]


@dataclass
class Writer:
    """An ONNX graph that grows node by node, and the random numbers of its weights."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draw = np.random.default_rng(self.seed)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its only output."""
        name = f"/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add an initializer unless an equal one is there; return its name."""
        array = np.asarray(value, dtype)
        name = f"{array.dtype}{array.shape}{array.tolist()}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, scale: float | None = None, offset: float = 0) -> str:
        """Add random numbers; by default such that a product with them keeps its size."""
        scale = float(np.prod(shape[:-1])) ** -0.5 if scale is None else scale
        array = self._draw.standard_normal(shape, np.float32) * np.float32(scale)
        name = f"weight_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array + np.float32(offset), name)
        return name

    def size(self, x: str, axis: int) -> str:
        """Return a dimension of `x`, a scalar."""
        return self.add("Gather", self.add("Shape", x), self.constant(axis), axis=0)

    def listed(self, *sizes: int | str) -> str:
        """Return numbers and scalars as one list."""
        first = self.constant([0])
        parts = [
            self.add("Unsqueeze", one, first) if isinstance(one, str) else self.constant([one])
            for one in sizes
        ]
        return self.add("Concat", *parts, axis=0)

    def linear(self, x: str, i: int, o: int, bias: bool = True) -> str:
        """Multiply by a matrix, and add a bias."""
        product = self.add("MatMul", x, self.weight(i, o))
        return self.add("Add", self.weight(o, scale=0.1), product) if bias else product

    def model(
        self, inputs: Mapping[str, tuple[int, Dims]], outputs: dict[str, str], name: str
    ) -> onnx.ModelProto:
        """Return the model. outputs: the values to give, by the outputs' names."""
        self.nodes += [helper.make_node("Identity", [v], [k]) for k, v in outputs.items()]
        ends = [helper.make_tensor_value_info(k, *of) for k, of in inputs.items()]
        found = [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in outputs]
        graph = helper.make_graph(self.nodes, name, ends, found, list(self.constants.values()))
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def _layer_norm(at: Writer, x: str, width: int) -> str:
    """LayerNorm, as opset 16 and older have it."""
    centred = at.add("Sub", x, at.add("ReduceMean", x, axes=[-1]))
    square = at.add("Pow", centred, at.constant(2.0, np.float32))
    mean = at.add("Add", at.add("ReduceMean", square, axes=[-1]), at.constant(1e-12, np.float32))
    scaled = at.add("Mul", at.add("Div", centred, at.add("Sqrt", mean)), at.weight(width, offset=1))
    return at.add("Add", scaled, at.weight(width, scale=0.1))


def _attention(at: Writer, x: str, mask: str, heads: int, width: int) -> str:
    """Self-attention, with shapes computed for each of its parts."""
    each = width // heads
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        part = at.linear(x, width, width)
        shape = at.listed(at.size(part, 0), at.size(part, 1), heads, each)
        parts.append(at.add("Transpose", at.add("Reshape", part, shape), perm=perm))
    query, key, value = parts
    scores = at.add("Div", at.add("MatMul", query, key), at.constant(each**0.5, np.float32))
    weights = at.add("Softmax", at.add("Add", scores, mask), axis=-1)
    found = at.add("Transpose", at.add("MatMul", weights, value), perm=[0, 2, 1, 3])
    joined = at.add("Reshape", found, at.listed(at.size(found, 0), at.size(found, 1), width))
    return at.linear(joined, width, width)


def encoder(
    seed: int = 0, *, layers: int = 4, width: int = 128, heads: int = 4, tokens: int = 1000,
    places: int = 512,
) -> onnx.ModelProto:  # fmt: skip
    """Return a BERT-like encoder of input_ids and attention_mask of (batch, length)."""
    at = Writer(seed)
    ids, mask = "input_ids", "attention_mask"
    words = at.add("Gather", at.weight(tokens, width, scale=1), ids)
    positions = at.add(
        "Slice", at.constant([range(places)]), at.constant([0]), at.listed(at.size(ids, 1)),
        at.constant([1]), at.constant([1]),
    )  # fmt: skip
    x = at.add("Add", words, at.add("Gather", at.weight(places, width, scale=1), positions))
    x = _layer_norm(at, x, width)
    wide = at.add("Unsqueeze", at.add("Unsqueeze", mask, at.constant([1])), at.constant([2]))
    hidden = at.add("Sub", at.constant(1.0, np.float32), at.add("Cast", wide, to=TensorProto.FLOAT))
    hidden = at.add("Mul", hidden, at.constant(-10000.0, np.float32))
    for _ in range(layers):
        x = _layer_norm(at, at.add("Add", _attention(at, x, hidden, heads, width), x), width)
        wider = at.linear(x, width, 4 * width)
        error = at.add("Erf", at.add("Div", wider, at.constant(2**0.5, np.float32)))
        half = at.add("Mul", wider, at.add("Add", error, at.constant(1.0, np.float32)))
        grown = at.add("Mul", half, at.constant(0.5, np.float32))
        x = _layer_norm(at, at.add("Add", at.linear(grown, 4 * width, width), x), width)
    first = at.add("Gather", x, at.constant(0), axis=1)
    weights = at.weight(width, width), at.weight(width, scale=0.1)
    pooled = at.add("Tanh", at.add("Gemm", first, *weights, transB=1))
    dims: Dims = ["batch", "length"]
    inputs: dict[str, tuple[int, Dims]] = dict.fromkeys((ids, mask), (TensorProto.INT64, dims))
    return at.model(inputs, {"last_hidden_state": x, "pooler_output": pooled}, "encoder")


def detector(seed: int = 0, *, channels: int = 8) -> onnx.ModelProto:
    """Return a text detector of an image (1, 3, H, W): a pyramid, and a map as large as that."""
    at = Writer(seed)

    def conv(x: str, i: int, o: int, k: int, stride: int = 1, group: int = 1) -> str:
        shape = (o, i // group, k, k)
        weight = at.weight(*shape, scale=(2 / np.prod(shape[1:])) ** 0.5)
        return at.add(
            "Conv", x, weight, at.weight(o, scale=0.1), kernel_shape=[k, k],
            strides=[stride] * 2, pads=[k // 2] * 4, group=group,
        )  # fmt: skip

    def like(x: str, other: str) -> str:
        """Enlarge `x` to the height and width of `other`."""
        kept = at.add(
            "Slice", at.add("Shape", x), at.constant([0]), at.constant([2]), at.constant([0])
        )
        sides = at.add(
            "Slice", at.add("Shape", other), at.constant([2]), at.constant([maxsize]),
            at.constant([0]),
        )  # fmt: skip
        sizes = at.add("Concat", kept, sides, axis=0)
        way = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return at.add("Resize", x, "", "", sizes, mode="nearest", **way)

    x, width = at.add("HardSwish", conv("x", 3, channels, 3, 2)), channels
    levels = []
    for _ in range(3):
        x = at.add("Relu", conv(x, width, width, 3, 2, group=width))
        x = at.add("HardSwish", conv(x, width, 2 * width, 1))
        width *= 2
        small = conv(at.add("GlobalAveragePool", x), width, width, 1)
        x = at.add("Mul", x, at.add("HardSigmoid", small))
        levels.append(conv(x, width, 2 * channels, 1))
    top = levels.pop()
    while levels:
        level = levels.pop()
        top = conv(at.add("Add", like(top, level), level), 2 * channels, 2 * channels, 3)
    found = at.add("Sigmoid", conv(like(at.add("Relu", top), "x"), 2 * channels, 1, 3))
    return at.model({"x": (TensorProto.FLOAT, [1, 3, "H", "W"])}, {"map": found}, "detector")


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-like decoder. tokens: rows of the table. places: of a fixed cache."""

    layers: int = 2
    width: int = 192
    tokens: int = 256
    places: int = 256

    each = 64
    """The numbers of a head."""

    @property
    def heads(self) -> int:
        """How many heads there are of queries."""
        return self.width // self.each

    @property
    def groups(self) -> int:
        """How many there are of keys and values."""
        return self.heads // 3 if self.heads % 3 == 0 else self.heads

    @property
    def hidden(self) -> int:
        """The width between the two products behind the attention."""
        return 8 * self.width // 3


@dataclass
class Decoder:
    """A decoder that is being written. cosine, sine: of the positions, (length, each)."""

    at: Writer
    shape: Shape
    mask: str = ""
    cosine: str = ""
    sine: str = ""
    chosen: str = ""
    """Whether each place of a fixed cache is that of the token; empty for a growing one."""

    def angles(self, places: str) -> None:
        """Have cosines and sines of `places`, floats of shape (length,)."""
        at, half = self.at, self.shape.each // 2
        inverse = at.constant(1e4 ** -(np.arange(half) / half), np.float32)
        angles = at.add("Mul", at.add("Unsqueeze", places, at.constant([1])), inverse)
        angles = at.add("Concat", angles, angles, axis=-1)
        self.cosine, self.sine = at.add("Cos", angles), at.add("Sin", angles)

    def norm(self, x: str) -> str:
        """RMSNorm."""
        at = self.at
        square = at.add("Pow", x, at.constant(2.0, np.float32))
        mean = at.add("Add", at.add("ReduceMean", square, axes=[-1]), at.constant(1e-5, np.float32))
        inverse = at.add("Div", at.constant(1.0, np.float32), at.add("Sqrt", mean))
        return at.add("Mul", at.add("Mul", x, inverse), at.weight(self.shape.width, offset=1))

    def split(self, x: str, heads: int) -> str:
        """Return the heads of `x` times a matrix: (1, heads, length, each)."""
        at, each = self.at, self.shape.each
        made = at.linear(x, self.shape.width, heads * each, bias=False)
        sizes = at.listed(at.size(x, 0), at.size(x, 1), heads, each)
        return at.add("Transpose", at.add("Reshape", made, sizes), perm=[0, 2, 1, 3])

    def rotated(self, x: str) -> str:
        """Return `x` turned by the angles of its positions."""
        at = self.at
        half = at.add("Div", at.size(x, 3), at.constant(2))
        begin, middle = at.constant([0]), at.add("Unsqueeze", half, at.constant([0]))
        first = at.add("Slice", x, begin, middle, at.constant([3]))
        second = at.add("Slice", x, middle, at.constant([maxsize]), at.constant([3]))
        turned = at.add("Concat", at.add("Neg", second), first, axis=-1)
        return at.add("Add", at.add("Mul", x, self.cosine), at.add("Mul", turned, self.sine))

    def repeated(self, x: str) -> str:
        """Return keys or values (1, groups, length, each) for each of the heads."""
        at, shape = self.at, self.shape
        times, length = shape.heads // shape.groups, at.size(x, 2)
        wide = at.add("Unsqueeze", x, at.constant([2]))
        sizes = at.listed(1, shape.groups, times, length, shape.each)
        wide = at.add("Expand", wide, sizes)
        return at.add("Reshape", wide, at.listed(1, shape.heads, length, shape.each))

    def kept(self, new: str, place: int) -> str:
        """Return the cache's tensor `place` with `new` in it."""
        at = self.at
        old = at.add("Gather", "past", at.constant(place), axis=0)
        if self.chosen:
            return at.add("Where", self.chosen, new, old)
        return at.add("Concat", old, new, axis=2)

    def layer(self, x: str, number: int) -> tuple[str, list[str]]:
        """Return what a layer makes of `x`, and its new keys and values to be kept."""
        at, shape = self.at, self.shape
        normal = self.norm(x)
        query = self.rotated(self.split(normal, shape.heads))
        key, value = (
            self.rotated(self.split(normal, shape.groups)),
            self.split(normal, shape.groups),
        )
        keys, values = self.kept(key, 2 * number), self.kept(value, 2 * number + 1)
        across = at.add("Transpose", self.repeated(keys), perm=[0, 1, 3, 2])
        scores = at.add("MatMul", query, across)
        scores = at.add("Mul", scores, at.constant(shape.each**-0.5, np.float32))
        weights = at.add("Softmax", at.add("Add", scores, self.mask), axis=-1)
        found = at.add("MatMul", weights, self.repeated(values))
        found = at.add("Transpose", found, perm=[0, 2, 1, 3])
        found = at.add("Reshape", found, at.listed(at.size(x, 0), at.size(x, 1), shape.width))
        x = at.add("Add", x, at.linear(found, shape.width, shape.width, bias=False))
        normal = self.norm(x)
        gate = at.linear(normal, shape.width, shape.hidden, bias=False)
        gate = at.add("Mul", gate, at.add("Sigmoid", gate))
        up = at.add("Mul", gate, at.linear(normal, shape.width, shape.hidden, bias=False))
        x = at.add("Add", x, at.linear(up, shape.hidden, shape.width, bias=False))
        return x, [key, value] if self.chosen else [keys, values]


def decoder(seed: int = 0, *, growing: bool, shape: Shape | None = None) -> onnx.ModelProto:
    """Return a decoder whose cache grows: ids (1, S) and past (2 layers, 1, groups, P, each) to
    logits and present; or one of fixed places: ids (1, 1), pos (1) and past to logits and new.
    """
    shape, at = shape or Shape(), Writer(seed)
    made, real = Decoder(at, shape), TensorProto.FLOAT
    table = at.weight(shape.tokens, shape.width, scale=shape.width**-0.5)
    if growing:
        before, length = at.size("past", 3), at.size("ids", 1)
        total, one = at.add("Add", before, length), at.constant(1)
        rows = at.add("Range", before, total, one)
        columns = at.add("Range", at.constant(0), total, one)
        made.angles(at.add("Cast", rows, to=real))
        rows = at.add("Unsqueeze", rows, at.constant([1]))
    else:
        made.angles(at.add("Cast", "pos", to=real))
        columns = at.constant(range(shape.places))
        rows = at.add("Unsqueeze", "pos", at.constant([1]))
        chosen = at.add("Equal", columns, "pos")
        made.chosen = at.add("Unsqueeze", chosen, at.constant([0, 1, 3]))
    later = at.add("Greater", at.add("Unsqueeze", columns, at.constant([0])), rows)
    ends = at.constant(-1e4, np.float32), at.constant(0, np.float32)
    made.mask = at.add("Where", later, *ends)
    x, kept = at.add("Gather", table, "ids", axis=0), list[str]()
    for number in range(shape.layers):
        x, new = made.layer(x, number)
        kept += [at.add("Unsqueeze", one, at.constant([0])) for one in new]
    logits = at.add("MatMul", made.norm(x), at.add("Transpose", table, perm=[1, 0]))
    cache = at.add("Concat", *kept, axis=0)
    past: Dims = [2 * shape.layers, 1, shape.groups, "P" if growing else shape.places, shape.each]
    inputs: dict[str, tuple[int, Dims]] = {"ids": (TensorProto.INT64, [1, "S" if growing else 1])}
    inputs |= {} if growing else {"pos": (TensorProto.INT64, [1])}
    outputs = {"logits": logits, "present" if growing else "new": cache}
    return at.model({**inputs, "past": (real, past)}, outputs, "decoder")


BUILDERS: dict[str, Callable[[int], onnx.ModelProto]] = {"encoder": encoder, "detector": detector}
DECODERS = ("growing", "fixed")
OPTIONS = {
    "layers": "Of a decoder.",
    "width": "Of a decoder, a multiple of 64.",
    "tokens": "Rows of its table.",
    "places": "Of its cache, where that is fixed.",
}


def decoder_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options from which `decoder_shape` is made."""
    for name, text in reversed(OPTIONS.items()):
        default = getattr(Shape, name)
        option = click.option(f"--{name}", default=default, show_default=True, help=text)
        command = option(command)
    return command


def decoder_shape(sizes: Mapping[str, int]) -> Shape:
    """Return the shape that the options say. Raises GlnnError."""
    shape = Shape(**sizes)
    for name, size in sizes.items():
        least = LEAST if name == "tokens" else 1
        if size < least:
            raise GlnnError(f"--{name}: expected at least {least}, got {size}")
    if shape.width % shape.each:
        raise GlnnError(f"--width: expected a multiple of {shape.each}, got {shape.width}")
    return shape


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice([*BUILDERS, *DECODERS]))
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True)
@decoder_options
def main(kind: str, path: Path, seed: int, **sizes: int) -> None:
    if kind in DECODERS:
        model = decoder(seed, growing=kind == "growing", shape=decoder_shape(sizes))
    else:
        model = BUILDERS[kind](seed)
    onnx.save(model, path)


if __name__ == "__main__":
    run(main)
