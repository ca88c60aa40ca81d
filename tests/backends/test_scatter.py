"""Updates put where indices say on the GPU, in their order, against NumPy one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.graph.operators.scatter import ScatterElements, ScatterND
from tests.backends.harness import run

REDUCE = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": lambda a, b: a if np.isnan(a) else b if np.isnan(b) else max(a, b),
    "min": lambda a, b: a if np.isnan(a) else b if np.isnan(b) else min(a, b),
}
CASES = [  # operator, its attributes, x, index
    (ScatterElements, {}, (7,), (9,)),
    (ScatterElements, {"axis": 1}, (5, 7), (3, 11)),
    (ScatterElements, {"axis": -3}, (3, 4, 5), (7, 2, 5)),
    (ScatterElements, {"axis": 0}, (3, 4), (0, 4)),
    (ScatterND, {}, (7,), (20, 1)),
    (ScatterND, {}, (5, 7), (30, 2)),
    (ScatterND, {}, (5, 7, 3), (2, 3, 1)),
    (ScatterND, {}, (4, 5, 3), (3, 2, 2, 2)),
    (ScatterND, {}, (5, 7), (0, 1)),
    (ScatterND, {}, (5, 4), (2,)),
    (ScatterND, {}, (1, 129), (6, 1)),
]


def expected(x, at, updates, reduction, axis=None) -> np.ndarray:
    """Update by update; `axis` is None for tuples of indices."""
    out = x.copy()
    where = at.shape if axis is not None else at.shape[:-1]
    for place in np.ndindex(where):
        if axis is None:
            target = tuple(int(i) for i in at[place])
        else:
            target = tuple(int(at[place]) if i == axis % x.ndim else p for i, p in enumerate(place))
        old, new = np.atleast_1d(out[target]), np.atleast_1d(updates[place])
        pairs = zip(old.flat, new.flat, strict=True)
        found = np.array([REDUCE[reduction](a, b) for a, b in pairs], x.dtype)
        out[target] = found.reshape(out[target].shape)
    return out


EACH = [
    *((*case, list(REDUCE)[i % 5], "float32") for i, case in enumerate(CASES)),
    *((*CASES[1], reduction, "float32") for reduction in REDUCE),
    *((*CASES[7], reduction, "int32") for reduction in REDUCE),
]


@pytest.mark.parametrize(
    ("kind", "attributes", "shape", "index", "reduction", "dtype"), EACH, ids=str
)
def test_updates_in_their_order(
    backend: GlBackend, rng, kind, attributes, shape, index, reduction, dtype
) -> None:
    op = kind(**attributes, reduction=reduction)
    axis = attributes.get("axis", 0) if kind is ScatterElements else None
    sizes = shape[axis] if axis is not None else np.array(shape[: index[-1]])
    at = np.random.default_rng(5).integers(-sizes, sizes, index).astype(np.int32)
    width = index if axis is not None else (*index[:-1], *shape[index[-1] :])
    x, updates = (10 * rng(shape)).astype(dtype), (10 * rng(width)).astype(dtype)
    if dtype == "float32":
        x.flat[0] = np.nan
        updates.flat[:1] = np.nan
    want = expected(x, at, updates, reduction, axis)
    np.testing.assert_array_equal(op.reference(x, at, updates)[0], want)
    got = run(backend, op, {"x": x, "index": at, "updates": updates}, None)
    np.testing.assert_array_equal(got, want)
    by_table, table = op.sort_updates(shape, at)
    np.testing.assert_array_equal(by_table.reference(x, table, updates)[0], want)
    got = run(backend, by_table, {"x": x, "index": table, "updates": updates}, None)
    np.testing.assert_array_equal(got, want)


def test_what_is_out_of_range_goes_to_the_nearest(backend: GlBackend) -> None:
    x, updates = np.zeros(3, np.float32), np.array([1, 2, 4, 8], np.float32)
    at = np.array([-9, -3, 2, 3], np.int32)
    got = run(backend, ScatterElements(0, "add"), {"x": x, "index": at, "updates": updates}, None)
    assert got.tolist() == [3, 0, 12]


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_any_dtype_is_put(backend: GlBackend, dtype) -> None:
    x = np.array([[1, 0, 1], [0, 1, 0]], dtype)
    at, updates = np.array([[0]], np.int32), np.array([[0, 1, 1]], dtype)
    got = run(backend, ScatterND(), {"x": x, "index": at, "updates": updates}, None)
    np.testing.assert_array_equal(got, np.array([[0, 1, 1], [0, 1, 0]], dtype))


@pytest.mark.parametrize("padded", ["x", "index", "updates"])
def test_operands_that_lie_apart(backend: GlBackend, rng, padded) -> None:
    """Rows of one are padded, those of the others are not."""
    x, updates = rng((5, 3, 7)), rng((2, 3, 6))
    at = np.random.default_rng(3).integers(0, 3, updates.shape).astype(np.int32)
    layouts = dict.fromkeys(("x", "index", "updates"), "R") | {padded: "R4"}
    op, operands = ScatterElements(1, "add"), {"x": x, "index": at, "updates": updates}
    got = run(backend, op, operands, None, layouts=layouts)
    np.testing.assert_allclose(got, expected(x, at, updates, "add", 1), rtol=1e-6)
