"""Random ONNX graphs with open sizes, each run by one session at many shapes, beside ONNX Runtime.

    python -m tests.onnx.open_graphs --graphs 2000 --shapes 20 --backend compute --seed 1
    python -m tests.onnx.open_graphs --backend feedback --precision int8 --limits es31-minimum

Images whose batch, height and width are open, and sequences whose batch and length are; sizes are
computed in the graph as exporters write it: by Shape, Gather, Concat, Slice, Range and Expand. Some
have a second input of the same sizes, a mask or a cache that comes before the sequence; some have
symbols that the file leaves without names. Sizes are 0, 1, primes, and greater than all before.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import rich_click as click
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from glnn import InferenceSession
from glnn.errors import GlnnError, UnsupportedOpError

BOUNDS = {"float32": 2e-5, "float16": 5e-3, "int8": 3e-2}
"""How far results may be off, of numbers of about one, by precision."""
OPSET = 18
PRIMES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33)
LONGEST, LARGEST = 240, 130  # of a sequence, and of an image's sides
ROWS = 2 * LONGEST + 8  # of a table of positions
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
Shape = tuple[int, ...]
Feeds = dict[str, NDArray[Any]]


@dataclass
class Graph:
    """A graph that grows node by node. draw: the random numbers of its structure."""

    draw: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def add(self, op: str, *inputs: str, results: int = 1, **attributes: object) -> str:
        """The first result of a new node; others have its name and a number."""
        self.count += 1
        out = f"v{self.count}"
        names = [out, *(f"{out}.{i}" for i in range(1, results))]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return out

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return self.draw.choice(choices)

    def constant(self, array: NDArray[np.generic]) -> str:
        """A new initializer."""
        self.count += 1
        self.constants.append(numpy_helper.from_array(array, f"c{self.count}"))
        return f"c{self.count}"

    def weight(self, *shape: int) -> str:
        """Random numbers such that sums stay near one."""
        seeded = np.random.default_rng(self.draw.randrange(1 << 30))
        scale = float(np.sqrt(3 / max(np.prod(shape[1:]), 1)))
        return self.constant(seeded.uniform(-scale, scale, shape).astype(np.float32))

    def real(self, number: float) -> str:
        """A float."""
        return self.constant(np.array(number, np.float32))

    def scalar(self, number: int) -> str:
        """An integer."""
        return self.constant(np.array(number, np.int64))

    def integers(self, *numbers: int) -> str:
        """A list of integers."""
        return self.constant(np.array(numbers, np.int64))

    def size(self, value: str, axis: int) -> str:
        """A dimension of `value`, of shape (1,)."""
        return self.add("Gather", self.add("Shape", value), self.integers(axis), axis=0)

    def listed(self, *sizes: int | str) -> str:
        """Numbers and lists of one number as one list."""
        parts = [one if isinstance(one, str) else self.integers(one) for one in sizes]
        return self.add("Concat", *parts, axis=0)

    def cut(self, x: str, axis: int, begin: str | int, end: str | int) -> str:
        """A part of `x` along an axis."""
        ends = [one if isinstance(one, str) else self.integers(one) for one in (begin, end)]
        return self.add("Slice", x, *ends, self.integers(axis))

    def body(
        self, name: str, inputs: list[Any], work: Callable[[], tuple[str, ...]], kinds: list[int]
    ) -> onnx.GraphProto:
        """What `work` adds, as a graph of its own that reads this one's values."""
        before, self.nodes = self.nodes, []
        found = work()
        nodes, self.nodes = self.nodes, before
        pairs = zip(found, kinds, strict=True)
        ends = [helper.make_tensor_value_info(one, kind, None) for one, kind in pairs]
        return helper.make_graph(nodes, f"{name}{self.count}", inputs, ends)

    def model(self, inputs: dict[str, list[str | int | None]], outputs: list[str]) -> bytes:
        """The model of what was added."""
        kinds = {"mask": INT}
        ends = [
            helper.make_tensor_value_info(name, kinds.get(name, FLOAT), dims)
            for name, dims in inputs.items()
        ]
        found = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "open", ends, found, self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        made: bytes = helper.make_model(
            graph, opset_imports=opset, ir_version=9
        ).SerializeToString()
        return made


