"""Operators that look numbers up, by NumPy's indexing."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.operators.gather import Gather, GatherElements, GatherND, Lookup
from tests.backends.test_gather import CASES, indices


@pytest.mark.parametrize(
    ("op", "shape", "index", "expected"), CASES, ids=lambda v: "" if callable(v) else str(v)
)
def test_the_reference(op: Lookup, shape, index, expected) -> None:
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    at = indices(op, shape, index)
    (result,) = op.reference(x, at)
    np.testing.assert_array_equal(result, expected(x, at))
    types = [TensorType.from_array(x), TensorType.from_array(at)]
    assert op.infer(types) == op.infer(types, (None, at)) == (TensorType.from_array(result),)


@pytest.mark.parametrize(
    ("op", "index", "message"),
    [
        (Gather(1), [0, 4, 3], r"index must be from -3 to 2, got 4 at \[1\]"),
        (GatherElements(0), [[0, 1, 2], [3, -6, 0]], r"from -5 to 4, got -6 at \[1, 1\]"),
        (GatherND(), [[4, 2], [0, 3]], r"index must be from -3 to 2, got 3 at \[1, 1\]"),
    ],
)
def test_known_indices_are_checked(op: Lookup, index, message) -> None:
    at = np.array(index, np.int32)
    with pytest.raises(ShapeError, match=message):
        op.infer([TensorType((5, 3)), TensorType.from_array(at)], (None, at))


@pytest.mark.parametrize(
    ("op", "x", "index", "message"),
    [
        (Gather(2), (5, 3), (2,), "axes must name"),
        (GatherElements(0), (5, 3), (2, 4), "index must fit"),
        (GatherElements(0), (5, 3), (2,), "index must fit"),
        (GatherND(), (5, 3), (2, 3), "tuples of 1 to 2"),
        (GatherND(), (5, 3), (), "tuples of 1 to 2"),
        (GatherND(1), (5, 3), (4, 1), "first 1 dimensions"),
        (Gather(0), (0, 3), (2,), "no place"),
    ],
)
def test_what_does_not_fit_is_refused(op: Lookup, x, index, message) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer([TensorType(x), TensorType(index, DType.int32)])


def test_indices_are_integers() -> None:
    with pytest.raises(ShapeError, match="index must be int32 or int64, got float32"):
        Gather().infer([TensorType((3,)), TensorType((3,))])


def test_what_is_out_of_range_takes_the_nearest() -> None:
    x = np.arange(5, dtype=np.float32)
    at = np.array([-9, -5, 4, 5, 2**31 - 1], np.int32)
    assert Gather().reference(x, at)[0].tolist() == [0, 0, 4, 4, 4]
