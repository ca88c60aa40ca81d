"""Layered drawing of a directed graph, after Sugiyama, Tagawa and Toda 1981.

Edges go downwards. Nodes are assigned to layers by their longest paths; edges that span several
layers get bends in the layers between; the nodes and bends of a layer are ordered for few crossings
of edges, and then get coordinates.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

SWEEPS = 12  # downwards and upwards, of the order and of the coordinates
BEND_WEIGHT = 4.0  # of a long edge's bend, against a node's 1: straight edges matter more


@dataclass(frozen=True)
class LayeredLayout:
    """Coordinates of nodes and edges.

    x: the centre of each node across. layer: the number of its layer, from 0 at the top. bends: the
    layers and coordinates of each edge's bends, from the top. width: the width of the drawing.
    """

    x: Mapping[str, float]
    layer: Mapping[str, int]
    bends: Mapping[tuple[str, str], tuple[tuple[int, float], ...]]
    width: float


def arrange(
    nodes: Sequence[str],
    edges: Iterable[tuple[str, str]],
    *,
    width: float = 1.0,
    bend: float = 0.25,
) -> LayeredLayout:
    """Arrange an acyclic graph.

    Args:
        nodes: The names of the nodes, in the initial order of each layer.
        edges: Pairs of names, from the upper to the lower node; repeated ones count once.
        width: The width of a node, with its gap.
        bend: The width of an edge that passes between nodes.

    Raises:
        graphlib.CycleError: The graph has a cycle.
    """
    edges = [pair for pair in dict.fromkeys(edges) if pair[0] != pair[1]]
    layer = _layers(nodes, edges)
    drawing = _Drawing(width, bend)
    for name in nodes:
        drawing.add_node(name, layer[name], is_bend=False)
    chains: dict[tuple[str, str], list[int]] = {}
    for upper, lower in edges:
        inner_layers = range(layer[upper] + 1, layer[lower])
        chain = [drawing.add_node(None, inner, is_bend=True) for inner in inner_layers]
        chains[upper, lower] = chain
        for pair in pairwise([drawing.number[upper], *chain, drawing.number[lower]]):
            drawing.add_edge(*pair)
    drawing.reduce_crossings()
    centres = drawing.place()
    halves = [drawing.size(i) / 2 for i in range(len(centres))]
    start = min((x - half for x, half in zip(centres, halves, strict=True)), default=0.0)
    end = max((x + half for x, half in zip(centres, halves, strict=True)), default=0.0)
    x = {name: centres[number] - start for name, number in drawing.number.items()}
    bends = {
        pair: tuple((drawing.layer[i], centres[i] - start) for i in chain)
        for pair, chain in chains.items()
    }
    return LayeredLayout(x, layer, bends, end - start)


def _layers(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each node: one below its lowest producer.

    A node at the end of a chain of nodes with one consumer each, or without producers, moves down
    to the layer above its first consumer.
    """
    above: dict[str, list[str]] = {name: [] for name in nodes}
    below: dict[str, list[str]] = {name: [] for name in nodes}
    for upper, lower in edges:
        above[lower].append(upper)
        below[upper].append(lower)
    layer: dict[str, int] = {}
    is_free: dict[str, bool] = {}
    order = tuple(TopologicalSorter(above).static_order())
    for name in order:
        layer[name] = max((layer[one] + 1 for one in above[name]), default=0)
        is_free[name] = all(is_free[one] and len(below[one]) == 1 for one in above[name])
    for name in reversed(order):
        if is_free[name] and below[name]:
            layer[name] = min(layer[one] for one in below[name]) - 1
    return layer


@dataclass
class _Drawing:
    """Nodes and bends by number, in ordered layers, with edges between neighbouring layers."""

    width: float
    bend: float
    number: dict[str, int] = field(default_factory=dict)
    layer: list[int] = field(default_factory=list)
    is_bend: list[bool] = field(default_factory=list)
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)

    def add_node(self, name: str | None, layer: int, *, is_bend: bool) -> int:
        """Add a node, or a bend without a name, to a layer; return its number."""
        number = len(self.layer)
        if name is not None:
            self.number[name] = number
        self.layer.append(layer)
        self.is_bend.append(is_bend)
        self.above.append([])
        self.below.append([])
        while len(self.rows) <= layer:
            self.rows.append([])
        self.rows[layer].append(number)
        return number

    def add_edge(self, upper: int, lower: int) -> None:
        """Connect two nodes or bends of neighbouring layers."""
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def size(self, number: int) -> float:
        """Return the width of a node or bend."""
        return self.bend if self.is_bend[number] else self.width

    def reduce_crossings(self) -> None:
        """Sort each layer by the mean position of its neighbours, downwards and upwards in turn.

        The order with the fewest crossings is kept.
        """
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                self._sort(row, neighbours)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _sort(self, row: list[int], neighbours: Sequence[Sequence[int]]) -> None:
        position = {
            number: i
            for layer in {self.layer[n] for i in row for n in neighbours[i]}
            for i, number in enumerate(self.rows[layer])
        }
        key = {
            number: sum(position[n] for n in neighbours[number]) / len(neighbours[number])
            if neighbours[number]
            else float(i)
            for i, number in enumerate(row)
        }
        row.sort(key=key.__getitem__)

    def _crossings(self) -> int:
        """Count the crossings of edges between all neighbouring layers."""
        position = {number: i for row in self.rows for i, number in enumerate(row)}
        count = 0
        for row in self.rows:
            left_ends: list[int] = []  # lower ends of the edges further left, sorted
            for upper in row:
                ends = [position[n] for n in self.below[upper]]
                count += sum(len(left_ends) - bisect_right(left_ends, end) for end in ends)
                for end in ends:
                    insort(left_ends, end)
        return count

    def place(self) -> list[float]:
        """Return the centre of each across: near its neighbours, without overlaps."""
        x = [0.0] * len(self.layer)
        for row in self.rows:
            end = 0.0
            for number in row:
                end += self.size(number) / 2
                x[number] = end
                end += self.size(number) / 2
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                targets = []
                for number in row:
                    near = (self.above if down else self.below)[number]
                    near = near or (self.below if down else self.above)[number]
                    targets.append(sum(x[n] for n in near) / len(near) if near else x[number])
                for number, centre in zip(row, self._separate(row, targets), strict=True):
                    x[number] = centre
        return x

    def _separate(self, row: Sequence[int], targets: Sequence[float]) -> list[float]:
        """Return the centres nearest to the targets, by least squares, without overlaps.

        Isotonic regression by pooling: neighbours that would overlap become one block at their
        weighted mean.
        """
        offsets, offset = [], 0.0
        for previous, number in zip([None, *row], row):
            offset += 0.0 if previous is None else (self.size(previous) + self.size(number)) / 2
            offsets.append(offset)
        blocks: list[tuple[float, float, int]] = []  # weight, mean, and number of members
        for number, offset, target in zip(row, offsets, targets, strict=True):
            weight, mean, count = BEND_WEIGHT if self.is_bend[number] else 1.0, target - offset, 1
            while blocks and blocks[-1][1] > mean:
                block_weight, block_mean, block_count = blocks.pop()
                total = weight + block_weight
                mean = (weight * mean + block_weight * block_mean) / total
                weight, count = total, count + block_count
            blocks.append((weight, mean, count))
        means = [mean for _, mean, count in blocks for _ in range(count)]
        return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
