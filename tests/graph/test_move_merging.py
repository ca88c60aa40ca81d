"""Moves become one, but for images of which several readers take some channels where they lie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.core.types import TensorType
from glnn.graph.builder import constant
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Flatten, Gather, Slice, Transpose, Unflatten
from glnn.graph.operators.move import Move, Rearrange
from glnn.graph.passes.move_merging import merge_moves
from tests.graph.nets import Net, changed

Cut = tuple[int, int, int, int]
"""Start, end, axis and step of a slice."""


def moves(rng: Callable[..., np.ndarray], *cuts: Cut, rank: int = 4, subviews: bool = True) -> int:
    """Moves that are left of a transposition and such slices of it, which others read."""

    def merged(graph: Graph, types: dict[Value, TensorType]) -> Graph:
        return merge_moves(graph, types, subviews=subviews)

    net = Net(0)
    x = net.builder.input("x", TensorType((2, 6, 16, 6, 2)[:rank]))
    order = (0, 2, 1, *range(3, rank))
    turned = net(Transpose(order), x)
    slices = [net(Slice((a,), (b,), (axis,), (step,)), turned) for a, b, axis, step in cuts]
    graph = net.builder.graph([net.of("exp(a)", one) for one in slices])
    return sum(isinstance(node.operator, Move) for node in changed(graph, merged, rng).nodes)


@pytest.mark.parametrize("axis", [1, -3])
def test_channels_that_several_read(axis, rng) -> None:
    """The images are made once, where kernels read them in place."""
    cuts = (0, 8, axis, 1), (8, 16, axis, 1)
    assert moves(rng, *cuts) == 3
    assert moves(rng, *cuts, subviews=False) == 2


@pytest.mark.parametrize(
    "cuts",
    [
        [(0, 8, 1, 1)],  # one reader
        [(0, 8, 1, 1), (8, 16, 1, 2)],  # steps
        [(0, 8, 1, 1), (6, 16, 1, 1)],  # from no whole vec4 on
        [(0, 8, 1, 1), (0, 4, 2, 1)],  # rows
    ],
)
def test_each_reader_moves_what_it_takes(cuts, rng) -> None:
    assert moves(rng, *cuts) == len(cuts)


@pytest.mark.parametrize("rank", [3, 5])
def test_other_tensors_than_images(rank, rng) -> None:
    assert moves(rng, (0, 8, 1, 1), (8, 16, 1, 1), rank=rank) == 2


def test_views_behind_a_move_are_a_part_of_it(rng) -> None:
    """Pixels of channels, as a transposed convolution makes them of phases."""
    net = Net(0)
    x = net.builder.input("x", TensorType((2, 24, 5, 3)))
    apart = net(Unflatten(1, (2, 2, 6)), net.of("exp(a)", x))
    turned = net(Transpose((0, 3, 4, 1, 5, 2)), apart)
    image = net(Flatten(2, 3), net(Flatten(4, 5), turned))
    graph = net.builder.graph([net.of("exp(a)", image)])
    _, move, _ = changed(graph, merge_moves, rng).nodes
    assert isinstance(move.operator, Rearrange)


@pytest.mark.parametrize(
    ("index", "axis", "moves"),
    [
        ([0, 0, 1, 1, 2, 2], 2, 1),
        ([0, 1, 2], -1, 0),
        ([0, 0, 1, 2, 2, 2], 2, 0),
        ([0, 0, 1, 1], 3, 0),  # not all
        ([-3, -3, 1, 1, 2, 2], 2, 0),
    ],
)
def test_lookups_that_repeat_places(index, axis, moves, rng) -> None:
    net = Net(0)
    x = net.of("exp(a)", net.builder.input("x", TensorType((2, 4, 3, 3))))
    made = net(Gather(axis), x, constant(np.array(index, np.int32)))
    graph = changed(net.builder.graph([net.of("exp(a)", made)]), merge_moves, rng)
    found = [node.operator for node in graph.nodes]
    assert sum(isinstance(operator, Move) for operator in found) == moves
    assert sum(isinstance(operator, Gather) for operator in found) == 1 - moves
