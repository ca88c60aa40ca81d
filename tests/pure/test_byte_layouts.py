"""Rows of bytes that begin on sixteens, and tiles of bytes: where each number lies."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.core.layout.layout import PACKED
from glnn.core.types import DType, TensorType
from glnn.errors import LayoutError

SHAPES = [(2, 1, 1), (2, 3, 5), (2, 4, 16), (1, 7, 67), (3, 5, 9), (2, 0, 5), (2, 3, 0)]


@pytest.mark.parametrize("name", ["packed16", "packed 1x8", "packed 2x8", "packed 3x4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_is_at_its_place(name, shape) -> None:
    layout = parse(name)
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    flat = layout.pack(x)
    assert flat.dtype == np.int8 and flat.size == layout.size(shape)
    assert layout.words(TensorType(shape, DType.int8)) * 4 == flat.size
    np.testing.assert_array_equal(layout.unpack(flat, shape), x)
    for index in np.ndindex(*shape):
        dims = layout.dims(shape)
        assert flat[sum(index[d.axis] // d.step % d.extent * d.stride for d in dims)] == x[index]


def test_rows_of_sixteens_are_packed() -> None:
    assert parse("packed16").simplify((3, 32)) == PACKED
    assert parse("packed16").simplify((3, 31)) == parse("packed16")
    assert parse("packed16").pack(np.ones((2, 3), np.uint8)).tolist() == 2 * [*3 * [1], *13 * [0]]


def test_a_single_number() -> None:
    x = np.array(7, np.uint8)
    flat = parse("packed16").pack(x)
    assert flat.tolist() == [7, *15 * [0]] and parse("packed16").unpack(flat, ()) == x


def test_tiles_by_hand() -> None:
    """Two images of 2 x 5 in tiles of 2 x 4: of the first four columns both, then of the last."""
    x = np.arange(1, 21, dtype=np.uint8).reshape(2, 2, 5)
    first = [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19]
    last = [5, 0, 0, 0, 10, 0, 0, 0, 15, 0, 0, 0, 20, 0, 0, 0]
    assert parse("packed 2x4").pack(x).tolist() == first + last


@pytest.mark.parametrize("name", ["packed 0x8", "packed 1x6", "packed 2x0", "packed16x2"])
def test_what_is_no_layout(name) -> None:
    with pytest.raises(LayoutError, match=name):
        parse(name)


def test_tiles_are_of_images() -> None:
    with pytest.raises(LayoutError, match=r"packed 2x8 takes arrays of 3 dimensions, got shape"):
        parse("packed 2x8").size((3, 4))
