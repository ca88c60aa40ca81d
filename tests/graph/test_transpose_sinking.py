"""Views and transpositions go behind products, softmaxes and pointwise work that may come first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.core.types import TensorType
from glnn.graph.builder import constant
from glnn.graph.epilogue import Prologue
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Gather,
    Matmul,
    Pad,
    Pointwise,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.passes.transpose_sinking import sink_transposes
from tests.graph.nets import Net, changed

N, T, C = 2, 3, 8
SWAP = Transpose((1, 0, 2))
Rng = Callable[..., np.ndarray]


def before(graph: Graph, kind: type[Operator], rng: Rng) -> list[type[Operator]]:
    """The operators that the last one of a `kind` needs after the pass, which must give the same
    results, in order.
    """
    after = changed(graph, sink_transposes, rng)
    made = {value: node for node in after.nodes for value in node.outputs}
    (*_, last) = (node for node in after.nodes if isinstance(node.operator, kind))
    needed, left = set(), [*last.reads]
    while left:
        if (node := made.get(left.pop())) is not None:
            needed.add(node)
            left += node.reads
    return [type(node.operator) for node in after.nodes if node in needed]


def kinds(graph: Graph, rng: Rng) -> list[type[Operator]]:
    """The operators after the pass, in order; it must give the same results."""
    return [type(node.operator) for node in changed(graph, sink_transposes, rng).nodes]


def tokens(net: Net, shape: tuple[int, ...] = (N, T, C)) -> Value:
    return net.builder.input("x", TensorType(shape))


def rows(net: Net, x: Value, operator: Operator = SWAP, width: int = C) -> Value:
    """The rows of x, transposed."""
    moved = net(operator, x)
    return net(Reshape((-1, width), True), moved)


def back(net: Net, y: Value, shape: tuple[int, ...] = (T, N, 4)) -> Value:
    return net(SWAP, net(Reshape(shape, True), y))


def test_rows_of_a_product_that_are_transposed_back(rng) -> None:
    net = Net(0)
    graph = net.builder.graph([back(net, net(Matmul(), rows(net, tokens(net)), net.fixed(4, C)))])
    assert Transpose not in before(graph, Matmul, rng)


@pytest.mark.parametrize("reads", ["rows", "tokens", "output"])
def test_rows_that_others_read_stay(reads, rng) -> None:
    net = Net(0)
    moved = net(SWAP, tokens(net))
    x = net(Reshape((-1, C), True), moved)
    y = net(Matmul(), x, net.fixed(4, C))
    more = {"rows": x, "tokens": moved, "output": y}[reads]
    graph = net.builder.graph([back(net, y), more if reads == "output" else net.of("exp(a)", more)])
    assert Transpose in before(graph, Matmul, rng)


def test_a_prologue_may_have_numbers_of_each_row(rng) -> None:
    net = Net(0)
    operator = Matmul(prologue=Prologue(formula("a * b"), ("image",)))
    more = net.builder.input("more", TensorType((T * N, C)))
    y = net(operator, rows(net, tokens(net)), net.fixed(4, C), more)
    assert Transpose in before(net.builder.graph([back(net, y)]), Matmul, rng)


def test_rows_of_stacks_have_a_weight_of_their_own(rng) -> None:
    net = Net(0)
    y = net(Matmul(), rows(net, tokens(net)), net.fixed(T, 4, C))
    assert Transpose in before(net.builder.graph([back(net, y)]), Matmul, rng)


def test_no_rows_stay(rng) -> None:
    net = Net(0)
    x = tokens(net, (0, T, C))
    y = net(Matmul(), net(Reshape((0, C), True), net(SWAP, x)), net.fixed(4, C))
    graph = net.builder.graph([net(SWAP, net(Reshape((T, 0, 4), True), y))])
    assert Transpose in before(graph, Matmul, rng)


@pytest.mark.parametrize(
    ("shape", "operator"),
    [
        ((N, T, 5, C), Transpose((0, 2, 1, 3))),  # windows: rows are of three dimensions
        ((N, T, 5, C), Transpose((1, 0, 2, 3))),
        ((N, T, 2, 4), Transpose((0, 1, 3, 2))),  # whose rows stay in order
        ((N, T, C), Transpose((0, 1, 2))),
    ],
)
def test_other_transpositions_stay(shape, operator, rng) -> None:
    net = Net(0)
    y = net(Matmul(), rows(net, tokens(net, shape), operator), net.fixed(4, C))
    size = y.type.shape[0] // N
    graph = net.builder.graph([back(net, y, (N, size, 4))])
    assert kinds(graph, rng) == [Transpose, Reshape, Matmul, Reshape, Transpose]


def test_rows_of_other_work_stay(rng) -> None:
    net = Net(0)
    x = net.of("exp(a)", tokens(net))
    y = net(Matmul(), net(Reshape((-1, C), True), x), net.fixed(4, C))
    assert before(net.builder.graph([back(net, y, (N, T, 4))]), Matmul, rng) == [Pointwise, Reshape]


def test_rows_of_heads_are_transposed_inside(rng) -> None:
    net = Net(0)
    y = net(
        Matmul(), rows(net, tokens(net, (N, T, 2, 4)), Transpose((1, 0, 3, 2))), net.fixed(4, C)
    )
    assert Transpose in before(net.builder.graph([back(net, y)]), Matmul, rng)


READERS: dict[str, tuple[bool, Callable[[Net, Value], Value]]] = {
    "a bias": (True, lambda net, y: net.of("a + b", y, net.fixed(4))),
    "a slice": (True, lambda net, y: net(Slice((1,), (3,), (1,), (1,)), y)),
    "numbers of each row": (False, lambda net, y: net.of("a + b", y, net.fixed(N * T, 1))),
    "computed numbers": (
        False,
        lambda net, y: net.of("a + b", y, net.builder.input("b", TensorType((4,)))),
    ),
    "a sum": (False, lambda net, y: net(Concat(1), y, y)),
}
"""Work between a product and the second transposition, and whether it is the same for all rows."""


@pytest.mark.parametrize("name", READERS)
def test_work_between_a_product_and_a_transposition(name, rng) -> None:
    moves, work = READERS[name]
    net = Net(0)
    y = work(net, net(Matmul(), rows(net, tokens(net)), net.fixed(4, C)))
    graph = net.builder.graph([back(net, y, (T, N, y.type.shape[1]))])
    assert (Transpose in before(graph, Matmul, rng)) != moves


def test_a_product_that_is_not_transposed_back(rng) -> None:
    net = Net(0)
    y = net(Matmul(), rows(net, tokens(net)), net.fixed(4, C))
    graph = net.builder.graph([back(net, y), net(Softmax(-1), y)])
    assert Transpose in before(graph, Matmul, rng)


def product(net: Net, width: int = C) -> Value:
    """A product of the rows of an input, (N T, width)."""
    return net(Matmul(), net.builder.input("x", TensorType((N * T, 4))), net.fixed(width, 4))


@pytest.mark.parametrize(
    ("shape", "axis", "moves"),
    [((N, T, C), -1, True), ((N, T, C), 1, False), ((N, T, 2, C // 2), -1, False)],
)
def test_softmax_of_rows_in_another_shape(shape, axis, moves, rng) -> None:
    net = Net(0)
    graph = net.builder.graph([net(Softmax(axis), net(Reshape(shape, True), product(net)))])
    assert (Reshape in before(graph, Softmax, rng)) != moves


def test_softmax_of_what_is_given(rng) -> None:
    net = Net(0)
    graph = net.builder.graph([net(Softmax(-1), tokens(net))])
    assert before(graph, Softmax, rng) == []


def test_softmax_of_what_others_read(rng) -> None:
    net = Net(0)
    seen = net(Reshape((N, T, C), True), product(net))
    graph = net.builder.graph([net(Softmax(-1), seen), net.of("exp(a)", seen)])
    assert Reshape in before(graph, Softmax, rng)


def test_work_before_a_view(rng) -> None:
    net = Net(0)
    seen = net(Reshape((N, T, C), True), product(net))
    graph = net.builder.graph([net.of("a + b", seen, net.fixed(C))])
    found = before(graph, Pointwise, rng)
    assert (Matmul in found and found[-1] is not Reshape) or len(found) < 3


@pytest.mark.parametrize(
    ("shape", "moves"),
    [((C,), True), ((1,), True), ((N, T, C), True), ((T, C), False), ((T, 1), False)],
)
def test_operands_that_are_seen_as_the_view_is(shape, moves, rng) -> None:
    """Of other shapes they would broadcast within a dimension."""
    net = Net(0)
    seen = net(Reshape((N, T, C), True), product(net))
    result = net.of("a + b", seen, net.fixed(*shape))
    graph = net.builder.graph([result])
    after = changed(graph, sink_transposes, rng)
    assert isinstance(after.nodes[-1].operator, Reshape) == moves


def test_operands_of_more_dimensions_than_what_is_seen(rng) -> None:
    net = Net(0)
    seen = net(Reshape((N * T, C, 1), True), product(net))
    graph = net.builder.graph([net.of("a + b", seen, net.fixed(C, 1))])
    assert kinds(graph, rng)[-1] is Reshape


def test_operands_of_fewer_dimensions_than_what_is_seen(rng) -> None:
    net = Net(0)
    seen = net(Reshape((N * T, C), True), net(Reshape((N * T, C, 1), True), product(net)))
    graph = net.builder.graph([net.of("a + b", seen, net.fixed(C))])
    assert kinds(graph, rng)[-2:] == [Reshape, Reshape]


@pytest.mark.parametrize("reads", ["once", "again", "output"])
def test_a_view_that_others_read_stays(reads, rng) -> None:
    net = Net(0)
    seen = net(Reshape((N, T, C), True), product(net))
    y, outputs = net.of("a + b", seen, net.fixed(C)), []
    if reads != "once":
        outputs.append(seen if reads == "output" else net(Softmax(1), seen))
    after = changed(net.builder.graph([y, *outputs]), sink_transposes, rng)
    maker = {value: node for node in after.nodes for value in node.outputs}[after.outputs[0]]
    assert isinstance(maker.operator, Reshape) == (reads == "once")


def test_work_that_is_larger_than_the_view_stays(rng) -> None:
    net = Net(0)
    seen = net(Reshape((N * T, 1, C), True), product(net))
    after = changed(
        net.builder.graph([net.of("a + b", seen, net.fixed(5, C))]), sink_transposes, rng
    )
    assert isinstance(after.nodes[-1].operator, Pointwise)


IMAGE = (N, 4, 5, T)


def convolved(net: Net) -> Value:
    x = net.builder.input("x", TensorType((N, 3, 5, T)))
    return net(Conv2d(), x, net.fixed(4, 3, 1, 1))


@pytest.mark.parametrize(
    ("shape", "fixed", "perm", "moves"),
    [
        ((4,), True, (0, 2, 3, 1), True),
        ((N, 5, T, 4), True, (0, 2, 3, 1), True),
        ((N, 5, T, 4), False, (0, 2, 3, 1), True),  # which a layout makes free
        ((4,), False, (0, 2, 3, 1), False),
        ((1,), False, (0, 2, 3, 1), True),
        ((N, 5, 4, T), False, (0, 2, 1, 3), False),
        ((N, 5, 4, T), True, (0, 2, 1, 3), True),
    ],
)
def test_operands_of_work_behind_a_transposition(shape, fixed, perm, moves, rng) -> None:
    net = Net(0)
    y = net(Transpose(perm), convolved(net))
    other = net.fixed(*shape) if fixed else net.builder.input("b", TensorType(shape))
    after = changed(net.builder.graph([net.of("a + b", y, other)]), sink_transposes, rng)
    assert isinstance(after.nodes[-1].operator, Transpose) == moves


@pytest.mark.parametrize("swapped", [False, True])
def test_two_transpositions_that_meet_are_one(swapped, rng) -> None:
    """Of tensors that nothing could join."""
    net = Net(0)
    values = [net.builder.input(name, TensorType((N, T, C))) for name in "xy"]
    first, second = (net(SWAP, one) for one in values)
    graph = net.builder.graph([net.of("a - b", *((second, first) if swapped else (first, second)))])
    assert kinds(graph, rng) == [Pointwise, Transpose]


def test_a_transposition_of_an_input_stays(rng) -> None:
    net = Net(0)
    y = net.of("exp(a)", net(SWAP, tokens(net)))
    assert kinds(net.builder.graph([y]), rng) == [Transpose, Pointwise]


def test_work_goes_before_several_views(rng) -> None:
    net = Net(0)
    heads = net(Reshape((N, T, 2, 4), True), net(Reshape((N, T, C), True), product(net)))
    graph = net.builder.graph([net.of("exp(a)", heads)])
    assert kinds(graph, rng) == [Matmul, Pointwise, Reshape, Reshape]


def test_a_bias_joins_a_product_whose_rows_are_transposed_behind_it(rng) -> None:
    net = Net(0)
    y = net.of("a + b", net(Matmul(), rows(net, tokens(net)), net.fixed(4, C)), net.fixed(4))
    after = changed(net.builder.graph([back(net, y)]), sink_transposes, rng)
    made = {value: node for node in after.nodes for value in node.outputs}
    (bias,) = (node for node in after.nodes if isinstance(node.operator, Pointwise))
    assert isinstance(made[bias.reads[0]].operator, Matmul)


def test_views_of_two_products_do_not_go_back_and_forth(rng) -> None:
    """A sum of both goes before the one's view, and stays behind the other's."""
    net = Net(0)
    wide = net(Matmul(), net.builder.input("y", TensorType((N, 4))), net.fixed(T * C, 4))
    views = [net(Reshape((N, T, C), True), one) for one in (product(net), wide)]
    assert kinds(net.builder.graph([net.of("a + b", *views)]), rng).count(Pointwise) == 1


def test_views_of_nothing_stay(rng) -> None:
    net = Net(0)
    y = net(Matmul(), net.builder.input("x", TensorType((0, 4))), net.fixed(C, 4))
    seen = net(Reshape((0, T, C), True), y)
    assert kinds(net.builder.graph([net.of("a + b", seen, net.fixed(C))]), rng)[-1] is Pointwise


def test_a_transposition_of_a_single_number(rng) -> None:
    net = Net(0)
    y = net(Conv2d(), net.builder.input("x", TensorType((1, 3, 1, 1))), net.fixed(1, 3, 1, 1))
    graph = net.builder.graph([net.of("exp(a)", net(Transpose((0, 2, 3, 1)), y))])
    assert kinds(graph, rng) == [Conv2d, Pointwise, Transpose]


def test_rows_that_are_gathered_are_no_view(rng) -> None:
    """Though they have the view's shape, and the table that of what is seen."""
    net = Net(0)
    index = constant(np.arange(N * T)[::-1].reshape(N, T).copy())
    table = net.builder.input("table", TensorType((N * T, C)))
    seen = net(Reshape((N, T, C), True), product(net))
    graph = net.builder.graph([net.of("a + b", seen, net(Gather(0), table, index))])
    assert Pointwise in kinds(graph, rng)


