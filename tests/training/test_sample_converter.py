"""Arrays of samples on their way to training steps."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.layers import Linear
from glnn.model import Model
from glnn.training import CrossEntropyLoss
from glnn.training.samples import SampleConverter


def fits(number: int, dtype: np.dtype) -> bool:
    """Return True where an integer is one of such a type."""
    return bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<i4", ">i4", "i2", "u1"])
def test_labels_are_looked_at_where_arrays_are_like_the_last(dtype) -> None:
    """Whatever the order of their bytes: the second batch of a kind is checked by a shorter way."""
    samples = SampleConverter(Model.sequential([Linear(4, 3)], (4,)), CrossEntropyLoss()).samples
    x, right = np.zeros((3, 4), np.float32), np.array([2, 0, 1], dtype)
    wrong = [n for n in (3, 127, -1, -128, 1 << 24, 1 << 56, -(1 << 56)) if fits(n, right.dtype)]
    for label in wrong:
        for _ in range(2):
            np.testing.assert_array_equal(samples(x, right).arrays["target"], [2, 0, 1])
        bad = right.copy()
        bad[1] = label
        with pytest.raises(ShapeError, match=f"got {label} at"):
            samples(x, bad)
