"""What runs look at of their inputs: types like the last run's, numbers that must lie within."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glnn.core.types import ArrayTypes, DType, lies_within
from glnn.errors import ShapeError
from glnn.runtime.executable import Input
from glnn.runtime.runner import check_numbers


class Subclass(np.ndarray):
    """Arrays that are more than NumPy's own."""


def test_types_match_plain_arrays_of_the_same_shapes_and_dtypes_alone() -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros(4, np.int64)
    types = ArrayTypes({"x": x, "y": y})
    assert types.match({"y": y + 1, "x": x.T.copy().T})
    others = (
        {"x": x},
        {"x": x, "y": y, "z": y},
        {"x": x, "z": y},
        {"x": x[:1], "y": y},
        {"x": x.reshape(3, 2), "y": y},
        {"x": x.astype(np.float64), "y": y},
        {"x": x, "y": y.astype(">i8")},
        {"x": x.view(Subclass), "y": y},
        {"x": x.tolist(), "y": y},
        {"x": x, "y": None},
    )
    for other in others:
        assert not types.match(other), other
    assert ArrayTypes({}).match({}) and not ArrayTypes({}).match({"x": x})


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32])
def test_numbers_lie_within_bounds_or_not(dtype: type) -> None:
    x = np.arange(12, dtype=dtype).reshape(3, 4)
    for least, most in product((-1, 0, 1), (10, 11, 12)):
        assert lies_within(x, least, most) == (least <= 0 and most >= 11)
        assert lies_within(x[::2, ::-1].T, least, most) == (least <= 0 and most >= 11)
    assert lies_within(x[:0], 1, -1)


EDGES = sorted(
    edge + step
    for edge in (0, 7, -7, 1048576, -1048576, 2**31 - 1, -(2**31), 2**62)
    for step in (-1, 0, 1)
)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("below", [(), (7,), (7, 3), (1048578,), (2**31 - 1,)])
@pytest.mark.parametrize(
    ("dtype", "takes"),
    [
        (DType.int64, DType.int32),
        (DType.int64, DType.int64),
        (DType.int32, DType.int32),
        (DType.float32, DType.float32),
    ],
)
def test_numbers_beyond_a_bound_are_refused_and_named(
    dtype: DType, takes: DType, below: tuple[int, ...], small: bool
) -> None:
    """Indices are from -size to size - 1, small numbers within 2^20, the others within int32."""
    asked = Input("ids", dtype, (3, 2), takes, small=small, table_sizes=below)
    for row, column in ((0, 0), (2, 1)):
        for edge in EDGES:
            if dtype is DType.int32 and not -(2**31) <= edge < 2**31:
                continue
            if dtype is DType.float32 and max(below, default=0) > 2**24:
                continue  # float32 does not tell such sizes apart
            array = np.zeros((3, 2), dtype.numpy)
            array[row, column] = edge
            number = int(array[row, column])  # of a float the one that it holds
            said = None
            if takes is not dtype and not -(2**31) <= number < 2**31:
                said = rf"from -2147483648 to 2147483647, got {number} at \[{row}, {column}\]"
            if small and abs(number) > 1048576:
                said = "from -1048576 to 1048576 for this plan"
            if below:
                size = below[0] if len(below) == 1 else below[column]
                if not -size <= number < size:
                    said = f"indices from -{size} to {size - 1}, of a table of {size}, got"
            if said is None:
                check_numbers(asked, array, below)
            else:
                with pytest.raises(ShapeError, match=said):
                    check_numbers(asked, array, below)
    check_numbers(asked, np.zeros((0, 2), dtype.numpy), below)
