"""Convolutions whose sums are split over the slices of a workgroup: runs of k of all lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.graph.epilogue import BIASED, Prologue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.kernel import Kernel
from tests import oracle
from tests.backends.harness import TOLERANCE, run_kernel

# (x, weight, attributes)
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    # less than a quad for each slice, and one more than two for each of 64
    ((1, 3, 1, 1), (1, 3, 1, 1), {}),
    ((1, 513, 3, 1), (7, 513, 1, 1), {}),
    # runs that end within a tap, tiles that reach from one image to the next
    ((1, 129, 7, 7), (33, 129, 3, 3), {"padding": (1, 1, 1, 1), "stride": (2, 2)}),
    ((3, 68, 5, 9), (127, 68, 1, 7), {"padding": (0, 3, 0, 3)}),
    ((5, 7, 1, 3), (3, 7, 1, 3), {"padding": (0, 2, 0, 1)}),
    ((2, 24, 7, 5), (136, 12, 5, 3), {"groups": 2, "dilation": (1, 2), "padding": (2, 0, 1, 3)}),
]
PARAMETERS = [
    {},
    {"WG_X": 4, "WG_K": 8, "TM": 1},
    {"WG_X": 4, "WG_K": 64, "UNROLL": 2},
    {"WG_X": 16, "WG_K": 32, "TM": 2, "TN": 2},
    {"WG_K": 8, "TM": 8, "TN": 2, "UNROLL": 4},
]


def split_k(backend: GlBackend, parameters: dict[str, int]) -> Kernel:
    """The kernel with these parameters; skips where the device does not allow them."""
    declared = next(
        k for k in kernels_for("conv2d", "compute") if k.name == "implicit_gemm_split_k"
    )
    choice = declared.with_parameters(**parameters)
    if reason := why_not_device(choice, backend.device.capabilities):
        pytest.skip(reason)
    return choice


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_runs_of_all_lengths(opened, rng, x_shape, w_shape, attributes, parameters) -> None:
    """Behind a prologue that does not leave 0 where images are padded."""
    backend = opened("compute")
    choice = split_k(backend, parameters)
    operands = {"x": rng(x_shape), "weight": rng(w_shape), "e1": rng((w_shape[0],))}
    op = Conv2d(**attributes, prologue=Prologue(call("add", Arg(0), 0.5), ()))
    got = run_kernel(backend, op, operands, choice, BIASED)
    x, weight, bias = (array.astype(np.float64) for array in operands.values())
    assert oracle.error(got, oracle.conv2d(x + 0.5, weight, bias, **attributes)) <= TOLERANCE


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_an_infinite_weight_meets_nothing_but_its_channel(opened, rng, parameters) -> None:
    """The last one of a tap, which slices whose run has ended load, too."""
    backend = opened("compute")
    choice = split_k(backend, parameters)
    operands = {"x": rng((1, 69, 5, 4)), "weight": rng((7, 69, 3, 2))}
    operands["weight"][3, 68] = np.inf
    got = run_kernel(backend, Conv2d(), operands, choice)
    with np.errstate(invalid="ignore"):
        expected = oracle.conv2d(*operands.values())
    assert oracle.error(got, expected) <= TOLERANCE
