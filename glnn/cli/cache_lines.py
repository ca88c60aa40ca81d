"""`glnn kernels --cache`: the cache lines that matrix products read at once, by a model."""

from __future__ import annotations

from typing import Any

from glnn.cli.options import print_json
from glnn.cli.screen import Column, Screen, Table, figures
from glnn.errors import GlnnError
from glnn.kernels.cache import CACHE_LINES, INVOCATIONS, LINE_BYTES, Reads, workgroups
from glnn.kernels.library import kernels_for

GRONQVIST = {"NN": "blocked_nn", "NT": "blocked_nt"}
ROVDER = {"Baseline": "blocked_rm_cm", "Morton 4-2": "morton_4_2", "Morton 4-4": "morton_4_4"}
"""The kernels of the two tables, by what the documents call them."""
ROVDERS = 4, 16  # the workgroup of table 8.1: a neuron's results along x
STEP = 4  # places along k of one step of his kernels, a vec4


def show_cache(op: str | None, wide: bool, as_json: bool) -> None:
    """Print what the model says of every matmul kernel that reads its operands directly.

    Raises GlnnError where `op` is another one.
    """
    if op not in (None, "matmul"):
        raise GlnnError(f"--cache: expected --op matmul or none, got {op}")
    found = modelled()
    if as_json:
        print_json(found)
        return
    out = Screen(wide)
    kernels = {row["name"]: row for row in found["kernels"]}
    out.show(_gronqvist(kernels), "Gronqvist, table 1.2: cache lines by the workgroup's y")
    out.say("")
    out.show(_rovder(kernels), f"Rovder 2017, table 8.1: a workgroup of {_by(ROVDERS)}")
    out.say("")
    shapes = [_by(shape) for shape in workgroups()]
    listed = Table(
        (
            Column("kernel", least=18),
            Column("computes", 3, None),
            Column("x", 2, None),
            Column("weight", 2, None),
            figures("period", 1),
            *(figures(shape) for shape in shapes),
        )
    )
    for row in found["kernels"]:
        lines = (f"{row['lines'][shape]:g}" for shape in shapes)
        ends = row["computes"], row["x"], row["weight"], str(row["period"])
        listed.add(row["name"], *ends, *lines)
    title = f"cache lines of {INVOCATIONS} invocations, by workgroup; period in places along k"
    out.show(listed, title)


def modelled() -> dict[str, Any]:
    """The model's numbers for each kernel, with the parameters for any device.

    lines: of INVOCATIONS invocations, by workgroup. bulk: of one workgroup of 4 x 16. period:
    places along k until all of them are used up. computes: rows x columns of the result that an
    invocation computes.
    """
    rows: list[dict[str, Any]] = []
    for kernel in kernels_for("matmul", "compute"):
        if (reads := Reads.of(kernel)) is None:
            continue
        rows.append(
            {
                "name": kernel.name,
                "computes": _by((reads.x.rows, reads.weight.rows)),
                "x": reads.x.layout,
                "weight": reads.weight.layout,
                "out": kernel.wants("out")[0],
                "period": reads.period,
                "bulk": reads.lines(ROVDERS),
                "lines": {_by(w): reads.lines(w, INVOCATIONS) for w in workgroups()},
            }
        )
    device = {"line_bytes": LINE_BYTES, "cache_lines": CACHE_LINES, "invocations": INVOCATIONS}
    return {**device, "kernels": rows}


def _by(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]}x{sizes[1]}"


def _gronqvist(kernels: dict[str, dict[str, Any]]) -> Table:
    table = Table((Column("", least=None), *(figures(str(y)) for _, y in workgroups())))
    for name, kernel in GRONQVIST.items():
        lines = [kernels[kernel]["lines"][_by(shape)] for shape in workgroups()]
        table.add(f"cache lines ({name})", *(f"{count:g}" for count in lines))
        table.add(f"L1 fraction ({name})", *(f"{count / CACHE_LINES:.2g}" for count in lines))
    return table


def _rovder(kernels: dict[str, dict[str, Any]]) -> Table:
    heads = Column("weight", 2, None), Column("x", 2, None), Column("result", 2, None)
    counts = figures("lines missed at once"), figures("steps between")
    table = Table((Column("", least=None), Column("kernel", least=12), *heads, *counts))
    for name, kernel in ROVDER.items():
        row = kernels[kernel]
        ends = row["weight"], row["x"], row["out"]
        table.add(name, kernel, *ends, f"{row['bulk']:g}", f"{row['period'] / STEP:g}")
    return table
