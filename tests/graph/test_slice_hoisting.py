"""What only a slice of rows is taken of is computed for these rows, and gives the same."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from glnn.compiler import Executor
from glnn.core.types import TensorType
from glnn.graph.compose.matmul import matmul
from glnn.graph.epilogue import Prologue
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import (
    Attention,
    Matmul,
    Normalize,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.operators.attention import StridedView, Windows
from glnn.graph.passes import BackendTraits, optimize
from glnn.graph.passes.pointwise_fusion import fuse_pointwise
from glnn.graph.passes.slice_hoisting import hoist_slices
from tests import oracle
from tests.graph.nets import Net, changed

N, T, H, D = 2, 6, 2, 8  # samples, tokens, heads, numbers of a head
C = H * D


def linear(net: Net, x: Value, columns: int) -> Value:
    """A layer with a bias, for each token."""
    samples, _, width = x.type.shape
    rows = net(Reshape((samples * T, width), True), x)
    y = net.of("a + b", net(Matmul(), rows, net.fixed(columns, width)), net.fixed(columns))
    return net(Reshape((samples, T, columns), True), y)


def norm(net: Net, x: Value) -> Value:
    return net(Normalize(1), x, net.fixed(C), net.fixed(C))


def attended(net: Net, x: Value, mask: Value | None) -> Value:
    """Self-attention of all tokens."""
    samples = x.type.shape[0]
    parts = (net(Reshape((samples, T, H, D), True), linear(net, x, C)) for _ in range(3))
    q, k, v = (net(Transpose((0, 2, 1, 3)), one) for one in parts)
    scores = net.of("a * 0.1", matmul(net, q, k, transposed=True))
    if mask is not None:
        scores = net.of("a + b", scores, mask)
    y = matmul(net, net(Softmax(-1), scores), v)
    return net(Reshape((samples, T, C), True), net(Transpose((0, 2, 1, 3)), y))


def layer(net: Net, x: Value, masked: bool) -> Value:
    """A layer of a transformer, with a normalisation before each of its parts."""
    mask = net.builder.input("mask", TensorType((T, T))) if masked else None
    x = net.of("a + b", x, linear(net, attended(net, norm(net, x), mask), C))
    wide = net.of("gelu(a)", linear(net, norm(net, x), 4 * C))
    return norm(net, net.of("a + b", linear(net, wide, C), x))


def rows_of_products(graph: Graph) -> list[int]:
    """The rows of each product of its plan."""
    plan = Executor(graph, "compute").plan({v.name: v.type.shape for v in graph.inputs})
    return [step.shape[0] for step in plan.steps if step.op.name == "matmul"]


def check(graph: Graph, rng) -> None:
    given = {v.name: rng(v.type.shape) for v in graph.inputs}
    expected = graph.reference(*(x.astype(np.float64) for x in given.values()))
    for backend in ("compute", "cpu"):
        found = Executor(graph, backend).run(given)
        for got, right in zip(found.values(), expected, strict=True):
            assert oracle.error(got, right) <= 1e-5, backend


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("start", "end", "step"), [(T - 1, T, 1), (-1, T, 1), (0, 1, 1), (1, 3, 1), (1, 6, 3)]
)
def test_a_layer_is_computed_for_tokens_that_are_taken(start, end, step, masked, rng) -> None:
    net = Net(0)
    y = layer(net, net.builder.input("x", TensorType((N, T, C))), masked)
    graph = net.builder.graph([net(Slice((start,), (end,), (1,), (step,)), y)])
    taken = N * len(range(T)[start:end:step])
    whole, *rest = rows_of_products(graph)
    assert whole == N * T and rest[-3:] == [taken] * 3  # keys and values are of all tokens
    check(graph, rng)


@pytest.mark.parametrize("reads", ["output", "channels", "sum"])
def test_rows_that_others_need_are_computed(reads, rng) -> None:
    net = Net(0)
    y = layer(net, net.builder.input("x", TensorType((N, T, C))), False)
    taken = net(Slice((1,), (2,), (2 if reads == "channels" else 1,), (1,)), y)
    outputs = [taken]
    if reads == "output":
        outputs.append(y)
    if reads == "sum":
        outputs.append(net.of("a * b", y, taken))
    graph = net.builder.graph(outputs)
    assert N not in rows_of_products(graph)
    check(graph, rng)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("start", "end", "step"), [(T - 1, T, 1), (1, 3, 1), (1, 6, 3)])
@pytest.mark.parametrize("samples", [1, N])
def test_attention_is_of_the_queries_that_are_taken(samples, start, end, step, masked, rng) -> None:
    net = Net(0)
    y = layer(net, net.builder.input("x", TensorType((samples, T, C))), masked)
    graph = net.builder.graph([net(Slice((start,), (end,), (1,), (step,)), y)])
    types = graph.infer_types({v.name: v.type for v in graph.inputs})
    short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: True))
    (attention,) = (n.operator for n in short.nodes if isinstance(n.operator, Attention))
    assert (attention.queries, attention.keys) == (len(range(T)[start:end:step]), T)
    given = [rng(v.type.shape).astype(np.float64) for v in graph.inputs]
    assert oracle.error(short.reference(*given)[0], graph.reference(*given)[0]) <= 1e-12


def test_work_that_differs_by_row_stays(rng) -> None:
    """A sum with an embedding of places, whose rows are not those of all samples."""
    net = Net(0)
    y = linear(net, net.builder.input("x", TensorType((N, T, C))), 4)
    y = linear(net, net.of("a + b", y, net.fixed(T, 4)), 8)
    graph = net.builder.graph([net(Slice((2,), (3,), (1,), (1,)), y)])
    assert rows_of_products(graph) == [N * T, N]
    check(graph, rng)


@pytest.mark.parametrize("of_weight", [False, True])
def test_a_product_of_rows_with_themselves_needs_all_of_them(of_weight, rng) -> None:
    """Similarities of all rows with those that are taken."""
    net = Net(0)
    x = net(Matmul(), net.builder.input("x", TensorType((N, T))), net.fixed(C, T))
    y = net(Matmul(), x, x)
    if of_weight:
        y = net(Normalize(1), net(Matmul(), y, net.fixed(N, N)), *[net.fixed(N)] * 2)
    graph = net.builder.graph([net(Slice((1,), (2,), (0,), (1,)), y)])
    assert rows_of_products(graph)[0] == N
    check(graph, rng)


@pytest.mark.parametrize("samples", [1, N])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3), 1), ((2, 3), 0), ((3, 2), 1), ((T,), 0), ((1, T), 1)]
)
def test_attention_is_of_all_queries_where_others_than_tokens_are_taken(
    samples, shape, axis, rng
) -> None:
    """As of a grid's column, or of the tokens of all samples together."""
    net = Net(0)
    x = net.builder.input("x", TensorType((samples, T, C)))
    size = (samples * shape[0], *shape[1:])
    grid = net(Reshape((*size, C), True), attended(net, x, None))
    flat = net(Reshape((samples * T, C), True), grid)
    y = net(Reshape((*size, C), True), net(Matmul(), flat, net.fixed(C, C)))
    graph = net.builder.graph([net(Slice((1,), (2,), (axis,), (1,)), y)])
    types = graph.infer_types({v.name: v.type for v in graph.inputs})
    short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: True))
    (attention,) = (n.operator for n in short.nodes if isinstance(n.operator, Attention))
    tokens = size[axis] == T and prod(size[:axis]) == samples
    assert attention.queries == (1 if tokens else T)
    given = [rng(v.type.shape).astype(np.float64) for v in graph.inputs]
    assert oracle.error(short.reference(*given)[0], graph.reference(*given)[0]) <= 1e-12


