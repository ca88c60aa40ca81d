"""The cache model against the documents' tables, and against counting every line that is read."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.documents.cache_lines import CACHE_LINES, FLOATS, Reads, Side, workgroups
from glnn.kernels import kernels_for

KERNELS = {k.name: k for k in kernels_for("matmul", "compute")}
DIRECT = [name for name, kernel in KERNELS.items() if Reads.from_kernel(kernel)]


def reads(name: str) -> Reads:
    found = Reads.from_kernel(KERNELS[name])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "lines", "fractions"),
    [
        (
            "blocked_nn",
            [513, 258, 132, 72, 48, 48, 72, 132],
            [2.0, 1.0, 0.52, 0.28, 0.19, 0.19, 0.28, 0.52],
        ),
        (
            "blocked_nt",
            [258, 132, 72, 48, 48, 72, 132, 258],
            [1.0, 0.52, 0.28, 0.19, 0.19, 0.28, 0.52, 1.0],
        ),
    ],
)
def test_gronqvists_table_1_2(name, lines, fractions) -> None:
    assert [y for _, y in workgroups()] == [1, 2, 4, 8, 16, 32, 64, 128]
    found = [reads(name).lines(shape, 128) for shape in workgroups()]
    assert found == lines
    assert [count / CACHE_LINES for count in found] == pytest.approx(fractions, abs=0.01)


@pytest.mark.parametrize("workgroup", [(4, 32), (4, 4), (16, 4), (8, 1)])
def test_small_workgroups_share_the_rows_of_those_beside_them(workgroup) -> None:
    """Whatever the first dimension, as the sections of table 1.2 say."""
    second = workgroup[1]
    assert reads("blocked_nn").lines(workgroup, 128) == second + 512 / second
    assert reads("blocked_nt").lines(workgroup, 128) == 2 * second + 256 / second


@pytest.mark.parametrize(
    ("name", "bulk", "steps"),
    [("blocked_rm_cm", 40, 4), ("morton_4_2", 20, 2), ("morton_4_4", 10, 1)],
)
def test_rovders_table_8_1(name, bulk, steps) -> None:
    assert reads(name).lines((4, 16)) == bulk
    assert reads(name).period == 4 * steps


def counted(side: Side, invocations: int, period: int) -> int:
    """Lines that so many invocations beside one another read of an operand in one period."""
    shape = 128, 64
    flat = parse(side.layout).pack(np.arange(1.0, 1.0 + 128 * 64, dtype=np.float32).reshape(shape))
    places = np.empty(128 * 64 + 1, np.int64)
    places[flat.astype(np.int64)] = np.arange(flat.size)
    read = places[1:].reshape(shape)[: side.rows * invocations, :period]
    return len(np.unique(read // FLOATS))


@pytest.mark.parametrize("name", DIRECT)
def test_every_line_that_is_read(name) -> None:
    """With 16 invocations along both, so that all lines are whole."""
    found = reads(name)
    expected = sum(counted(side, 16, found.period) for side in (found.x, found.weight))
    assert found.lines((16, 16)) == expected


def test_what_the_model_is_not_for() -> None:
    assert {"gemm_blocked", "scalar_nn", "morton_4_2", "cacheblocked_nt_1x4x4"} <= set(DIRECT)
    shared, texture, rows = "gemm_tiled", "gemm_blocked_texture", "cheng_v3_w4"
    assert not {shared, texture, rows, "gemv", "gemm_split_k16", "cheng_v2"} & set(DIRECT)
    assert all(Reads.from_kernel(kernel) is None for kernel in kernels_for("conv2d", "compute"))
    assert all(Reads.from_kernel(kernel) is None for kernel in kernels_for("matmul", "feedback"))
