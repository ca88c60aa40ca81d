from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
import pytest

from glnn import ops
from glnn.backends.gl import GlBackend
from glnn.compiler import Plan
from glnn.core.types import DType, TensorType
from glnn.errors import LimitError, ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder, constant
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, Array, allowed, kernels, of_halves, run

# 1, 2, 3, 5, 7, 8, 31, 33, 64, 127, 129 and 257 in every place.
SIZES = [
    (1, 1, 1),
    (1, 7, 3),
    (2, 31, 33),
    (3, 1, 129),
    (5, 8, 257),
    (7, 3, 1),
    (8, 257, 2),
    (31, 5, 64),
    (33, 129, 7),
    (64, 64, 8),
    (127, 2, 5),
    (129, 127, 31),
    (257, 33, 127),
]
# Some of one matrix a workgroup, some of many, of which the last one is not full.
STACKS = [(1, 3, 5, 2), (3, 5, 7, 9), (2, 33, 31, 8), (127, 1, 7, 3), (7, 3, 129, 5)]
# With what epilogue: none, a bias, a bias and c; the names of its operands follow.
EPILOGUES = (
    (None, ()),
    (finish(bias=True), ("e1",)),
    (finish(alpha=-1.5, bias=True, beta=0.25, full=True), ("e1", "e2")),
)


def check(
    got: Array,
    kernel: str | None,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    c: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    function: str = "identity",
) -> None:
    """Compare a result with float64, to the kernel's tolerance.

    Kernels of FP16 round operands and products, each by 2^-11 of itself at most, so their error is
    that part of the terms, not of their sum; no function here makes it larger.
    """
    expected = oracle.matmul(x, weight, bias, c, alpha, beta, function)
    most, terms = allowed("matmul", kernel), None
    if most > TOLERANCE:
        assert most >= 3 * 2**-11
        sizes = [None if one is None else abs(one) for one in (x, weight, bias, c)]
        terms = oracle.matmul(*sizes, abs(alpha), abs(beta))
    assert oracle.error(got, expected, terms) <= most


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_any_size(opened, rng, name, kernel, m, n, k) -> None:
    """With all that an epilogue may have, and with less: which of that, the size says."""
    made = {"x": rng((m, k)), "weight": rng((n, k)), "e1": rng((n,)), "e2": rng((m, n))}
    for epilogue, names in (EPILOGUES[2], EPILOGUES[SIZES.index((m, n, k)) % 2]):
        operands = {key: made[key] for key in ("x", "weight", *names)}
        alpha, beta = (-1.5, 0.25) if "e2" in names else (1.0, 0.0)
        got = run(opened(name), Matmul(), operands, kernel, epilogue)
        check(got, kernel, *operands.values(), alpha=alpha, beta=beta)


@pytest.mark.parametrize(("name", "kernel", "operand"), of_halves("matmul"))
def test_halves(opened, rng, name, kernel, operand) -> None:
    """Right to what is stored: halves are summed up as floats."""
    for m, n, k in SIZES[1::3]:
        operands = {"x": rng((m, k)), "weight": rng((n, k)), "e1": rng((n,)), "e2": rng((m, n))}
        operands[operand] = operands[operand].astype(np.float16)
        got = run(opened(name), Matmul(), operands, kernel, EPILOGUES[2][0])
        exact = (array.astype(np.float64) for array in operands.values())
        check(got, kernel, *exact, -1.5, 0.25)


MEDIUMP = [k for _, k in kernels("matmul") if "mediump" in k]


@pytest.mark.parametrize("kernel", MEDIUMP)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products_in_float16(opened, rng, kernel, dtype) -> None:
    """Operands and each product are rounded, sums are not, whatever the driver's mediump."""
    for m, n, k in SIZES:
        x, weight = rng((m, k)).astype(dtype), rng((n, k)).astype(dtype)
        got = run(opened("compute"), Matmul(), {"x": x, "weight": weight}, kernel)
        halves = x.astype(np.float16)[:, None] * weight.astype(np.float16)
        assert oracle.error(got, halves.astype(np.float64).sum(-1)) <= TOLERANCE


