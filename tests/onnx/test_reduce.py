"""Reductions and running sums where the suite does not look."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.single import BACKENDS, check

RNG = np.random.default_rng(13)
FLOATS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
ANY = ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceSum")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("axes", "keepdims"), [([1], 1), ([-1, 0], 0), ([0, 1, 2], 1)])
def test_all_kinds_of_old_and_new_versions(backend: str, axes: list[int], keepdims: int) -> None:
    x = np.abs(floats(3, 7, 5)) + 0.01
    new = np.array(axes, np.int64)
    for operator in FLOATS + ANY:
        check(operator, [x], backend, opset=11, axes=axes, keepdims=keepdims, tolerance=1e-4)
        check(operator, [x, new], backend, opset=18, keepdims=keepdims, tolerance=1e-4)
    for operator in ANY:
        small = (x * 3).astype(np.int32)
        check(operator, [small, new], backend, opset=18, keepdims=keepdims)
    for dtype in (np.int8, np.uint8, np.bool_):
        check("ReduceMax", [(x * 30).astype(dtype), new], backend, opset=20, keepdims=keepdims)
        check("ReduceMin", [(x - 1 > 0).astype(dtype), new], backend, opset=20, keepdims=keepdims)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exponentials_that_overflow(backend: str) -> None:
    rows = floats(5, 9) * 300
    rows[1], rows[2, 3], rows[3, 4] = -np.inf, np.inf, np.nan
    wide = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        most = wide.max(1, keepdims=True)
        most = np.where(np.isfinite(most), most, 0)
        expected = (np.log(np.exp(wide - most).sum(1, keepdims=True)) + most).astype(np.float32)
    axes = np.array([1], np.int64)
    check("ReduceLogSumExp", [rows, axes], backend, expected, opset=18)
    check("ReduceLogSumExp", [rows, axes], backend, expected[:, 0], opset=18, keepdims=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_and_no_axes(backend: str) -> None:
    none, x = np.array([], np.int64), floats(3, 4)
    for operator in ("ReduceSum", "ReduceMax", "ReduceL1"):
        whole = {"ReduceSum": x.sum(), "ReduceMax": x.max(), "ReduceL1": np.abs(x).sum()}[operator]
        check(operator, [x, none], backend, whole.reshape(1, 1), opset=18, tolerance=1e-4)
    check("ReduceSum", [x, none], backend, x, opset=18, noop_with_empty_axes=1)
    for dtype in (np.int32, np.uint8, np.int8):
        limits = np.iinfo(dtype)
        empty, axes = np.zeros((2, 0, 3), dtype), np.array([1], np.int64)
        for operator, end in (("ReduceMax", limits.min), ("ReduceMin", limits.max)):
            check(operator, [empty, axes], backend, np.full((2, 1, 3), end, dtype), opset=20)


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_and_running_sums(backend: str) -> None:
    x = np.round(floats(3, 7, 5))
    for last in (0, 1):
        for axis in (0, -2):
            more = {"select_last_index": last, "axis": axis, "kind": np.int64, "opset": 13}
            check("ArgMax", [x], backend, keepdims=1, **more)
            check("ArgMin", [x], backend, keepdims=0, **more)
    for dtype in (np.uint8, np.int8):
        check("ArgMax", [(x * 30).astype(dtype)], backend, opset=13, axis=1, kind=np.int64)
    axis = np.array(-2, np.int32)
    for exclusive, reverse in ((0, 1), (1, 0), (1, 1)):
        more = {"exclusive": exclusive, "reverse": reverse}
        check("CumSum", [x, axis], backend, opset=14, **more)
        turned = x[:, ::-1] if reverse else x
        found = np.cumprod(turned, 1)
        if exclusive:
            found = np.concatenate([np.ones_like(x[:, :1]), found[:, :-1]], 1)
        found = np.ascontiguousarray(found[:, ::-1] if reverse else found)
        check("CumProd", [x, axis], backend, found, opset=26, **more)
