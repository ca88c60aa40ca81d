"""Cronin 2018's convolutions, and its own two ways to compute them: by GL and by plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import glnn
from benchmarks import beside, documents, plain_gemm
from benchmarks.networks import Row
from glnn.layers import Conv2d

FORMS = {
    order: {"conv2d": f"feedback_im2row_{order[-2:]}", "matmul": f"cronin_{order[:-3]}"}
    for order in plain_gemm.ORDERS
}
"""The kernels by which the feedback backend computes each order as the document does."""


def scenarios() -> dict[str, dict[str, int]]:
    """The document's convolutions, each by its sizes."""
    sizes = documents.figure("cronin_2018", "alexnet_table_4_1").rows
    return {name: {key: int(value) for key, value in row.items()} for name, row in sizes.items()}


def convolution(sizes: dict[str, int]) -> glnn.Model:
    """A model of that one convolution."""
    k = sizes["k"]
    layer = Conv2d(
        sizes["channels"], sizes["kernels"], k, sizes["stride"], padding=k // 2, bias=False
    )
    return glnn.Model.sequential([layer], (sizes["channels"], sizes["height"], sizes["width"]))


def compared(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Table 4.3, its percentages and its claims, beside `rows`, each of an order and a scenario.

    Their `kind` is cronin, by GL, or loops, on the CPU.
    """
    kinds = {"cronin": "opengl", "loops": "cpu"}
    times = {
        (f"{kinds[row['kind']]}_{row['order']}", str(row["scenario"])): float(row["median_ms"])
        for row in rows
        if row["kind"] in kinds
    }
    percent = {
        (order, scenario): 100 * times[f"opengl_{order}", scenario] / ms
        for order in FORMS
        for (name, scenario), ms in times.items()
        if name == f"cpu_{order}" and (f"opengl_{order}", scenario) in times
    }
    table, shares = (
        documents.figure("cronin_2018", f"alexnet_table_4_3{part}") for part in ("", "_percent")
    )
    entries = [*beside.rows(table, times, "ms"), *beside.rows(shares, percent, "%")]
    return entries, beside.claims(table, times, "ms")
