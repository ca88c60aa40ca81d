"""Attention to windows of images, as Swin's, reads and writes these where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import Executor
from glnn.core.types import Dim, TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.matmul import matmul
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Gather,
    Matmul,
    Pointwise,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.operators.attention import Attention, Windows
from glnn.graph.passes import BackendTraits, optimize
from tests import oracle

HEADS, D = 2, 4
C = HEADS * D
HIGH, WIDE = 6, 8
CUT = Windows(2, 2, 3, 4)
COUNT, TOKENS = CUT.count, CUT.tokens


class Block:
    """A block of Swin's in pieces, as exporters write it."""

    def __init__(self, shift: tuple[int, int] = (0, 0), images: Dim = 2) -> None:
        self.builder, self.shift, self.images = Builder("block"), shift, images
        self.numbers = np.random.default_rng(3)
        self.x = self.builder.input("x", TensorType((images, HIGH, WIDE, C)))

    def __call__(self, operator: Operator, *given: Value) -> Value:
        return self.builder.add(operator, *given, name=operator.name)[0]

    def of(self, text: str, *given: Value) -> Value:
        return self(Pointwise(formula(text)), *given)

    def fixed(self, *shape: int) -> Value:
        return constant(0.5 * self.numbers.standard_normal(shape, np.float32))

    def linear(self, rows: Value, n: int, k: int = C) -> Value:
        return self.of("a + b", self(Matmul(), rows, self.fixed(n, k)), self.fixed(n))

    def rolled(self, x: Value, down: int, right: int) -> Value:
        """x with row `down` and column `right` first, by slices that are concatenated."""
        for axis, start in ((1, down), (2, right)):
            if start:
                end = (HIGH, WIDE)[axis - 1]
                walks = ((start, end), (0, start))
                parts = [self(Slice((i,), (j,), (axis,), (1,)), x) for i, j in walks]
                x = self(Concat(axis), *parts)
        return x

    def cut(self, x: Value) -> Value:
        """The rows of windows (images windows tokens, C)."""
        cut = self(Reshape((-1, CUT.rows, CUT.height, CUT.columns, CUT.width, C)), x)
        return self(Reshape((-1, C)), self(Transpose((0, 1, 3, 2, 4, 5)), cut))

    def joined(self, rows: Value) -> Value:
        """Images of the rows of windows."""
        cut = self(Reshape((-1, CUT.rows, CUT.columns, CUT.height, CUT.width, C)), rows)
        return self(Reshape((-1, HIGH, WIDE, C)), self(Transpose((0, 1, 3, 2, 4, 5)), cut))

    def heads(self, rows: Value) -> list[Value]:
        """Queries, keys and values by one product, (images windows, HEADS, TOKENS, D)."""
        wide = self(Reshape((-1, TOKENS, 3, HEADS, D)), self.linear(rows, 3 * C))
        turned = self(Transpose((2, 0, 3, 1, 4)), wide)
        return [self(Gather(0), turned, constant(np.array(i, np.int64))) for i in range(3)]

    def heads_by_three(self, rows: Value) -> list[Value]:
        """The same by three products."""
        made = (self(Reshape((-1, TOKENS, HEADS, D)), self.linear(rows, C)) for _ in range(3))
        return [self(Transpose((0, 2, 1, 3)), one) for one in made]

    def attend(self, q: Value, k: Value, v: Value) -> Value:
        """The rows that attention with a bias, and with masks where it is shifted, makes."""
        scores = self.of("a * 0.5", matmul(self, q, k, transposed=True))
        scores = self.of("a + b", scores, self.fixed(1, HEADS, TOKENS, TOKENS))
        if self.shift != (0, 0):
            seen = self(Reshape((-1, COUNT, HEADS, TOKENS, TOKENS)), scores)
            seen = self.of("a + b", seen, self.fixed(1, COUNT, 1, TOKENS, TOKENS))
            scores = self(Reshape((-1, HEADS, TOKENS, TOKENS)), seen)
        y = self(Transpose((0, 2, 1, 3)), matmul(self, self(Softmax(-1), scores), v))
        return self(Reshape((-1, C)), y)

    def back(self, rows: Value) -> Value:
        """Images of the rows of windows, rolled back."""
        down, right = self.shift
        return self.rolled(self.joined(rows), -down % HIGH, -right % WIDE)

    def graph(self, *results: Value) -> Graph:
        return self.builder.graph(results)


def block(shift: tuple[int, int], images: Dim = 2, *, by_three: bool = False) -> Graph:
    """A block with a residual around it and a layer behind it."""
    net = Block(shift, images)
    rows = net.cut(net.rolled(net.x, *shift))
    heads = net.heads_by_three(rows) if by_three else net.heads(rows)
    y = net.of("a + b", net.back(net.linear(net.attend(*heads), C)), net.x)
    return net.graph(net.linear(net(Reshape((-1, C)), y), 5))


