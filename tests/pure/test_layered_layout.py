"""Layered drawings: edges go down, nothing lies upon another, few edges cross."""

from __future__ import annotations

from graphlib import CycleError
from itertools import combinations, pairwise

import numpy as np
import pytest

from glnn.core.layered_layout import LayeredLayout, arrange

WIDTH, BEND = 10.0, 1.0
Edges = list[tuple[str, str]]


def random_graph(seed: int, count: int = 60) -> tuple[list[str], Edges]:
    """Nodes, each of which reads one to three of those before it."""
    generator = np.random.default_rng(seed)
    nodes = [f"n{i}" for i in range(count)]
    edges = [
        (nodes[int(upper)], nodes[i])
        for i in range(3, count)
        for upper in generator.integers(max(0, i - 12), i, int(generator.integers(1, 4)))
    ]
    return nodes, edges


def taken(layout: LayeredLayout) -> list[tuple[int, float, float]]:
    """The layer, start and end of all that is drawn in layers."""
    boxes = [(layout.layer[n], x - WIDTH / 2, x + WIDTH / 2) for n, x in layout.x.items()]
    bends = [one for chain in layout.bends.values() for one in chain]
    return boxes + [(layer, x - BEND / 2, x + BEND / 2) for layer, x in bends]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_overlaps_and_edges_go_down(seed: int) -> None:
    nodes, edges = random_graph(seed)
    layout = arrange(nodes, edges, width=WIDTH, bend=BEND)
    assert set(layout.x) == set(nodes) and set(layout.bends) == set(edges)
    for (upper, lower), chain in layout.bends.items():
        layers = [layout.layer[upper], *(layer for layer, _ in chain), layout.layer[lower]]
        assert layers == list(range(layers[0], layers[-1] + 1)) and len(layers) > 1
    everything = taken(layout)
    assert min(start for _, start, _ in everything) == pytest.approx(0)
    assert max(end for _, _, end in everything) == pytest.approx(layout.width)
    for (one, start, end), (other, begin, stop) in combinations(everything, 2):
        assert one != other or start >= stop - 1e-6 or begin >= end - 1e-6


def test_a_chain_is_straight_and_a_ladder_is_uncrossed() -> None:
    chain = [f"c{i}" for i in range(5)]
    layout = arrange(chain, list(pairwise(chain)), width=WIDTH, bend=BEND)
    assert set(layout.x.values()) == {WIDTH / 2} and layout.width == WIDTH
    # Given in the opposite order, two chains that do not meet do not cross.
    nodes = ["top", "a1", "b1", "b2", "a2", "a3", "b3"]
    edges = [("top", "a1"), ("top", "b1"), ("a1", "a2"), ("b1", "b2"), ("a2", "a3"), ("b2", "b3")]
    layout = arrange(nodes, edges, width=WIDTH, bend=BEND)
    sides = {layout.x[f"a{i}"] < layout.x[f"b{i}"] for i in (1, 2, 3)}
    assert len(sides) == 1 and layout.x["top"] == pytest.approx(WIDTH)


def test_what_a_late_step_alone_reads_stands_above_it() -> None:
    nodes = ["x", "a", "b", "c", "weight", "copy"]
    edges = [("x", "a"), ("a", "b"), ("b", "c"), ("weight", "copy"), ("copy", "c")]
    layer = arrange(nodes, edges).layer
    assert layer == {"x": 0, "a": 1, "b": 2, "c": 3, "copy": 2, "weight": 1}


def test_graphs_without_edges_and_with_circles() -> None:
    assert arrange([], []).width == 0
    assert arrange(["a", "b"], [("a", "a")], width=WIDTH).width == 2 * WIDTH
    with pytest.raises(CycleError):
        arrange(["a", "b"], [("a", "b"), ("b", "a")])