@pytest.mark.parametrize("kernel", MEDIUMP)
def test_any_number_is_rounded_to_float16(opened, rng, kernel) -> None:
    """As NumPy rounds it: to the even one of two halves, to multiples of 2^-24, to infinity."""
    whole = np.array([0, 1, 1023, 1024, 1025, 2047, 2048], np.float32)
    x = np.concatenate(
        [2.0**power * (whole + part) for power in range(-25, 6, 5) for part in (0, 0.5)]
    )
    x = np.concatenate(
        [x, [65503, 65519, 65520, 7e4, 3e38, 1e-30, np.inf, np.nan], 1e3 * rng((99,))]
    )
    x = np.concatenate([x, -x]).astype(np.float32)[:, None]
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16).astype(np.float32)
    one = np.ones((1, 1), np.float32)
    got = run(opened("compute"), Matmul(), {"x": x, "weight": one}, kernel)
    np.testing.assert_array_equal(got, halves)
    got = run(opened("compute"), Matmul(), {"x": one, "weight": x}, kernel)
    np.testing.assert_array_equal(got, halves.T)


@pytest.mark.parametrize("name", ["compute", "feedback"])
def test_what_takes_no_halves_is_refused(opened, name) -> None:
    backend = opened(name)
    halves = OpSpec.create(Matmul(), {"x": (3, 5), "weight": TensorType((7, 5), DType.float16)}, {})
    assert "weight" in backend.choose(halves).fp16_operands
    document = {"compute": "scalar_nn", "feedback": "cronin_ab"}[name]
    with pytest.raises(UnsupportedOpError, match=f"{document}.*it takes no float16 as weight"):
        backend.choose(halves, document)


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
@pytest.mark.parametrize(("batch", "m", "n", "k"), STACKS)
def test_batches(opened, rng, name, kernel, batch, m, n, k) -> None:
    backend = opened(name)
    x, weight, bias, c = rng((batch * m, k)), rng((batch, n, k)), rng((n,)), rng((batch * m, n))
    operands = {"x": x, "weight": weight, "e1": bias, "e2": c}
    epilogue = EPILOGUES[2][0]
    shapes = {key: v.shape for key, v in operands.items()}
    reason = backend.why_not(OpSpec.create(Matmul(), shapes, {}, epilogue), kernel)
    if reason is not None:
        known = ("no stack of them", "invocations", "texture buffers")
        assert any(words in reason for words in known)
        pytest.skip(reason)
    got = run(backend, Matmul(), operands, kernel, epilogue)
    for i in range(batch):
        rows = slice(i * m, (i + 1) * m)
        check(got[rows], kernel, x[rows], weight[i], bias, c[rows], -1.5, 0.25)


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue(opened, rng, name, kernel, function) -> None:
    x, weight, bias = rng((9, 13)), rng((11, 13)), rng((11,))
    operands = {"x": x, "weight": weight, "e1": bias}
    epilogue = finish(bias=True, activation=function)
    got = run(opened(name), Matmul(), operands, kernel, epilogue)
    check(got, kernel, x, weight, bias, function=function)


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
def test_not_a_number_goes_where_numpy_sends_it(opened, rng, name, kernel) -> None:
    x, weight = rng((5, 6)), rng((7, 6))
    x[2, 3], x[4, 5] = np.nan, np.inf
    got = run(opened(name), Matmul(), {"x": x, "weight": weight}, kernel)
    with np.errstate(invalid="ignore"):
        check(got, kernel, x, weight)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_public_function(opened, rng, transpose_a, transpose_b, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    a, b, c = rng((5, 7)), rng((7, 3)), rng((5, 3))
    given_a = np.ascontiguousarray(a.T) if transpose_a else a
    given_b = np.ascontiguousarray(b.T) if transpose_b else b
    got = ops.matmul(given_a, given_b, c, 2.0, -0.5, transpose_a, transpose_b, backend=backend)
    assert oracle.error(got, oracle.matmul(a, b.T, None, c, 2.0, -0.5)) <= TOLERANCE
    assert got.dtype == np.float32


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_empty_operands(opened, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    empty = np.zeros((0, 3), np.float32)
    assert ops.matmul(empty, np.ones((3, 2), np.float32), backend=backend).shape == (0, 2)
    c = np.full((2, 4), 3, np.float32)
    narrow = np.zeros((2, 0), np.float32), np.zeros((0, 4), np.float32)
    np.testing.assert_array_equal(ops.matmul(*narrow, backend=backend), np.zeros((2, 4)))
    np.testing.assert_array_equal(ops.matmul(*narrow, c, 1, 0.5, backend=backend), c / 2)


@pytest.mark.parametrize(
    ("renderer", "of_few", "of_many"),
    [
        ("llvmpipe", "gemm_blocked", "gemm_blocked"),  # shared memory is slow there
        ("NVIDIA H200", "gemm_split_k_column_major", "gemm_tiled"),
        ("any other", "gemm_split_k16", "gemm_blocked"),
    ],
)
def test_few_results_of_a_long_sum_are_split_along_k(
    opened, taken_for, renderer, of_few, of_many
) -> None:
    backend = taken_for(opened("compute"), renderer)
    for m, n, kernel in ((100, 120, of_few), (1000, 1200, of_many)):
        chosen = backend.choose(OpSpec.create(Matmul(), {"x": (m, 400), "weight": (n, 400)}, {}))
        assert chosen.name in (kernel, f"{kernel}_texture_buffer")


def test_unknown_kernel_is_named(opened) -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"no kernel 'fastest' for matmul; it has .*blocked"
    ):
        ops.matmul(*np.ones((2, 2, 2), np.float32), backend=opened("compute"), kernel="fastest")


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (
            np.ones((2, 3), np.float32),
            np.ones((4, 2), np.float32),
            r"\(2, 3\) and op\(b\) \(4, 2\)",
        ),
        (np.ones((), np.float32), np.ones((3, 2), np.float32), r"\(\)"),
        (
            np.ones((2, 3)),
            np.ones((3, 2), np.float32),
            "a must be a float32 NumPy array, got float64",
        ),
        ([[1.0]], np.ones((1, 2), np.float32), "a must be a float32 NumPy array, got list"),
    ],
)
def test_bad_operands(a, b, says) -> None:
    with pytest.raises(ShapeError, match=says):
        ops.matmul(a, b, backend="cpu")


