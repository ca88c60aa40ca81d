"""Hybrid Morton Order, against the recursion of Rovder 2017, section 8.2, and against pictures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glnn.core.layout import Morton, parse
from glnn.errors import LayoutError

LAYOUTS = ["C", "R 2 4 R", "C 4 2 C", "R 4 4 R", "C 4 4 C", "R 4 4 R 2 2 R", "C 8 4 R 4 2 C 2 1 R"]
SIZES = st.integers(1, 13)


def by_recursion(levels, row, column):
    """levels: [(rows, columns, base), ...]; the base case is 0 (the report prints 1)."""
    rows, columns, base = levels[0]
    high, wide = levels[1][:2] if len(levels) > 1 else (1, 1)
    down, across = row // high, column // wide
    steps = {"R": down * (columns // wide) + across, "C": across * (rows // high) + down}
    chunk = steps[base]
    if len(levels) == 1:
        return chunk
    return chunk * high * wide + by_recursion(levels[1:], row % high, column % wide)


@pytest.mark.parametrize("text", LAYOUTS)
@given(rows=SIZES, columns=SIZES)
def test_elements_are_where_the_recursion_says(text, rows, columns) -> None:
    layout = parse(text)
    assert isinstance(layout, Morton)
    x = np.arange(1, 1 + rows * columns, dtype=np.float32).reshape(rows, columns)
    flat = layout.pack(x)
    high, wide = layout.padded((rows, columns))
    levels = [(high, wide, layout.bases[0])]
    levels += [(y, z, b) for (y, z), b in zip(layout.chunks, layout.bases[1:], strict=True)]
    expected = np.zeros(high * wide, np.float32)
    for i in range(rows):
        for j in range(columns):
            place = by_recursion(levels, i, j)
            expected[place] = x[i, j]
            assert layout.index((rows, columns), i, j) == place
    np.testing.assert_array_equal(flat, expected)
    np.testing.assert_array_equal(layout.unpack(flat, x.shape), x)


def test_pictures() -> None:
    def order(text: str, rows: int, columns: int) -> list[list[int]]:
        grid = np.indices((rows, columns))
        return parse(text).index((rows, columns), *grid).tolist()

    assert order("C 4 2 C", 4, 4) == [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
    ]
    assert order("R 2 4 R", 4, 4) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    assert order("R 2 2 R", 4, 4) == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]
    z_order = order("R 4 4 R 2 2 R", 8, 8)  # true Z-Morton of 8 x 8: interleaved bits
    for i in range(8):
        for j in range(8):
            bits = sum(((i >> b & 1) << 2 * b + 1) | ((j >> b & 1) << 2 * b) for b in range(3))
            assert z_order[i][j] == bits


def test_underscores_are_blanks() -> None:
    assert parse("C_4_4_C") == parse("C 4 4 C")


@pytest.mark.parametrize("text", ["C 4", "C 4 2", "X 4 2 C", "C 0 2 C", "C 4 2 C 3 1 R", "R R"])
def test_malformed(text) -> None:
    with pytest.raises(LayoutError, match="layout"):
        parse(text)


def test_only_matrices() -> None:
    with pytest.raises(LayoutError, match="is for matrices"):
        parse("C 4 2 C").pack(np.zeros(2, np.float32))


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_stack_is_one_matrix_behind_the_other(text) -> None:
    layout = parse(text)
    x = np.arange(1, 1 + 2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)
    flat = layout.pack(x)
    np.testing.assert_array_equal(flat, np.concatenate([layout.pack(x[0]), layout.pack(x[1])]))
    assert flat.size == layout.size(x.shape)
    np.testing.assert_array_equal(layout.unpack(flat, x.shape), x)
