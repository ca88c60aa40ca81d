"""How far a result is from what was expected, of numbers that would wrap and of bools."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.error import quotient, relative_error, squares


@pytest.mark.parametrize("error", [relative_error, repeated_error])
@pytest.mark.parametrize(
    ("dtype", "got", "expected"), [("uint8", 16, 32), ("int8", -112, 112), ("int32", 0, 1 << 16)]
)
def test_integers_do_not_wrap(error, dtype: str, got: int, expected: int) -> None:
    """Differences whose squares are 0 in the type itself."""
    arrays = (np.full((4, 3), n, dtype) for n in (got, expected))
    assert error(*arrays) == pytest.approx(abs(got - expected) / expected)


@pytest.mark.parametrize("error", [relative_error, repeated_error])
def test_bools(error) -> None:
    expected = np.array([[True, True, False, True]])
    assert error(expected, expected) == 0
    assert error(np.array([[True, False, True, True]]), expected) == pytest.approx((2 / 3) ** 0.5)
