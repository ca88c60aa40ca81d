"""Numbers drawn from logits on the GPU: those that the definition in float64 may draw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import Sample
from tests.backends.harness import kernels, run

RULES = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.3, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.0, 10**6, 1.0, 0.0),
    (1.0, 0, 0.7, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 0, 1.0, 0.2),
    (2.0, 7, 0.8, 0.05),
    (5.0, 0, 0.95, 0.1),
]
"""Temperature, top_k, top_p, min_p."""
SLACK = 1e-5  # of sums of powers, in which float32 and float64 may differ


def allowed(logits: np.ndarray, rule, random: float) -> set[int]:
    """The numbers that may be drawn, by sorting, for all sums that differ by SLACK."""
    temperature, top_k, top_p, min_p = rule
    scores = dict(enumerate(map(float, logits)))
    likely = sorted(scores, key=lambda i: (-scores[i], i))
    most = scores[likely[0]]
    if temperature == 0:
        return {likely[0]}
    if top_k:
        last = scores[likely[min(int(top_k), len(likely)) - 1]]
        likely = [i for i in likely if scores[i] >= last]
    power = {i: math.exp(scores[i] - most) for i in likely}
    total, found = sum(power.values()), set()
    for slack in (-SLACK, 0.0, SLACK):
        chosen, together = [], 0.0
        for i in likely:
            enough = top_p < 1 and together >= (top_p + slack) * total
            if enough and not (chosen and scores[i] == scores[chosen[-1]]):
                break
            chosen.append(i)
            together += power[i]
        chosen = chosen or likely[:1]
        chosen = sorted(i for i in chosen if power[i] >= min_p * (1 + slack))
        weights = [math.exp((scores[i] - most) / temperature) for i in chosen]
        for shift in (-SLACK, 0.0, SLACK):
            target, before = (random + shift) * sum(weights), 0.0
            for i, weight in zip(chosen, weights, strict=True):
                before += weight
                if before > target or i == chosen[-1]:
                    found.add(i)
                    break
    return found


@pytest.mark.parametrize(("name", "kernel"), kernels("sample"))
@pytest.mark.parametrize("n", [1, 3, 7, 127, 129, 1031, 5003])
@pytest.mark.parametrize("spread", [0.5, 8.0])
def test_draws(opened, rng, name, kernel, n, spread) -> None:
    rows = len(RULES)
    x = (spread * rng((rows, n)) - 3).astype(np.float32)
    random = np.random.default_rng(n).random(rows).astype(np.float32)
    operands = {"x": x, "rules": np.array(RULES, np.float32), "random": random}
    got = run(opened(name), Sample(), operands, kernel)
    reference = Sample().compute(operands)
    for row, rule in enumerate(RULES):
        expected = allowed(x[row], np.float32(rule).tolist(), float(random[row]))
        assert int(got[row]) in expected, rule
        assert int(reference[row]) in expected, rule


@pytest.mark.parametrize(("name", "kernel"), kernels("sample"))
def test_draws_are_as_often_as_probabilities_say(opened, rng, name, kernel) -> None:
    rows, n = 3000, 9
    logits = np.linspace(-1, 2, n).astype(np.float32)
    operands = {
        "x": np.tile(logits, (rows, 1)),
        "rules": np.tile(np.array([1.5, 6, 1, 0], np.float32), (rows, 1)),
        "random": np.random.default_rng(0).random(rows).astype(np.float32),
    }
    counts = np.bincount(run(opened(name), Sample(), operands, kernel), minlength=n)
    powers = np.exp(logits.astype(np.float64) / 1.5) * (np.arange(n) >= n - 6)
    expected = rows * powers / powers.sum()
    assert not counts[: n - 6].any()
    away = ((counts - expected)[n - 6 :] ** 2 / expected[n - 6 :]).sum()
    assert away < 5 + 5 * math.sqrt(10)  # chi-square's mean, and five deviations


@pytest.mark.parametrize(("name", "kernel"), kernels("sample"))
def test_odd_logits(opened, name, kernel) -> None:
    infinite, huge = np.inf, 3e38
    x = np.array(
        [
            [1, np.nan, 2, 3, 0],
            [-infinite, 1, -infinite, -infinite, -infinite],
            [huge, -huge, 0, -infinite, 1],
            [2, 2, 2, 2, 2],
            [-0.0, 0.0, -1, -2, -3],
            [5, 5, 1, 5, 0],
            [1, infinite, 2, 3, 0],
            [-infinite] * 5,
        ],
        np.float32,
    )
    rules = np.array(
        [[1, 0, 1, 0]] * 3 + [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 1, 0]] + [[1, 0, 1, 0]] * 2,
        np.float32,
    )
    random = np.array([0.5, 0.999, 0.999, 0.5, 0.9, 0.5, 0.5, 0.5], np.float32)
    operands = {"x": x, "rules": rules, "random": random}
    # Of equal logits all are kept: 0.5 is in the third of five, 0.9 in the second of two zeros.
    expected = [-1, 1, 0, 2, 1, 0, -1, -1]
    assert Sample().compute(operands).tolist() == expected
    assert run(opened(name), Sample(), operands, kernel).tolist() == expected


def test_wrong_shapes() -> None:
    with pytest.raises(ShapeError, match=r"rules must be \(3, 4\) and random \(3,\), got \(3, 3\)"):
        Sample().shape_of({"x": (3, 5), "rules": (3, 3), "random": (3,)})
    with pytest.raises(ShapeError, match=r"rows must be of 1 to 16777216 logits, got \(3, 0\)"):
        Sample().shape_of({"x": (3, 0), "rules": (3, 4), "random": (3,)})
