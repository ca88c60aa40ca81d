from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators.conv2d_lowering import ShiftAdd
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, kernels, run

# (n, h, w), output channels, attributes
CASES = [
    ((1, 1, 1), 1, {"kernel": (1, 1)}),
    ((2, 7, 5), 3, {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
    ((3, 5, 9), 17, {"kernel": (2, 3), "padding": (0, 2, 1, 0)}),
    ((1, 9, 8), 4, {"kernel": (3, 2), "dilation": (2, 3)}),
    ((2, 2, 3), 33, {"kernel": (5, 5), "padding": (2, 3, 2, 4)}),
    ((1, 129, 3), 7, {"kernel": (1, 3), "padding": (3, 2, 0, 2)}),  # taps all outside
]


@pytest.mark.parametrize(("name", "kernel"), kernels("shift_add"))
@pytest.mark.parametrize(("images", "o", "attributes"), CASES)
def test_any_shape(opened, rng, name, kernel, images, o, attributes) -> None:
    """As the convolution by kernels that pick each tap's share out of its channels."""
    kh, kw = attributes["kernel"]
    n, h, w = images
    x, bias = rng((n * h * w, kh * kw * o)), rng((o,))
    pick = np.zeros((o, kh * kw * o, kh, kw), np.float32)
    for ky, kx, channel in np.ndindex(kh, kw, o):
        pick[channel, (ky * kw + kx) * o + channel, ky, kx] = 1
    exact = oracle.conv2d(
        x.reshape(n, h, w, kh * kw * o).transpose(0, 3, 1, 2), pick, bias,
        padding=attributes.get("padding", (0,) * 4), dilation=attributes.get("dilation", (1, 1)),
        function="tanh",
    )  # fmt: skip
    op = ShiftAdd(images, **attributes)
    got = run(opened(name), op, {"x": x, "e1": bias}, kernel, finish(bias=True, activation="tanh"))
    assert oracle.error(got, exact) <= TOLERANCE


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"x must be \(12, a multiple of 4\), got \(12, 6\)"):
        ShiftAdd((1, 3, 4), (2, 2)).shape_of({"x": (12, 6)})
    with pytest.raises(ShapeError, match=r"the kernel \(4, 1\) is larger than 3 x 4"):
        ShiftAdd((1, 3, 4), (4, 1)).shape_of({"x": (12, 4)})
    with pytest.raises(ShapeError, match="kernel must be 2 integers of at least 1"):
        ShiftAdd((1, 3, 4), (0, 1))
