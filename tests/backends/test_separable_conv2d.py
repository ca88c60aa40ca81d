"""A depthwise and a pointwise convolution as one operator, by every kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED, Epilogue, Prologue
from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import SeparableConv2d
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import (
    NO_LAYOUTS,
    TOLERANCE,
    Array,
    problem_of,
    run,
    run_kernel,
)

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

KERNELS = list(
    {k.path: ("compute", k.name) for k in kernels_for("separable_conv2d", "compute")}.values()
)
"""One of each shader."""


def operands(rng, op: SeparableConv2d, window: tuple[int, int], *sizes: int) -> dict[str, Array]:
    n, c, o, size = sizes
    given = {
        "x": rng((n, c, size, size + 2)),
        "depthwise": rng((c, 1, *window)) / np.float32(window[0]),
        "weight": rng((o, c, 1, 1)) / np.float32(c**0.5),
    }
    extents = op.prologue.named_extents if op.prologue else {}
    return given | {name: rng((c if one == "channel" else 1,)) for name, one in extents.items()}


def expected(op: SeparableConv2d, given: dict[str, Array]) -> Array:
    """The result in float64, without an epilogue."""
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    x, depthwise = wide["x"], wide["depthwise"]
    window = op.stride, op.padding, op.dilation
    between = oracle.conv2d(x, depthwise, None, *window, groups=x.shape[1])
    if op.prologue is not None:
        between = op.prologue.evaluate(between, *(wide[name] for name in op.prologue_operands))
    return oracle.conv2d(between, wide["weight"])


def computed(
    backend: GlBackend,
    op: SeparableConv2d,
    given: dict[str, Array],
    kernel: str,
    epilogue: Epilogue | None = None,
    layouts: Mapping[str, str] = NO_LAYOUTS,
) -> Array | None:
    """The result of the kernel so called; None where storage blocks are too few for it."""
    if reason := backend.why_not(problem_of(op, given, epilogue, layouts), kernel):
        assert backend.device.capabilities.max_compute_shader_storage_blocks == 4, reason
        assert "storage blocks" in reason
        return None
    return run(backend, op, given, kernel, epilogue, layouts)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_any_sizes(opened, rng, name, kernel, sizes, window) -> None:
    kernel_size, op = WINDOWS[window]
    given = operands(rng, op, kernel_size, *sizes)
    got = computed(opened(name), op, given, kernel)
    assert got is None or oracle.error(got, expected(op, given)) <= TOLERANCE


@pytest.mark.parametrize("start", [0, 8])
@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_among_other_channels_with_an_epilogue(opened, rng, name, kernel, start) -> None:
    """x and the result are strips of wider images; the residual lies as the result."""
    kernel_size, op = WINDOWS["halved"]
    given = operands(rng, op, kernel_size, 2, 13, 9, 6)
    plain = expected(op, given)
    given |= {"e1": rng((9,)), "e2": rng(plain.shape)}
    lies = f"nhwC4c {start}/28"
    layouts = {"x": f"nhwC4c {8 - start}/32", "e2": lies, "out": lies}
    got = computed(opened(name), op, given, kernel, RESIDUAL, layouts)
    finished = np.maximum(plain + given["e1"][:, None, None] + given["e2"], 0)
    assert got is None or oracle.error(got, finished) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_channels_in_several_turns(opened, rng, name, kernel) -> None:
    """More quads of channels than shared memory holds at a time, the last ones by few slices."""
    backend = opened(name)
    op = SeparableConv2d((1, 1), (1, 1, 1, 1))
    given = operands(rng, op, (3, 3), 1, 71, 7, 4)
    spec = problem_of(op, given)
    for parameters in (
        {"WG_X": 4, "WG_Y": 1, "WG_K": 4, "DEEP": 1, "TM": 1, "PX": 4, "AHEAD": 4},
        {"WG_X": 4, "WG_Y": 2, "WG_K": 4, "DEEP": 1, "TM": 2, "PX": 2, "AHEAD": 1},
        {"WG_X": 8, "WG_Y": 4, "WG_K": 1, "DEEP": 1, "TM": 4, "PX": 1, "AHEAD": 2},
    ):
        (declared,) = (k for k in kernels_for(op.name, name) if k.name == kernel)
        choice = declared.with_parameters(**parameters)
        assert why_not_device(choice, backend.device.capabilities) is None
        got = run_kernel(backend, op, given, spec.adapted(choice))
        assert oracle.error(got, expected(op, given)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_an_infinite_weight_meets_nothing_but_its_channel(opened, rng, name, kernel) -> None:
    """The last one of a sum: what fills up a quad is not multiplied by it."""
    op = SeparableConv2d()
    for operand, at in (("weight", (2, 6)), ("depthwise", (6, 0, 2, 1))):
        given = operands(rng, op, (3, 3), 1, 7, 9, 5)
        given[operand][at] = np.inf
        assert oracle.error(run(opened(name), op, given, kernel), expected(op, given)) <= TOLERANCE


@pytest.mark.parametrize("name", ["x", "depthwise", "weight", "out"])
@pytest.mark.parametrize(("backend_name", "kernel"), KERNELS)
def test_halves(opened, rng, backend_name, kernel, name) -> None:
    _, op = WINDOWS["3x3"]
    given = operands(rng, op, (3, 3), 2, 7, 9, 5)
    rounded = name == "out"
    if not rounded:
        given[name] = given[name].astype(np.float16)
    lies = {"x": "nhwC4c"}
    got = run(opened(backend_name), op, given, kernel, None, lies, rounded=rounded)
    assert oracle.error(got, expected(op, given)) <= (1e-3 if rounded else TOLERANCE)


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_weights_of_bytes(opened, rng, name, kernel) -> None:
    _, op = WINDOWS["3x3"]
    given = operands(rng, op, (3, 3), 2, 7, 9, 5)
    given["weight"] = np.random.default_rng(3).integers(-127, 128, (9, 7, 1, 1)).astype(np.int8)
    got = computed(opened(name), op, given, kernel)
    assert got is not None and oracle.error(got, expected(op, given)) <= TOLERANCE


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (2, 3, 5, 5), "depthwise": (3, 1, 3, 3), "weight": (7, 4, 1, 1)},
        {"x": (2, 3, 5, 5), "depthwise": (4, 1, 3, 3), "weight": (7, 3, 1, 1)},
        {"x": (2, 3, 5, 5), "depthwise": (3, 2, 3, 3), "weight": (7, 3, 1, 1)},
        {"x": (2, 3, 5, 5), "depthwise": (3, 1, 3, 3), "weight": (7, 3, 2, 1)},
        {"x": (2, 3, 5, 5), "depthwise": (3, 1, 6, 3), "weight": (7, 3, 1, 1)},
        {"x": (2, 3, 5), "depthwise": (3, 1, 3, 3), "weight": (7, 3, 1, 1)},
    ],
)
def test_operands_must_fit(shapes) -> None:
    with pytest.raises(ShapeError, match="separable_conv2d: "):
        OpSpec.create(SeparableConv2d(), shapes, {})
