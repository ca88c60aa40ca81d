"""How far glnn's results are from ONNX Runtime's."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from glnn.profiling.onnxruntime_peer import difference

ROW = np.array([1.0, 4.0], np.float32)


@pytest.mark.parametrize(
    ("found", "expected", "away"),
    [
        (ROW, ROW, 0.0),
        (np.array([1, 2], np.float32), ROW, 2 / sqrt(17)),
        (ROW[None], ROW, inf),
        (np.array([1, np.nan], np.float32), ROW, inf),
        (np.array([6e4, 0], np.float16), np.array([3e4, 0], np.float16), 1.0),  # squares overflow
        (np.array([250], np.uint8), np.array([5], np.uint8), 49.0),
        (np.array(["a"], object), np.array(["a"], object), 0.0),
        (np.array(["a"], object), np.array(["b"], object), inf),
        ([ROW, 2 * ROW], [ROW, ROW], 1.0),
        ([ROW], [ROW, ROW], inf),
        ([], [], 0.0),
    ],
)
def test_of_one_output(found: Any, expected: Any, away: float) -> None:
    assert difference({"y": found}, {"y": expected}) == pytest.approx(away, rel=2e-3)


def test_the_worst_output_counts() -> None:
    assert difference({"a": ROW, "b": 3 * ROW, "c": 2 * ROW}, {"c": ROW, "b": ROW}) == 2
