"""How far a result is from what was expected, of numbers that would wrap and of bools."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.validation.comparison import quotient, relative_error, squares


def in_parts(got: np.ndarray, expected: np.ndarray) -> float:
    """The same, row by row."""
    sums = [squares(*rows) for rows in zip(got, expected, strict=True)]
    return quotient(sum(one for one, _ in sums), sum(one for _, one in sums))


@pytest.mark.parametrize("error", [relative_error, in_parts])
@pytest.mark.parametrize(
    ("dtype", "got", "expected"), [("uint8", 16, 32), ("int8", -112, 112), ("int32", 0, 1 << 16)]
)
def test_integers_do_not_wrap(error, dtype: str, got: int, expected: int) -> None:
    """Differences whose squares are 0 in the type itself."""
    arrays = (np.full((4, 3), n, dtype) for n in (got, expected))
    assert error(*arrays) == pytest.approx(abs(got - expected) / expected)


@pytest.mark.parametrize("error", [relative_error, in_parts])
def test_bools(error) -> None:
    expected = np.array([[True, True, False, True]])
    assert error(expected, expected) == 0
    assert error(np.array([[True, False, True, True]]), expected) == pytest.approx((2 / 3) ** 0.5)


@pytest.mark.parametrize("error", [relative_error, in_parts])
@pytest.mark.parametrize(
    ("got", "expected", "off"),
    [
        ([[1, np.nan], [np.inf, 2]], [[1, np.nan], [np.inf, 2]], 0),
        ([[1, np.nan], [np.inf, 2]], [[1, np.nan], [-np.inf, 2]], np.inf),
        ([[1, np.nan], [0, 2]], [[1, 1], [0, 2]], np.inf),
        ([[1e30, 3e30]], [[1e30, 1e30]], 2**0.5),  # whose squares float32 does not hold
        ([[3, 4]], [[0, 0]], 5),
    ],
)
def test_what_is_not_finite_and_what_is_large(error, got, expected, off) -> None:
    arrays = (np.array(numbers, np.float32) for numbers in (got, expected))
    assert error(*arrays) == pytest.approx(off)