def test_rows_that_are_taken_backwards_stay_so(rng) -> None:
    net = Net(0)
    y = linear(net, net.builder.input("x", TensorType((N, T, C))), 8)
    graph = net.builder.graph([net(Slice((4,), (1,), (1,), (-1,)), y)])
    assert rows_of_products(graph) == [N * T]
    check(graph, rng)


def rows(graph: Graph, rng) -> list[int]:
    """The rows of each product after the pass alone, which must give the same results."""
    after = changed(graph, hoist_slices, rng)
    types = after.infer_types({v.name: v.type for v in after.inputs})
    products = [node for node in after.nodes if isinstance(node.operator, Matmul)]
    return [types[node.outputs[0]].shape[0] for node in products]


def first_rows(net: Net, value: Value, start: int = 1, end: int = 3) -> Value:
    return net(Slice((start,), (end,), (0,), (1,)), value)


def test_a_product_of_the_rows_that_are_taken(rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((T, C))), net.fixed(4, C))
    assert rows(net.builder.graph([first_rows(net, y)]), rng) == [2]


def test_a_prologue_may_have_numbers_of_all_rows(rng) -> None:
    net = Net(0)
    x, more = (net.builder.input(name, TensorType((T, C))) for name in ("x", "more"))
    operator = Matmul(prologue=Prologue(formula("a * b"), ("image",)))
    by_row = net(Reshape((T, C), True), net.of("a + 1.0", more))
    y = net(operator, x, net.fixed(4, C), by_row)
    assert rows(net.builder.graph([first_rows(net, y)]), rng) == [T]


