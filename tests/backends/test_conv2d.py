from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from glnn import ops
from glnn.backends.gl import GlBackend
from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED
from glnn.graph.operators import Conv2d
from glnn.kernels.library import kernels_for
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, kernels, of_halves, problem_of, run, run_kernel

EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
# (x, weight, attributes)
CASES = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 7, 5), (4, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 1, 28, 28), (6, 1, 5, 5), {"padding": (2, 2, 2, 2)}),
    ((3, 6, 14, 14), (16, 6, 5, 5), {}),
    ((1, 5, 9, 11), (7, 5, 3, 2), {"stride": (2, 1), "padding": (0, 1, 1, 0)}),
    ((2, 4, 13, 7), (3, 4, 1, 1), {"stride": (3, 2)}),
    ((1, 3, 17, 19), (5, 3, 7, 7), {"padding": (3, 3, 3, 3), "stride": (2, 2)}),
    ((1, 2, 23, 12), (2, 2, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 2, 3)}),
    ((1, 1, 31, 31), (2, 1, 11, 11), {"stride": (3, 3)}),
    ((1, 17, 5, 5), (13, 17, 2, 2), {}),
    ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    ((2, 5, 6, 7), (5, 1, 3, 3), {"groups": 5, "padding": (1, 1, 1, 1)}),
    ((1, 4, 5, 5), (8, 1, 3, 1), {"groups": 4}),
    ((1, 3, 2, 2), (2, 3, 3, 3), {"padding": (2, 2, 2, 2), "stride": (2, 3)}),
    # the largest windows that a tile's memory is measured for
    ((2, 5, 31, 39), (9, 5, 7, 7), {"stride": (4, 4), "padding": (3, 3, 3, 3)}),
    ((1, 3, 19, 17), (33, 3, 3, 3), {"dilation": (3, 3), "stride": (4, 1), "padding": (3,) * 4}),
    # rows of whole vertices, pixels that only follow one another in memory, and neither
    ((2, 5, 6, 8), (9, 5, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((2, 5, 9, 17), (9, 5, 3, 3), {"stride": (1, 2)}),
    ((2, 5, 4, 7), (9, 5, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((3, 9, 6, 6), (5, 9, 5, 5), {"padding": (2, 2, 2, 2), "dilation": (1, 1)}),
    ((2, 5, 10, 10), (9, 5, 5, 5), {}),
    # groups of whole quads: of one each, of more results than channels, of more channels
    ((1, 32, 9, 11), (32, 4, 3, 3), {"groups": 8, "padding": (1, 2, 0, 1), "stride": (2, 1)}),
    ((2, 8, 7, 5), (24, 4, 3, 2), {"groups": 2, "dilation": (2, 3), "padding": (2, 0, 1, 2)}),
    ((3, 36, 5, 6), (12, 12, 2, 3), {"groups": 3, "padding": (1, 1, 1, 1), "stride": (1, 2)}),
    ((2, 8, 1, 1), (8, 4, 1, 1), {"groups": 2}),
    ((1, 8, 3, 70), (8, 4, 2, 33), {"groups": 2}),
    ((1, 8, 2, 150), (8, 4, 2, 3), {"groups": 2, "stride": (1, 40), "padding": (1, 9, 0, 9)}),
    # windows far apart, or wide: a row's segment would not fit into registers
    ((1, 2, 3, 150), (5, 2, 2, 3), {"stride": (1, 40)}),
    ((1, 2, 3, 150), (5, 2, 2, 3), {"dilation": (1, 50), "padding": (0, 9, 0, 9)}),
    ((1, 1, 1, 198005), (1, 1, 1, 3), {"stride": (1, 66000)}),
]
# Every kernel takes one of these: of one pixel, each channel by itself, groups of whole quads.
HALVES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 37, 5, 3), (33, 37, 1, 1), {}),
    ((1, 7, 6, 5), (7, 1, 3, 3), {"groups": 7, "padding": (1, 0, 1, 2)}),
    ((2, 8, 5, 5), (16, 4, 3, 3), {"groups": 2}),
    ((2, 5, 6, 7), (9, 5, 3, 3), {"padding": (1, 1, 0, 1), "stride": (1, 2)}),
]
WEIGHTS = [one for one in of_halves("conv2d") if one[2] == "weight"]


