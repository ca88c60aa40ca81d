from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glnn.core.layout import Morton, parse
from glnn.core.layout.layout import Blocked
from glnn.core.types import DType, TensorType
from glnn.errors import LayoutError
from glnn.graph.operators.reorder import packing, unpacking

SIZES = st.integers(1, 9)


def shapes(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[SIZES] * rank)


def counting(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("name", ["R", "R4", "packed"])
@given(shape=st.integers(0, 4).flatmap(shapes))
def test_rows_are_where_they_belong_and_the_rest_is_zero(name, shape) -> None:
    x, layout = counting(shape), parse(name)
    inner = 1  # places from one sample to the next
    for size in shape[1:]:
        inner *= size
    if name == "R4" and len(shape) > 1:
        inner = (inner + 3) // 4 * 4
    expected = np.zeros(((shape or (1,))[0] * inner + 3) // 4 * 4, np.float32)
    for index in np.ndindex(*shape):
        place, apart = 0, 1
        for i in reversed(range(1, len(shape))):
            place, apart = place + index[i] * apart, apart * shape[i]
        expected[place + (index[0] * inner if shape else 0)] = x[index]
    flat = layout.pack(x)
    np.testing.assert_array_equal(flat, expected)
    assert flat.size == layout.size(shape)
    np.testing.assert_array_equal(layout.unpack(flat, shape), x)
    for index in np.ndindex(*shape):
        place = sum(index[d.axis] * d.stride for d in layout.dims(shape))
        assert flat[place] == x[index]


@given(st.integers(0, 4).flatmap(shapes))
def test_rows_of_fours_need_no_padding(shape) -> None:
    """Where both layouts are the same memory, and only there, R4 is R."""
    x, same = counting(shape), parse("R4").simplify(shape) == parse("R")
    packed = parse("R").pack(x), parse("R4").pack(x)
    assert same == (packed[0].tolist() == packed[1].tolist())
    assert parse("R").simplify(shape) == parse("R")


def test_row_major_by_hand() -> None:
    assert parse("R").pack(counting((2, 3))).tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    assert parse("R4").pack(counting((2, 3))).tolist() == [1, 2, 3, 0, 4, 5, 6, 0]
    for name in ("R", "R4"):
        assert parse(name).pack(counting((5,))).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


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


PLACES = {  # where the element (a, b, y, z) of an array of shape (o, i, h, w) lies, by hand
    "oihw": lambda a, b, y, z, o, i, h, w: ((a * i + b) * h + y) * w + z,
    "hwio": lambda a, b, y, z, o, i, h, w: ((y * w + z) * i + b) * o + a,
    "Oihw4o": lambda a, b, y, z, o, i, h, w: (((a // 4 * i + b) * h + y) * w + z) * 4 + a % 4,
    "OIhw4i4o": lambda a, b, y, z, o, i, h, w: (
        (((a // 4 * -(-i // 4) + b // 4) * h + y) * w + z) * 16 + b % 4 * 4 + a % 4
    ),
    # o in blocks of 6, these as 2 threes with the two values of i between them
    "OIhw2o2i3o": lambda a, b, y, z, o, i, h, w: (
        (((a // 6 * -(-i // 2) + b // 2) * h + y) * w + z) * 12 + a % 6 // 3 * 6 + b % 2 * 3 + a % 3
    ),
}


@pytest.mark.parametrize("tag", PLACES)
@given(shapes(4))
def test_kernels_are_where_the_tag_says_and_the_rest_is_zero(tag, shape) -> None:
    x, layout = counting(shape), parse(tag)
    expected = np.zeros(layout.size(shape), np.float32)
    for index in np.ndindex(*shape):
        expected[PLACES[tag](*index, *shape)] = x[index]
    np.testing.assert_array_equal(layout.pack(x), expected)
    np.testing.assert_array_equal(layout.unpack(expected, shape), x)


@pytest.mark.parametrize("tag", ["R", "R4", "oi", "IO4i4o", "iO4o"])
def test_values_are_copied_as_float32_whatever_their_strides(tag) -> None:
    layout, x = parse(tag), np.arange(1, 16.0).reshape(5, 3).T
    flat = layout.pack(x)
    assert flat.dtype == np.float32 and flat.flags.c_contiguous
    got = layout.unpack(flat, (3, 5))
    np.testing.assert_array_equal(got, x)
    assert not np.shares_memory(got, flat)


@pytest.mark.parametrize("tag", ["R", "R4", "IO4i4o"])
def test_what_lies_in_the_padding_is_not_read(tag) -> None:
    layout, x = parse(tag), counting((3, 3))
    flat = layout.pack(x)
    flat[flat == 0] = np.nan
    np.testing.assert_array_equal(layout.unpack(flat, (3, 3)), x)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,), (2, 0, 3), ()])
def test_row_major_takes_empty_arrays_and_scalars(shape) -> None:
    layout, x = parse("R"), np.ones(shape, np.float32)
    assert layout.size(shape) == 4 * x.size  # 0, or one padded row
    assert layout.unpack(layout.pack(x), shape).shape == shape


def test_empty_blocks() -> None:
    x = np.zeros((0, 3, 2, 2), np.float32)
    assert parse("nChw4c").unpack(parse("nChw4c").pack(x), x.shape).shape == x.shape


@pytest.mark.parametrize(
    "text",
    ["", "4", "nChw", "nchw4c", "nChw0c", "xyz", "nC hw4c", "nChw4o", "NCHW4c", "nchww", "nChw4c4"],
)
def test_malformed(text) -> None:
    with pytest.raises(LayoutError, match="layout"):
        parse(text)


def test_wrong_rank_and_size() -> None:
    with pytest.raises(LayoutError, match="4 dimensions"):
        parse("nChw4c").pack(np.zeros((2, 2), np.float32))
    with pytest.raises(LayoutError, match="takes 8 floats, got 6"):
        parse("R").unpack(np.zeros(6, np.float32), (2, 3))
    with pytest.raises(LayoutError, match="takes 4 floats, got 8"):
        parse("nChw4c").unpack(np.zeros(8, np.float32), (1, 1, 1, 1))


@pytest.mark.parametrize("text", ["R", "C", "C 4 4 C", "nChw4c"])
def test_halves_take_half_a_word(text) -> None:
    layout = parse(text)
    shape = (2, 3, 5, 1) if text == "nChw4c" else (5, 3)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    stored = layout.pack(x)
    assert stored.dtype == np.float16 and stored.size == layout.size(shape)
    np.testing.assert_array_equal(stored, layout.pack(x.astype(np.float32)))
    np.testing.assert_array_equal(layout.unpack(stored, shape), x)
    floats, halves = TensorType(shape), TensorType(shape, DType.float16)
    assert 2 * layout.words(halves) == layout.words(floats) == layout.size(shape)


def test_an_odd_number_of_halves_takes_a_whole_last_word() -> None:
    assert parse("oihw").words(TensorType((1, 3, 3, 1), DType.float16)) == 5
    with pytest.raises(LayoutError):
        parse("R f16")


@pytest.mark.parametrize(
    ("tag", "shape"),
    [
        ("C", (3, 5, 7)),
        ("C 4 4 C", (1, 1, 1)),
        ("C 4 4 C", (2, 3, 5)),
        ("R 4 2 C 2 1 R", (2, 8, 4)),
        ("OIhw4i4o", (5, 7, 3, 2)),
        ("Oihw4o", (4, 1, 2, 2)),
    ],
)
def test_moves_pack_what_is_computed(tag, shape) -> None:
    """What a plan does where no kernel reorders: the result, row by row, is that memory."""
    layout = parse(tag)
    assert isinstance(layout, Morton | Blocked)
    stack = moved = counting(shape)
    for op in packing(shape, layout):
        (moved,) = op.reference(moved)
    np.testing.assert_array_equal(moved.reshape(-1), layout.pack(stack))
    stored, back = unpacking(shape, layout)
    moved = moved.reshape(stored)
    for op in back:
        (moved,) = op.reference(moved)
    np.testing.assert_array_equal(moved, stack)


@pytest.mark.parametrize("text", ["nhwC4c 0/12", "nhwC4c 8/20", "R4 4/16", "R4 0/8"])
@pytest.mark.parametrize("c", [1, 4, 7])
def test_a_strip_is_some_numbers_of_each_pixel(text, c) -> None:
    layout = parse(text)
    first, wide = (int(n) for n in text.split(" ")[1].split("/"))
    shape = (2, c, 3, 5) if text.startswith("n") else (6, c)
    x = counting(shape)
    pixels = x.transpose(0, 2, 3, 1).reshape(-1, c) if len(shape) == 4 else x
    expected = np.zeros((len(pixels), wide), np.float32)
    expected[:, first : first + c] = pixels
    flat = layout.pack(x)
    np.testing.assert_array_equal(flat, expected.reshape(-1))
    assert flat.size == layout.size(shape) == layout.words(TensorType(shape))
    np.testing.assert_array_equal(layout.unpack(flat, shape), x)
    for index in np.ndindex(*shape):
        places = ((d.axis, d.step, d.extent, d.stride) for d in layout.dims(shape))
        split = [index[axis] // step % extent * stride for axis, step, extent, stride in places]
        assert flat[layout.offset + sum(split)] == x[index]


def test_a_strip_fits_into_its_pixel() -> None:
    for text in ("nhwC4c 3/8", "nhwC4c 0/6", "R4 8/8"):
        with pytest.raises(LayoutError, match="multiples of 4"):
            parse(text)
    with pytest.raises(LayoutError, match="no room for 8"):
        parse("nhwC4c 4/8").size((1, 5, 2, 2))
    with pytest.raises(LayoutError):
        parse("nChw4c 0/8")
