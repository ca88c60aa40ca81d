"""The first numbers of rows by every kernel, against a sort by Python's numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.operators import TopK
from tests.backends.harness import kernels, run
from tests.backends.ranking import in_order, numbers


def first_of(x: np.ndarray, places: np.ndarray | None, ends: list[int], k: int, largest: bool):
    """The k first of each run of `places` between two of `ends`, of each row."""
    rows = x.reshape(-1, x.shape[-1]).tolist()
    if places is None:
        taken = [list(range(x.shape[-1]))] * len(rows)
    else:
        taken = places.reshape(-1, places.shape[-1]).tolist()
    result = [
        [
            place
            for begin, end in pairwise(ends)
            for place in in_order(row, some[begin:end], largest)[:k]
        ]
        for row, some in zip(rows, taken, strict=True)
    ]
    return np.array(result, np.int32).reshape(*x.shape[:-1], -1)


SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((1,), 1),
    ((3, 7), 7),
    ((2, 3, 129), 5),
    ((127, 3), 2),
    ((5, 256), 64),
    ((2, 1031), 1),
    ((2, 3, 257), 64),
    ((3, 700), 63),
    ((2, 5003), 33),
    ((1, 20_000), 50),
    ((2, 700), 65),
    ((2, 1500), 512),
    ((2, 641), 640),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("top_k"))
@pytest.mark.parametrize("largest", [True, False])
def test_any_row(opened, name, kernel, largest) -> None:
    ran = 0
    for shape, k in SHAPES:
        for seed in range(5):
            x = numbers(shape, seed)
            try:
                got = run(opened(name), TopK(k, largest), {"x": x}, kernel)
            except UnsupportedOpError:
                continue
            expected = first_of(x, None, [0, shape[-1]], k, largest)
            np.testing.assert_array_equal(got, expected, err_msg=f"{shape} {k} {seed}")
            ran += 1
    assert ran


@pytest.mark.parametrize(("name", "kernel"), kernels("top_k"))
def test_parts_and_places(opened, name, kernel) -> None:
    ran = 0
    for seed, (shape, k, parts, m) in enumerate(
        [
            ((3, 700), 7, 9, 0),
            ((2, 3, 1031), 50, 20, 0),
            ((129,), 1, 128, 0),
            ((2, 5003), 50, 1, 600),
            ((3, 2, 515), 3, 1, 3),
            ((4, 517), 20, 3, 77),
            ((300,), 64, 1, 299),
        ]
    ):
        x, places = numbers(shape, seed), None
        operands = {"x": x}
        if m:
            rng = np.random.default_rng(seed)
            rows = [rng.permutation(shape[-1])[:m] for _ in range(math.prod(shape[:-1]))]
            places = np.array(rows, np.int32).reshape(*shape[:-1], m)
            operands["places"] = places
        try:
            got = run(opened(name), TopK(k, seed % 3 > 0, parts), operands, kernel)
        except UnsupportedOpError:
            continue
        count = m or shape[-1]
        ends = [i * (count // parts) + min(i, count % parts) for i in range(parts + 1)]
        expected = first_of(x, places, ends, k, seed % 3 > 0)
        np.testing.assert_array_equal(got, expected, err_msg=f"{shape} {k} {parts} {m}")
        ran += 1
    assert ran or not kernel.startswith("selection")


@pytest.mark.parametrize(("name", "kernel"), kernels("top_k"))
def test_rows_that_are_padded(opened, name, kernel) -> None:
    for shape in ((5, 255), (3, 2, 511), (2, 1, 1023)):
        x = numbers(shape, 0)
        try:
            got = run(opened(name), TopK(20), {"x": x}, kernel, layouts={"x": "R4"})
        except UnsupportedOpError:
            continue
        np.testing.assert_array_equal(got, first_of(x, None, [0, shape[-1]], 20, True))


@pytest.mark.parametrize(("name", "kernel"), kernels("top_k"))
def test_more_rows_than_workgroups_may_be(opened, name, kernel) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (70_001, 80 if kernel == "counting" else 9))
    x = x.astype(np.int32)
    try:
        got = run(opened(name), TopK(2), {"x": x}, kernel)
    except UnsupportedOpError:
        assert kernel == "two_stage"
        return
    order = np.argsort(-x.astype(np.int64), axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(got, order)


def test_reference_of_any_row() -> None:
    for shape, k in SHAPES:
        for seed in range(5):
            x = numbers(shape, seed)
            for largest in (True, False):
                expected = first_of(x, None, [0, shape[-1]], k, largest)
                np.testing.assert_array_equal(TopK(k, largest).compute({"x": x}), expected)


def test_wrong_operands() -> None:
    x = np.ones((2, 5), np.float32)
    for op, operands, text in (
        (TopK(6), {"x": x}, "k must be from 0 to the 5 numbers, got 6"),
        (TopK(2, parts=3), {"x": x}, "the 5 numbers of each of 3 parts, got 2"),
        (TopK(1), {"x": x > 0}, r"x must be int or float of \(..., n\), got bool"),
        (TopK(1), {"x": np.float32(1)}, r"x must be int or float of \(..., n\), got float32"),
        (TopK(1), {"x": x, "places": np.zeros((3, 2), np.int32)}, r"must be int32 \(2, m\), got"),
    ):
        with pytest.raises(ShapeError, match=text):
            op.compute({name: np.asarray(one) for name, one in operands.items()})
    with pytest.raises(ShapeError, match="k must be an integer of at least 0"):
        TopK(-1)
