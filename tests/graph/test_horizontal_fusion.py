"""Products and convolutions of one operand are stacked where all can read slices of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glnn.core.types import TensorType
from glnn.graph.builder import constant
from glnn.graph.epilogue import Prologue
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import (
    Attention,
    Concat,
    Conv2d,
    Matmul,
    Pool2d,
    Reshape,
    Rotary,
    Transpose,
)
from glnn.graph.operators.attention import StridedView
from glnn.graph.passes.horizontal_fusion import fuse_siblings
from glnn.graph.passes.pointwise_fusion import fuse_pointwise
from tests.graph.nets import Net, changed

N, T, H, D = 2, 5, 2, 16  # samples, tokens, heads, numbers of a head
C = H * D
ROWS = 2 * N * T
"""Of the products: more than attention reads."""
VIEW = StridedView(0, T * C, D, C)
"""Of queries, keys or values of all samples: a row of C for each token."""
ATTENTION = Attention(N, H, T, T, D, D, (VIEW, VIEW, VIEW))


def stacked(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """`graph` after the pass, once biases and activations have joined their producers."""
    return fuse_siblings(fuse_pointwise(graph, types, 8), types)


def count(graph: Graph, rng: Callable[..., np.ndarray]) -> int:
    """The products and convolutions of inputs after the pass, which must give the same results."""
    nodes = changed(graph, stacked, rng).nodes
    first = [node for node in nodes if node.inputs[0] in graph.inputs]
    return sum(isinstance(node.operator, Matmul | Conv2d) for node in first)


def products(net: Net, outputs: int = C) -> list[Value]:
    """Three products of the same rows."""
    x = net.builder.input("x", TensorType((ROWS, 8)))
    return [net(Matmul(), x, net.fixed(outputs, 8)) for _ in range(3)]


def convolutions(net: Net, outputs: int = C, **more: int) -> list[Value]:
    """Three convolutions of the same images."""
    x = net.builder.input("x", TensorType((2, 8, 5, 4)))
    size = outputs, 8 // more.get("groups", 1), 3, 3
    return [net(Conv2d(**more), x, net.fixed(*size)) for _ in range(3)]


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (VIEW, 1),
        (replace(VIEW, start=C), 1),  # rows from the second on
        (replace(VIEW, head=2 * C, token=2 * C, sample=0), 1),  # heads have their own rows
        (replace(VIEW, start=D, head=0), 1),
        (replace(VIEW, token=C // 2), 2),  # rows that overlap
        (replace(VIEW, sample=T * C - 8), 2),
        (replace(VIEW, start=8), 2),  # the last head goes on in the next row
    ],
)
def test_attention_reads_slices_of_whole_rows(part, view, expected, rng) -> None:
    views = [VIEW] * 3
    views[part] = view
    net = Net(0)
    graph = net.builder.graph([net(replace(ATTENTION, views=tuple(views)), *products(net))])
    assert count(graph, rng) == expected


def test_a_mask_is_no_rows(rng) -> None:
    net = Net(0)
    q, k, v = products(net)
    mask = StridedView(0, 0, 0, T, 1)
    attention = replace(ATTENTION, views=(VIEW, VIEW, VIEW, mask))
    assert count(net.builder.graph([net(attention, q, k, v, v)]), rng) == 2


def test_attention_to_images_reads_their_own(rng) -> None:
    """Rows of a product alone are slices of channels."""
    net = Net(0)
    view = StridedView(0, 6 * C, 3 * D, 6)  # of planes, by places
    small = replace(ATTENTION, width=6, columns=6, views=(view,) * 3)
    assert count(net.builder.graph([net(small, *convolutions(net))]), rng) == 3
    net = Net(0)
    across = replace(small, views=(StridedView(0, 6 * C, 8, C),) * 3)
    assert count(net.builder.graph([net(across, *convolutions(net))]), rng) == 3


ROWS_READ: dict[str, tuple[int, Callable[[Net, Value], Value]]] = {
    "transposed": (1, lambda net, y: net(Transpose((1, 0)), y)),
    "reshaped and transposed": (
        1,
        lambda net, y: net(Transpose((1, 0, 2)), net(Reshape((ROWS, H, D), True), y)),
    ),
    "put into a cache": (
        1,
        lambda net, y: net(
            Concat(2),
            net.builder.input(f"past {y.name}", TensorType((ROWS, H, 3, D))),
            net(Reshape((ROWS, H, 1, D), True), y),
        ),
    ),
    "reshaped": (3, lambda net, y: net(Reshape((ROWS, H, D), True), y)),
    "reshaped and added to": (
        3,
        lambda net, y: net.of("a + 1.0", net(Reshape((ROWS, H, D), True), y)),
    ),
    "pointwise": (3, lambda net, y: net.of("a * a", y)),
    "multiplied": (3, lambda net, y: net(Matmul(), y, net.fixed(4, C))),
    "by itself": (3, lambda net, y: net(Matmul(), y, y)),
    "as a weight": (3, lambda net, y: net(Matmul(), net.fixed(2, C), y)),
}
"""What is done to each of three products, and how many of them there are afterwards."""


@pytest.mark.parametrize("name", ROWS_READ)
def test_products_whose_rows_are_read(name, rng) -> None:
    expected, read = ROWS_READ[name]
    net = Net(0)
    graph = net.builder.graph([read(net, one) for one in products(net)])
    assert count(graph, rng) == expected


IMAGES_READ: dict[str, tuple[int, Callable[[Net, Value], Value]]] = {
    "pooled": (1, lambda net, y: net(Pool2d("max", (2, 2)), y)),
    "convolved": (1, lambda net, y: net(Conv2d(), y, net.fixed(3, C, 1, 1))),
    "convolved by groups": (3, lambda net, y: net(Conv2d(groups=2), y, net.fixed(4, C // 2, 1, 1))),
    "transposed": (3, lambda net, y: net(Transpose((0, 2, 3, 1)), y)),
    "reshaped": (3, lambda net, y: net(Reshape((2, -1), True), y)),
    "reshaped and transposed": (
        3,
        lambda net, y: net(Transpose((1, 0)), net(Reshape((2, -1), True), y)),
    ),
    "by itself": (3, lambda net, y: net(Conv2d(), y, y)),
    "as a weight": (3, lambda net, y: net(Conv2d(), net.fixed(1, C, 3, 2), y)),
}


@pytest.mark.parametrize("name", IMAGES_READ)
def test_convolutions_whose_images_are_read(name, rng) -> None:
    expected, read = IMAGES_READ[name]
    net = Net(0)
    graph = net.builder.graph([read(net, one) for one in convolutions(net)])
    assert count(graph, rng) == expected


def pooled(net: Net, y: Value) -> Value:
    return net(Pool2d("max", (2, 2)), y)


def transposed(net: Net, y: Value) -> Value:
    return net(Transpose((1, 0)), y)


@pytest.mark.parametrize(
    ("outputs", "expected"), [(28, 3), (32, 1), (33, 3), (34, 3), (36, 1), (64, 1)]
)
def test_as_many_outputs_as_kernels_take_slices_of(outputs, expected, rng) -> None:
    net = Net(0)
    read = [transposed(net, one) for one in products(net, outputs)]
    assert count(net.builder.graph(read), rng) == expected
    net = Net(0)
    read = [pooled(net, one) for one in convolutions(net, outputs)]
    assert count(net.builder.graph(read), rng) == expected


def test_convolutions_by_groups_stay(rng) -> None:
    net = Net(0)
    graph = net.builder.graph([pooled(net, one) for one in convolutions(net, groups=2)])
    assert count(graph, rng) == 3


def test_products_of_stacks_of_matrices_stay(rng) -> None:
    net = Net(0)
    x = net.builder.input("x", TensorType((2 * C, 8)))
    made = [net(Matmul(), x, net.fixed(C, C, 8)) for _ in range(2)]
    graph = net.builder.graph([transposed(net, one) for one in made])
    assert count(graph, rng) == 2


@pytest.mark.parametrize("place", ["x", "attributes", "weight", "window"])
def test_what_differs_is_not_stacked(place, rng) -> None:
    net = Net(0)
    x, y = (net.builder.input(name, TensorType((2, 8, 5, 4))) for name in "xy")
    made = [net(Conv2d(), x, net.fixed(C, 8, 3, 3))]
    other = {
        "x": lambda: net(Conv2d(), y, net.fixed(C, 8, 3, 3)),
        "attributes": lambda: net(Conv2d((1, 1), (1, 1, 1, 1)), x, net.fixed(C, 8, 3, 3)),
        "weight": lambda: net(Conv2d(), x, net.builder.input("w", TensorType((C, 8, 3, 3)))),
        "window": lambda: net(Conv2d(), x, net.fixed(C, 8, 1, 1)),
    }[place]
    made.append(other())
    assert count(net.builder.graph([pooled(net, one) for one in made]), rng) == 2


@pytest.mark.parametrize("output", [False, True])
def test_a_result_of_the_graph_stays(output, rng) -> None:
    net = Net(0)
    first, *others = products(net)
    read = [transposed(net, one) for one in (first, *others)]
    graph = net.builder.graph([*read, *([first] if output else [])])
    assert count(graph, rng) == (2 if output else 1)


def test_a_result_that_is_reshaped_for_others_stays(rng) -> None:
    net = Net(0)
    seen = [net(Reshape((ROWS, H, D), True), one) for one in products(net)]
    moved = [net(Transpose((1, 0, 2)), one) for one in seen]
    assert count(net.builder.graph([*moved, seen[0]]), rng) == 2


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("a + b",) * 3, 1),
        (("a + b", "", "a + b"), 1),  # one without a bias gets zeros
        (("relu(a + b)",) * 3, 1),
        (("relu(a + b)", "a + b", "relu(a + b)"), 2),
        (("", "relu(a)", "relu(a)"), 2),
        (("a * 2.0 + b",) * 3, 1),
    ],
)
@pytest.mark.parametrize("images", [False, True])
def test_epilogues_that_are_the_same(texts, images, expected, rng) -> None:
    net = Net(0)
    parts = convolutions(net) if images else products(net)
    bias = (C, 1, 1) if images else (C,)
    results = []
    for text, one in zip(texts, parts, strict=True):
        operands = (one, net.fixed(*bias)) if "b" in text else (one,)
        results.append(
            (pooled if images else transposed)(net, net.of(text, *operands) if text else one)
        )
    assert count(net.builder.graph(results), rng) == expected


@pytest.mark.parametrize("case", ["scale", "other scale", "computed", "full", "fixed"])
def test_operands_of_epilogues(case, rng) -> None:
    """A single number is the same one; all are fixed, none is of the whole result."""
    net = Net(0)
    extra = net.builder.input("extra", TensorType((ROWS, C) if case == "full" else (C,)))
    one, other = net.fixed(1), net.fixed(1)
    operands = {
        "scale": [one] * 3,
        "other scale": [one, other, other],
        "computed": [extra, net.fixed(C), net.fixed(C)],
        "full": [extra, net.fixed(C), net.fixed(C)],
        "fixed": [net.fixed(C), net.fixed(ROWS, C), net.fixed(ROWS, C)],
    }[case]
    made = [net.of("a * b", y, e) for y, e in zip(products(net), operands, strict=True)]
    graph = net.builder.graph([transposed(net, y) for y in made])
    assert count(graph, rng) == {"scale": 1, "fixed": 3}.get(case, 2)


def test_other_work_on_fixed_matrices_stays(rng) -> None:
    net = Net(0)
    x = net.builder.input("x", TensorType((C, 8)))
    made = [net.of("a + b", x, net.fixed(C, 8)) for _ in range(2)]
    graph = net.builder.graph([transposed(net, one) for one in made])
    assert len(changed(graph, fuse_siblings, rng).nodes) == len(graph.nodes)


def test_products_that_no_run_changes_stay(rng) -> None:
    net = Net(0)
    x = net.fixed(ROWS, 8)
    made = [transposed(net, net(Matmul(), x, net.fixed(C, 8))) for _ in range(2)]
    graph = net.builder.graph(
        [net.of("a + b", net.builder.input("y", TensorType((1,))), *made[:1])]
    )
    both = net.builder.graph([*graph.outputs, net.of("a * b", graph.outputs[0], made[1])])
    assert len(changed(both, fuse_siblings, rng).nodes) == len(both.nodes)


def test_products_with_prologues_stay(rng) -> None:
    net = Net(0)
    x = net.builder.input("x", TensorType((ROWS, 8)))
    operator = Matmul(prologue=Prologue(formula("a * b"), ("channel",)))
    made = [net(operator, x, net.fixed(C, 8), net.fixed(8)) for _ in range(2)]
    assert count(net.builder.graph([transposed(net, one) for one in made]), rng) == 2


def test_rotations_begin_where_the_slice_does(rng) -> None:
    net = Net(0)
    table, places = net.fixed(7, D), constant(np.arange(ROWS, dtype=np.int32) % 7)
    rotary = Rotary(H, D, 7)
    made = [net(rotary, one, table, places) for one in products(net)]
    graph = net.builder.graph(made)
    assert count(graph, rng) == 1
    kinds = [type(node.operator) for node in changed(graph, fuse_siblings, rng).nodes]
    assert sorted(map(str, kinds)) == sorted(map(str, [Concat, Matmul, Rotary, Rotary, Rotary]))
