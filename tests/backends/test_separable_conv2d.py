"""A depthwise and a pointwise convolution as one operator, by every kernel."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import SeparableConv2d
from glnn.graph.prologue import Prologue
from glnn.kernels import kernels_for
from glnn.kernels.admit import why_not_device
from glnn.kernels.problem import Problem
from tests import oracle
from tests.backends.harness import TOLERANCE, Array, kernels, run, run_kernel

BIAS = Prologue(call("add", Arg(0), Arg(1)), ("channel",))
CLIPPED = Prologue(formula("minimum(relu(a + b), c)"), ("channel", "one"))
RAISED = Prologue(call("exp", Arg(0)))
"""What is not 0 at 0: what pads channels must not be added up."""
RESIDUAL = BIASED.then(Epilogue(call("relu", call("add", Arg(0), Arg(1))), ("full",)))
"""What follows a projection: its bias, a residual, an activation."""
WINDOWS = {
    "3x3": ((3, 3), SeparableConv2d(padding=(1, 1, 1, 1))),
    "halved": ((3, 3), SeparableConv2d((2, 2), (1, 1, 1, 1), prologue=BIAS)),
    "5x5": ((5, 5), SeparableConv2d((2, 1), (2, 1, 0, 2), prologue=CLIPPED)),
    "7x7": ((7, 7), SeparableConv2d(padding=(3, 3, 3, 3), prologue=RAISED)),
    "dilated": ((3, 2), SeparableConv2d((1, 2), (2, 1, 2, 0), (2, 3), prologue=CLIPPED)),
}
SIZES = [(1, 1, 1, 7), (3, 7, 3, 9), (2, 129, 5, 11), (1, 37, 127, 7), (2, 3, 131, 13)]
"""Images, channels, output channels, and the sides of images."""


def operands(rng, op: SeparableConv2d, window: tuple[int, int], *sizes: int) -> dict[str, Array]:
    n, c, o, size = sizes
    given = {
        "x": rng((n, c, size, size + 2)),
        "depthwise": rng((c, 1, *window)) / np.float32(window[0]),
        "weight": rng((o, c, 1, 1)) / np.float32(c**0.5),
    }
    extents = op.prologue.named_extents if op.prologue else {}
    return given | {name: rng((c if one == "channel" else 1,)) for name, one in extents.items()}


def expected(op: SeparableConv2d, given: dict[str, Array], *extras: Array) -> Array:
    """By the oracle's convolutions, in float64."""
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    x, depthwise, weight = wide["x"], wide["depthwise"], wide["weight"]
    between = oracle.conv2d(
        x, depthwise, None, op.stride, op.padding, op.dilation, groups=x.shape[1]
    )
    if op.prologue is not None:
        between = op.prologue.evaluate(between, *(wide[name] for name in op.beside))
    return oracle.conv2d(between, weight)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("name", "kernel"), kernels("separable_conv2d"))
def test_any_sizes(opened, rng, name, kernel, sizes, window) -> None:
    kernel_size, op = WINDOWS[window]
    if sizes[1] == 129 and window not in ("3x3", "5x5"):
        return  # of the larger sizes, two will do
    given = operands(rng, op, kernel_size, *sizes)
    got = run(opened(name), op, given, kernel)
    assert oracle.error(got, expected(op, given)) <= TOLERANCE