@pytest.fixture
def small_blocks(opened) -> Iterator[GlBackend]:
    """The compute backend on a device that pretends to have storage blocks of 16 KiB."""
    backend = opened("compute")
    whole = backend.device.capabilities
    backend.device.capabilities = replace(
        whole, max_shader_storage_block_size=16384, shader_storage_buffer_offset_alignment=256
    )
    yield backend
    backend.device.capabilities = whole


@pytest.mark.parametrize("kernel", [k for b, k in kernels("matmul") if b == "compute"])
@pytest.mark.parametrize(("m", "n", "k"), [(129, 7, 31), (7, 513, 9), (127, 129, 31), (3, 67, 64)])
def test_operands_larger_than_a_storage_block_are_split(small_blocks, rng, kernel, m, n, k) -> None:
    operands = {"x": rng((m, k)), "weight": rng((n, k)), "e1": rng((n,)), "e2": rng((m, n))}
    epilogue = EPILOGUES[2][0]
    shapes = {key: v.shape for key, v in operands.items()}
    reason = small_blocks.why_not(OpSpec.create(Matmul(), shapes, {}, epilogue), kernel)
    if reason is not None:
        known = ("a storage block has 16384", "shared", "invocations", "texture buffers")
        assert any(words in reason for words in known)
        pytest.skip(reason)
    got = run(small_blocks, Matmul(), operands, kernel, epilogue)
    check(got, kernel, *operands.values(), -1.5, 0.25)
    declared = next(k for k in kernels_for("matmul", "compute") if k.name == kernel)
    for operand in set(declared.fp16_operands) & set(operands):
        operands[operand] = operands[operand].astype(np.float16).astype(np.float32)
        halves = {**operands, operand: operands[operand].astype(np.float16)}
        got = run(small_blocks, Matmul(), halves, kernel, epilogue)
        check(got, kernel, *operands.values(), -1.5, 0.25)
    for operand in declared.int8_operands:
        packed = np.rint(40 * operands[operand]).clip(-127, 127).astype(np.int8)
        operands[operand] = packed.astype(np.float32)
        got = run(small_blocks, Matmul(), {**operands, operand: packed}, kernel, epilogue)
        check(got, kernel, *operands.values(), -1.5, 0.25)