def _grid() -> list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    """Draws from every combination of kernel, stride, padding, dilation, groups and channels."""
    draw = random.Random(4)
    cases = []
    for kernel in (1, 2, 3, 3, 3, 5, 7, 11):
        for channels in (1, 3, 4, 5, 16, 17, 64):
            stride, dilation = draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2])
            groups = draw.choice([g for g in (1, 1, 2, 4, channels) if channels % g == 0])
            if kernel == 3 and draw.random() < 0.5:
                stride = dilation = groups = 1
            out = groups * draw.choice([1, 3, 4, 8, 17])
            sides = tuple(draw.randrange(kernel) for _ in range(4))
            size = [draw.randrange(1, 12) + dilation * (kernel - 1) for _ in "hw"]
            attributes = {
                "stride": (stride, draw.choice([stride, 1])),
                "padding": sides,
                "dilation": (dilation, 1),
                "groups": groups,
            }
            x = (draw.choice([1, 2]), channels, *size)
            cases.append((x, (out, channels // groups, kernel, kernel), attributes))
    return cases


def _why_refused(
    backend: GlBackend, kernel: str, weight: tuple[int, ...], op: Conv2d
) -> str | None:
    """What the kernel so called needs and such a convolution is not, or the device has not."""
    if kernel.startswith("direct_tiled"):
        spans = [(k - 1) * d + 1 for k, d in zip(weight[2:], op.dilation, strict=True)]
        if op.groups > 1 or max(spans) > 7:
            return "GROUPS" if op.groups > 1 else "WINDOW"
        return "STRIDE" if max(op.stride) > 4 else None
    direct = (
        "direct",
        "direct_row_major_weight",
        "direct_to_nhwc",
        "direct_to_nhwc_3x3",
        "direct_nhwc",
    )
    planar = (*direct, "loop_nchw", "loop_nhwc", "feedback")
    if kernel in planar or kernel.removeprefix("feedback_").startswith("im2"):
        return None if op.groups == 1 else "GROUPS"
    if kernel.startswith("winograd"):
        plain = op.groups == 1 and op.stride == op.dilation == (1, 1)
        return None if plain and weight[2:] == (3, 3) else "it needs"
    if kernel == "kn2row":
        return None if op.groups == 1 and op.stride == (1, 1) else "it needs"
    if kernel.startswith("pointwise"):
        plain = op.groups == 1 and op.stride == (1, 1) and not any(op.padding)
        return None if plain and weight[2:] == (1, 1) else "it needs"
    if "texture_buffer" in kernel and not backend.device.capabilities.max_texture_buffer_size:
        return "texture buffers"
    if kernel.startswith("depthwise") or kernel == "feedback_depthwise":
        if op.groups != weight[0] or weight[1] > 1:
            return "DEPTHWISE"
        plain = op.stride == op.dilation == (1, 1) and weight[3] <= 7
        fits = "columns" not in kernel or (plain and weight[2] <= 7)
        return None if fits else "it needs"
    if kernel.startswith("grouped_nhwc") and op.groups == 1:
        return "GROUPS"
    if kernel.startswith(("implicit_gemm", "grouped_nhwc")) and op.groups > 1:
        whole = weight[1] % 4 == 0 and weight[0] // op.groups % 4 == 0
        return None if whole else "WHOLE_QUADS"
    return None


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_any_shape(opened, rng, name, kernel, x_shape, w_shape, attributes) -> None:
    _compare(opened(name), rng, kernel, x_shape, w_shape, attributes)


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize(("name", "kernel", "operand"), WEIGHTS)
def test_weights_of_halves(opened, rng, name, kernel, operand) -> None:
    """Right to what is stored: halves are summed up as floats."""
    for x_shape, w_shape, attributes in HALVES:
        _compare(opened(name), rng, kernel, x_shape, w_shape, attributes, np.float16)


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
def test_many_shapes(opened, rng, name, kernel) -> None:
    """Of two neighbouring kernels one takes half of the shapes, the other the rest."""
    half = kernels("conv2d").index((name, kernel)) % 2
    for x_shape, w_shape, attributes in _grid() if EXHAUSTIVE else _grid()[half::2]:
        _compare(opened(name), rng, kernel, x_shape, w_shape, attributes)


# Several strips of rows and groups of columns, whole and in part; windows that meet padding alone
COLUMNS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 5, 33, 17), (5, 1, 7, 7), {"padding": (3, 3, 3, 3)}),
    ((1, 6, 30, 9), (6, 1, 5, 5), {"padding": (2, 2, 2, 2)}),
    ((2, 4, 7, 7), (4, 1, 7, 7), {"padding": (3, 3, 3, 3)}),
    ((3, 9, 16, 15), (9, 1, 3, 3), {"padding": (0, 1, 1, 0)}),
    ((1, 3, 19, 23), (3, 1, 6, 4), {"padding": (1, 5, 4, 0)}),
    ((2, 33, 3, 2), (33, 1, 2, 7), {"padding": (9, 11, 4, 8)}),
    ((1, 7, 4, 40), (7, 1, 1, 5), {"padding": (2, 0, 3, 2)}),
    ((1, 129, 15, 1), (129, 1, 7, 1), {"padding": (7, 0, 0, 0)}),
]


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize("parameters", [{}, {"ROWS": 4, "PX": 4}, {"ROWS": 7, "PX": 8, "AHEAD": 0}])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), COLUMNS)
def test_depthwise_columns(opened, rng, x_shape, w_shape, attributes, parameters) -> None:
    (kernel,) = (one for one in kernels_for("conv2d", "compute") if one.name == "depthwise_columns")
    op = Conv2d(**attributes, groups=x_shape[1])
    operands = {"x": rng(x_shape), "weight": rng(w_shape), "e1": rng(x_shape[1:2])}
    choice = kernel.with_parameters(**parameters)
    got = run_kernel(opened("compute"), op, operands, choice, BIASED)
    exact = (array.astype(np.float64) for array in operands.values())
    expected = oracle.conv2d(*exact, **attributes, groups=x_shape[1])
    assert oracle.error(got, expected) <= TOLERANCE


