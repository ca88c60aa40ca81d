"""Operators that move numbers: their references, and that their maps say the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glnn.core.layout.layout import RowMajor
from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.index_map import Walk
from glnn.graph.operators.move import Expand, Flip, Move, Pad, Roll, Slice, Tile, Transpose
from glnn.kernels.codegen.move import strides
from tests.backends.test_move import CASES


def walked(walk: Walk, memory: np.ndarray, out: np.ndarray, value: float) -> None:
    """Go through `walk` place by place."""
    for place in product(*(range(leg.count) for leg in walk.legs)):
        source, target, inside = walk.base, walk.target, True
        for i, leg in zip(place, walk.legs, strict=True):
            target += i * leg.write
            if leg.extent is None:
                source += i * leg.read
                continue
            at = leg.first + i
            if walk.edge == "constant":
                inside = inside and 0 <= at < leg.extent
            elif walk.edge == "edge":
                at = min(max(at, 0), leg.extent - 1)
            elif walk.edge == "wrap":
                at %= leg.extent
            else:
                period = max(2 * leg.extent - 2, 1)
                at = min(at % period, period - at % period) if leg.extent > 1 else 0
            source += at * leg.read
        out[target] = memory[source] if inside else value


@pytest.mark.parametrize(
    ("op", "shape", "expected"), CASES, ids=lambda v: "" if callable(v) else str(v)
)
def test_the_map_says_what_the_reference_does(op: Move, shape, expected) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
    want = expected(x)
    (result,) = op.reference(x)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, want)
    assert op.infer([TensorType.from_array(x)]) == (TensorType(want.shape, DType.int32),)
    layout = RowMajor()
    walk = op.map(shape).walk(shape, strides(layout, shape), strides(layout, want.shape))
    out = np.full(layout.size(want.shape) + 1, -1, np.int32)
    if want.size:
        walked(walk, layout.pack(x), out, op.value)
    np.testing.assert_array_equal(layout.unpack(out[:-1], want.shape), want)
    if walk.quads is not None and want.size:
        quads = np.full((layout.size(want.shape) // 4, 4), -1, np.int32)
        walked(walk.quads, layout.pack(x).reshape(-1, 4), quads, op.value)
        np.testing.assert_array_equal(layout.unpack(quads.reshape(-1), want.shape), want)


def test_neighbours_that_walk_alike_become_one_loop() -> None:
    def legs(op: Move, *shape: int) -> int:
        dims = op.infer([TensorType(shape)])[0].shape
        return len(op.map(shape).walk(shape, _dense(shape), _dense(dims)).legs)

    assert legs(Transpose((0, 1, 2, 3)), 3, 4, 5, 6) == 1
    assert legs(Transpose((0, 3, 1, 2)), 3, 4, 5, 6) == 3
    assert legs(Transpose((2, 3, 0, 1)), 3, 4, 5, 6) == 2
    assert legs(Expand((7, 3, 4)), 3, 4) == 2
    assert legs(Pad((0, 1, 0, 0), (0, 1, 0, 0)), 3, 4, 5, 6) == 2
    assert legs(Slice((1,), (3,), (1,), (1,)), 3, 4, 5, 6) == 2
    assert legs(Tile((3, 1, 1)), 2, 4, 5) == 2


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


@pytest.mark.parametrize(
    ("op", "shape", "message"),
    [
        (Transpose((0, 0)), (2, 3), "perm .* does not name each of 2"),
        (Expand((2, 3)), (2, 2), "does not broadcast"),
        (Expand((3,)), (2, 3), "does not broadcast"),
        (Flip((2,)), (2, 3), "axes must name dimensions of 2"),
        (Pad((1,), (1,)), (2, 3), "a number for each dimension"),
        (Pad((-2,), (-2,)), (3,), "too few places"),
        (Pad((1,), (0,), "edge"), (0,), "too few places"),
        (Tile((2,)), (2, 3), "a number for each dimension"),
        (Slice((0,), (1,), (3,), (1,)), (2, 3), "axes must name"),
        (Roll((1,), (-3,)), (2, 3), "axes must name"),
        (Transpose(tuple(range(9))), (1,) * 9, "at most 8 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(op: Move, shape, message) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer([TensorType(shape)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Transpose((0, 1.0)),  # type: ignore[arg-type]
        lambda: Slice((0,), (1,), (0,), (0,)),
        lambda: Slice((0,), (1, 2), (0,), (1,)),
        lambda: Pad((0,), (1,), "mirror"),  # type: ignore[arg-type]
        lambda: Tile((-1,)),
        lambda: Roll((1, 2), (0,)),
    ],
)
def test_attributes_that_make_no_sense(make) -> None:
    with pytest.raises(ShapeError):
        make()


def test_symbols_stay_where_nothing_is_counted() -> None:
    x = TensorType(("n", 3, "w"))
    assert Transpose((2, 0, 1)).infer([x])[0].dims == ("w", "n", 3)
    assert Slice((1,), (3,), (1,), (1,)).infer([x])[0].dims == ("n", 2, "w")
    with pytest.raises(ShapeError, match=r"'w' of .* is not known yet"):
        Slice((1,), (3,), (2,), (1,)).infer([x])