@pytest.mark.parametrize("text", ["exp(a)", "transposed otherwise"])
def test_operands_that_are_not_transposed_alike(text, rng) -> None:
    net = Net(0)
    other = net.builder.input("b", TensorType((N, 5, T, 4)))
    other = net.of(text, other) if "(" in text else net(Transpose((0, 2, 1, 3)), other)
    shape = other.type.shape
    y = net(Transpose((0, 2, 3, 1)), convolved(net))
    if shape != y.type.shape:
        other = net(Reshape(y.type.shape, True), other)
    assert Pointwise in kinds(net.builder.graph([net.of("a - b", y, other)]), rng)


STAYS: dict[str, Callable[[Net], tuple[Value, ...]]] = {}
"""Work behind a view that nothing before it could take, and further results."""


def stays(make: Callable[[Net], tuple[Value, ...]]) -> Callable[[Net], tuple[Value, ...]]:
    STAYS[make.__name__] = make
    return make


def seen(net: Net, value: Value) -> Value:
    return net(Reshape((N * T, C), True), value)


@stays
def two_views_of_inputs(net: Net) -> tuple[Value, ...]:
    first, second = (net.builder.input(name, TensorType((N, T, C))) for name in "xy")
    return (net.of("a + b", seen(net, first), seen(net, second)),)


