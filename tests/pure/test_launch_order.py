"""The order of launches and of nodes where those that do not wait for one another come together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from glnn.backends.launch import FlushPolicy, GlLaunch, MemoryAccess, order_by_level
from glnn.compiler.lower import updates_last
from glnn.core.types import TensorType
from glnn.gl.command_encoder import END, AccessLog, CommandEncoder
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Matmul, Pointwise, Transpose


class Fake(GlLaunch):
    """A launch that only says what it reads and writes."""

    def __init__(self, reads: set[int], writes: set[int]) -> None:
        self.reads, self.writes = frozenset(reads), frozenset(writes)

    @property
    def memory_access(self) -> MemoryAccess:
        reads, writes = ({(name, 0, END) for name in some} for some in (self.reads, self.writes))
        return MemoryAccess(frozenset(reads), frozenset(writes))

    def uniform_sets(self) -> tuple[()]:
        return ()

    def record(self, encoder: CommandEncoder, flush_policy: FlushPolicy) -> None:
        raise NotImplementedError

    def waits(self, other: Fake) -> bool:
        """Whether `other`, which was asked for before, must be over."""
        return bool(other.writes & (self.reads | self.writes) or other.reads & self.writes)


def test_launches_that_do_not_wait_for_one_another_come_together() -> None:
    a, b = Fake({0}, {1}), Fake({1}, {2})
    c, d = Fake({0}, {3}), Fake({3}, {4})
    assert order_by_level([a, b, c, d]) == [a, c, b, d]


def test_what_writes_comes_behind_what_read() -> None:
    a, b, c = Fake({0}, {1}), Fake({1}, {2}), Fake(set(), {1})
    assert order_by_level([a, b, c]) == [a, b, c]


def test_parts_of_a_buffer_are_told_apart() -> None:
    marks = AccessLog()
    marks.mark((7, 256, 512), 3)
    marks.mark((7, 512, END), 5)
    marks.mark((7, 256, 512), 1)  # less than it has
    assert [marks.latest((7, *ends)) for ends in ((0, 256), (0, 257), (511, 512), (511, 513))] == [
        *(-1, 3, 3, 5)
    ]
    assert marks.latest((7, 0, END)) == 5 and marks.latest((8, 0, END)) == -1
    marks.clear()
    assert marks.latest((7, 0, END)) == -1


def test_nothing_passes_what_is_unknown() -> None:
    a, b = Fake({0}, {1}), Fake({5}, {6})

    def host() -> None:
        pass

    assert order_by_level([a, host, b]) == [a, host, b]


@pytest.mark.parametrize("seed", range(20))
def test_each_launch_stays_behind_those_that_it_waits_for(seed: int) -> None:
    random = np.random.default_rng(seed)
    launches = [
        Fake(set(random.integers(0, 9, 3).tolist()), set(random.integers(0, 9, 1).tolist()))
        for _ in range(30)
    ]
    found = order_by_level(launches)
    assert sorted(map(id, found)) == sorted(map(id, launches))
    places = {id(launch): i for i, launch in enumerate(found)}
    for i, late in enumerate(launches):
        for early in launches[:i]:
            if late.waits(early):
                assert places[id(early)] < places[id(late)]


def barriers(launches: list[Fake]) -> int:
    """How often one waits for another since the last time."""
    count, open = 0, list[Fake]()
    for launch in launches:
        if any(launch.waits(other) for other in open):
            count, open = count + 1, []
        open.append(launch)
    return count


def test_there_are_fewer_barriers() -> None:
    """Four chains of three launches each, one chain after the other."""
    launches = [Fake({10 * i + j}, {10 * i + j + 1}) for i in range(4) for j in range(3)]
    assert barriers(launches) == 8
    assert barriers([one for one in order_by_level(launches) if isinstance(one, Fake)]) == 2


def graph() -> Graph:
    """w' = w - w read by one product turned and by one as it is, in the worst order."""
    builder = Builder()
    w, x = (builder.input(name, TensorType((4, 4))) for name in "wx")
    (new,) = builder.add(Pointwise(call("sub", Arg(0), 1.0)), w, name="new")
    (turned,) = builder.add(Transpose((1, 0)), w, name="turned")
    (first,) = builder.add(Matmul(), x, turned, name="first")
    (second,) = builder.add(Matmul(), first, w, name="second")
    return builder.graph([new, second])


def test_an_update_comes_behind_all_that_read_the_state() -> None:
    names = [node.name for node in updates_last(graph(), {"w": "new"}).nodes]
    assert names == ["turned", "first", "second", "new"]
    assert updates_last(graph(), {}).nodes[0].name == "new"


def test_nodes_stay_behind_what_they_read() -> None:
    builder = Builder()
    given = [builder.input(f"s{i}", TensorType((3,))) for i in range(5)]
    values: list[Value] = list(given)
    random = np.random.default_rng(0)
    for i in range(40):
        reads = (values[j] for j in random.integers(0, len(values), 2))
        values += builder.add(Pointwise(call("add", Arg(0), Arg(1))), *reads, name=f"n{i}")
    updates = {f"s{i}": f"n{35 + i}" for i in range(5)}
    ordered = updates_last(builder.graph(values[-5:]), updates)
    ends = {id(node): i for i, node in enumerate(ordered.nodes)}
    assert len(ends) == 40

    def place(node: Node) -> int:
        return ends[id(node)]

    for node in ordered.nodes:
        for value in node.reads:
            if value in ordered.producers:
                assert place(ordered.producers[value]) < place(node)
    assert all(a is not b for a, b in pairwise(ordered.nodes))
