"""Random ONNX graphs with open sizes, each run by one session at many shapes, beside ONNX Runtime.

    python -m tests.onnx.open_graphs --graphs 2000 --shapes 20 --backend compute --seed 1

Images whose batch, height and width are open, and sequences whose batch and length are; sizes are
computed in the graph as exporters write it: by Shape, Gather, Concat, Slice, Range and Expand.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import rich_click as click
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from glnn import InferenceSession
from glnn.errors import LimitError, ShapeError

CLOSE = 2e-5
OPSET = 18
PRIMES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33)


@dataclass
class Graph:
    """A graph that grows node by node. draw: the random numbers of its structure."""

    draw: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        """The first result of a new node."""
        self.count += 1
        out = f"v{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

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

    def integers(self, *numbers: int) -> str:
        """A list of integers."""
        return self.constant(np.array(numbers, np.int64))

    def size(self, value: str, axis: int) -> str:
        """A dimension of `value`, of shape (1,)."""
        return self.add("Gather", self.add("Shape", value), self.integers(axis), axis=0)

    def image(self, x: str, c: int) -> tuple[str, int]:
        """Another image of x (n, c, h, w), and its channels."""
        kind = self.draw.randrange(12)
        if kind < 4:
            o, k = self.draw.choice((1, 4, 6, 8)), self.draw.choice((1, 3, 3, 5))
            groups = c if self.draw.random() < 0.25 else 1
            o = c if groups > 1 else o
            stride, dilation = self.draw.choice((1, 1, 2)), self.draw.choice((1, 1, 2))
            pad = dilation * (k // 2)
            weight = self.weight(o, c // groups, k, k)
            bias = [self.weight(o)] if self.draw.random() < 0.5 else []
            made = self.add(
                "Conv", x, weight, *bias, kernel_shape=[k, k], strides=[stride] * 2,
                dilations=[dilation] * 2, pads=[pad] * 4, group=groups,
            )  # fmt: skip
            return made, o
        if kind == 4:
            op = self.draw.choice(("MaxPool", "AveragePool"))
            ceil, stride = self.draw.randrange(2), self.draw.choice((1, 2))
            return self.add(
                op, x, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4, ceil_mode=ceil
            ), c
        if kind == 5:
            return self.add(self.draw.choice(("Relu", "Sigmoid", "HardSwish", "Tanh")), x), c
        if kind == 6:  # squeeze and excitation
            small = self.add("GlobalAveragePool", x)
            made = self.add("Conv", small, self.weight(c, c, 1, 1), kernel_shape=[1, 1])
            return self.add("Mul", x, self.add("HardSigmoid", made)), c
        if kind == 7:  # twice as large, cut to the size that it had
            scales = self.constant(np.array([1, 1, 2, 2], np.float32))
            large = self.add("Resize", x, "", scales, mode="nearest")
            ends = self.add("Slice", self.add("Shape", x), self.integers(2), self.integers(4))
            cut = self.add("Slice", large, self.integers(0, 0), ends, self.integers(2, 3))
            return self.add("Add", cut, x), c
        if kind == 8:  # pixels as a sequence and back
            rows = self.add("Reshape", x, self.integers(0, c, -1))
            rows = self.add("Transpose", rows, perm=[0, 2, 1])
            rows = self.add("MatMul", rows, self.weight(c, c))
            rows = self.add("Softmax", rows, axis=-1) if self.draw.random() < 0.5 else rows
            rows = self.add("Transpose", rows, perm=[0, 2, 1])
            sizes = [self.size(x, 0), self.integers(c), self.size(x, 2), self.size(x, 3)]
            return self.add("Reshape", rows, self.add("Concat", *sizes, axis=0)), c
        if kind == 9:
            channels = self.add("Concat", x, self.add("Neg", x), axis=1)
            return channels, 2 * c
        if kind == 10:
            mean = self.add("ReduceMean", x, self.integers(self.draw.choice((2, 3))), keepdims=1)
            return self.add("Sub", x, mean), c
        starts, ends = self.integers(0, 0), self.integers(sys.maxsize, sys.maxsize)
        steps = self.integers(self.draw.choice((1, 2)), self.draw.choice((1, 2)))
        flip = self.add("Slice", x, self.integers(0), self.integers(sys.maxsize), self.integers(2))
        return self.add("Slice", flip, starts, ends, self.integers(2, 3), steps), c

    def sequence(self, x: str, d: int) -> str:
        """Another sequence of x (b, l, d)."""
        kind = self.draw.randrange(10)
        if kind < 2:
            made = self.add("MatMul", x, self.weight(d, d))
            return self.add("Add", made, self.weight(d)) if self.draw.random() < 0.5 else made
        if kind == 2:
            return self.add("LayerNormalization", x, self.weight(d), self.weight(d), axis=-1)
        if kind == 3:
            return (
                self.add(self.draw.choice(("Gelu", "Erf", "Tanh", "Relu")), x)
                if (OPSET >= 20)
                else self.add(self.draw.choice(("Erf", "Tanh", "Relu")), x)
            )
        if kind == 4:  # positions: a part of a table, as long as x
            table = self.weight(600, d)
            part = self.add("Slice", table, self.integers(0), self.size(x, 1), self.integers(0))
            return self.add("Add", x, part)
        if kind == 5:  # positions by Range, looked up
            count = self.add("Squeeze", self.size(x, 1), self.integers(0))
            zero, one = (self.constant(np.array(n, np.int64)) for n in (0, 1))
            places = self.add("Range", zero, count, one)
            return self.add("Add", x, self.add("Gather", self.weight(600, d), places, axis=0))
        if kind == 6:
            return self.attention(x, d)
        if kind == 7:  # what is before each, by a cumulative sum over a computed length
            sums = self.add("CumSum", x, self.constant(np.array(1, np.int64)))
            length = self.add("Cast", self.size(x, 1), to=TensorProto.FLOAT)
            return self.add("Div", sums, length)
        if kind == 8:  # a value for each sample, expanded
            mean = self.add("ReduceMean", x, self.integers(1), keepdims=1)
            return self.add("Sub", x, self.add("Expand", mean, self.add("Shape", x)))
        half = self.add("Div", self.add("Add", self.size(x, 1), self.integers(1)), self.integers(2))
        first = self.add("Slice", x, self.integers(0), half, self.integers(1))
        last = self.add("Slice", x, half, self.integers(sys.maxsize), self.integers(1))
        return self.add("Concat", last, first, axis=1)

    def attention(self, x: str, d: int) -> str:
        """Self-attention of two heads, its shapes computed."""
        batch, length = self.size(x, 0), self.size(x, 1)
        shape = [batch, length, self.integers(2), self.integers(d // 2)]
        split = self.add("Concat", *shape, axis=0)
        parts = []
        for _ in range(3):
            part = self.add("Reshape", self.add("MatMul", x, self.weight(d, d)), split)
            parts.append(self.add("Transpose", part, perm=[0, 2, 1, 3]))
        q, k, v = parts
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.add("Mul", scores, self.constant(np.float32((d // 2) ** -0.5)))
        if self.draw.random() < 0.5:  # a causal mask, made of the length
            square = self.add("Concat", length, length, axis=0)
            ones = helper.make_tensor("value", TensorProto.FLOAT, [1], [-1e4])
            mask = self.add("Trilu", self.add("ConstantOfShape", square, value=ones),
                            self.constant(np.array(1, np.int64)), upper=1)  # fmt: skip
            scores = self.add("Add", scores, mask)
        found = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        found = self.add("Transpose", found, perm=[0, 2, 1, 3])
        return self.add(
            "Reshape", found, self.add("Concat", batch, length, self.integers(d), axis=0)
        )

    def model(self, dims: list[str | int], output: str) -> onnx.ModelProto:
        """The model of what was added."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "open", [x], [y], self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=9)


