from __future__ import annotations

from math import prod

import numpy as np
import pytest

from glnn.graph.operators import Concat
from glnn.layers import Concat as Layer
from tests import oracle
from tests.backends.harness import kernels, run

PLANAR = [("compute", "planar"), ("feedback", "feedback")]


def operands(rng, channels, n, rest) -> dict[str, np.ndarray]:
    return {f"x{i}": rng((n, c, *rest)) for i, c in enumerate(channels)}


def whole(kernel, channels, rest) -> bool:
    """Whether the kernel so called takes such channels: some need every row in whole vec4s."""
    inner = {"feedback_rows": prod(rest), "feedback_grouped": 1}.get(kernel, 4)
    return all(c * inner % 4 == 0 for c in channels)


@pytest.mark.parametrize(("name", "kernel"), kernels("concat"))
@pytest.mark.parametrize(
    "channels",
    [(1, 1), (3, 7), (17, 1), (4, 8), (127, 129), (1, 2, 3), (8, 4, 12), (5, 17, 2), (4, 1, 4)],
)
@pytest.mark.parametrize(("n", "rest"), [(1, (1, 1)), (3, (2, 2)), (2, (3, 5))])
def test_any_channels(opened, rng, name, kernel, channels, n, rest) -> None:
    given = operands(rng, channels, n, rest)
    if not whole(kernel, channels, rest):
        shapes = {key: array.shape for key, array in given.items()}
        reason = opened(name).why_not(Concat(len(channels)), shapes, kernel)
        assert reason is not None and "ALIGNED is 0, it needs 1" in reason
        return
    got = run(opened(name), Concat(len(channels)), given, kernel)
    np.testing.assert_array_equal(got, oracle.concat(*given.values()))


@pytest.mark.parametrize(("name", "kernel"), PLANAR)
@pytest.mark.parametrize("rest", [(), (7,)])
@pytest.mark.parametrize("channels", [(3, 6), (4, 8), (1, 5, 2)])
def test_other_ranks(opened, rng, name, kernel, channels, rest) -> None:
    given = operands(rng, channels, 3, rest)
    got = run(opened(name), Concat(len(channels)), given, kernel)
    np.testing.assert_array_equal(got, oracle.concat(*given.values()))


@pytest.mark.parametrize(("name", "kernel"), kernels("concat"))
def test_not_a_number_stays_where_it_is(opened, rng, name, kernel) -> None:
    channels = (3, 2) if whole(kernel, (3, 2), (3, 3)) else (4, 8)
    given = operands(rng, channels, 2, (3, 3))
    given["x0"][1, 2, 2, 2] = np.nan
    got = run(opened(name), Concat(2), given, kernel)
    np.testing.assert_array_equal(got, oracle.concat(*given.values()))


@pytest.mark.parametrize(
    ("layout", "channels", "rest", "kernel"),
    [
        ("R", (3, 2), (3, 3), "feedback"),
        ("R", (3, 2), (2, 2), "feedback_rows"),
        ("R", (4, 8), (3, 3), "feedback_rows"),
        ("nChw4c", (4, 8), (3, 3), "feedback_grouped"),
        ("nChw4c", (3, 2), (2, 2), "feedback_rows"),
        ("nChw4c", (3, 2), (3, 3), "feedback"),
    ],
)
def test_feedback_takes_whole_texels_where_it_can(opened, layout, channels, rest, kernel) -> None:
    shapes = {f"x{i}": (2, c, *rest) for i, c in enumerate(channels)}
    given = dict.fromkeys(shapes, layout)
    assert opened("feedback").choose(Concat(len(channels)), shapes, given).name == kernel


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
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
