"""Attention in pieces becomes one operator that reads heads where they lie, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.backends.compute import Compute
from glnn.compiler import Executor, Plan
from glnn.core.types import TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.matmul import matmul
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Expand,
    Gather,
    Matmul,
    Pointwise,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.operators.attention import Attention, StridedView
from glnn.graph.operators.move import Move
from glnn.graph.passes import BackendTraits, Pass, optimize
from glnn.kernels import kernels_for
from glnn.layers import MultiheadAttention
from glnn.layers.layer import Scope
from tests import oracle

N, T, H, D = 2, 5, 3, 4  # samples, tokens, heads, numbers of a head
MINUS = constant(np.array(-np.inf, np.float32))
ROWS = (N, T, 3 * H * D)
"""Queries, keys and values of all heads, behind one another for each token."""


class Net:
    def __init__(self) -> None:
        self.builder = Builder("net")

    def input(self, name: str, *shape: int) -> Value:
        return self.builder.input(name, TensorType(shape))

    def fixed(self, *shape: int) -> Value:
        """A constant of random numbers."""
        return constant(np.random.default_rng(len(shape)).standard_normal(shape, np.float32))

    def __call__(self, operator: Operator, *given: Value) -> Value:
        return self.builder.add(operator, *given, name=operator.name)[0]

    def of(self, text: str, *given: Value) -> Value:
        return self(Pointwise(formula(text)), *given)


def parts(net: Net, x: Value) -> list[Value]:
    """Queries, keys and values (N, H, T, D), by indices, as a transposed whole has them."""
    turned = net(Transpose((2, 0, 3, 1, 4)), net(Reshape((N, T, 3, H, D)), x))
    return [net(Gather(0), turned, constant(np.array(i, np.int64))) for i in range(3)]


def merged(net: Net, y: Value) -> Value:
    """(N, H, T, D) as (N, T, H D)."""
    return net(Reshape((N, T, H * D)), net(Transpose((0, 2, 1, 3)), y))


def plain(net: Net, x: Value) -> Value:
    q, k, v = parts(net, x)
    scores = net.of("a * 0.5", matmul(net, q, k, transposed=True))
    return merged(net, matmul(net, net(Softmax(-1), scores), v))


def scaled_before(net: Net, x: Value) -> Value:
    """Both factors by the root of the scale, keys transposed first: PyTorch's."""
    q, k, v = parts(net, x)
    root = constant(np.array(0.7, np.float32))
    k = net.of("a * b", net(Transpose((0, 1, 3, 2)), k), root)
    weights = net(Softmax(-1), matmul(net, net.of("a * b", q, root), k))
    return merged(net, matmul(net, weights, v))


def by_slices(net: Net, x: Value) -> Value:
    """Tokens first: (T, N, ...) read as (N H, T, D), as PyTorch's module without batch_first."""
    x = net(Reshape((T, N, 3 * H * D)), x)
    cut = (net(Slice((i,), (i + H * D,), (2,), (1,)), x) for i in (0, H * D, 2 * H * D))
    q, k, v = (net(Transpose((1, 0, 2)), net(Reshape((T, N * H, D)), one)) for one in cut)
    weights = net(Softmax(-1), net.of("a / 2.0", matmul(net, q, k, transposed=True)))
    y = net(Transpose((1, 0, 2)), matmul(net, weights, v))
    return net(Reshape((T, N, H * D)), y)


def masked(*shape: int) -> Callable[[Net, Value], Value]:
    """With a mask of that shape, which is an input."""

    def block(net: Net, x: Value) -> Value:
        q, k, v = parts(net, x)
        scores = net.of("a * 0.5", matmul(net, q, k, transposed=True))
        weights = net(Softmax(-1), net.of("a + b", net.input("mask", *shape), scores))
        return merged(net, matmul(net, weights, v))

    return block


def causal(net: Net, x: Value) -> Value:
    """A mask that never changes, spread to all heads first, and what PyTorch does with NaN."""
    q, k, v = parts(net, x)
    mask = constant(np.triu(np.full((T, T), -np.inf, np.float32), 1))
    spread = net(Expand((N, H, T, T)), mask)
    scores = net.of("a * 0.5 + b", matmul(net, q, k, transposed=True), spread)
    weights = net.of("where(isnan(a), 0.0, a)", net(Softmax(-1), scores))
    return merged(net, matmul(net, weights, v))