def random_graph(seed: int) -> tuple[onnx.ModelProto, bool, int]:
    """A model, whether it is of images, and its channels or features."""
    draw = random.Random(seed)
    graph, images = Graph(draw), draw.random() < 0.5
    x, width = "x", draw.choice((1, 3, 4, 8) if images else (2, 4, 6, 16))
    first = width
    for _ in range(draw.randrange(2, 8)):
        if images:
            x, width = graph.image(x, width)
        else:
            x = graph.sequence(x, width)
    dims: list[str | int] = ["N", first, "H", "W"] if images else ["B", "L", first]
    return graph.model(dims, x), images, first


def shapes_of(
    images: bool, width: int, draw: random.Random, count: int
) -> Iterator[tuple[int, ...]]:
    """Shapes of its input, small and large ones, some of them alike."""
    for _ in range(count):
        n, h, w = draw.choice((1, 1, 2, 3, 5)), draw.choice(PRIMES), draw.choice((*PRIMES, 64, 127))
        yield (n, width, h, w) if images else (n, draw.choice((*PRIMES, 64, 127, 129)), width)


def _off(got: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The greatest difference, of numbers that were about one on the way and may have cancelled."""
    if got.shape != expected.shape:
        return float("inf")
    size = max(1.0, float(np.abs(expected).max(initial=0)))
    return float(np.abs(got - expected).max(initial=0)) / size


def wrong_of(seed: int, backend: str, shapes: int) -> list[str]:
    """What differs of the graph of that seed from ONNX Runtime, which must run it, too."""
    import onnxruntime

    model, images, width = random_graph(seed)
    content = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    ours = InferenceSession(content, backend)
    draw, found = random.Random(seed + 1), list[str]()
    for shape in shapes_of(images, width, draw, shapes):
        x = np.random.default_rng(draw.randrange(1 << 30)).standard_normal(shape, np.float32)
        try:
            (expected,) = theirs.run(None, {"x": x})
        except Exception:  # sizes that it refuses
            try:
                ours.run(None, {"x": x})
            except (ShapeError, LimitError):
                continue
            continue
        try:
            (got,) = ours.run(None, {"x": x})
        except Exception as refused:
            found.append(f"seed {seed}, {shape}: {type(refused).__name__}: {refused}")
            continue
        off = _off(got, expected)
        if not off <= CLOSE:
            found.append(f"seed {seed}, {shape}: off by {off:.1e}, {got.shape}, {expected.shape}")
    return found


@click.command(help=__doc__)
@click.option("--graphs", default=200, show_default=True)
@click.option("--shapes", default=20, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--backend", default="compute", show_default=True)
def main(graphs: int, shapes: int, seed: int, backend: str) -> None:
    wrong: list[str] = []
    for number in range(graphs):
        wrong += (found := wrong_of(seed + number, backend, shapes))
        for text in found:
            click.echo(text)
    click.echo(f"{graphs} graphs at {shapes} shapes on {backend}: {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
