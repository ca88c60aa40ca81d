"""What runs look at of their inputs: types like the last run's, numbers that must lie within."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glnn.core.types import (
    MAX_SMALL,
    MOST,
    ArrayTypes,
    DType,
    check_indices,
    check_small,
    lies_within,
    narrowed,
)
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
    for edge in (0, 7, -7, MAX_SMALL, -MAX_SMALL, MOST, -MOST - 1, 2**62)
    for step in (-1, 0, 1)
)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("below", [(), (7,), (7, 3), (MAX_SMALL + 2,), (MOST,)])
@pytest.mark.parametrize(
    ("dtype", "takes"),
    [
        (DType.int64, DType.int32),
        (DType.int64, DType.int64),
        (DType.int32, DType.int32),
        (DType.float32, DType.float32),
    ],
)
def test_numbers_are_refused_as_each_check_by_itself_does(
    dtype: DType, takes: DType, below: tuple[int, ...], small: bool
) -> None:
    asked = Input("ids", dtype, (3, 2), takes, small=small, below=below)

    def by_themselves(array: np.ndarray) -> None:
        if below:
            check_indices("input 'ids'", array, below)
        if small:
            check_small("ids", array)
        if asked.narrowed:
            narrowed("input 'ids'", array)

    def answer(check, array: np.ndarray) -> str | None:
        try:
            check(array)
        except ShapeError as error:
            return str(error)
        return None

    known = np.iinfo(np.int32) if dtype is DType.int32 else None
    for place in ((0, 0), (2, 1)):
        for edge in EDGES:
            if known is not None and not known.min <= edge <= known.max:
                continue
            array = np.zeros((3, 2), dtype.numpy)
            array[place] = edge
            expected = answer(by_themselves, array)
            assert answer(lambda one: check_numbers(asked, one, below), array) == expected
    check_numbers(asked, np.zeros((0, 2), dtype.numpy), below)