def biased_and_masked(net: Net, x: Value) -> Value:
    """A bias of heads, then a mask of samples that are seen as the windows of one image."""
    q, k, v = parts(net, x)
    scores = net.of("a * 0.5", matmul(net, q, k, transposed=True))
    scores = net.of("a + b", scores, net.fixed(1, H, T, T))
    windows = net(Reshape((1, N, H, T, T)), scores)
    windows = net.of("a + b", windows, net.fixed(1, N, 1, T, T))
    weights = net(Softmax(-1), net(Reshape((N, H, T, T)), windows))
    return merged(net, matmul(net, weights, v))


def unsure(net: Net, x: Value) -> Value:
    """A mask of bools, and zeros for NaN by two nodes: as PyTorch exports it."""
    q, k, v = parts(net, x)
    mask = net.of("where(a < 0.0, 0.0, b)", net.input("mask", N, 1, T, T), MINUS)
    weights = net(Softmax(-1), net.of("a + b", matmul(net, q, k, transposed=True), mask))
    weights = net.of("where(a, 0.0, b)", net.of("isnan(a)", weights), weights)
    return merged(net, matmul(net, weights, v))


def shared_keys(net: Net, x: Value) -> Value:
    """One head of keys and values for all of queries, which lie below one another."""
    q, k, v = parts(net, x)
    one = Slice((0,), (1,), (1,), (1,))
    k, v = net(one, k), net(one, v)
    rows = net(Reshape((N, 1, H * T, D)), q)
    weights = net(Softmax(-1), matmul(net, rows, k, transposed=True))
    return merged(net, net(Reshape((N, H, T, D)), matmul(net, weights, v)))


BLOCKS = {
    "plain": plain,
    "scaled before": scaled_before,
    "by slices": by_slices,
    "mask of tokens": masked(T, T),
    "mask of samples": masked(N, 1, 1, T),
    "mask of heads": masked(H, T, T),
    "mask of all": masked(N, H, T, T),
    "causal": causal,
    "biased and masked": biased_and_masked,
    "unsure": unsure,
}


def made(block: Callable[[Net, Value], Value]) -> Graph:
    net = Net()
    return net.builder.graph([block(net, net.input("x", *ROWS))])


def steps(graph: Graph, pays: bool = True) -> list[Node]:
    """The nodes that a run computes, views aside."""
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: pays))
    fixed = short.fixed
    return [n for n in short.nodes if n.outputs[0] not in fixed and not n.operator.view]


def feeds(graph: Graph, rng) -> dict[str, np.ndarray]:
    return {value.name: rng(value.type.shape) for value in graph.inputs}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
def test_one_operator_does_it_all(block, rng) -> None:
    graph = made(block)
    *_, node = found = steps(graph)
    assert isinstance(node.operator, Attention)
    assert len(found) == (2 if block is unsure else 1)  # that makes its mask
    assert node.operator.zeros == (block in (causal, unsure))
    assert len(steps(graph, pays=False)) > 3
    given = feeds(graph, rng)
    (expected,) = graph.reference(*(x.astype(np.float64) for x in given.values()))
    kernel = "flash" if len(node.inputs) == 3 else "flash_masked"
    for asked in ({}, {"attention": kernel}):
        found = Executor(graph, "compute", kernels=asked).run(given)
        assert oracle.error(next(iter(found.values())), expected) <= 1e-5, asked


def test_keys_of_several_heads_of_queries(rng) -> None:
    graph = made(shared_keys)
    assert [type(n.operator) for n in steps(graph) if not isinstance(n.operator, Move)] == [
        Attention
    ]
    given = feeds(graph, rng)
    (expected,) = graph.reference(*(x.astype(np.float64) for x in given.values()))
    found = Executor(graph, "compute", kernels={"attention": "flash"}).run(given)
    assert oracle.error(next(iter(found.values())), expected) <= 1e-5


def asked_for(net: Net, x: Value) -> tuple[Value, Value]:
    """The weights are wanted, too."""
    q, k, v = parts(net, x)
    weights = net(Softmax(-1), matmul(net, q, k, transposed=True))
    return merged(net, matmul(net, weights, v)), weights


def test_what_somebody_else_needs_stays() -> None:
    net = Net()
    graph = net.builder.graph(asked_for(net, net.input("x", *ROWS)))
    assert not any(isinstance(node.operator, Attention) for node in steps(graph))


