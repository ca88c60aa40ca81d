from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators.matmul import COLUMNS, ORDERS, ROWS, MatmulSum
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, kernels, problem_of, run

SIZES = [(1, 1), (1, 7), (3, 4), (5, 31), (33, 17), (2, 129)]


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul_sum"))
@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [1, 3, 16])
def test_any_size(opened, rng, name, kernel, m, n, order, parts) -> None:
    shape = (parts * m, n) if order == ROWS else (1, n, m, parts)
    shape = shape if order in (ROWS, COLUMNS) else (1, n, parts, m)
    x, bias, c = rng(shape), rng((n,)), rng((m, n))
    op = MatmulSum(parts, order)
    epilogue = finish(alpha=-1.5, bias=True, beta=0.25, full=True, activation="tanh")
    operands = {"x": x, "e1": bias, "e2": c}
    backend = opened(name)
    if reason := backend.why_not(problem_of(op, operands, epilogue), kernel):
        assert kernel == "feedback_vec4" and order != ROWS
        pytest.skip(reason)
    exact = np.zeros((m, n))
    for part in range(parts):
        if order == ROWS:
            exact += x[part * m : (part + 1) * m]
        else:
            exact += (x[0, :, :, part] if order == COLUMNS else x[0, :, part]).T
    exact = oracle.activation(-1.5 * exact + bias + 0.25 * c, "tanh")
    assert oracle.error(run(backend, op, operands, kernel, epilogue), exact) <= TOLERANCE
    got = run(backend, op, {"x": x}, kernel)
    assert oracle.error(got, op.compute({"x": x.astype(np.float64)})) <= TOLERANCE


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="order must be one of"):
        MatmulSum(2, "diagonal")
    with pytest.raises(ShapeError, match=r"x \(7, 4\) has not 2 parts, rows"):
        MatmulSum(2).shape_of({"x": (7, 4)})
    with pytest.raises(ShapeError, match=r"x \(1, 4, 5, 3\) has not 2 parts, columns"):
        MatmulSum(2, COLUMNS).shape_of({"x": (1, 4, 5, 3)})
