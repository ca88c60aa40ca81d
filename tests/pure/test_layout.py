from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glnn.errors import LayoutError
from glnn.layout import parse

SIZES = st.integers(1, 9)


def shapes(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[SIZES] * rank)


def counting(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@given(st.integers(1, 4).flatmap(shapes))
def test_row_major_round_trip(shape) -> None:
    x = counting(shape)
    layout = parse("R")
    flat = layout.pack(x)
    assert flat.size == layout.size(shape)
    np.testing.assert_array_equal(layout.unpack(flat, shape), x)


def test_row_major_pads_every_row_to_four() -> None:
    flat = parse("R").pack(counting((2, 3)))
    assert flat.tolist() == [1, 2, 3, 0, 4, 5, 6, 0]
    assert parse("R").pack(counting((5,))).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@pytest.mark.parametrize(
    ("tag", "rank"), [("nChw4c", 4), ("Oihw4o", 4), ("OIhw4i4o", 4), ("oihw", 4), ("IO4i4o", 2)]
)
@given(data=st.data())
def test_blocked_round_trip(tag, rank, data) -> None:
    x = data.draw(
        shapes(rank).flatmap(lambda s: arrays(np.float32, s, elements=st.floats(width=32)))
    )
    layout = parse(tag)
    flat = layout.pack(x)
    assert flat.size == layout.size(x.shape)
    np.testing.assert_array_equal(layout.unpack(flat, x.shape), x)


@given(shapes(4))
def test_channels_by_four_are_where_the_tag_says(shape) -> None:
    n, c, h, w = shape
    x, flat = counting(shape), parse("nChw4c").pack(counting(shape))
    groups = -(-c // 4)
    expected = np.zeros(n * groups * h * w * 4, np.float32)
    for i in range(n):
        for j in range(c):
            for y in range(h):
                for z in range(w):
                    place = (((i * groups + j // 4) * h + y) * w + z) * 4 + j % 4
                    expected[place] = x[i, j, y, z]
    np.testing.assert_array_equal(flat, expected)


@given(shapes(2))
def test_tiles_of_weights_are_where_the_tag_says(shape) -> None:
    o, i = shape
    x, flat = counting(shape), parse("IO4i4o").pack(counting(shape))
    columns = -(-o // 4)
    expected = np.zeros(-(-i // 4) * columns * 16, np.float32)
    for a in range(o):
        for b in range(i):
            expected[((b // 4 * columns + a // 4) * 4 + b % 4) * 4 + a % 4] = x[a, b]
    np.testing.assert_array_equal(flat, expected)


@pytest.mark.parametrize("text", ["", "4", "nChw", "nchw4c", "nChw0c", "xyz", "nC hw4c", "nChw4o"])
def test_malformed(text) -> None:
    with pytest.raises(LayoutError, match="layout"):
        parse(text)


def test_wrong_rank_and_size() -> None:
    with pytest.raises(LayoutError, match="4 dimensions"):
        parse("nChw4c").pack(np.zeros((2, 2), np.float32))
    with pytest.raises(LayoutError, match="takes 8 floats, got 6"):
        parse("R").unpack(np.zeros(6, np.float32), (2, 3))