def test_an_epilogue_may_have_numbers_of_all_rows(rng) -> None:
    net = Net(0)
    x, more = net.builder.input("x", TensorType((T, C))), net.builder.input("y", TensorType((T, 4)))
    y = net.of("a * b", net(Matmul(), x, net.fixed(4, C)), more)
    graph = net.builder.graph([first_rows(net, y)])
    fused = fuse_pointwise(graph, graph.infer_types({v.name: v.type for v in graph.inputs}), 8)
    assert any(node.epilogue is not None for node in fused.nodes)
    assert rows(fused, rng) == [T]


def test_rows_of_stacks_have_a_weight_of_their_own(rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((2 * T, C))), net.fixed(2, 4, C))
    assert rows(net.builder.graph([first_rows(net, y, 2, 4)]), rng) == [2 * T]


@pytest.mark.parametrize(("count", "expected"), [(1, 2), (2, 2), (3, T)])
def test_no_more_slices_than_two_take_the_place_of_one(count, expected, rng) -> None:
    net = Net(0)
    inputs = [net.builder.input(f"x{i}", TensorType((T, C))) for i in range(count)]
    first, *others = (net(Matmul(), x, net.fixed(4, C)) for x in inputs)
    for other in others:
        first = net.of("a + b", first, other)
    assert rows(net.builder.graph([first_rows(net, first)]), rng) == [expected] * count


def test_work_without_a_product_stays(rng) -> None:
    net = Net(0)
    y = net.of("exp(a)", net.builder.input("x", TensorType((T, C))))
    after = changed(net.builder.graph([first_rows(net, y)]), hoist_slices, rng)
    assert isinstance(after.nodes[-1].operator, Slice)


def test_slices_of_rows_and_columns_stay(rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((T, C))), net.fixed(4, C))
    graph = net.builder.graph([net(Slice((1, 1), (3, 3), (0, 1), (1, 1)), y)])
    assert rows(graph, rng) == [T]


def test_columns_that_are_seen_as_rows_are_no_rows(rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((N, C))), net.fixed(T, C))
    seen = net(Reshape((N, T, 1), True), y)
    assert rows(net.builder.graph([net(Slice((1,), (3,), (1,), (1,)), seen)]), rng) == [N]


def test_rows_of_one_number_are_rows(rng) -> None:
    """Seen as a vector on the way."""
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((T, C))), net.fixed(1, C))
    y = net(Reshape((T, 1), True), net.of("exp(a)", net(Reshape((T,), True), y)))
    assert rows(net.builder.graph([first_rows(net, y)]), rng) == [2]


def test_the_square_of_a_row_needs_no_other(rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((T, C))), net.fixed(4, C))
    assert rows(net.builder.graph([first_rows(net, net.of("a * b", y, y))]), rng) == [2]


