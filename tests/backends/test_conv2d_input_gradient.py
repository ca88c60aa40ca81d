from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Conv2d, Conv2dInputGradient
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 6, 12, 12), (16, 6, 5, 5), {}),
    ((2, 4, 9, 8), (5, 4, 3, 2), {"stride": (2, 3), "padding": (0, 1, 2, 1)}),
    ((2, 4, 11, 13), (6, 2, 3, 3), {"stride": (3, 2), "dilation": (2, 2), "groups": 2}),
    ((1, 7, 7, 7), (7, 1, 3, 3), {"padding": (1, 1, 1, 1), "groups": 7}),
    ((2, 17, 8, 7), (35, 17, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1)}),
    ((2, 19, 7, 9), (33, 19, 1, 1), {"stride": (2, 2)}),
    ((1, 2, 10, 4), (3, 2, 2, 3), {"dilation": (3, 1), "padding": (4, 3, 1, 0)}),
    ((1, 1, 3, 127), (2, 1, 1, 19), {"padding": (0, 9, 0, 9)}),
    ((37, 17, 2, 3), (34, 17, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1)}),
    ((16, 20, 2, 2), (36, 20, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((2, 9, 7, 5), (9, 1, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1), "groups": 9}),
    ((3, 36, 4, 5), (36, 1, 5, 3), {"padding": (2, 1, 2, 1), "dilation": (1, 2), "groups": 36}),
    ((3, 129, 1, 1), (127, 129, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((2, 19, 7, 9), (33, 19, 1, 1), {}),
    ((16, 20, 2, 2), (36, 20, 1, 1), {}),
    ((1, 3, 1, 127), (7, 3, 1, 1), {}),
    ((2, 5, 31, 9), (5, 1, 7, 5), {"padding": (3, 2, 0, 4), "groups": 5}),
    ((1, 33, 15, 8), (33, 1, 4, 7), {"padding": (1, 6, 3, 0), "groups": 33}),
]


def expected(conv: Conv2d, x_shape, weight: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """In float64, by what the convolution makes of each place of 1 among zeros."""
    shape = x_shape[1:]
    count = int(np.prod(shape))
    ones = np.eye(count).reshape(count, *shape)
    met = conv.compute({"x": ones, "weight": weight.astype(np.float64)})
    return np.einsum("poyx,noyx->np", met, dy.astype(np.float64)).reshape(x_shape)


def operands(rng, conv: Conv2d, x_shape, weight_shape) -> dict[str, np.ndarray]:
    shape = conv.shape_of({"x": x_shape, "weight": weight_shape})
    return {"dy": rng(shape), "weight": rng(weight_shape)}


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d_input_gradient"))
@pytest.mark.parametrize(("x", "weight", "how"), CASES)
def test_any_shape(opened, rng, name, kernel, x, weight, how) -> None:
    conv = Conv2d(**how)
    if "depthwise" in kernel and not conv.groups == x[1] == weight[0]:
        pytest.skip("it is for as many groups as channels")
    if kernel == "product" and (conv.stride != (1, 1) or weight[2:] != (1, 1)):
        pytest.skip("it is for one tap and strides of 1")
    if kernel == "depthwise_columns" and (conv.stride != (1, 1) or conv.dilation != (1, 1)):
        pytest.skip("it is for strides of 1 and windows without holes")
    by_groups = "planar", "depthwise_nhwc", "depthwise_columns", "feedback"
    if conv.groups > 1 and kernel not in by_groups:
        pytest.skip("it is for one group")
    if kernel.endswith("convolution") and (conv.stride != (1, 1) or conv.dilation == (3, 1)):
        pytest.skip("it is for strides of 1, and no more padding than a window reaches")
    given = operands(rng, conv, x, weight)
    got = run(opened(name), Conv2dInputGradient(x[2:], **how), given, kernel)
    assert oracle.error(got, expected(conv, x, given["weight"], given["dy"])) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d_input_gradient"))
def test_epilogues(opened, rng, name, kernel) -> None:
    x, weight, how = (2, 18, 6, 7), (33, 18, 3, 3), {"padding": (1, 1, 0, 1)}
    if "depthwise" in kernel:
        weight, how = (18, 1, 3, 3), {**how, "groups": 18}
    if kernel == "product":
        weight, how = (33, 18, 1, 1), {}
    epilogue = finish(bias=True, full=True, activation="relu")
    conv, op = Conv2d(**how), Conv2dInputGradient((6, 7), **how)
    given = operands(rng, conv, x, weight)
    more = {"e1": rng((18,)), "e2": rng(x)}
    got = run(opened(name), op, {**given, **more}, kernel, epilogue)
    plain = expected(conv, x, given["weight"], given["dy"])
    wanted = epilogue.evaluate(plain.astype(np.float32), *more.values())
    assert oracle.error(got, wanted) <= TOLERANCE