def test_the_default_splits_what_a_storage_block_does_not_hold(small_blocks, rng) -> None:
    a, b = rng((300, 33)), rng((33, 150))
    got = ops.matmul(a, b, backend=small_blocks)
    assert oracle.error(got, oracle.matmul(a, b.T)) <= TOLERANCE


def test_a_row_that_exceeds_a_storage_block_is_refused_before_gl_is_asked(small_blocks) -> None:
    shapes = {"x": (2, 4097), "weight": (1, 4097)}
    reason = small_blocks.why_not(OpSpec.create(Matmul(), shapes, {}), "gemm_blocked")
    assert reason is not None and "a storage block has" in reason
    with pytest.raises(LimitError):
        small_blocks.choose(OpSpec.create(Matmul(), shapes, {}), "gemm_blocked")


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("kernel", [None, *(k for b, k in kernels("matmul") if b == "compute")])
@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
def test_large_operands_are_reordered_on_the_device(
    opened, rng, transpose_a, transpose_b, kernel
) -> None:
    backend = opened("compute")
    a, b = rng((257, 301)), rng((301, 259))  # large enough for it
    if kernel and (
        reason := backend.why_not(
            OpSpec.create(Matmul(), {"x": a.shape, "weight": b.T.shape}, {}), kernel
        )
    ):
        pytest.skip(reason)
    given_a = np.ascontiguousarray(a.T) if transpose_a else a
    given_b = np.ascontiguousarray(b.T) if transpose_b else b
    got = ops.matmul(given_a, given_b, None, 1, 0, transpose_a, transpose_b, backend, kernel)
    check(got, kernel, a, b.T)


def test_an_input_too_large_for_a_launch_is_padded_by_the_host(small_blocks, rng) -> None:
    x, weight = rng((129, 33)), rng((7, 33))
    builder = Builder()
    value = builder.input("x", TensorType(x.shape))
    (out,) = builder.add(Matmul(), value, constant(weight), name="out")
    plan = Plan(builder.graph([out]), small_blocks, {"x": x.shape})
    assert len(plan.launches) == 1
    assert oracle.error(plan.run({"x": x})["out"], x.astype(np.float64) @ weight.T) <= TOLERANCE


def test_a_verdict_covers_the_last_part_of_a_split(small_blocks) -> None:
    """Which is cut short along axes along which the first parts may be whole groups."""
    backend, offers = small_blocks, small_blocks.device.capabilities
    shapes = {"x": (257, 64), "weight": (64, 64)}
    spec, more = OpSpec.create(Matmul(), shapes, {}), 0
    for kernel in kernels_for("matmul", "compute"):
        split = spec.split(kernel, offers)
        if split is None or backend.why_not(spec, kernel.name) is not None:
            continue
        parts = [part.sizes for part in split.parts(shapes)]
        alone = [
            backend.cut_axes(kernel, OpSpec.create(Matmul(), {"x": (m, 64), "weight": (n, 64)}, {}))
            for m, n in ((part["m"], part["n"]) for part in parts)
        ]
        assert backend.cut_axes(kernel, spec) == reduce(or_, alone)
        more += any(cut & ~alone[0] for cut in alone)
    assert more, "no last part is cut short along more axes than the first"


@pytest.mark.parametrize("kernel", [None, "gemm_blocked", "gemm_tiled"])
def test_a_stack_is_split_along_its_batch(opened, rng, kernel) -> None:
    backend = opened("compute")
    whole = backend.device.capabilities
    least = replace(
        whole,
        max_shader_storage_block_size=16384,
        shader_storage_buffer_offset_alignment=256,
        max_compute_work_group_count=(65535, 65535, 17),
    )
    a, b, c = rng((70, 5, 9)), rng((70, 9, 13)), rng((70, 5, 13))
    backend.device.capabilities = least
    try:
        got = ops.matmul(a, b, c, 2.0, 0.5, backend=backend, kernel=kernel)
    finally:
        backend.device.capabilities = whole
    assert oracle.error(got, 2.0 * (a.astype(np.float64) @ b) + 0.5 * c) <= TOLERANCE


