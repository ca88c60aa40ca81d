"""What the benchmarks of bias addition and activation share: every kernel on three matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click

from benchmarks import beside, documents
from benchmarks.command import check_folder
from benchmarks.record import machine
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, progress
from glnn.errors import GlnnError
from glnn.graph.operators import Pointwise
from glnn.kernels import kernels_for


def report(
    op: Pointwise, figure_key: str, shapes: str | None, plot: Path | None, as_json: bool
) -> None:
    """Time the kernels of a figure of Rovder 2017, and ours, on its matrices, and print.

    shapes: some of the matrices, by commas; all unless given.
    """
    check_folder(plot)
    figure = documents.figure("rovder_2017", figure_key)
    chosen = shapes.split(",") if shapes else figure.columns_here
    if unknown := [shape for shape in chosen if shape not in figure.columns_here]:
        known = ", ".join(figure.columns_here)
        raise GlnnError(f"--shapes: no {unknown[0]!r}, expected some of {known}")
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    kernels = [
        k for k in kernels_for(op.name, "compute") if not k.document or k.name in figure.rows_here
    ]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for kernel in bar.track(kernels, description="timing"):
            for shape in chosen:
                rows.append(_time(backend, op, kernel.name, shape))
    ours = {(row["kernel"], row["shape"]): row["gb_s"] for row in rows if row["gb_s"]}
    result = {
        **machine(backend.device),
        "op": op.name,
        "rows": rows,
        "beside": beside.rows(figure, ours, "GB/s"),
        "claims": beside.claims(figure, ours),
    }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        out = Screen()
        hidden = ("rows", "beside", "claims")
        out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
        beside.show(out, figure, ours, "GB/s, read and written,")
    if plot is not None:
        beside.draw(plot, [figure], ours, "GB/s")


def _time(backend: GlBackend, op: Pointwise, kernel: str, shape: str) -> dict[str, Any]:
    neurons, samples = (int(part) for part in shape.split("x"))
    x = np.random.default_rng(0).random((samples, neurons), dtype=np.float32)
    operands = {"x0": x} | ({"x1": x[0].copy()} if op.expr.arity > 1 else {})
    row: dict[str, Any] = {"kernel": kernel, "shape": shape}
    try:
        timing = kernel_time(backend, op, operands, kernel)
    except GlnnError as error:
        return {**row, "us": None, "gb_s": None, "reason": str(error)}
    speed = 8 * x.size / timing.seconds / 1e9
    return {**row, "us": 1e6 * timing.seconds, "gb_s": speed, "by_timer": timing.by_timer}


shapes_option = click.option("--shapes", help="Some of the matrices, by commas.")
plot_option = click.option(
    "--plot", type=click.Path(file_okay=False, path_type=Path), help="Also draw into this folder."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
