"""Slices that are concatenated to a roll or to neighbours side by side become one move."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from glnn.compiler import Executor
from glnn.core.types import TensorType
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Concat, Roll, Slice
from glnn.graph.operators.move import Move
from glnn.graph.passes import BackendTraits, optimize

SHAPE = (2, 6, 8, 5)
Cut = tuple[slice, ...]


def concatenated(axis: int, *cuts: Cut, nested: bool = False) -> Graph:
    """Slices of x behind one another. nested: each axis is sliced by a node of its own."""
    builder = Builder("net")
    x = builder.input("x", TensorType(SHAPE))

    def sliced(cut: Cut) -> Value:
        value = x
        walks = [one.indices(size) for one, size in zip(cut, SHAPE, strict=False)]
        walks = [(a, b if b >= 0 else -9, step) for a, b, step in walks]  # -1 is the last place
        groups = [[i] for i in range(len(cut))] if nested else [list(range(len(cut)))]
        for axes in groups:
            starts, ends, steps = zip(*(walks[i] for i in axes), strict=True)
            (value,) = builder.add(Slice(starts, ends, tuple(axes), steps), value, name="cut")
        return value

    pieces = [sliced(cut) for cut in cuts]
    return builder.graph(builder.add(Concat(axis), *pieces, name="joined"))


def by_numpy(x: np.ndarray, axis: int, *cuts: Cut) -> np.ndarray:
    return np.concatenate([x[cut] for cut in cuts], axis)


def steps(graph: Graph) -> list[Move]:
    """The operators that a run computes, views aside."""
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    short = optimize(graph, types, BackendTraits(8))
    return [node.operator for node in short.nodes if not node.operator.view]


def whole(axis: int, cut: slice) -> Cut:
    return (*(slice(None),) * axis, cut)


def halves(*axes: int) -> list[Cut]:
    """Every second place of `axes`, the last of which varies slowest."""
    result = []
    for starts in product(range(2), repeat=len(axes)):
        cut = [slice(None)] * len(SHAPE)
        for axis, start in zip(axes, reversed(starts), strict=True):
            cut[axis] = slice(start, None, 2)
        result.append(tuple(cut))
    return result


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("start", [1, -1])
def test_a_roll_is_one_move(rng, axis: int, start: int) -> None:
    cuts = whole(axis, slice(start, None)), whole(axis, slice(None, start))
    graph = concatenated(axis, *cuts)
    (operator,) = steps(graph)
    assert isinstance(operator, Roll)
    x = rng(SHAPE)
    (got,) = Executor(graph, "compute").run({"x": x}).values()
    assert np.array_equal(got, by_numpy(x, axis, *cuts))


def test_rolls_of_several_axes_are_one_move(rng) -> None:
    builder = Builder("net")
    value = builder.input("x", TensorType(SHAPE))
    for axis, start in ((1, 3), (2, 5)):
        pieces = [
            builder.add(Slice((first,), (end,), (axis,), (1,)), value, name="cut")[0]
            for first, end in ((start, SHAPE[axis]), (0, start))
        ]
        (value,) = builder.add(Concat(axis), *pieces, name="rolled")
    graph = builder.graph([value])
    assert steps(graph) == [Roll((-3, -5), (1, 2))]
    x = rng(SHAPE)
    (got,) = Executor(graph, "compute").run({"x": x}).values()
    assert np.array_equal(got, np.roll(x, (-3, -5), (1, 2)))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("axes", [(1, 2), (2, 1), (1,), (2,), (0, 1, 2)], ids=str)
def test_neighbours_side_by_side_are_one_move(rng, axes: tuple[int, ...], nested: bool) -> None:
    graph = concatenated(3, *halves(*axes), nested=nested)
    assert len(steps(graph)) == (axes != (2,))  # whose rows are neighbours already
    x = rng(SHAPE)
    (got,) = Executor(graph, "compute").run({"x": x}).values()
    assert np.array_equal(got, by_numpy(x, 3, *halves(*axes)))


OTHERS: dict[str, Callable[[], tuple[int, list[Cut]]]] = {
    "overlapping": lambda: (1, [whole(1, slice(2, None)), whole(1, slice(None, 3))]),
    "with a gap": lambda: (1, [whole(1, slice(3, None)), whole(1, slice(None, 2))]),
    "of another axis": lambda: (0, [whole(1, slice(3, None)), whole(1, slice(None, 3))]),
    "backwards": lambda: (1, [whole(1, slice(3, None)), whole(1, slice(2, None, -1))]),
    "one twice": lambda: (3, [*halves(1, 2)[:3], halves(1, 2)[2]]),
    "in another order": lambda: (3, [halves(1, 2)[i] for i in (0, 3, 1, 2)]),
    "of columns": lambda: (3, [whole(3, slice(0, 4, 2)), whole(3, slice(1, 4, 2))]),
}


@pytest.mark.parametrize("of", OTHERS.values(), ids=list(OTHERS))
def test_what_is_neither_stays(rng, of) -> None:
    axis, cuts = of()
    graph = concatenated(axis, *cuts)
    assert any(isinstance(operator, Concat) for operator in steps(graph))
    x = rng(SHAPE)
    (got,) = Executor(graph, "compute").run({"x": x}).values()
    assert np.array_equal(got, by_numpy(x, axis, *cuts))