@stays
def view_of_a_softmax(net: Net) -> tuple[Value, ...]:
    return (net.of("exp(a)", seen(net, net(Softmax(-1), tokens(net)))),)


@stays
def view_of_work_that_is_read_again(net: Net) -> tuple[Value, ...]:
    done = net.of("exp(a)", tokens(net))
    return net.of("a * 2.0", seen(net, done)), done


@stays
def computed_operand_beside_a_view_of_work(net: Net) -> tuple[Value, ...]:
    done, other = net.of("exp(a)", tokens(net)), net.builder.input("b", TensorType((N * T, C)))
    return (net.of("a + b", seen(net, done), other),)


@stays
def view_of_a_product_that_is_read_again(net: Net) -> tuple[Value, ...]:
    y = product(net)
    return net.of("exp(a)", net(Reshape((N, T, C), True), y)), y


@pytest.mark.parametrize("name", STAYS)
def test_work_stays_behind_a_view(name, rng) -> None:
    net = Net(0)
    graph = net.builder.graph(STAYS[name](net))
    assert kinds(graph, rng) == [type(node.operator) for node in graph.nodes]


def test_work_goes_before_a_view_of_other_work(rng) -> None:
    """Of which nobody else reads, and with fixed operands."""
    net = Net(0)
    done = seen(net, net.of("exp(a)", tokens(net)))
    graph = net.builder.graph([net.of("a + b", done, net.fixed(C))])
    assert kinds(graph, rng) == [Pointwise, Reshape, Pointwise, Reshape]  # one of the bias


