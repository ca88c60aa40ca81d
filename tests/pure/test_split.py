"""Splitting: the parts cover the result once, keep to the limits and begin where one may."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glnn.core.types import DType, TensorType
from glnn.graph.epilogue import BIASED
from glnn.graph.operators import Matmul
from glnn.kernels import Kernel, kernels_for
from glnn.kernels.capability_check import fitted, why_not_here
from glnn.kernels.op_spec import OpSpec
from tests.pure.test_kernels import DEVICE

KERNELS = {k.name: k for k in kernels_for("matmul", "compute")}
MANY = (65535, 65535, 65535)
GROUPS = st.sampled_from([MANY, (3, 5, 65535), (65535, 2, 2)])
NAMES = st.sampled_from(["gemm_blocked", "gemm_tiled", "gemv", "scalar_nn"])
HALF, BYTE = DType.float16, DType.int8
SMALL = st.sampled_from(
    [{}, {"weight": HALF}, {"x": HALF}, {"x": HALF, "weight": HALF}, {"weight": BYTE}]
)


def typed(
    kernel: Kernel, shapes: dict[str, tuple[int, ...]], small: dict[str, DType]
) -> dict[str, TensorType]:
    """Operands of which those in `small` are as small where the kernel takes such."""
    able = {HALF: kernel.fp16_operands, BYTE: kernel.int8_operands}
    taken = {name: dtype for name, dtype in small.items() if name in able[dtype]}
    return {n: TensorType(shape, taken.get(n, DType.float32)) for n, shape in shapes.items()}


@example("gemm_tiled", {}, 1, 342, 9, 16, MANY)  # R4, which it takes too, would be too large
@given(NAMES, SMALL, *[st.integers(1, 400)] * 3, st.sampled_from([16, 64, 256]), GROUPS)
def test_parts(name, small, m, n, k, alignment, most) -> None:
    device = replace(
        DEVICE,
        max_shader_storage_block_size=16384,
        shader_storage_buffer_offset_alignment=alignment,
        max_compute_work_group_count=most,
    )
    kernel = KERNELS[name]
    shapes = {"x": (m, k), "weight": (n, k), "e1": (n,)}
    spec = OpSpec.create(Matmul(), typed(kernel, shapes, small), {}, BIASED)
    split = spec.split(kernel, device)
    layouts = spec.chosen_layouts(kernel, split)
    sizes = {o: layouts[o].words(spec.types[o]) for o in layouts}
    if split is None:
        return
    out_row = layouts["out"].row((m, n))
    covered = np.zeros(sizes["out"], int)
    parts = list(split.parts(shapes))
    for part in parts:
        used = counts(kernel, **part.sizes)
        assert all(a <= b for a, b in zip(used, most, strict=True))
        for operand, (start, count) in part.ranges.items():
            assert 4 * start % alignment == 0
            assert 0 < 4 * count <= 16384
            assert start + count <= sizes[operand]
        start = part.ranges["out"][0]
        for row in range(part.sizes["m"]):
            first = start + row * out_row
            covered[first : first + part.sizes["n"]] += 1
        assert start % out_row // 4 * 4 == part.ranges["e1"][0]
    expected = np.zeros((m, out_row), int)
    expected[:, :n] = 1
    np.testing.assert_array_equal(covered, expected.reshape(-1))
    many = any(a > b for a, b in zip(counts(kernel, m=m, n=n), most, strict=True))
    # One part is the whole: its operands lie as is wanted the most, not as else is taken, too.
    large = max(4 * s for s in sizes.values()) > 16384
    assert many or large or len(parts) == 1, "split without need"


def counts(kernel: Kernel, **sizes: int) -> tuple[int, int, int]:
    """The workgroups to dispatch; a dimension that is walked in strides may be any."""
    found = kernel.launch.groups({"batch": 1, **sizes}, kernel.defaults)
    return (*found[: kernel.launch.bounded], 0, 0, 0)[:3]


@pytest.mark.parametrize("name", ["cross_rm_cm", "gemm_blocked", "gemv", "gemm_split_k16"])
def test_workgroups_bound_the_parts_too(name) -> None:
    least = DEVICE.with_minimum()
    for m in (9_000_000, 2_200_000):  # x is larger than a storage block, or only the groups many
        spec = OpSpec.create(Matmul(), {"x": (m, 1), "weight": (1, 1)}, {})
        kernel = fitted(KERNELS[name], least)
        assert kernel is not None and why_not_here(kernel, spec, least) is None
        split = spec.split(kernel, least)
        parts = list(split.parts(spec.shapes)) if split else []
        assert sum(part.sizes["m"] for part in parts) == m
        assert all(max(counts(kernel, **part.sizes)) <= 65535 for part in parts)


@given(
    st.sampled_from(["gemm_blocked", "gemm_tiled"]),
    SMALL,
    st.integers(1, 150),
    *[st.integers(1, 20)] * 3,
    st.sampled_from([16, 256]),
    st.sampled_from([3, 65535]),
)
def test_parts_of_a_stack(name, small, batch, m, n, k, alignment, most) -> None:
    device = replace(
        DEVICE,
        max_shader_storage_block_size=16384,
        shader_storage_buffer_offset_alignment=alignment,
        max_compute_work_group_count=(65535, 65535, most),
    )
    kernel = KERNELS[name]
    shapes = {"x": (batch * m, k), "weight": (batch, n, k), "e1": (n,)}
    spec = OpSpec.create(Matmul(), typed(kernel, shapes, small), {}, BIASED)
    split = spec.split(kernel, device)
    layouts = spec.chosen_layouts(kernel, split)
    sizes = {o: layouts[o].words(spec.types[o]) for o in layouts}
    if split is None:
        return
    ends = dict.fromkeys(("x", "weight", "out"), 0)
    for part in split.parts(shapes):
        assert part.sizes["batch"] <= most
        assert part.ranges["e1"] == (0, sizes["e1"])
        for operand, end in ends.items():
            start, count = part.ranges[operand]
            assert start == end and 4 * start % alignment == 0 and 4 * count <= 16384
            assert count * batch == sizes[operand] * part.sizes["batch"]
            ends[operand] = start + count
    assert ends == {operand: sizes[operand] for operand in ends}


def test_a_product_of_a_stack_that_is_too_large_is_refused() -> None:
    shapes = {"x": (4, 1 << 24), "weight": (2, 2, 1 << 24)}
    spec = OpSpec.create(Matmul(), shapes, {})
    assert (
        spec.split(KERNELS["gemm_blocked"], replace(DEVICE, max_shader_storage_block_size=1 << 16))
        is None
    )
