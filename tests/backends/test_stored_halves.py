"""Operands and results that are stored as float16: right to what is stored, and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.core.types import DType
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Concat, Conv2d, Matmul, Pad, Pointwise, Pool2d, Slice
from glnn.graph.operators.move import Flip
from glnn.kernels.library import kernels_for
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import problem_of, rounding, run

Array = NDArray[Any]
WITHIN = pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
BOTH = finish(bias=True, full=True, activation="relu")
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 7, 3, 5), (3, 7, 1, 1), {}),
    ((2, 5, 6, 7), (9, 5, 3, 3), {"padding": (1, 1, 0, 1), "stride": (1, 2)}),
    ((2, 8, 5, 5), (16, 4, 3, 3), {"groups": 2}),
    ((1, 129, 2, 3), (37, 129, 1, 1), {}),
]
DEPTHWISE: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 7, 6, 5), (7, 1, 3, 3), {"groups": 7, "padding": (1, 0, 1, 2)}),
    ((2, 4, 1, 1), (4, 1, 1, 1), {"groups": 4}),
    ((1, 129, 9, 7), (129, 1, 5, 3), {"groups": 129, "stride": (2, 1), "dilation": (1, 2)}),
]
GROUPED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 8, 5, 5), (16, 4, 3, 3), {"groups": 2}),
    ((1, 36, 7, 3), (12, 12, 1, 1), {"groups": 3}),
    ((2, 20, 9, 7), (20, 4, 5, 3), {"groups": 5, "stride": (2, 1), "padding": (1, 0, 2, 1)}),
]
SHAPES = {"depthwise": DEPTHWISE, "grouped_nhwc": GROUPED}


def rounded_once(got: Array, expected: Array) -> None:
    """See that `got` is `expected`, of float64, as a half: within one, or what its sums may be off.

    A driver may round to either neighbour: OpenGL ES leaves that open.
    """
    assert got.dtype == np.float16 and got.shape == expected.shape
    most = np.abs(expected).max(initial=0.0)
    near = np.maximum(np.abs(expected) * 2.0**-10, 2.0**-24) + 1e-5 * most
    assert (np.abs(got.astype(np.float64) - expected) <= near).all()
    assert oracle.error(got.astype(np.float64), expected) <= 2e-3


def halved(array: Array) -> Array:
    return array.astype(np.float16)


def exactly(array: Array) -> Array:
    return array.astype(np.float64)


@WITHIN
@pytest.mark.parametrize("kernel", rounding("conv2d"))
def test_convolutions(opened, rng, kernel) -> None:
    """Images and weights where that can be, a residual and the result as halves; bias float32."""
    backend = opened("compute")
    stored = next(k.fp16_operands for k in kernels_for("conv2d", "compute") if k.name == kernel)
    taken = 0
    of_kind = (shapes for kind, shapes in SHAPES.items() if kernel.startswith(kind))
    for x_shape, w_shape, attributes in next(of_kind, CONVOLUTIONS):
        op = Conv2d(**attributes)
        shape = op.shape_of({"x": x_shape, "weight": w_shape})
        x, weight, bias = rng(x_shape), rng(w_shape), rng(w_shape[:1])
        x = halved(x) if "x" in stored else x
        weight = halved(weight) if "weight" in stored else weight
        operands = {"x": x, "weight": weight, "e1": bias, "e2": halved(rng(shape))}
        if reason := backend.why_not(problem_of(op, operands, BOTH, rounded=True), kernel):
            if (
                "texture_buffer" in kernel
                and not backend.device.capabilities.max_texture_buffer_size
            ):
                pytest.skip(reason)
            assert op.groups > 1
            assert "GROUPS" in reason or w_shape[0] % (4 * op.groups) != 0
            continue
        got = run(backend, op, operands, kernel, BOTH, rounded=True)
        sums = oracle.conv2d(exactly(x), exactly(weight), exactly(bias), **attributes)
        rounded_once(got, np.maximum(sums + operands["e2"], 0))
        taken += 1
    assert taken >= 3


@WITHIN
@pytest.mark.parametrize("kernel", rounding("matmul"))
def test_products(opened, rng, kernel) -> None:
    backend = opened("compute")
    for m, n, k in ((1, 1, 1), (7, 129, 3), (127, 31, 65)):
        x, weight, bias = halved(rng((m, k))), halved(rng((n, k))), rng((n,))
        operands = {"x": x, "weight": weight, "e1": bias, "e2": halved(rng((m, n)))}
        if reason := backend.why_not(problem_of(Matmul(), operands, BOTH, rounded=True), kernel):
            pytest.skip(reason)
        got = run(backend, Matmul(), operands, kernel, BOTH, rounded=True)
        sums = exactly(x) @ exactly(weight).T + bias
        rounded_once(got, np.maximum(sums + operands["e2"], 0))


@WITHIN
def test_each_by_itself(opened, rng) -> None:
    """Any of x, a residual and the result may be halves, the others floats."""
    backend, shape, attributes = opened("compute"), (2, 5, 6, 7), {"padding": (1, 1, 1, 1)}
    made = {"x": rng(shape), "weight": rng((6, 5, 3, 3)), "e1": rng((6,)), "e2": rng((2, 6, 6, 7))}
    for halves in ({"x"}, {"out"}, {"e2"}, {"x", "out"}, {"x", "e2"}):
        operands = {k: halved(v) if k in halves else v for k, v in made.items()}
        rounded = "out" in halves
        spec = problem_of(Conv2d(**attributes), operands, BOTH, rounded=rounded)
        blocks = backend.device.capabilities.max_compute_shader_storage_blocks
        if blocks < 5 and rounded is not ("e2" in halves):
            # Of four blocks the residual's is the result's, which takes numbers of one size.
            reason = backend.why_not(spec, "implicit_gemm")
            assert reason is not None and "of 4 storage blocks 3 are taken" in reason
            continue
        got = run(backend, Conv2d(**attributes), operands, "implicit_gemm", BOTH, rounded=rounded)
        exact = [exactly(operands[name]) for name in ("x", "weight", "e1", "e2")]
        expected = np.maximum(oracle.conv2d(*exact[:3], **attributes) + exact[3], 0)
        if rounded:
            rounded_once(got, expected)
        else:
            assert got.dtype == np.float32 and oracle.error(got, expected) <= 1e-5


@WITHIN
@pytest.mark.parametrize("mode", ["max", "average"])
def test_pools(opened, rng, mode) -> None:
    for kernel in rounding("pool2d"):
        stride = (1, 1) if kernel == "nhwc_columns" else (1, 2)
        window = {"kernel": (3, 2), "stride": stride, "padding": (1, 1, 1, 0)}
        windows = kernel in ("nhwc_rows", "nhwc_columns")
        for shape in ((1, 1, 1, 1), (2, 7, 5, 6), (1, 129, 7, 3)):
            x = halved(rng(shape))
            x[0, 0, 0, 0] = np.nan
            whole = kernel == "nhwc_global" or (1 in shape[2:] and not windows)
            op = Pool2d(mode, None) if whole else Pool2d(mode, **window)
            got = run(opened("compute"), op, {"x": x}, kernel, rounded=True)
            how = {"kernel": shape[2:], "stride": (1, 1)} if whole else window
            expected = oracle.pool2d(exactly(x), mode, **how)
            there = ~np.isnan(expected)
            np.testing.assert_array_equal(np.isnan(got), ~there)
            rounded_once(got[there], expected[there])


@WITHIN
def test_concatenations(opened, rng) -> None:
    """Of halves alone, whose channels are whole fours: words are moved, nothing is rounded."""
    backend = opened("compute")
    for channels in ((4, 8), (8, 4, 12), (128, 64)):
        parts = {f"x{i}": halved(rng((2, c, 3, 5))) for i, c in enumerate(channels)}
        got = run(backend, Concat(), parts, "nhwc", rounded=True)
        np.testing.assert_array_equal(got, np.concatenate([*parts.values()], 1))
    parts = {"x0": halved(rng((2, 4, 3, 5))), "x1": halved(rng((2, 3, 3, 5)))}
    reason = backend.why_not(problem_of(Concat(), parts, rounded=True), "nhwc")
    assert reason is not None and "whole fours" in reason
    mixed = {"x0": parts["x0"], "x1": rng((2, 8, 3, 5))}
    assert backend.why_not(problem_of(Concat(), mixed, rounded=True), "nhwc") is not None


@WITHIN
def test_moves_of_images(opened, rng) -> None:
    """Words are moved, nothing is rounded; all that is moved is halves, and what is put in is 0."""
    backend = opened("compute")
    given = {"x": halved(rng((2, 12, 3, 5)))}
    for op, expected in (
        (Slice((4,), (12,), (1,), (1,)), given["x"][:, 4:12]),
        (Flip((2, 3)), given["x"][:, :, ::-1, ::-1]),
        (Pad((0, 0, 1, 2), (0, 0, 0, 1)), np.pad(given["x"], ((0, 0), (0, 0), (1, 0), (2, 1)))),
    ):
        got = run(backend, op, given, "nhwc", rounded=True)
        np.testing.assert_array_equal(got, expected)
    filled = problem_of(Pad((0, 0, 1, 0), (0, 0, 0, 0), fill=2.0), given, rounded=True)
    assert "is 0" in str(backend.why_not(filled, "nhwc"))
    for one, rounded in ((given, False), ({"x": rng((2, 12, 3, 5))}, True)):
        assert backend.why_not(problem_of(Flip((2, 3)), one, rounded=rounded), "nhwc") is not None


@WITHIN
@pytest.mark.parametrize("layout", ["nhwC4c", "R"])
def test_expressions(opened, rng, layout) -> None:
    """Halves and floats together are computed as floats, and rounded once, at the end."""
    expr = call("add", call("mul", Arg(0), call("sigmoid", Arg(1))), Arg(2))
    for n, c, h, w in ((1, 1, 1, 1), (2, 7, 3, 5), (1, 12, 7, 9)):
        image, gate, beside = (
            halved(rng((n, c, h, w))),
            halved(rng((n, c, 1, 1))),
            rng((n, c, h, w)),
        )
        operands = {"x0": image, "x1": gate, "x2": beside}
        layouts = dict.fromkeys(operands, layout)
        got = run(
            opened("compute"), Pointwise(expr), operands, "compute", None, layouts, rounded=True
        )
        rounded_once(got, exactly(image) / (1 + np.exp(-exactly(gate))) + beside)


@WITHIN
def test_what_a_half_does_not_hold(opened) -> None:
    """What is beyond is infinite, or the greatest half where a driver rounds towards zero."""
    given = np.array([65504, 65519, 1e5, -1e9, np.inf, -np.inf, np.nan, 1e-8, -0.0], np.float32)
    given = np.concatenate([given, np.array([1.5, 2e5, 1.5, 1.5, np.inf, -1e30, 1.5], np.float32)])
    x = given.reshape(1, 16, 1, 1)
    layouts = {"x0": "nhwC4c"}
    op = Pointwise(call("mul", Arg(0), 1.0))
    got = run(opened("compute"), op, {"x0": x}, "compute", None, layouts, rounded=True)
    found = got.reshape(-1)
    assert found[0] == 65504 and found[1] in (65504, np.inf)
    assert found[2] in (65504, np.inf) and found[3] in (-65504, -np.inf)
    assert found[4] == np.inf and found[5] == -np.inf and np.isnan(found[6])
    assert found[7] in (0, 2.0**-24) and found[8] == 0
    np.testing.assert_array_equal(found[[9, 11, 12, 15]], 1.5)  # beside those that are beyond


def test_feedback_captures_floats(opened, rng) -> None:
    """No kernel of feedback stores halves."""
    backend = opened("feedback")
    operands = {"x": rng((3, 5)), "weight": rng((7, 5))}
    spec = problem_of(Matmul(), operands, rounded=True)
    assert spec.results[0].dtype is DType.float16
    reason = backend.why_not(spec)
    assert reason is not None and "it takes no float16 as out" in reason