def test_more_rows_than_workgroups(opened, rng) -> None:
    backend = opened("compute")
    a, b = rng((1_100_000, 1)), rng((1, 1))
    got = ops.matmul(a, b, backend=backend, kernel="cross_rm_cm")
    assert oracle.error(got, a.astype(np.float64) * b) <= TOLERANCE


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_stacks_of_matrices(opened, rng, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    a, b, c = rng((2, 3, 5, 7)), rng((2, 3, 7, 4)), rng((2, 3, 5, 4))
    turned = np.ascontiguousarray(a.swapaxes(2, 3))
    for shared in (False, True):
        right = b[0, 0] if shared else b
        got = ops.matmul(turned, right, c, 2.0, 0.5, transpose_a=True, backend=backend)
        assert got.shape == (2, 3, 5, 4)
        for i in np.ndindex(2, 3):
            one = right if shared else right[i]
            expected = oracle.matmul(a[i], one.T, None, c[i], 2.0, 0.5)
            assert oracle.error(got[i], expected) <= TOLERANCE
    with pytest.raises(ShapeError, match="do not fit"):
        ops.matmul(a, b[:, :2], backend=backend)


CRONIN = ("cronin_ab", "cronin_abt", "cronin_atb", "cronin_atbt")


@pytest.mark.parametrize("kernel", CRONIN)
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 1.0), (-1.0, 1.0), (1.0, 0.0)], ids=["add", "subtract", "replace"]
)
@pytest.mark.parametrize("k", [5, 6, 9, 16])
def test_cronin_accumulates_subtracts_or_replaces(opened, rng, kernel, alpha, beta, k) -> None:
    transpose_a, transpose_b = "_at" in kernel, kernel.endswith("bt")
    a, b, c = rng((7, k)), rng((k, 13)), rng((7, 13))
    given_a = np.ascontiguousarray(a.T) if transpose_a else a
    given_b = np.ascontiguousarray(b.T) if transpose_b else b
    backend = opened("feedback")
    got = ops.matmul(given_a, given_b, c, alpha, beta, transpose_a, transpose_b, backend, kernel)
    assert oracle.error(got, oracle.matmul(a, b.T, None, c, alpha, beta)) <= TOLERANCE


def test_the_feedback_kernel_that_is_taken(opened) -> None:
    backend = opened("feedback")

    def taken(m: int, n: int, k: int) -> str:
        return backend.choose(OpSpec.create(Matmul(), {"x": (m, k), "weight": (n, k)}, {})).name

    assert taken(1, 4096, 25088) == "feedback_split_k"
    assert taken(1, 10, 84) == "feedback"
    assert taken(100, 120, 400) == "feedback_4x4"
    assert taken(1000, 1000, 1000) in ("feedback_4x4", "feedback_8x8")


@pytest.fixture
def small_textures(opened) -> Iterator[GlBackend]:
    """The feedback backend on a device without texture buffers and with the least textures."""
    backend = opened("feedback")
    whole = backend.device.capabilities
    backend.device.capabilities = replace(whole, max_texture_size=2048, max_texture_buffer_size=0)
    yield backend
    backend.device.capabilities = whole


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
def test_operands_larger_than_a_texture_lie_in_layers(small_textures, rng) -> None:
    x, weight = rng((1, 4100)), rng((4100, 4100))  # 2049 x 2050 texels
    spec = OpSpec.create(Matmul(), {"x": x.shape, "weight": weight.shape}, {})
    choice = small_textures.choose(spec, "feedback")
    assert small_textures.reads(choice, spec) == {
        "x": "sampler2D",
        "weight": "sampler2DArray",
    }
    got = run(small_textures, Matmul(), {"x": x, "weight": weight}, "feedback")
    assert oracle.error(got, x.astype(np.float64) @ weight.T.astype(np.float64)) <= TOLERANCE