def steps(graph: Graph) -> list[Node]:
    """The nodes that a run computes, views aside."""
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: True))
    fixed = short.fixed
    return [n for n in short.nodes if n.outputs[0] not in fixed and not n.operator.view]


def error(graph: Graph, backend: str, x: np.ndarray) -> float:
    """The error of what a session gives, by float64; of all kernels that there are for it."""
    (expected,) = graph.reference(x.astype(np.float64))
    asked = ("flash_masked", "direct_masked") if backend == "compute" else ("",)
    errors = []
    for kernel in asked:
        kernels = {"attention": kernel} if kernel else {}
        (got,) = Executor(graph, backend, kernels=kernels).run({"x": x}).values()
        errors.append(oracle.error(got, expected))
    return max(errors)


SHIFTS = [(0, 0), (1, 2), (0, 3), (2, 0)]


@pytest.mark.parametrize("by_three", [False, True])
@pytest.mark.parametrize("shift", SHIFTS, ids=str)
def test_nothing_is_moved(rng, shift: tuple[int, int], by_three: bool) -> None:
    graph = block(shift, by_three=by_three)
    operators = [node.operator for node in steps(graph)]
    kinds = [operator.name for operator in operators]
    projections = ["matmul"] * (3 if by_three else 1)
    assert kinds == [*projections, "attention", "matmul", "matmul"]
    (attention,) = (one for one in operators if isinstance(one, Attention))
    assert attention.windows == Windows(2, 2, 3, 4, *shift)
    assert attention.masks == (COUNT if shift != (0, 0) else 0)
    x = rng((2, HIGH, WIDE, C))
    assert max(error(graph, name, x) for name in ("compute", "cpu")) <= 1e-5


@pytest.mark.parametrize("shift", SHIFTS[:2], ids=str)
def test_any_number_of_images(rng, shift: tuple[int, int]) -> None:
    graph = block(shift, "N")
    executor = Executor(graph, "compute", kernels={"attention": "flash_masked"})
    for images in (2, 3, 5, 1):
        x = rng((images, HIGH, WIDE, C))
        (expected,) = graph.reference(x.astype(np.float64))
        (got,) = executor.run({"x": x}).values()
        assert oracle.error(got, expected) <= 1e-5, images


def other_way_back(net: Block) -> Value:
    """Rolled back by something else."""
    y = net.joined(net.attend(*net.heads(net.cut(net.rolled(net.x, 1, 2)))))
    return net.rolled(y, 1, 2)


def never_back(net: Block) -> Value:
    """Windows, not images, are what is wanted."""
    return net.attend(*net.heads(net.cut(net.x)))


def read_elsewhere(net: Block) -> tuple[Value, Value]:
    """The projection of windows is wanted, too."""
    rows = net.linear(net.cut(net.x), 3 * C)
    wide = net(Reshape((-1, TOKENS, 3, HEADS, D)), rows)
    turned = net(Transpose((2, 0, 3, 1, 4)), wide)
    parts = [net(Gather(0), turned, constant(np.array(i, np.int64))) for i in range(3)]
    return net.joined(net.attend(*parts)), rows


def by_place(net: Block) -> Value:
    """What is added to a token depends on its place in the window."""
    places = net.fixed(TOKENS, C)
    windows = net(Reshape((-1, TOKENS, C)), net.cut(net.x))
    rows = net(Reshape((-1, C)), net.of("a + b", windows, places))
    return net.joined(net.attend(*net.heads(rows)))


def of_columns(net: Block) -> Value:
    """The images are turned before they are cut."""
    turned = net(Transpose((0, 2, 1, 3)), net.x)
    cut = net(Reshape((-1, 2, 4, 2, 3, C)), turned)
    rows = net(Reshape((-1, C)), net(Transpose((0, 1, 3, 2, 4, 5)), cut))
    return net.joined(net.attend(*net.heads(rows)))


OTHERS = [other_way_back, never_back, read_elsewhere, by_place, of_columns]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
def test_what_is_none_stays(rng, other) -> None:
    net = Block()
    made = other(net)
    graph = net.graph(*(made if isinstance(made, tuple) else (made,)))
    (attention,) = (n.operator for n in steps(graph) if isinstance(n.operator, Attention))
    assert attention.windows is None
    x = rng((2, HIGH, WIDE, C))
    expected = graph.reference(x.astype(np.float64))
    found = Executor(graph, "compute", kernels={"attention": "flash_masked"}).run({"x": x})
    for got, wanted in zip(found.values(), expected, strict=True):
        assert oracle.error(got, wanted) <= 1e-5