def not_last(net: Net, x: Value) -> Value:
    """The softmax is along the queries."""
    q, k, v = parts(net, x)
    weights = net(Softmax(-2), matmul(net, q, k, transposed=True))
    return merged(net, matmul(net, weights, v))


def scaled_behind(net: Net, x: Value) -> Value:
    """What the mask is added to is scaled with it."""
    q, k, v = parts(net, x)
    scores = net.of("a + b", matmul(net, q, k, transposed=True), net.input("mask", T, T))
    return merged(net, matmul(net, net(Softmax(-1), net.of("a * 0.5", scores)), v))


def a_classifier(net: Net, x: Value) -> Value:
    """Weights that never change: layers, not attention."""
    numbers = np.random.default_rng(0).random((7, ROWS[2]), np.float32)
    scores = net(Matmul(), net(Reshape((N * T, ROWS[2])), x), constant(numbers))
    return net(Matmul(), net(Softmax(-1), scores), constant(numbers[:, :7].copy()))


@pytest.mark.parametrize("block", [not_last, scaled_behind, a_classifier])
def test_what_is_none_stays(block) -> None:
    assert not any(isinstance(node.operator, Attention) for node in steps(made(block)))


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_layer(batch_first, rng) -> None:
    layer = MultiheadAttention(12, 3, batch_first=batch_first)
    x, y = rng((2, 5, 12)), rng((2, 7, 12))
    if not batch_first:
        x, y = x.transpose(1, 0, 2).copy(), y.transpose(1, 0, 2).copy()
    builder = Builder("net")
    a, b = builder.input("a", TensorType(x.shape)), builder.input("b", TensorType(y.shape))
    graph = builder.graph([layer.express(Scope(builder, "layer", "y"), a, b, b)])
    kinds = [type(node.operator) for node in steps(graph)]
    assert kinds.count(Attention) == 1 and set(kinds) == {Attention, Matmul}, kinds
    (expected,) = graph.reference(x.astype(np.float64), y.astype(np.float64))
    found = Executor(graph, "compute", kernels={"attention": "flash"}).run({"a": x, "b": y})
    assert oracle.error(found["y"], expected) <= 1e-5


def projected(net: Net, rows: Value, columns: int) -> Value:
    """Rows of a layer with a bias."""
    product = net(Matmul(), rows, net.fixed(columns, H * D))
    return net.of("a + b", product, net.fixed(columns))


def test_samples_around_tokens_first(rng) -> None:
    """PyTorch's module with batch_first, as it is exported: no rows are transposed."""
    net = Net()
    x = net.input("x", N, T, H * D)
    rows = net(Reshape((T * N, H * D)), net(Transpose((1, 0, 2)), x))
    whole = net(Reshape((T, N, 3, H, D)), projected(net, rows, 3 * H * D))
    turned = net(Transpose((2, 1, 3, 0, 4)), whole)
    q, k, v = (net(Gather(0), turned, constant(np.array(i, np.int64))) for i in range(3))
    scores = net.of("a * 0.5", matmul(net, q, k, transposed=True))
    y = net(Transpose((2, 0, 1, 3)), matmul(net, net(Softmax(-1), scores), v))
    rows = projected(net, net(Reshape((T * N, H * D)), y), H * D)
    back = net(Transpose((1, 0, 2)), net(Reshape((T, N, H * D)), rows))
    graph = net.builder.graph([net.of("a + b", back, x)])
    assert [type(node.operator) for node in steps(graph)] == [Matmul, Attention, Matmul]
    given = feeds(graph, rng)
    (expected,) = graph.reference(given["x"].astype(np.float64))
    found = Executor(graph, "compute", kernels={"attention": "flash"}).run(given)
    assert oracle.error(next(iter(found.values())), expected) <= 1e-5


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_projections_of_the_same_rows_are_one_product(crossed, masked, rng) -> None:
    """Queries, keys and values of self-attention; of others' rows, keys and values."""
    heads, width, keys = 3, 12, 7 if crossed else T
    net, size = Net(), heads * width
    x = net.input("x", N * T, 8)
    y = net.input("y", N * keys, 8) if crossed else x

    def turned(rows: Value, tokens: int, bias: bool) -> Value:
        product = net(Matmul(), rows, net.fixed(size, 8))
        if bias:
            product = net.of("a + b", product, net.fixed(size))
        cut = net(Reshape((N, tokens, heads, width)), product)
        return net(Transpose((0, 2, 1, 3)), cut)

    q, k, v = turned(x, T, True), turned(y, keys, False), turned(y, keys, True)
    scores = net.of("a * 0.1", matmul(net, q, k, transposed=True))
    if masked:
        scores = net.of("a + b", scores, net.input("mask", T, keys))
    z = net(Transpose((0, 2, 1, 3)), matmul(net, net(Softmax(-1), scores), v))
    graph = net.builder.graph([net(Reshape((N, T, size)), z)])
    given = feeds(graph, rng)
    kernel = "flash_masked" if masked else "flash"
    executor = Executor(graph, "compute", kernels={"attention": kernel})
    plan = executor.plan({name: array.shape for name, array in given.items()})
    products = [step.shape for step in plan.steps if step.op.name == "matmul"]
    assert products == ([(N * T, size), (N * keys, 2 * size)] if crossed else [(N * T, 3 * size)])
    (expected,) = graph.reference(*(array.astype(np.float64) for array in given.values()))
    found = executor.run(given)
    assert oracle.error(next(iter(found.values())), expected) <= 1e-5


