"""Two sums of images' channels, or of columns, are one operator unless one needs the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from glnn.core.types import DType, TensorType
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import ChannelSums, Reduce
from glnn.graph.passes.channel_sums_fusion import PRODUCTS, SQUARES, fuse_channel_sums
from glnn.graph.passes.pointwise_fusion import fuse_pointwise
from tests.graph.nets import Net, changed

IMAGES, AXES = (2, 3, 4, 5), (0, 2, 3)
MEAN, SUM = Reduce("mean", AXES, True), Reduce("sum", AXES, True)
VARIANCE, PRODUCT = Reduce("mean", AXES, True, SQUARES), Reduce("sum", AXES, True, PRODUCTS)
COLUMNS, COLUMN_PRODUCT = Reduce("sum", (0,)), Reduce("sum", (0,), False, formula("a * b"))


def operators(graph: Graph, rng: Callable[..., np.ndarray], pays: bool = True) -> tuple[int, int]:
    """The ChannelSums and reductions after the pass, which must give the same results.

    pays: what the pass is told.
    """

    def change(graph: Graph, types: dict[Value, TensorType]) -> Graph:
        return fuse_channel_sums(graph, types, lambda *_: pays)

    kinds = [type(node.operator) for node in changed(graph, change, rng).nodes]
    return kinds.count(ChannelSums), kinds.count(Reduce)


def image(net: Net, name: str, shape: tuple[int, ...] = IMAGES) -> Value:
    return net.builder.input(name, TensorType(shape))


@pytest.mark.parametrize("pays", [True, False])
def test_a_mean_and_a_variance(pays, rng) -> None:
    net = Net(0)
    x = image(net, "x")
    mean = net(MEAN, x)
    graph = net.builder.graph([mean, net(VARIANCE, x, mean)])
    assert operators(graph, rng, pays) == ((1, 0) if pays else (0, 2))


def test_what_is_asked_is_what_is_made(rng) -> None:
    """A mean is a vector of channels, as ChannelSums takes it."""
    net = Net(0)
    given = image(net, "dy"), image(net, "x"), image(net, "mean", (1, 3, 1, 1))
    asked = []

    def is_profitable(operator: Operator, types: Mapping[str, TensorType]) -> bool:
        asked.append({name: type.shape for name, type in types.items()})
        return True

    changed(
        net.builder.graph(gradient(net, *given)),
        lambda graph, types: fuse_channel_sums(graph, types, is_profitable),
        rng,
    )
    assert asked == [{"x": IMAGES, "dy": IMAGES, "mean": (3,)}]


def test_other_work_on_the_same_images(rng) -> None:
    net = Net(0)
    x = image(net, "x")
    others = [net.of("exp(a)", x), net(VARIANCE, x, image(net, "m", (1, 3, 1, 1)))]
    mean = net(MEAN, x)
    graph = net.builder.graph([*others, mean, net(VARIANCE, x, mean)])
    assert operators(graph, rng) == (1, 1)


def test_images_of_five_dimensions_stay(rng) -> None:
    net = Net(0)
    x = image(net, "x", (2, 3, 4, 5, 6))
    mean = net(MEAN, x)
    assert operators(net.builder.graph([mean, net(VARIANCE, x, mean)]), rng) == (0, 2)


def test_a_variance_about_another_mean(rng) -> None:
    net = Net(0)
    x, y = image(net, "x"), image(net, "y")
    means = [net(MEAN, one) for one in (x, y)]
    graph = net.builder.graph([*means, net(VARIANCE, x, means[1])])
    assert operators(graph, rng) == (0, 3)


def test_a_variance_about_something_given(rng) -> None:
    net = Net(0)
    graph = net.builder.graph([net(VARIANCE, image(net, "x"), image(net, "m", (1, 3, 1, 1)))])
    assert operators(graph, rng) == (0, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SUM, VARIANCE),
        (MEAN, Reduce("sum", AXES, True, SQUARES)),
        (Reduce("mean", (0, 2), True), VARIANCE),
        (MEAN, Reduce("mean", (0, 2), True, SQUARES)),
        (Reduce("mean", (1, 2, 3), True), Reduce("mean", (1, 2, 3), True, SQUARES)),
    ],
)
def test_other_reductions_stay(first, second, rng) -> None:
    net = Net(0)
    x = image(net, "x")
    about = net(first, x)
    assert operators(net.builder.graph([about, net(second, x, about)]), rng) == (0, 2)


def test_images_of_three_dimensions_stay(rng) -> None:
    net = Net(0)
    x = image(net, "x", (2, 3, 4))
    mean = net(Reduce("mean", (0, 2), True), x)
    second = net(Reduce("mean", (0, 2), True, SQUARES), x, mean)
    assert operators(net.builder.graph([mean, second]), rng) == (0, 2)


@pytest.mark.parametrize("which", [0, 1])
def test_what_follows_a_reduction_is_done(which, rng) -> None:
    """Also where it is the reduction's epilogue."""
    net = Net(0)
    dy, x, mean = image(net, "dy"), image(net, "x"), image(net, "mean", (1, 3, 1, 1))
    results = gradient(net, dy, x, mean)
    results[which] = net.of("a * b", results[which], net.fixed(3, 1, 1))

    def change(graph: Graph, types: dict[Value, TensorType]) -> Graph:
        return fuse_channel_sums(fuse_pointwise(graph, types, 8), types, lambda *_: True)

    changed(net.builder.graph(results), change, rng)