PLANES = (N, 4, 5 * T, 1)
OPERANDS: dict[str, tuple[bool, Callable[[Net], Value]]] = {
    "an image": (False, lambda net: padded(net, net.builder.input("y", TensorType(PLANES)))),
    "given": (True, lambda net: net.builder.input("y", TensorType(PLANES))),
    "a number of each channel": (
        True,
        lambda net: padded(net, net.builder.input("y", TensorType((N, 4, 1, 1)))),
    ),
    "fixed": (True, lambda net: padded(net, net.fixed(*PLANES))),
    "no image": (
        True,
        lambda net: net(Softmax(1), net.builder.input("y", TensorType(PLANES))),
    ),
}
"""Operands beside a view of an image, and whether they can be seen as the image before it is."""


def padded(net: Net, y: Value) -> Value:
    return net(Pad((0,) * len(y.type.shape), (0,) * len(y.type.shape)), y)


@pytest.mark.parametrize("name", OPERANDS)
def test_images_are_seen_in_no_other_shape(name, rng) -> None:
    moves, make = OPERANDS[name]
    net = Net(0)
    view = net(Reshape(PLANES, True), convolved(net))
    graph = net.builder.graph([net.of("a + b", view, make(net))])
    assert (kinds(graph, rng)[-1] is Reshape) == moves


def test_what_is_no_image_is_seen_in_another_shape(rng) -> None:
    net = Net(0)
    view = net(Reshape((N, 4, 5 * T), True), convolved(net))
    other = padded(net, net.builder.input("y", TensorType((N, 4, 5 * T))))
    assert kinds(net.builder.graph([net.of("a + b", view, other)]), rng)[-1] is Reshape
