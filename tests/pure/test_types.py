"""Types of numbers and tensors."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import narrowed
from glnn.errors import ShapeError


def test_int64_is_narrowed_where_int32_holds_it() -> None:
    x = np.array([[-(2**31), 2**31 - 1, 0]])
    got = narrowed("x", x)
    assert got.dtype == np.int32 and got.tolist() == x.tolist()
    for other in (np.zeros(2, np.float32), np.zeros(2, np.uint8)):
        assert narrowed("x", other) is other
    assert narrowed("x", np.zeros((0, 3), np.int64)).shape == (0, 3)


def test_a_number_that_int32_does_not_hold_is_named() -> None:
    x = np.zeros((2, 3), np.int64)
    x[1, 2], x[1, 1] = 2**40, -(2**31) - 1
    expected = r"ids must have int64 numbers from .*, got -2147483649 at \[1, 1\]"
    with pytest.raises(ShapeError, match=expected):
        narrowed("ids", x)