def branch(g: Graph, x: str) -> str:
    """An If, by a size or by the numbers of the input, whose sum is not almost 0."""
    if g.draw.random() < 0.5:
        asked = g.add("Greater", g.add("Size", x), g.scalar(g.pick(30, 200, 1000)))
    else:
        asked = g.add("Greater", g.add("ReduceSum", "x", keepdims=0), g.real(0))
    return g.add(
        "If", asked,
        then_branch=g.body("then", [], lambda: (g.add("Tanh", x),), [FLOAT]),
        else_branch=g.body("else", [], lambda: (g.add("Mul", x, g.real(0.5)),), [FLOAT]),
    )  # fmt: skip


def loop(g: Graph, x: str, axis: int) -> str:
    """A Loop over up to four parts of `x`, which adds and stacks them."""
    length = g.add("Squeeze", g.size(x, axis), g.integers(0))
    trips = g.add("Min", length, g.scalar(4))
    step, state = f"i{g.count}", f"s{g.count}"

    def work() -> tuple[str, ...]:
        begin = g.add("Reshape", step, g.integers(1))
        row = g.cut(x, axis, begin, g.add("Add", begin, g.integers(1)))
        more = g.add("Identity", f"more{step}")
        return more, g.add("Add", state, g.add("Mul", row, g.real(0.25))), g.add("Neg", row)

    inputs = [
        helper.make_tensor_value_info(step, INT, []),
        helper.make_tensor_value_info(f"more{step}", TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, FLOAT, None),
    ]
    yes = g.constant(np.array(True))
    kinds = [TensorProto.BOOL, FLOAT, FLOAT]
    made = g.add("Loop", trips, yes, x, results=2, body=g.body("loop", inputs, work, kinds))
    rows = g.add("ReduceSum", f"{made}.1", g.integers(0), keepdims=0)
    return g.add("Add", made, g.add("Mul", rows, g.real(0.25)))


def pointwise(g: Graph, x: str) -> str:
    """An activation, or one of two by a condition."""
    if g.draw.random() < 0.7:
        return g.add(g.pick("Relu", "Sigmoid", "HardSwish", "Tanh", "Erf"), x)
    positive = g.add("Greater", x, g.real(0))  # where both are alike, as either may be taken
    return g.add("Where", positive, x, g.add("Mul", x, g.real(0.1)))


def filled(g: Graph, x: str) -> str:
    """A sum with ones of its shape."""
    one = helper.make_tensor("value", FLOAT, [1], [0.5])
    return g.add("Add", x, g.add("ConstantOfShape", g.add("Shape", x), value=one))


# Images: of x (n, c, h, w) another one, and its channels.


