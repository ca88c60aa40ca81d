"""Prologues: what is done to x as kernels read it, on every kernel that takes one."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import evaluate
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.epilogue import BIASED, Prologue
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, Array, run, run_kernel

SHIFTED: Expr = call("add", call("mul", Arg(0), Arg(1)), Arg(2))
NORMED = Prologue(call("relu", SHIFTED), ("channel", "channel"))
SCALED = Prologue(call("mul", Arg(0), Arg(1)), ("image",))
RAISED = Prologue(call("add", call("exp", Arg(0)), Arg(1)), ("one",))
"""Not 0 at 0, which what pads images and rows must be behind it, too."""
EVERY = Prologue(call("add", call("mul", SHIFTED, Arg(3)), 0.5), ("image", "channel", "one"))
PROLOGUES = {"normed": NORMED, "scaled": SCALED, "raised": RAISED, "every": EVERY}


def taking(op: str) -> list[str]:
    """A kernel of each shader that takes one."""
    found = [k for k in kernels_for(op, "compute") if k.prologue is not None]
    return list({k.path: k.name for k in reversed(found)}.values())


def prepared(x: Array, which: str, given: dict[str, Array]) -> Array:
    """What is multiplied, in float64."""
    wide = x.astype(np.float64)
    p = [array.astype(np.float64) for array in given.values()]
    images = p[0] if which in ("scaled", "every") else None
    if images is not None:
        images = np.repeat(images, len(x) // len(images), axis=0)
    by_channel = [v.reshape(-1, *(1,) * (x.ndim - 2)) for v in p]
    if which == "normed":
        return np.maximum(wide * by_channel[0] + by_channel[1], 0)
    if which == "scaled":
        return wide * images
    if which == "raised":
        return np.exp(wide) + p[0]
    return (wide * images + by_channel[1]) * p[2] + 0.5


def beside(rng, prologue: Prologue, x: Array, images: int) -> dict[str, Array]:
    return {name: rng(shape) for name, shape in prologue.shapes(x.shape, images).items()}


@pytest.mark.parametrize("which", PROLOGUES)
@pytest.mark.parametrize("kernel", taking("matmul"))
@pytest.mark.parametrize(
    ("m", "n", "k", "images"), [(1, 1, 1, 1), (6, 7, 129, 3), (127, 67, 3, 1), (130, 5, 37, 2)]
)
def test_products(opened, rng, kernel, which, m, n, k, images) -> None:
    backend, prologue = opened("compute"), PROLOGUES[which]
    x, weight = rng((m, k)), rng((n, k))
    given = beside(rng, prologue, x, images)
    operands = {"x": x, "weight": weight, **given}
    op = Matmul(prologue)
    if reason := backend.why_not(spec(op, operands), kernel):
        assert backend.device.capabilities.max_compute_shader_storage_blocks == 4, reason
        assert len(given) > 1 and "storage blocks" in reason
        return
    got = run(backend, op, operands, kernel)
    expected = prepared(x, which, given) @ weight.T.astype(np.float64)
    assert oracle.error(got, expected) <= TOLERANCE


CONVOLUTIONS = {
    "one tap": (Conv2d(), (2, 7, 5, 3), (33, 7, 1, 1)),
    "one tap, stride": (Conv2d((2, 2)), (3, 9, 7, 5), (5, 9, 1, 1)),
    "padded": (Conv2d((2, 1), (1, 2, 1, 0)), (2, 5, 6, 7), (35, 5, 3, 3)),
    "grouped": (Conv2d(padding=(1, 1, 1, 1), groups=2), (2, 8, 4, 5), (12, 4, 3, 3)),
    "depthwise": (Conv2d((2, 2), (2, 2, 2, 2), groups=13), (2, 13, 7, 9), (13, 1, 5, 5)),
}


@pytest.mark.parametrize("which", PROLOGUES)
@pytest.mark.parametrize("shape", CONVOLUTIONS)
@pytest.mark.parametrize("kernel", taking("conv2d"))
def test_convolutions(opened, rng, kernel, shape, which) -> None:
    backend, prologue = opened("compute"), PROLOGUES[which]
    plain, x_shape, weight_shape = CONVOLUTIONS[shape]
    x, weight = rng(x_shape), rng(weight_shape)
    given = beside(rng, prologue, x, len(x))
    operands = {"x": x, "weight": weight, **given}
    op = Conv2d(plain.stride, plain.padding, plain.dilation, plain.groups, prologue=prologue)
    if backend.why_not(spec(op, operands), kernel):
        if not backend.why_not(spec(plain, {"x": x, "weight": weight}), kernel):
            assert backend.device.capabilities.max_compute_shader_storage_blocks == 4
            assert len(given) > 1
        return
    got = run(backend, op, operands, kernel)
    expected = oracle.conv2d(
        prepared(x, which, given), weight, None, op.stride, op.padding, op.dilation, op.groups
    )
    assert oracle.error(got, expected) <= TOLERANCE


def spec(op: Matmul | Conv2d, operands: dict[str, Array]) -> OpSpec:
    return OpSpec.create(op, {name: array.shape for name, array in operands.items()}, {})


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        ("gemm_blocked", {"TM": 6, "TN": 2}),
        ("gemm_tiled", {"AHEAD": 1, "BK": 16, "TM": 8}),
        ("gemm_tiled", {"SLICES": 2, "TN": 8}),
        ("gemm_split_k16", {"WG_K": 4, "TM": 4}),
        ("implicit_gemm", {"KEEP": 1, "PARTS": 1, "TN": 2}),
        ("implicit_gemm_tiled", {"AHEAD": 1, "BK": 16}),
        ("implicit_gemm_tiled", {"SLICES": 4, "BK": 16}),
        ("depthwise", {"PX": 4}),
    ],
)
def test_with_other_parameters(opened, rng, kernel, parameters) -> None:
    backend = opened("compute")
    product = any(k.name == kernel for k in kernels_for("matmul", "compute"))
    name = "matmul" if product else "conv2d"
    (declared,) = (k for k in kernels_for(name, "compute") if k.name == kernel)
    groups = 12 if kernel == "depthwise" else 1
    c = 12 if groups > 1 else 22  # a step of 16, and a ragged one
    x, weight = rng((2, c, 5, 9)), rng((12 if groups > 1 else 36, c // groups, 1, 1))
    p1 = rng((2, c, 1, 1))
    expected = oracle.conv2d(x.astype(np.float64) * p1, weight, None, groups=groups)
    op: Matmul | Conv2d = Conv2d(groups=groups, prologue=SCALED)
    if product:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(-1, c)
        weight, p1, op = weight.reshape(-1, c), p1.reshape(2, c), Matmul(SCALED)
        expected = expected.transpose(0, 2, 3, 1).reshape(-1, 36)
    choice = declared.with_parameters(**parameters)
    if why_not_device(choice, backend.device.capabilities):
        return
    got = run_kernel(backend, op, {"x": x, "weight": weight, "p1": p1}, choice)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["gemm_blocked", "gemm_tiled"])
def test_beside_an_epilogue_and_float16(opened, rng, kernel) -> None:
    backend = opened("compute")
    x, weight = rng((9, 11)), rng((7, 11)).astype(np.float16)
    operands = {"x": x, "weight": weight, "p1": rng((3, 11)), "e1": rng((7,))}
    op = Matmul(SCALED)
    types = {"x": (9, 11), "weight": (7, 11), "p1": (3, 11), "e1": (7,)}
    if backend.why_not(OpSpec.create(op, types, {}, BIASED), kernel):
        assert backend.device.capabilities.max_compute_shader_storage_blocks == 4
        with pytest.raises(UnsupportedOpError, match="storage blocks"):
            evaluate(op, operands, backend, kernel, BIASED)
        return
    got = run(backend, op, operands, kernel, BIASED)
    expected = prepared(x, "scaled", {"p1": operands["p1"]}) @ weight.T.astype(np.float64)
    assert oracle.error(got, expected + operands["e1"]) <= TOLERANCE


@pytest.mark.parametrize("name", ["compute", "cpu"])
def test_whichever_kernel_is_chosen(opened, rng, name) -> None:
    backend = name if name == "cpu" else opened(name)
    x, weight, p1 = rng((2, 6, 5, 3)), rng((37, 6, 1, 1)), rng((2, 6, 1, 1))
    got = evaluate(Conv2d(prologue=SCALED), {"x": x, "weight": weight, "p1": p1}, backend)
    expected = oracle.conv2d(x.astype(np.float64) * p1, weight)
    assert oracle.error(got, expected) <= TOLERANCE


def test_feedback_takes_none(opened, rng) -> None:
    operands = {"x": rng((5, 3)), "weight": rng((7, 3))}
    op = Matmul(Prologue(call("relu", Arg(0))))
    with pytest.raises(UnsupportedOpError, match="it takes no prologue"):
        evaluate(op, operands, opened("feedback"))


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        (Matmul(NORMED), {"p1": (7,)}, "the operand p2 is missing"),
        (Matmul(SCALED), {"p1": (4, 7)}, "the 6 rows of x are no 4 equal runs"),
        (Matmul(SCALED), {"p1": (3, 6)}, "p1 must have shape (3, 7), got (3, 6)"),
        (Matmul(RAISED), {"p1": (7,)}, "p1 must have shape (1,), got (7,)"),
        (Matmul(), {"p1": (7,)}, "expected operands"),
    ],
)
def test_operands_must_fit(op, shapes, says) -> None:
    with pytest.raises(ShapeError) as error:
        OpSpec.create(op, {"x": (6, 7), "weight": (5, 7), **shapes}, {})
    assert says in str(error.value)


def test_a_prologue_says_what_it_needs() -> None:
    with pytest.raises(ShapeError, match="needs 1 operands"):
        Prologue(call("mul", Arg(0), Arg(1)))
