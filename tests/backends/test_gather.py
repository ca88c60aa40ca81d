"""Numbers looked up on the GPU by indices, against NumPy's indexing; exactly."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.graph.operators.gather import Gather, GatherElements, GatherND, Lookup
from tests.backends.harness import run


def _nd(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    return x[tuple(np.moveaxis(at, -1, 0))]


def _batched(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.stack([_nd(*pair) for pair in zip(x, at, strict=True)])


CASES = [
    (Gather(), (7,), (3, 5), lambda x, at: x[at]),
    (Gather(), (129, 8), (33,), lambda x, at: x[at]),
    (Gather(), (5, 3), (), lambda x, at: x[at]),
    (Gather(-1), (3, 127), (2, 2), lambda x, at: x[:, at]),
    (Gather(1), (2, 7, 4, 3), (3, 1), lambda x, at: x[:, at]),
    (Gather(1), (2, 7, 4), (0,), lambda x, at: x[:, at]),
    (GatherElements(), (7,), (9,), lambda x, at: x[at]),
    (GatherElements(1), (5, 7), (3, 11), lambda x, at: x[np.arange(3)[:, None], at]),
    (
        GatherElements(0),
        (3, 4, 5),
        (7, 2, 5),
        lambda x, at: x[at, np.arange(2)[:, None], np.arange(5)],
    ),
    (GatherND(), (5, 7), (9, 2), _nd),
    (GatherND(), (5, 7), (2,), _nd),
    (GatherND(), (5, 7, 3), (2, 3, 1), _nd),
    (GatherND(), (5, 7, 8), (2, 3, 2), _nd),
    (GatherND(1), (3, 5, 7), (3, 4, 1), _batched),
    (GatherND(1), (3, 5, 7), (3, 2, 4, 2), _batched),
]


def indices(op: Lookup, shape: tuple[int, ...], index: tuple[int, ...]) -> np.ndarray:
    """Indices of that shape into an array of `shape`, negative ones among them."""
    generator = np.random.default_rng(len(index))
    if isinstance(op, GatherND):
        sizes = np.array(shape[op.batch : op.batch + index[-1]])
    else:
        sizes = np.array(shape[op.axis])
    return generator.integers(-sizes, sizes, index).astype(np.int32)


@pytest.mark.parametrize(
    ("op", "shape", "index", "expected"), CASES, ids=lambda v: "" if callable(v) else str(v)
)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_any_lookup(backend: GlBackend, rng, op, shape, index, expected, dtype) -> None:
    x, at = (1000 * rng(shape)).astype(dtype), indices(op, shape, index)
    kernel = {"compute": "words", "feedback": "feedback"}[backend.name]
    got = run(backend, op, {"x": x, "index": at}, kernel)
    np.testing.assert_array_equal(got, expected(x, at))


@pytest.mark.parametrize(
    "op", [Gather(), GatherElements()], ids=lambda v: "" if callable(v) else str(v)
)
def test_what_is_out_of_range_takes_the_nearest(backend: GlBackend, op) -> None:
    x = np.arange(7, dtype=np.float32)
    at = np.array([-(2**31), -8, -7, 6, 7, 2**31 - 1], np.int32)
    got = run(backend, op, {"x": x, "index": at}, None)
    assert got.tolist() == [0, 0, 0, 6, 6, 6]


@pytest.mark.parametrize(("shape", "index"), [((3, 0), (2,)), ((3, 4), (0,)), ((0, 3), (0, 2))])
def test_nothing_is_looked_up(backend: GlBackend, shape, index) -> None:
    x, at = np.zeros(shape, np.float32), np.zeros(index, np.int32)
    assert run(backend, Gather(), {"x": x, "index": at}, None).shape == (*index, *shape[1:])
