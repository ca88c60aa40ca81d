"""Products by the sets of parameters that large GPUs take, in every way that the operands lie."""

from __future__ import annotations

import pytest

from glnn.errors import LimitError
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.admit import why_not_device
from tests import oracle
from tests.backends.harness import TOLERANCE, run_kernel

LARGE = {"WG_X": 16, "WG_Y": 8, "TM": 8, "TN": 4, "BK": 8, "SLICES": 1, "AHEAD": 2}
SLICED = {"WG_X": 8, "WG_Y": 4, "TM": 4, "TN": 8, "BK": 16, "SLICES": 4, "AHEAD": 2}
ROWS = {"WG_X": 8, "WG_Y": 2, "TM": 2, "WG_K": 8, "UNROLL": 2}
SETS = [
    ("tiled", LARGE),
    ("tiled", SLICED),
    ("split_k", ROWS),
    ("split_k_columns", ROWS | {"WG_Y": 1, "TM": 4, "WG_K": 32}),
]
LAYOUTS: list[dict[str, str]] = [{}, {"x": "C"}, {"weight": "C"}, {"x": "C", "weight": "R4"}]
SIZES = [(1, 1, 1), (3, 7, 127), (129, 131, 37), (67, 33, 257), (31, 64, 64), (64, 129, 16)]


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize(("name", "parameters"), SETS)
def test_sets_of_parameters(opened, rng, name, parameters, layouts) -> None:
    backend = opened("compute")
    (declared,) = (k for k in kernels_for("matmul", "compute") if k.name == name)
    kernel = declared.with_parameters(**parameters)
    if reason := why_not_device(kernel, backend.device.capabilities):
        pytest.skip(reason)
    for m, n, k in SIZES:
        operands = {"x": rng((m, k)), "weight": rng((n, k))}
        try:
            got = run_kernel(backend, Matmul(), operands, kernel, layouts=layouts)
        except LimitError as refused:  # what the driver alone knows
            pytest.skip(str(refused))
        assert oracle.error(got, oracle.matmul(*operands.values())) <= TOLERANCE, (m, n, k)
