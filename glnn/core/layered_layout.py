"""Places for the nodes of a directed graph in layers, as in Sugiyama, Tagawa and Toda 1981.

Edges go downwards. Nodes get layers by their longest path, edges over several layers bend between
the nodes of each, an order in each layer that has few crossings, and then places across.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

SWEEPS = 12  # up and down, of the order and of the places
BEND_WEIGHT = 4.0  # of a long edge's bend: it is moved aside less readily than a node


@dataclass(frozen=True)
class LayeredLayout:
    """Places of nodes and edges.

    x: the centre of each node across. layer: the number of its layer, from 0 at the top. bends: the
    layers and places by which each edge goes between its nodes, from the top. width: of all.
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
    """Arrange a graph without circles.

    Args:
        nodes: The names of the nodes; those of a layer are first tried in this order.
        edges: Pairs of names, from the upper to the lower node; repeated ones count once.
        width: What a node takes across, the gap beside it included.
        bend: What an edge takes that passes between nodes.

    Raises:
        graphlib.CycleError: where there is a circle.
    """
    kept = [pair for pair in dict.fromkeys(edges) if pair[0] != pair[1]]
    layer = _layers(nodes, kept)
    drawing = _Drawing(width, bend)
    for name in nodes:
        drawing.add_node(name, layer[name], is_bend=False)
    chains: dict[tuple[str, str], list[int]] = {}
    for upper, lower in kept:
        inner = [
            drawing.add_node(None, at, is_bend=True) for at in range(layer[upper] + 1, layer[lower])
        ]
        chains[upper, lower] = inner
        for pair in pairwise([drawing.number[upper], *inner, drawing.number[lower]]):
            drawing.add_edge(*pair)
    drawing.reduce_crossings()
    places = drawing.place()
    start = min(
        (places[i] - drawing.size(i) / 2 for i in range(len(places))),
        default=0.0,
    )
    x = {name: places[number] - start for name, number in drawing.number.items()}
    bends = {
        pair: tuple((drawing.layer[i], places[i] - start) for i in inner)
        for pair, inner in chains.items()
    }
    end = max((places[i] + drawing.size(i) / 2 for i in range(len(places))), default=0.0)
    return LayeredLayout(x, layer, bends, end - start)


def _layers(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each node: one below its lowest producer.

    A node that only a chain of others leads to, or nothing, comes down to its first reader.
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
    """Nodes and bends by number, in ordered layers, each joined to those just above and below."""

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
        """Connect two of neighbouring layers."""
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def size(self, number: int) -> float:
        """Return what a node or bend takes across."""
        return self.bend if self.is_bend[number] else self.width

    def reduce_crossings(self) -> None:
        """Sort each layer by the mean place of its neighbours, downwards and upwards in turn.

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
        place = {
            number: at
            for one in {self.layer[n] for i in row for n in neighbours[i]}
            for at, number in enumerate(self.rows[one])
        }
        key = {
            number: sum(place[n] for n in neighbours[number]) / len(neighbours[number])
            if neighbours[number]
            else float(at)
            for at, number in enumerate(row)
        }
        row.sort(key=key.__getitem__)

    def _crossings(self) -> int:
        """Count the crossings of edges between all neighbouring layers."""
        place = {number: at for row in self.rows for at, number in enumerate(row)}
        count = 0
        for row in self.rows:
            ends: list[int] = []  # of the edges further left, sorted
            for upper in row:
                lower = [place[n] for n in self.below[upper]]
                count += sum(len(ends) - bisect_right(ends, end) for end in lower)
                for end in lower:
                    insort(ends, end)
        return count

    def place(self) -> list[float]:
        """Return the place of each across: near its neighbours, none upon another."""
        x = [0.0] * len(self.layer)
        for row in self.rows:
            at = 0.0
            for number in row:
                at += self.size(number) / 2
                x[number] = at
                at += self.size(number) / 2
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                targets = []
                for number in row:
                    near = (self.above if down else self.below)[number]
                    near = near or (self.below if down else self.above)[number]
                    targets.append(sum(x[n] for n in near) / len(near) if near else x[number])
                for number, to in zip(row, self._separate(row, targets), strict=True):
                    x[number] = to
        return x

    def _separate(self, row: Sequence[int], targets: Sequence[float]) -> list[float]:
        """Return the places nearest to the targets, by least squares, at which none overlap.

        By pooling: neighbours that would overlap become one block at their mean.
        """
        offsets, at = [], 0.0
        for before, number in zip([None, *row], row):
            at += 0.0 if before is None else (self.size(before) + self.size(number)) / 2
            offsets.append(at)
        blocks: list[tuple[float, float, int]] = []  # the weight, the mean, and how many
        for number, offset, to in zip(row, offsets, targets, strict=True):
            weight, mean, count = BEND_WEIGHT if self.is_bend[number] else 1.0, to - offset, 1
            while blocks and blocks[-1][1] > mean:
                other, former, more = blocks.pop()
                mean = (weight * mean + other * former) / (weight + other)
                weight, count = weight + other, count + more
            blocks.append((weight, mean, count))
        means = [mean for _, mean, count in blocks for _ in range(count)]
        return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
