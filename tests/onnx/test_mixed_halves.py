"""Nodes of operands of 16 and of 32 bits: the results have the type that ONNX says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx.runtime import BACKENDS, check, node_model

X = np.array([[[[0.5, 1.00001], [2.25, 3.1]]]], np.float32)
BOTH = [(np.float32, np.float16), (np.float16, np.float32)]


@pytest.mark.parametrize(("dtype", "other"), BOTH)
@pytest.mark.parametrize("known", [(), (1,)])
def test_power(dtype: Any, other: Any, known: Any) -> None:
    operands = [X.astype(dtype), np.array([2, 0.5], other)]
    model = node_model("Pow", operands, opset=15, kinds=[dtype], known=known)
    check(model, operands, tolerance=1e-5 if dtype is np.float32 else 2e-3)


@pytest.mark.parametrize(("dtype", "other"), BOTH)
def test_dropout_at_inference(dtype: Any, other: Any) -> None:
    operands = [X.astype(dtype), np.array(0.5, other)]
    check(node_model("Dropout", operands, opset=13, kinds=[dtype], known=(1,)), operands)


def test_resize_with_a_region_of_16_bits() -> None:
    operands = [X, np.zeros(0, np.float16), np.array([1, 1, 2, 2], np.float32)]
    check(node_model("Resize", operands, opset=13, known=(1, 2), mode="linear"), operands)


@pytest.mark.parametrize("known", [(1,), (1, 2)])
def test_one_hot(known: Any) -> None:
    """ONNX Runtime has none of such indices."""
    values = np.array([0.1, 1.00001], np.float32)
    for index, given in ((np.float16, values), (np.float32, values.astype(np.float16))):
        operands = [np.array([0, 2], index), np.array(3, np.int64), given]
        right = given[np.array([[1, 0, 0], [0, 0, 1]])]
        model = node_model("OneHot", operands, opset=11, kinds=[given.dtype], known=known)
        check(model, operands, [right], backends=BACKENDS[:1])