def gradient(net: Net, dy: Value, x: Value, mean: Value) -> list[Value]:
    return [net(SUM, dy), net(PRODUCT, dy, x, mean)]


def test_sums_of_a_gradient(rng) -> None:
    net = Net(0)
    given = image(net, "dy"), image(net, "x"), image(net, "mean", (1, 3, 1, 1))
    assert operators(net.builder.graph(gradient(net, *given)), rng) == (1, 0)


def test_a_product_may_come_before_the_sum(rng) -> None:
    net = Net(0)
    dy, x, mean = image(net, "dy"), image(net, "x"), image(net, "mean", (1, 3, 1, 1))
    graph = net.builder.graph([net(PRODUCT, dy, x, mean), net(SUM, dy)])
    assert operators(graph, rng) == (1, 0)


def test_a_gradient_whose_sum_is_there(rng) -> None:
    """As of two normalisations: the second product has its own ChannelSums."""
    net = Net(0)
    dy, mean = image(net, "dy"), image(net, "mean", (1, 3, 1, 1))
    first, second = image(net, "x"), image(net, "y")
    results = [*gradient(net, dy, first, mean), net(PRODUCT, dy, second, mean)]
    assert operators(net.builder.graph(results), rng) == (2, 0)


@pytest.mark.parametrize("place", ["x", "mean"])
def test_a_product_that_needs_the_sum(place, rng) -> None:
    """The sum cannot be computed with what is made of it."""
    net = Net(0)
    dy, x, mean = image(net, "dy"), image(net, "x"), image(net, "mean", (1, 3, 1, 1))
    total = net(SUM, dy)
    if place == "x":
        x = net.of("a + b", x, total)
    else:
        mean = net.of("a * b", mean, total)
    assert operators(net.builder.graph([total, net(PRODUCT, dy, x, mean)]), rng) == (1, 1)


@pytest.mark.parametrize(
    ("x", "mean"),
    [
        ((1, 3, 1, 1), (1, 3, 1, 1)),
        ((2, 3, 4, 1), (1, 3, 1, 1)),
        (IMAGES, (1, 1, 1, 1)),
        (IMAGES, IMAGES),
    ],
)
def test_operands_that_broadcast_stay(x, mean, rng) -> None:
    net = Net(0)
    given = image(net, "dy"), image(net, "x", x), image(net, "mean", mean)
    assert operators(net.builder.graph(gradient(net, *given)), rng) == (0, 2)


def test_a_variance_about_a_number_of_each_image_stays(rng) -> None:
    net = Net(0)
    x = image(net, "x")
    mean = net(MEAN, x)
    results = [mean, net(VARIANCE, x, image(net, "m", (2, 3, 1, 1)))]
    assert operators(net.builder.graph(results), rng) == (0, 2)


def test_whole_numbers_stay() -> None:
    net = Net(0)
    dy, x = (net.builder.input(n, TensorType(IMAGES, DType.int32)) for n in ("dy", "x"))
    mean = net.builder.input("mean", TensorType((1, 3, 1, 1), DType.int32))
    graph = net.builder.graph(gradient(net, dy, x, mean))
    types = dict(graph.infer_types({v.name: v.type for v in graph.inputs}))
    assert fuse_channel_sums(graph, types, lambda *_: True).nodes == graph.nodes


def test_sums_of_columns(rng) -> None:
    net = Net(0)
    dy, x = image(net, "dy", (7, 5)), image(net, "x", (7, 5))
    results = [net(COLUMNS, dy), net(COLUMN_PRODUCT, dy, x)]
    assert operators(net.builder.graph(results), rng) == (1, 0)


def test_a_product_of_columns_alone_stays(rng) -> None:
    net = Net(0)
    dy, x = image(net, "dy", (7, 5)), image(net, "x", (7, 5))
    assert operators(net.builder.graph([net(COLUMN_PRODUCT, dy, x), net(COLUMNS, x)]), rng) == (
        0,
        2,
    )


def test_a_product_of_columns_that_needs_their_sum(rng) -> None:
    net = Net(0)
    dy, x = image(net, "dy", (7, 5)), image(net, "x", (7, 5))
    total = net(COLUMNS, dy)
    results = [total, net(COLUMN_PRODUCT, dy, net.of("a + b", x, total))]
    assert operators(net.builder.graph(results), rng) == (0, 2)


@pytest.mark.parametrize(("dy", "x"), [((7, 5, 3), (7, 5, 3)), ((7, 5), (1, 5)), ((7, 5), (7, 1))])
def test_other_than_two_matrices_stay(dy, x, rng) -> None:
    net = Net(0)
    first, second = image(net, "dy", dy), image(net, "x", x)
    results = [net(COLUMNS, first), net(COLUMN_PRODUCT, first, second)]
    assert operators(net.builder.graph(results), rng) == (0, 2)
