from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Add
from tests import oracle
from tests.backends.epilogues import function as activated
from tests.backends.harness import TOLERANCE, kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("add"))
@pytest.mark.parametrize(
    "shape", [(1,), (3,), (7, 17), (129, 127), (2, 3, 7), (2, 7, 3, 5), (1, 17, 1, 3)]
)
@pytest.mark.parametrize("function", ["identity", "relu"])
def test_any_shape(opened, rng, name, kernel, shape, function) -> None:
    x, y = rng(shape), rng(shape)
    got = run(opened(name), Add(), {"x": x, "y": y}, kernel, activated(function))
    expected = oracle.activation(x.astype(np.float64) + y, function)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("add"))
@pytest.mark.parametrize("function", ["identity", "sigmoid", "relu", "tanh"])
def test_epilogue_and_not_a_number(opened, rng, name, kernel, function) -> None:
    x, y = rng((5, 9)), rng((5, 9))
    x[1, 2], y[3, 4] = np.nan, np.nan
    x[0, 0], y[0, 0] = np.inf, -np.inf
    got = run(opened(name), Add(), {"x": x, "y": y}, kernel, activated(function))
    with np.errstate(invalid="ignore"):
        expected = oracle.activation(x.astype(np.float64) + y, function)
    assert np.isnan(got).sum() == 3
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("name", ["compute", "feedback"])
@pytest.mark.parametrize("layout", ["R", "nhwC4c", "nChw4c"])
def test_it_takes_the_layout_that_comes(opened, name, layout) -> None:
    backend, shapes = opened(name), {"x": (1, 3, 2, 2), "y": (1, 3, 2, 2)}
    given = {"x": layout}
    found = backend.layouts(backend.choose(Add(), shapes, given), Add(), shapes, given)
    assert {name: chosen.name for name, chosen in found.items()} == dict.fromkeys(
        ("x", "y", "out"), layout
    )


def test_an_operand_that_is_set_anew_is_read_anew(backend, rng) -> None:
    """Also where it is a vertex attribute, which nobody copies."""
    op, shapes = Add(), {"x": (5, 7), "y": (5, 7)}
    choice = backend.choose(op, shapes, {})
    layouts = backend.layouts(choice, op, shapes, {})
    stores = {name: backend.allocate(shape, layouts[name]) for name, shape in shapes.items()}
    out = backend.allocate((5, 7), layouts["out"])
    perform = backend.prepare(op, choice, stores, shapes, out)
    for _ in range(3):
        values = {name: rng(shape) for name, shape in shapes.items()}
        for name, value in values.items():
            stores[name].set(value)
            backend.upload(stores[name])
        perform()
        np.testing.assert_array_equal(out.pull(), values["x"] + values["y"])
