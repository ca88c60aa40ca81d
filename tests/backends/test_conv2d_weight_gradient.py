from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Conv2d, Conv2dWeightGradient
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [
    ((1, 1, 1, 1), 1, {"kernel": (1, 1)}),
    ((2, 6, 12, 13), 16, {"kernel": (5, 5), "padding": (2, 2, 2, 2)}),
    ((2, 4, 9, 8), 5, {"kernel": (3, 2), "stride": (2, 3), "padding": (0, 1, 2, 1)}),
    ((2, 4, 11, 13), 6, {"kernel": (3, 3), "stride": (3, 2), "dilation": (2, 2), "groups": 2}),
    ((1, 7, 7, 7), 7, {"kernel": (3, 3), "padding": (1, 1, 1, 1), "groups": 7}),
    ((3, 17, 5, 7), 19, {"kernel": (1, 1)}),
    ((2, 18, 7, 7), 33, {"kernel": (3, 3), "padding": (1, 1, 1, 1), "stride": (2, 2)}),
    ((1, 2, 10, 4), 3, {"kernel": (2, 3), "dilation": (3, 1), "padding": (4, 3, 1, 0)}),
    ((1, 1, 3, 127), 2, {"kernel": (1, 19), "padding": (0, 9, 0, 9)}),
    ((2, 9, 7, 5), 9, {"kernel": (3, 3), "padding": (1, 1, 1, 1), "stride": (2, 2), "groups": 9}),
    ((3, 36, 4, 4), 36, {"kernel": (3, 3), "padding": (1, 1, 1, 1), "groups": 36}),
    ((5, 129, 1, 1), 127, {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
    # the stem of a network, and windows that lie beyond the image whole
    ((3, 3, 19, 17), 33, {"kernel": (7, 7), "stride": (2, 2), "padding": (3, 3, 3, 3)}),
    ((2, 5, 3, 2), 34, {"kernel": (2, 4), "padding": (3, 5, 4, 4), "dilation": (1, 2)}),
    # several columns and rows of each channel, by itself
    ((2, 5, 33, 17), 5, {"kernel": (7, 7), "padding": (3, 3, 3, 3), "groups": 5}),
    ((1, 6, 31, 18), 6, {"kernel": (5, 4), "padding": (2, 1, 2, 2), "stride": (2, 2), "groups": 6}),
    (
        (3, 33, 7, 7),
        33,
        {"kernel": (3, 3), "padding": (1, 4, 5, 0), "stride": (1, 2), "groups": 33},
    ),
]
GROUPED = "planar", "two_stage", "feedback", "feedback_two_stage"


def expected(op: Conv2dWeightGradient, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """In float64, by what the convolution makes of each weight of 1 among zeros."""
    conv = Conv2d(op.stride, op.padding, op.dilation, op.groups)
    shape = dy.shape[1], x.shape[1] // op.groups, *op.kernel
    found = np.zeros(shape)
    wide = x.astype(np.float64)
    for place in np.ndindex(*shape[1:]):
        weight = np.zeros(shape)
        weight[(slice(None), *place)] = 1
        met = conv.compute({"x": wide, "weight": weight})
        found[(slice(None), *place)] = np.einsum("noyx,noyx->o", met, dy.astype(np.float64))
    return found


def operands(rng, op: Conv2dWeightGradient, shape, o: int) -> dict[str, np.ndarray]:
    conv = Conv2d(op.stride, op.padding, op.dilation, op.groups)
    weight = o, shape[1] // op.groups, *op.kernel
    return {"x": rng(shape), "dy": rng(conv.shape_of({"x": shape, "weight": weight}))}


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d_weight_gradient"))
@pytest.mark.parametrize(("shape", "o", "attributes"), CASES)
def test_any_shape(opened, rng, name, kernel, shape, o, attributes) -> None:
    op = Conv2dWeightGradient(**attributes)
    if "depthwise" in kernel and not op.groups == o == shape[1]:
        pytest.skip("it is for as many groups as channels")
    if op.groups > 1 and kernel not in GROUPED and "depthwise" not in kernel:
        pytest.skip("it is for one group")
    given = operands(rng, op, shape, o)
    got = run(opened(name), op, given, kernel)
    assert oracle.error(got, expected(op, **given)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d_weight_gradient"))
@pytest.mark.parametrize("parts", [2, 17])
def test_parts_add_up_to_the_whole(opened, rng, name, kernel, parts) -> None:
    o, groups = (18, 18) if "depthwise" in kernel else (17, 1)
    op = Conv2dWeightGradient((3, 3), (2, 1), (1, 0, 1, 2), groups=groups, parts=parts)
    given = operands(rng, op, (3, 18, 9, 5), o)
    if "two_stage" in kernel:
        pytest.skip("it is for whole sums")
    got = run(opened(name), op, given, kernel)
    rows = -(-3 * 5 // parts)
    assert got.shape[0] == parts and not got[-(-15 // rows) :].any()
    flat = given["dy"].swapaxes(0, 1).reshape(o, 15, -1)
    for part, own in enumerate(got):
        dy = np.zeros_like(flat)
        taken = slice(part * rows, (part + 1) * rows)
        dy[:, taken] = flat[:, taken]
        dy = dy.reshape(o, 3, *given["dy"].shape[2:]).swapaxes(0, 1)
        assert oracle.error(own, expected(op, given["x"], dy)) <= TOLERANCE