def conv(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Convolution of any stride, dilation, groups."""
    o, k = g.pick(1, 4, 6, 8), g.pick(1, 3, 3, 5)
    groups = c if g.draw.random() < 0.25 else 1
    o = c if groups > 1 else o
    stride, dilation = g.pick(1, 1, 2), g.pick(1, 1, 2)
    bias = [g.weight(o)] if g.draw.random() < 0.5 else []
    return g.add(
        "Conv", x, g.weight(o, c // groups, k, k), *bias, kernel_shape=[k, k],
        strides=[stride] * 2, dilations=[dilation] * 2, pads=[dilation * (k // 2)] * 4,
        group=groups,
    ), o  # fmt: skip


def pool(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Pooling of windows of three."""
    stride, op = g.pick(1, 2), g.pick("MaxPool", "AveragePool")
    ceil = g.pick(0, 1)
    return g.add(op, x, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4, ceil_mode=ceil), c


def squeezed(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Squeeze and excitation."""
    small = g.add("GlobalAveragePool", x)
    made = g.add("Conv", small, g.weight(c, c, 1, 1), kernel_shape=[1, 1])
    return g.add("Mul", x, g.add("HardSigmoid", made)), c


def enlarged(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Twice as large in one of three ways, cut to the size that it had."""
    way = g.draw.randrange(3)
    if way == 0:
        scales = g.constant(np.array([1, 1, 2, 2], np.float32))
        large = g.add("Resize", x, "", scales, mode="nearest")
    elif way == 1:
        sides = g.add("Slice", g.add("Shape", x), g.integers(2), g.integers(4))
        sizes = g.listed(g.size(x, 0), c, g.add("Mul", sides, g.integers(2)))
        large = g.add("Resize", x, "", "", sizes, mode="nearest")
    else:
        weight = g.weight(c, c, 2, 2)
        large = g.add("ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2])
    ends = g.add("Slice", g.add("Shape", x), g.integers(2), g.integers(4))
    part = g.add("Slice", large, g.integers(0, 0), ends, g.integers(2, 3))
    return g.add("Add", part, x), c


def resized(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Smaller by computed sizes, and back."""
    sides = g.add("Slice", g.add("Shape", x), g.integers(2), g.integers(4))
    half = g.add("Add", g.add("Div", sides, g.integers(2)), g.integers(1))
    before = [g.size(x, 0), c]
    small = g.add("Resize", x, "", "", g.listed(*before, half), mode="linear")
    return g.add("Resize", small, "", "", g.listed(*before, sides), mode="linear"), c


def flattened(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Pixels as a sequence and back."""
    rows = g.add("Reshape", x, g.integers(0, c, -1))
    rows = g.add("MatMul", g.add("Transpose", rows, perm=[0, 2, 1]), g.weight(c, c))
    rows = g.add("Softmax", rows, axis=-1) if g.draw.random() < 0.5 else rows
    sizes = g.listed(g.size(x, 0), c, g.size(x, 2), g.size(x, 3))
    return g.add("Reshape", g.add("Transpose", rows, perm=[0, 2, 1]), sizes), c


def doubled(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Twice as many channels, up to sixteen."""
    both = g.add("Concat", x, g.add("Neg", x), axis=1)
    return (both, 2 * c) if c <= 8 else (g.cut(both, 1, c, 2 * c), c)


def without_mean(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Less the means of the columns or rows."""
    mean = g.add("ReduceMean", x, g.integers(g.pick(2, 3)), keepdims=1)
    return g.add("Sub", x, mean), c


def stepped(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Each pixel or each second one."""
    steps = g.integers(g.pick(1, 2), g.pick(1, 2))
    ends = g.integers(sys.maxsize, sys.maxsize)
    flip = g.cut(x, 2, 0, sys.maxsize)
    return g.add("Slice", flip, g.integers(0, 0), ends, g.integers(2, 3), steps), c


def tiled(g: Graph, x: str, c: int) -> tuple[str, int]:
    """With its first row in the place of each."""
    row = g.cut(x, 2, 0, 1)
    return g.add("Add", x, g.add("Tile", row, g.listed(1, 1, g.size(x, 2), 1))), c


def normal(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Normalised over the pixels."""
    return g.add("InstanceNormalization", x, g.weight(c), g.weight(c), epsilon=1e-2), c


def padded(g: Graph, x: str, c: int) -> tuple[str, int]:
    """Padded to a multiple of four, whose windows are averaged, as large again."""
    sides = g.add("Slice", g.add("Shape", x), g.integers(2), g.integers(4))
    rest = g.add("Mod", g.add("Neg", sides), g.integers(4))
    wide = g.add("Pad", x, g.listed(0, 0, 0, 0, 0, 0, rest))
    small = g.add("AveragePool", wide, kernel_shape=[4, 4], strides=[4, 4])
    scales = g.constant(np.array([1, 1, 4, 4], np.float32))
    large = g.add("Resize", small, "", scales, mode="nearest")
    part = g.add("Slice", large, g.integers(0, 0), sides, g.integers(2, 3))
    return g.add("Sub", x, part), c


def kept(work: Callable[[Graph, str], str]) -> Callable[[Graph, str, int], tuple[str, int]]:
    """`work` on images, which keeps the channels."""
    return lambda g, x, c: (work(g, x), c)


IMAGES: list[Callable[[Graph, str, int], tuple[str, int]]] = [
    conv, conv, conv, conv, pool, squeezed, enlarged, enlarged, resized, flattened, doubled,
    without_mean, stepped, tiled, normal, padded, kept(pointwise), kept(branch), kept(filled),
    kept(lambda g, x: loop(g, x, 3)),
]  # fmt: skip


# Sequences: of x (b, l, d) another one.


def linear(g: Graph, x: str, d: int) -> str:
    """A product, by MatMul or by Gemm of all rows."""
    if g.draw.random() < 0.6:
        made = g.add("MatMul", x, g.weight(d, d))
        return g.add("Add", made, g.weight(d)) if g.draw.random() < 0.5 else made
    rows = g.add("Reshape", x, g.integers(-1, d))
    made = g.add("Gemm", rows, g.weight(d, d), g.weight(d), transB=g.pick(0, 1))
    return g.add("Reshape", made, g.listed(g.size(x, 0), g.size(x, 1), d))


def layer_norm(g: Graph, x: str, d: int) -> str:
    """LayerNormalization."""
    return g.add("LayerNormalization", x, g.weight(d), g.weight(d), axis=-1, epsilon=1e-2)


def positions(g: Graph, x: str, d: int) -> str:
    """A part of a table, as long as x."""
    table = g.weight(ROWS, d)
    if g.draw.random() < 0.5:
        return g.add("Add", x, g.cut(table, 0, 0, g.size(x, 1)))
    count = g.add("Squeeze", g.size(x, 1), g.integers(0))
    places = g.add("Range", g.scalar(0), count, g.scalar(1))
    return g.add("Add", x, g.add("Gather", table, places, axis=0))


def attention(g: Graph, x: str, d: int) -> str:
    """Self-attention of two heads, its shapes computed."""
    batch, length = g.size(x, 0), g.size(x, 1)
    split = g.listed(batch, length, 2, d // 2)
    parts = []
    for _ in range(3):
        part = g.add("Reshape", g.add("MatMul", x, g.weight(d, d)), split)
        parts.append(g.add("Transpose", part, perm=[0, 2, 1, 3]))
    q, k, v = parts
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.add("Mul", scores, g.real((d // 2) ** -0.5))
    if g.draw.random() < 0.5:  # a causal mask, made of the length
        square = g.listed(length, length)
        ones = helper.make_tensor("value", FLOAT, [1], [-1e4])
        mask = g.add("Trilu", g.add("ConstantOfShape", square, value=ones), g.scalar(1), upper=1)
        scores = g.add("Add", scores, mask)
    found = g.add("MatMul", g.add("Softmax", scores, axis=-1), v)
    found = g.add("Transpose", found, perm=[0, 2, 1, 3])
    return g.add("Reshape", found, g.listed(batch, length, d))


def running_mean(g: Graph, x: str, d: int) -> str:
    """A cumulative sum over a computed length."""
    sums = g.add("CumSum", x, g.scalar(1))
    return g.add("Div", sums, g.add("Cast", g.size(x, 1), to=FLOAT))


def reduced(g: Graph, x: str, d: int) -> str:
    """Less a number for each sample, which is expanded."""
    op = g.pick("ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp", "ReduceMin")
    found = g.add(op, x, g.integers(1), keepdims=1)
    found = g.add("Tanh", found)
    if g.draw.random() < 0.5:
        return g.add("Sub", x, g.add("Expand", found, g.add("Shape", x)))
    return g.add("Sub", x, g.add("Tile", found, g.listed(1, g.size(x, 1), 1)))


def halves(g: Graph, x: str, d: int) -> str:
    """Its second half, of the length or of the features, before the first."""
    if g.draw.random() < 0.4:
        first = g.add("Split", x, results=2, num_outputs=2, axis=2)
        return g.add("Concat", f"{first}.1", first, axis=2)
    half = g.add("Div", g.add("Add", g.size(x, 1), g.integers(1)), g.integers(2))
    first, last = g.cut(x, 1, 0, half), g.cut(x, 1, half, sys.maxsize)
    return g.add("Concat", last, first, axis=1)


def last_row(g: Graph, x: str, d: int) -> str:
    """Less its last row."""
    place = g.add("Sub", g.size(x, 1), g.integers(1))
    return g.add("Sub", x, g.add("Gather", x, place, axis=1))


def along(g: Graph, x: str, d: int) -> str:
    """A convolution along the length."""
    weight, shape = g.weight(d, d, 3), [3]
    made = g.add("Transpose", x, perm=[0, 2, 1])
    made = g.add("Conv", made, weight, kernel_shape=shape, pads=[1, 1])
    return g.add("Transpose", made, perm=[0, 2, 1])


def recurrent(g: Graph, x: str, d: int) -> str:
    """LSTM, GRU or RNN over the length."""
    op, gates = g.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    rows = g.add("Transpose", x, perm=[1, 0, 2])
    weights = g.weight(1, gates * d, d), g.weight(1, gates * d, d)
    found = g.add("Squeeze", g.add(op, rows, *weights, hidden_size=d), g.integers(1))
    return g.add("Transpose", found, perm=[1, 0, 2])


def greatest(g: Graph, x: str, d: int) -> str:
    """Less the mean of the up to three greatest."""
    count = g.add("Min", g.size(x, 1), g.integers(3))
    found = g.add("TopK", x, count, results=2, axis=1)
    return g.add("Sub", x, g.add("ReduceMean", found, g.integers(1), keepdims=1))


def windows(g: Graph, x: str, d: int) -> str:
    """Padded to a multiple of four rows, which a product mixes, and cut."""
    length = g.size(x, 1)
    rest = g.add("Mod", g.add("Neg", length), g.integers(4))
    wide = g.add("Pad", x, g.listed(0, 0, 0, 0, rest, 0))
    rows = g.add("Reshape", wide, g.listed(g.size(x, 0), -1, 4, d))
    mixed = g.add("MatMul", g.weight(4, 4), rows)
    flat = g.add("Reshape", mixed, g.listed(g.size(x, 0), -1, d))
    return g.cut(flat, 1, 0, length)


def featured(work: Callable[[Graph, str], str]) -> Callable[[Graph, str, int], str]:
    """`work` on sequences."""
    return lambda g, x, d: work(g, x)


SEQUENCES: list[Callable[[Graph, str, int], str]] = [
    linear, linear, linear, layer_norm, positions, positions, attention, attention, running_mean,
    reduced, reduced, halves, halves, last_row, along, recurrent, greatest, windows,
    featured(pointwise), featured(branch), featured(filled),
    featured(lambda g, x: loop(g, x, 1)),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, and how its inputs are made. width: channels or features."""

    content: bytes
    images: bool
    width: int
    second: str
    """The input beside x: mask, past, or none."""

    def feeds(self, shape: Shape, seed: int) -> Feeds:
        """Arrays for the inputs where x has that shape; a cache has another length."""
        draw = np.random.default_rng(seed)
        found: Feeds = {"x": draw.standard_normal(shape, np.float32)}
        if self.second == "past":
            length = int(draw.integers(0, LONGEST))
            found["past"] = draw.standard_normal((shape[0], length, self.width), np.float32)
        elif self.second:
            masked = (shape[0], *shape[2:]) if self.images else shape[:2]
            found["mask"] = draw.integers(0, 2, masked)
        return found


def random_graph(seed: int, wide: bool = False) -> Case:
    """The case of that seed. wide: whether weights are large enough for int8."""
    draw = random.Random(seed)
    g, images = Graph(draw), draw.random() < 0.5
    x, second = "x", draw.choice(("", "", "mask") if images else ("", "", "mask", "past"))
    first = width = draw.choice((1, 3, 4, 8) if images else ((96,) if wide else (2, 4, 6, 16)))
    names: list[str | int | None] = ["N", first, "H", "W"] if images else ["B", "L", first]
    if draw.random() < 0.25:
        names = [None if isinstance(one, str) else one for one in names]
    inputs = {"x": names}
    if second == "past":
        inputs["past"] = [names[0], "P", first]
        x = g.add("Concat", "past", "x", axis=1)
    elif second:
        axes = (1,) if images else (2,)
        inputs["mask"] = [names[0], *names[2:]] if images else names[:2]
        known = g.add("Unsqueeze", g.add("Cast", "mask", to=TensorProto.BOOL), g.integers(*axes))
        x = g.add("Where", known, "x", g.real(0.5))
    outputs = []
    for _ in range(draw.randrange(2, 8)):
        if images:
            x, width = draw.choice(IMAGES)(g, x, width)
        else:
            x = draw.choice(SEQUENCES)(g, x, width)
        if draw.random() < 0.1:
            outputs.append(x)
    if x not in outputs:
        outputs.append(x)
    return Case(g.model(inputs, outputs), images, first, second)


def shapes_of(case: Case, draw: random.Random, count: int) -> Iterator[Shape]:
    """Shapes of x: small and large ones, 0 among them, some greater than all before."""
    most = [1, 1]
    for i in range(count):
        batch = draw.choice((1, 1, 2, 3, 5, 5 if i % 7 else 0))
        choices = (*PRIMES, 64, 127, *((0,) if i % 3 == 2 else ()))
        sides = [draw.choice(choices) for _ in most]
        if i % 4 == 3:  # beyond all
            end = LARGEST if case.images else LONGEST
            sides = [min(end, n + draw.randrange(1, 30)) for n in most]
        most = [max(pair) for pair in zip(most, sides, strict=True)]
        yield (batch, case.width, *sides) if case.images else (batch, sides[0], case.width)


def off(got: NDArray[Any], expected: NDArray[Any], precision: str) -> float:
    """How far a result is off: the greatest difference in float32, else of the whole.

    Of numbers that were about one on the way and may have cancelled. NaN must stand where it does.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    known = ~np.isnan(expected)
    if not np.array_equal(known, ~np.isnan(got)):
        return float("inf")
    same = got[known] == expected[known]  # infinities, too
    found, right = got[known][~same].astype(float), expected[known][~same].astype(float)
    if not np.isfinite(found).all() or not np.isfinite(right).all():
        return float("inf")
    size = max(1.0, float(np.abs(expected[known & np.isfinite(expected)]).max(initial=0)))
    if precision == "float32":
        return float(np.abs(found - right).max(initial=0)) / size
    whole = float(np.linalg.norm(expected[known & np.isfinite(expected)]))
    return float(np.linalg.norm(found - right)) / max(whole, float(known.sum()) ** 0.5, 1.0)


def reference(session: Any, feeds: Feeds) -> list[NDArray[Any]] | None:
    """ONNX Runtime's results; None for sizes that it refuses.

    Where one is 0, it is asked in a fork: some operators end its process then.
    """
    if all(array.size for array in feeds.values()):
        return _results(session, feeds)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(write, "wb") as file:
                pickle.dump(_results(session, feeds), file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    return pickle.loads(found) if found else None


def _results(session: Any, feeds: Feeds) -> list[NDArray[Any]] | None:
    try:
        found: list[NDArray[Any]] = session.run(None, feeds)
    except Exception:
        return None
    return found


def wrong_of(
    seed: int,
    backend: str,
    shapes: int,
    precision: str = "float32",
    limits: str | None = None,
) -> list[str]:
    """What differs of the graph of that seed from ONNX Runtime, which must run it, too."""
    import onnxruntime

    case = random_graph(seed, precision == "int8")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(case.content, options, providers=["CPUExecutionProvider"])
    ours = InferenceSession(case.content, backend, precision=precision, limits=limits)
    draw, found = random.Random(seed + 1), list[str]()
    for shape in shapes_of(case, draw, shapes):
        feeds = case.feeds(shape, draw.randrange(1 << 30))
        sizes = ", ".join(f"{name} {array.shape}" for name, array in feeds.items())
        expected = reference(theirs, feeds)
        try:
            got = ours.run(None, feeds)
        except Exception as refused:
            empty = 0 in shape and isinstance(refused, UnsupportedOpError)  # an LSTM of no steps
            if not empty and (expected is not None or not isinstance(refused, GlnnError)):
                found.append(f"seed {seed}, {sizes}: {type(refused).__name__}: {refused}")
            continue
        for i, (one, right) in enumerate(zip(got, expected or got, strict=True)):
            far = 0 if one is right else off(one, right, precision)
            if not far <= BOUNDS[precision]:
                found.append(
                    f"seed {seed}, {sizes}: output {i} off by {far:.1e}, {one.shape}, {right.shape}"
                )
    return found


@click.command(help=__doc__)
@click.option("--graphs", default=200, show_default=True)
@click.option("--shapes", default=20, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--backend", default="compute", show_default=True)
@click.option("--precision", type=click.Choice(list(BOUNDS)), default="float32", show_default=True)
@click.option("--limits", help="es31-minimum, as the smallest device has.")
def main(
    graphs: int, shapes: int, seed: int, backend: str, precision: str, limits: str | None
) -> None:
    wrong: list[str] = []
    for number in range(graphs):
        wrong += (found := wrong_of(seed + number, backend, shapes, precision, limits))
        for text in found:
            click.echo(text)
    click.echo(f"{graphs} graphs at {shapes} shapes on {backend}, {precision}: {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
