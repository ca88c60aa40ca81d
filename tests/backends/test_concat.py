from __future__ import annotations

import numpy as np
import pytest

from glnn.layers import Concat as Layer
from glnn.ops import Concat
from tests import oracle
from tests.backends.harness import kernels, run


def operands(rng, channels, n, rest) -> dict[str, np.ndarray]:
    return {f"x{i}": rng((n, c, *rest)) for i, c in enumerate(channels)}


@pytest.mark.parametrize(("name", "kernel"), kernels("concat"))
@pytest.mark.parametrize(
    "channels",
    [(1, 1), (3, 7), (17, 1), (4, 8), (127, 129), (1, 2, 3), (8, 4, 12), (5, 17, 2), (4, 1, 4)],
)
@pytest.mark.parametrize(("n", "rest"), [(1, (1, 1)), (3, (2, 2)), (2, (3, 5))])
def test_any_channels(opened, rng, name, kernel, channels, n, rest) -> None:
    given = operands(rng, channels, n, rest)
    got = run(opened(name), Concat(len(channels)), given, kernel)
    np.testing.assert_array_equal(got, oracle.concat(*given.values()))


@pytest.mark.parametrize("rest", [(), (7,)])
@pytest.mark.parametrize("channels", [(3, 6), (4, 8), (1, 5, 2)])
def test_other_ranks(opened, rng, channels, rest) -> None:
    given = operands(rng, channels, 3, rest)
    got = run(opened("compute"), Concat(len(channels)), given, "planar")
    np.testing.assert_array_equal(got, oracle.concat(*given.values()))


@pytest.mark.parametrize(("name", "kernel"), kernels("concat"))
def test_not_a_number_stays_where_it_is(opened, rng, name, kernel) -> None:
    given = operands(rng, (3, 2), 2, (3, 3))
    given["x0"][1, 2, 2, 2] = np.nan
    got = run(opened(name), Concat(2), given, kernel)
    np.testing.assert_array_equal(got, oracle.concat(*given.values()))


@pytest.mark.parametrize("backend_name", ["compute", "cpu"])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_the_layer_takes_any_count(opened, rng, backend_name, count) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    arrays = [rng((2, i + 1, 3)) for i in range(count)]
    got = Layer(count)(*arrays, backend=backend)
    np.testing.assert_array_equal(got, oracle.concat(*arrays))


def test_kernels_take_three(opened) -> None:
    shapes = {f"x{i}": (1, 2, 3, 4) for i in range(4)}
    reason = opened("compute").why_not(Concat(4), shapes)
    assert reason is not None and "it takes no operand x3" in reason