@pytest.mark.parametrize("groups", [False, True])
def test_normalisations_of_more_than_a_row_stay(groups, rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((N * T, C))), net.fixed(8, C))
    y = net(Reshape((N, T, 8), True), y)
    y = net(Normalize(groups=1) if groups else Normalize(2), y)  # of a sample; of all its tokens
    assert rows(net.builder.graph([net(Slice((1,), (3,), (1,), (1,)), y)]), rng) == [N * T]


def attention_graph(
    lead: tuple[int, ...], axis: int, operator: Attention, end: int = 2, residuals: int = 0
) -> Graph:
    """A product of what attention gives, its rows seen as `lead`, and slices of these.

    residuals: how many inputs are added to it.
    """
    net, width = Net(0), operator.heads * operator.columns
    tokens = operator.counts[0] * operator.counts[2]
    q, k, v = (
        net(Matmul(), net.builder.input(name, TensorType((tokens, 4))), net.fixed(width, 4))
        for name in "qkv"
    )
    y = net(Reshape((tokens, width), True), net(operator, q, k, v))
    y = net(Matmul(), y, net.fixed(3, width))
    for i in range(residuals):
        y = net.of("a + b", y, net.builder.input(f"r{i}", TensorType((tokens, 3))))
    y = net(Reshape((*lead, 3), True), y)
    return net.builder.graph([net(Slice((1,), (end,), (axis,), (1,)), y)])


def queries(graph: Graph, rng) -> int:
    after = changed(graph, hoist_slices, rng)
    (attention,) = (n.operator for n in after.nodes if isinstance(n.operator, Attention))
    return attention.queries


@pytest.mark.parametrize("samples", [1, 2])
def test_attention_whose_queries_come_first(samples, rng) -> None:
    """They are the rows of one sample, not of several, though these be as many as queries."""
    view = StridedView(0, 2 * C if samples == 2 else 0, D, C)
    tokens = 2 if samples == 2 else T
    operator = Attention(samples, H, tokens, tokens, D, D, (view,) * 3, order=(2, 0, 1))
    lead = (2, 2) if samples == 2 else (T,)
    graph = attention_graph(lead, len(lead) - 1, operator)
    assert queries(graph, rng) == (tokens if samples == 2 else 1)


def test_attention_of_one_sample_to_a_grid(rng) -> None:
    """A column of the grid is queries that no view has."""
    view = StridedView(0, 0, D, C)
    operator = Attention(1, H, T, T, D, D, (view,) * 3, order=(2, 0, 1))
    assert queries(attention_graph((2, T // 2), 1, operator), rng) == T


def test_attention_to_a_window_that_is_the_image(rng) -> None:
    """Its tokens are rolled: a window's first is not the image's."""
    view = StridedView(0, T * C, D, C)
    whole = Attention(N, H, T, T, D, D, (view,) * 3)
    assert queries(attention_graph((N, T), 1, whole), rng) == 1
    rolled = Attention(N, H, T, T, D, D, (view,) * 3, windows=Windows(1, 1, 2, T // 2, 1, 1))
    assert queries(attention_graph((N, T), 1, rolled), rng) == T


def test_attention_and_two_residuals_take_two_slices(rng) -> None:
    """Queries are taken where they lie, and are none of the slices."""
    view = StridedView(0, T * C, D, C)
    graph = attention_graph((N, T), 1, Attention(N, H, T, T, D, D, (view,) * 3), residuals=2)
    assert queries(graph, rng) == 1


def test_products_before_attention_are_of_all_rows(rng) -> None:
    """Attention takes its queries out of them itself."""
    view = StridedView(0, T * C, D, C)
    whole = Attention(N, H, T, T, D, D, (view,) * 3)
    assert rows(attention_graph((N, T), 1, whole), rng) == [N * T, N * T, N * T, N]


def test_attention_of_no_queries_stays(rng) -> None:
    view = StridedView(0, T * C, D, C)
    whole = Attention(N, H, T, T, D, D, (view,) * 3)
    assert queries(attention_graph((N, T), 1, whole, end=1), rng) == T
