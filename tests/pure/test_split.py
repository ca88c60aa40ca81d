"""Splitting: the parts cover the result once, fit a storage block and begin where one may."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glnn.kernels import kernels_for
from glnn.kernels.select import Problem
from glnn.ops import Matmul
from tests.pure.test_kernels import DEVICE

KERNELS = {k.name: k for k in kernels_for("matmul", "compute")}
NAMES = st.sampled_from(["blocked", "tiled", "matvec", "scalar_nn", "blocked_half", "matvec_half"])


@given(NAMES, *[st.integers(1, 400)] * 3, st.sampled_from([16, 64, 256]))
def test_parts(name, m, n, k, alignment) -> None:
    device = replace(
        DEVICE,
        max_shader_storage_block_size=16384,
        shader_storage_buffer_offset_alignment=alignment,
    )
    kernel = KERNELS[name]
    shapes = {"x": (m, k), "weight": (n, k), "bias": (n,)}
    problem = Problem.of(Matmul(), shapes, {})
    split = problem.split(kernel, device)
    layouts = problem.chosen_layouts(kernel, split)
    sizes = {o: layouts[o].size(shapes.get(o, (m, n))) for o in layouts}
    if split is None:
        return
    out_row = layouts["out"].row((m, n))
    covered = np.zeros(sizes["out"], int)
    for part in split.parts(shapes):
        for operand, (start, count) in part.ranges.items():
            assert 4 * start % alignment == 0
            assert 0 < 4 * count <= 16384
            assert start + count <= sizes[operand]
        start = part.ranges["out"][0]
        for row in range(part.sizes["m"]):
            first = start + row * out_row
            covered[first : first + part.sizes["n"]] += 1
        assert start % out_row // 4 * 4 == part.ranges["bias"][0]
    expected = np.zeros((m, out_row), int)
    expected[:, :n] = 1
    np.testing.assert_array_equal(covered, expected.reshape(-1))
    assert max(4 * s for s in sizes.values()) > 16384, "split without need"
