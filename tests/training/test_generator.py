"""Threefry against the known answers of its authors, on every backend, and what is made of it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.compiler import evaluate
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.graph.threefry import threefry, uniform
from glnn.training.samples import permutation

KNOWN = (  # tests/kat_vectors of the library Random123: counters, keys, words
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
)


def draw(key_high: int) -> Pointwise:
    """Of three tensors, as many as the least device binds, and a number."""
    return Pointwise(call("threefry_uniform", Arg(0), Arg(1), Arg(2), key_high))


def words(*given: int) -> list[np.ndarray]:
    return [np.array([one], np.uint32).view(np.int32) for one in given]


@pytest.mark.parametrize(("counters", "keys", "expected"), KNOWN)
def test_known_answers(counters, keys, expected) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = threefry(*words(*counters, *keys))
        assert found[:, 0].tolist() == list(expected)
        assert threefry(*(one[0] for one in words(*counters, *keys))).tolist() == list(expected)
    assert uniform(*words(*counters, *keys)) == [(expected[0] >> 8) / 2**24]


def operands() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(15)
    given = rng.integers(-(2**31), 2**31, (3, 3, 129), np.int64).astype(np.int32)
    return dict(zip(("x0", "x1", "x2"), given, strict=True))


def test_every_backend_draws_the_same(backend: GlBackend) -> None:
    """Bit for bit, also where the context is one of OpenGL ES 3.0."""
    given = operands()
    for seed in (0, 7, -(2**31), 2**31 - 1):
        got = evaluate(draw(seed), given, backend)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, uniform(*given.values(), np.array(seed)))
    for counters, keys, (first, _) in KNOWN:
        x = dict(zip(given, words(*counters, *keys), strict=False))
        assert evaluate(draw(int(words(*keys)[1][0])), x, backend) == [(first >> 8) / 2**24]


def test_the_cpu_draws_the_same() -> None:
    given = operands()
    np.testing.assert_array_equal(
        evaluate(draw(5), given, "cpu"), uniform(*given.values(), np.array(5))
    )


def test_numbers_are_even() -> None:
    """Mean, variance and a count of each of 64 parts, within five standard deviations."""
    count = 2**18
    found = uniform(np.arange(count), np.array(3), np.array(-5), np.array(7)).astype(np.float64)
    assert found.min() >= 0 and found.max() < 1
    assert abs(found.mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5
    assert abs(found.var() - 1 / 12) < 5 * (1 / 180 / count) ** 0.5
    parts = np.bincount((found * 64).astype(int), minlength=64)
    assert np.abs(parts - count / 64).max() < 5 * (count / 64) ** 0.5
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 * count**-0.5


def test_permutation() -> None:
    order = permutation(1, 2, 1000)
    assert order.dtype == np.int64 and sorted(order) == list(range(1000))
    assert np.array_equal(order, permutation(1, 2, 1000))
    for other in (permutation(2, 2, 1000), permutation(1, 3, 1000), np.arange(1000)):
        assert (order == other).sum() < 20
    assert permutation(0, 0, 0).tolist() == [] and permutation(0, 0, 1).tolist() == [0]
    assert permutation(2**32 - 1, 0, 5).tolist() == permutation(-1, 0, 5).tolist()