def _compare(
    backend: GlBackend,
    rng: Callable[[tuple[int, ...]], NDArray[np.float32]],
    kernel: str,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    dtype: DTypeLike = np.float32,
) -> None:
    """Hold the kernel so called against the oracle, or see it refuse what it cannot do."""
    op = Conv2d(**attributes)
    operands = {"x": rng(x_shape), "weight": rng(w_shape).astype(dtype)}
    reason, epilogue = backend.why_not(problem_of(op, operands), kernel), None
    refused = _why_refused(backend, kernel, w_shape, op)
    if refused is not None:
        assert reason is not None and refused in reason
        return
    assert reason is None
    if not kernel.endswith("_ki"):  # they have no bias
        operands["e1"], epilogue = rng((w_shape[0],)), BIASED
    got = run(backend, op, operands, kernel, epilogue)
    exact = (array.astype(np.float64) for array in operands.values())
    expected = oracle.conv2d(*exact, **attributes)
    assert oracle.error(got, expected) <= TOLERANCE, (x_shape, w_shape, attributes)


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
@pytest.mark.parametrize("function", ["identity", "relu"])
@pytest.mark.parametrize("size", [3, 1])
def test_residual(opened, rng, name, kernel, function, size) -> None:
    around = (size // 2,) * 4
    backend, op = opened(name), Conv2d(padding=around)
    x, weight = rng((2, 5, 7, 9)), rng((6, 5, size, size))
    bias, residual = rng((6,)), rng((2, 6, 7, 9))
    for added in ({"e1": residual}, {"e1": bias, "e2": residual}):
        given = {"x": x, "weight": weight, **added}
        epilogue = finish(bias=len(added) > 1, full=True, activation=function)
        if backend.why_not(problem_of(op, given, epilogue), kernel):
            pytest.skip("it takes no residual, or no such kernel size")
        plain = oracle.conv2d(x, weight, bias if len(added) > 1 else None, padding=around)
        expected = oracle.activation(plain + residual, function)
        got = run(backend, op, given, kernel, epilogue)
        assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue(opened, rng, name, kernel, function) -> None:
    x, weight, bias = rng((2, 3, 6, 5)), rng((5, 3, 3, 3)), rng((5,))
    operands = {"x": x, "weight": weight, "e1": bias}
    backend, op = opened(name), Conv2d()
    if kernel.endswith("_ki"):
        del operands["e1"]
    epilogue = finish(bias="e1" in operands, activation=function)
    if _why_refused(backend, kernel, weight.shape, op):
        pytest.skip("another kernel size, or groups")
    got = run(backend, op, operands, kernel, epilogue)
    expected = oracle.conv2d(x, weight, operands.get("e1"), function=function)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
def test_not_a_number_spoils_only_what_it_touches(opened, rng, name, kernel) -> None:
    backend, op = opened(name), Conv2d(groups=2 if kernel.startswith("grouped_nhwc") else 1)
    x, weight = rng((2, 3, 6, 6)), rng((5, 3, 3, 3))
    if op.groups > 1:
        x, weight = rng((2, 8, 6, 6)), rng((12, 4, 3, 3))
    if _why_refused(backend, kernel, weight.shape, op):
        pytest.skip("another kernel size, or groups")
    x[0, 1, 2, 2], x[1, 2, 5, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = oracle.conv2d(x, weight, groups=op.groups)
    got = run(backend, op, {"x": x, "weight": weight}, kernel)
    if kernel.startswith("winograd"):  # what a tile meets spoils the whole tile
        assert not np.isfinite(got[~np.isfinite(expected)]).any()
        clean = np.s_[1, :, :2, :2]
        got, expected = got[clean], expected[clean]
        if kernel == "winograd_4":  # one tile is the whole image here
            return
    assert oracle.error(got, expected) < 1e-5


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups"),
    [
        ((1, 7, 4, 5), (9, 7, 1, 1), 1),
        ((2, 7, 6, 5), (9, 7, 3, 3), 1),
        ((1, 7, 6, 5), (7, 1, 3, 3), 7),
        ((1, 8, 6, 5), (8, 4, 3, 3), 2),
    ],
)
def test_an_infinite_weight_meets_nothing_but_its_channel(
    opened, rng, name, kernel, x_shape, w_shape, groups
) -> None:
    """The last one of a sum: no 0 that fills up a quad, a tile or a slice is multiplied by it."""
    if kernel.startswith("winograd"):
        pytest.skip("its transforms subtract weights from one another")
    backend, op = opened(name), Conv2d(groups=groups)
    given = {"x": rng(x_shape), "weight": rng(w_shape)}
    given["weight"][2, -1, -1, -1] = np.inf
    if reason := backend.why_not(problem_of(op, given), kernel):
        pytest.skip(reason)
    expected = oracle.conv2d(*given.values(), groups=groups)
    assert oracle.error(run(backend, op, given, kernel), expected) <= TOLERANCE


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_public_function(opened, rng, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    x, weight, bias = rng((2, 4, 7, 6)), rng((6, 2, 3, 2)), rng((6,))
    got = ops.conv2d(x, weight, bias, 1, "same", (1, 2), 2, backend=backend)
    expected = oracle.conv2d(x, weight, bias, (1, 1), (1, 1, 1, 1), (1, 2), 2)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"padding": "full"}, "padding must be .* got 'full'"),
        (
            {"stride": 0},
            r"stride must be 2 integers of at least 1 and at most 2147483647, got \(0, 0\)",
        ),
        ({"stride": 2, "padding": "same"}, "padding 'same' needs stride 1"),
        ({"groups": 3}, "do not fit 3 groups"),
        ({"dilation": 9}, "larger than the padded x"),
    ],
)
def test_bad_arguments(arguments, says) -> None:
    x, weight = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)
    with pytest.raises(ShapeError, match=says):
        ops.conv2d(x, weight, backend="cpu", **arguments)


@pytest.mark.parametrize("size", [1, 3, 7, 127, 129])
@pytest.mark.parametrize("tile", [2, 4])
def test_winograd_in_parts(opened, rng, size, tile) -> None:
    """Batches of images of awkward sizes, with an epilogue, in each number of parts."""
    op, batch = Conv2d(padding=(1, 1, 1, 1)), {1: 5, 3: 4, 7: 3, 127: 2, 129: 1}[size]
    x, full = rng((batch, 5, size, 9)), rng((batch, 6, size, 9))
    weight, bias = rng((6, 5, 3, 3)), rng((6,))
    (declared,) = (k for k in kernels_for("conv2d", "compute") if k.name == f"winograd_{tile}")
    expected = oracle.conv2d(x, weight, bias, padding=op.padding) + full
    operands = {"x": x, "weight": weight, "e1": bias, "e2": full}
    for parts in declared.tune["PARTS"]:
        kernel = declared.with_parameters(PARTS=parts)
        got = run_kernel(opened("compute"), op, operands, kernel, finish(bias=True, full=True))
        assert oracle.error(got, expected) <= TOLERANCE, parts