@pytest.mark.parametrize("behind", ["output", "sum"])
def test_rows_that_are_transposed_once_stay(behind, rng) -> None:
    """Behind the product nothing would meet the transposition."""
    net = Net()
    rows = net(Reshape((T * N, H * D)), net(Transpose((1, 0, 2)), net.input("x", N, T, H * D)))
    y = net(Reshape((T, N, 7)), projected(net, rows, 7))
    if behind == "sum":
        y = net.of("a + b", y, net.input("other", T, N, 7))
    graph = net.builder.graph([y])
    assert [type(node.operator) for node in steps(graph)] == [Transpose, Matmul]


def test_it_is_for_those_that_gain(monkeypatch, rng) -> None:
    sizes = {"outputs": 1 << 14}
    (kernel,) = (k for k in kernels_for("attention", "compute") if k.name == "flash")
    assert kernel.is_suited(sizes, "NVIDIA") and not kernel.is_suited(sizes, "llvmpipe")
    (kernel,) = (k for k in kernels_for("attention", "compute") if k.name == "direct")
    for name in ("Midgard", "Bifrost", "Valhall", "V3D", "Adreno", "NVIDIA", "llvmpipe", None):
        board = name not in ("NVIDIA", "llvmpipe", None)
        assert kernel.is_suited(sizes | {"keys": 1024}, name) == board
        assert not kernel.is_suited(sizes | {"keys": 1025}, name)
    graph = made(plain)
    given = feeds(graph, rng)
    assert "attention" not in ops(graph, given)
    monkeypatch.setattr(Compute, "suits", lambda self, *asked: self.why_not(*asked) is None)
    assert ops(graph, given) == ["attention"]
    assert "attention" not in ops(graph, given, Pass.ATTENTION)

    able = Compute.why_not

    def refused(self, spec, kernel=None):
        wrong = spec.op.name == "attention"
        return "it is wrong here" if wrong else able(self, spec, kernel)

    monkeypatch.setattr(Compute, "why_not", refused)
    assert "attention" not in ops(graph, given)


def ops(graph: Graph, given: dict[str, np.ndarray], *without: Pass) -> list[str]:
    """What the steps of a plan are."""
    backend = open_backend("compute")
    shapes = {name: x.shape for name, x in given.items()}
    plan = Plan(graph, backend, shapes, without=without)
    expected = graph.reference(*(x.astype(np.float64) for x in given.values()))
    found = plan.run(given)
    for value, right in zip(graph.outputs, expected, strict=True):
        assert oracle.error(found[value.name], right) <= 1e-5
    return [step.op.name for step in plan.steps]


def test_bytes_of_operands_in_one_tensor() -> None:
    """Each number is counted once that a view reads: q, k and v are a third of the tensor each, and
    keys that heads share are those of one.
    """
    samples, heads, tokens, width = 3, 4, 5, 8
    row = 3 * heads * width
    shapes = dict.fromkeys("qkv", (samples * tokens, row))
    views = tuple(StridedView(i * heads * width, tokens * row, width, row) for i in range(3))
    numbers = samples * tokens * heads * width
    joined = Attention(samples, heads, tokens, tokens, width, width, views)
    assert joined.cost_of(shapes).bytes == 4 * (3 * numbers + numbers)
    shared = replace(joined, views=(views[0], *(replace(one, head=0) for one in views[1:])))
    assert shared.cost_of(shapes).bytes == 4 * (numbers + 2 * numbers // heads + numbers)
