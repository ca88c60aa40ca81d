"""What few samples stand for: as many as one likes, over and over, in memory and in results."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Concat, Conv2d, Matmul, Pointwise, Reduce, Softmax
from glnn.graph.operators.conv2d_lowering import Im2row
from glnn.graph.operators.move import Transpose
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput
from glnn.validation.reference_case import AROUND, ENDS, MOST, STRETCHES, Pattern, compared_ranges

ADD = Pointwise(call("add", Arg(0), Arg(1)))
OPS = [
    (ADD, {"x0": (5, 3, 4), "x1": (5, 3, 4)}),
    (ADD, {"x0": (5, 3, 4), "x1": (1, 3, 4)}),
    (Softmax(), {"x": (5, 6)}),
    (Conv2d(padding=(1, 0, 1, 2)), {"x": (5, 3, 6, 7), "weight": (4, 3, 3, 2)}),
    (Concat(2), {"x0": (5, 3, 4), "x1": (5, 3, 2)}),
    (Reduce("mean", (1, -1)), {"x0": (5, 3, 4)}),
    (Reduce("sum", (1,), True, call("mul", Arg(0), Arg(1))), {"x0": (5, 3), "x1": (5, 1)}),
    (Reduce("max", (1,), True, call("mul", Arg(0), Arg(1))), {"x0": (5, 3), "x1": (3,)}),
    (Transpose((0, 3, 1, 2)), {"x": (5, 3, 4, 2)}),
    (Matmul(), {"x": (5, 6), "weight": (3, 6)}),
    (Matmul(), {"x": (20, 6), "weight": (4, 3, 6)}),
    (Im2row((3, 2), (2, 1)), {"x": (5, 3, 6, 7)}),
    (Im2row((3, 2), (2, 1)), {"x": (5, 3, 6, 7), "into": (60, 18)}),
    (WinogradInput(4, (1, 1, 1, 1)), {"x": (5, 3, 9, 6)}),
    (WinogradInput(2, (0, 1, 0, 0)), {"x": (5, 3, 9, 6)}),
    (WinogradOutput((5, 7, 9), 4), {"x": (36 * 5 * 2 * 3, 3)}),
    (WinogradOutput((5, 7, 9), 2), {"x": (16 * 5 * 4 * 5, 3), "into": (5, 3, 7, 9)}),
    (WinogradOutput((5, 7, 9), 4, mode="max"), {"x": (36 * 5 * 2 * 3, 3)}),
]


def over(few: np.ndarray, shape: tuple[int, ...], stacks: int) -> np.ndarray:
    """Each of so many runs of samples over and over, row by row."""
    have, want = len(few) // stacks, shape[0] // stacks
    rows = [few[run * have + row % have] for run in range(stacks) for row in range(want)]
    return np.stack(rows).reshape(shape)


@pytest.mark.parametrize(("op", "shapes"), OPS, ids=str)
def test_results_of_few_samples_are_those_of_many(rng, op, shapes) -> None:
    few = op.reduce_samples(shapes, 2)
    given = {name: rng(shape).astype("f8") for name, shape in few.shapes.items()}
    whole = {
        name: over(array, shapes[name], few.stacks[name]) if name in few.stacks else array
        for name, array in given.items()
    }
    expected = op.compute(whole)
    got = few.op.compute(given)
    assert len(got) < len(expected)
    np.testing.assert_allclose(over(got, expected.shape, few.stacks["out"]), expected, atol=1e-12)


def test_what_has_no_samples() -> None:
    part = WinogradInput(4, (1, 1, 1, 1), (3, 4))
    assert part.reduce_samples({"x": (5, 3, 9, 6)}, 2) is None
    assert Reduce("sum", (0,)).reduce_samples({"x0": (5, 3)}, 2) is None
    assert Concat(-2).reduce_samples({"x0": (5, 3), "x1": (4, 3)}, 2) is None
    assert Transpose((1, 0)).reduce_samples({"x": (5, 3)}, 2) is None


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (WinogradInput(4, (1, 1, 1, 1), (5, 13)), {"x": (5, 3, 9, 6)}),
        (WinogradOutput((5, 7, 9), 4, (5, 13)), {"x": (36 * 13, 3), "into": (5, 3, 7, 9)}),
    ],
    ids=str,
)
def test_as_much_as_a_part_does_undivided(op, shapes) -> None:
    """Of whole images, as few as have its thirteen tiles."""
    whole, own = op.whole_problem(shapes)
    assert whole.part is None
    before, after = op.sizes(shapes), whole.sizes(own)
    assert after["tiles"] >= before["tiles"] == 13
    assert after["n"] == -(-13 // (after["tiles_down"] * after["tiles_across"]))


LAYOUTS = [
    ("R", (11, 3, 5), (4, 3, 5)),
    ("R", (11,), (4,)),
    ("R4", (11, 3, 5), (4, 3, 5)),
    ("R4", (11, 7), (4, 7)),
    ("packed", (11, 5), (3, 5)),
    ("packed16", (11, 5), (3, 5)),
    ("nhwC4c", (11, 6, 2, 3), (4, 6, 2, 3)),
    ("nChw4c", (11, 6, 2, 3), (4, 6, 2, 3)),
    ("nhwC4c 4/16", (11, 6, 2, 3), (4, 6, 2, 3)),
    ("R4 4/16", (11, 6), (4, 6)),
    ("C", (11, 6), (4, 6)),
    ("C 4 2 C", (11, 6), (4, 6)),
    ("R 4 4 R 2 2 R", (11, 6), (4, 6)),
    ("R4", (11, 7), (11, 7)),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8], ids=lambda d: d.__name__)
@pytest.mark.parametrize(("name", "shape", "few"), LAYOUTS)
def test_how_samples_over_and_over_lie(name, shape, few, dtype) -> None:
    """Where they are runs of numbers, and where they are not; several runs behind one another."""
    for stacks in (1, 3) if name in ("R", "R4") and len(shape) > 1 else (1,):
        have, want = (stacks * few[0], *few[1:]), (stacks * shape[0], *shape[1:])
        array = np.arange(np.prod(have)).reshape(have).astype(dtype)
        lies = Pattern(parse(name), want, have, stacks)
        whole = over(array, want, stacks)
        stored = parse(name).pack(whole)
        own = parse(name).pack(np.ones(want, np.float32)) != 0
        assert lies.size <= len(stored) and not own[lies.size :].any()
        packed = lies.packed(array)
        got = np.concatenate(
            [lies.at(packed, i, min(i + 7, lies.size)) for i in range(0, lies.size, 7)]
        )
        np.testing.assert_array_equal(got[own[: lies.size]], stored[own])
        seen = (
            np.ones(lies.size, bool)
            if lies.element_mask is None
            else lies.at(lies.element_mask, 0, lies.size)
        )
        np.testing.assert_array_equal(seen, own[: lies.size])
        order = parse(name).pack(np.arange(np.prod(want), dtype=np.int32).reshape(want))
        for number in np.flatnonzero(own)[:: max(lies.size // 40, 1)]:
            assert np.ravel_multi_index(lies.element(int(number)), want) == order[number]


@pytest.mark.parametrize("size", [1, 1000, MOST])
def test_all_of_what_is_little_is_looked_at(size) -> None:
    assert compared_ranges(size) == [(0, size)]


@pytest.mark.parametrize("size", [MOST + 1, 12345679, 1 << 26, 64 * 64 * 224 * 224, 1 << 31])
def test_some_of_what_is_much_is_looked_at(size) -> None:
    found = compared_ranges(size)
    assert list(chain(*found)) == sorted(set(chain(*found))), "places meet, or lie crosswise"
    assert found[0][0] == 0 and found[0][1] >= ENDS
    assert found[-1][1] == size and found[-1][0] <= size - ENDS
    assert sum(last - first for first, last in found) <= min(size, MOST + (1 << 17))
    gaps = [other[0] - one[1] for one, other in pairwise(found)]
    assert max(gaps, default=0) < 2 * size / STRETCHES, "what is wrong may lie between"
    for power in (1 << i for i in range(2, 31)):
        around = (power - 1, power, min(power + AROUND, size) - 1)
        if power < size:
            assert all(any(first <= at < last for first, last in found) for at in around)
