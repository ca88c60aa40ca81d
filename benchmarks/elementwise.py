"""Bias addition and activation: every kernel on the three matrices of Rovder 2017.

Figures 9.1 (bias, seven variants) and 9.2 (sigmoid, five variants): 1024 x 1024, 256 x 4096 and
4096 x 256, neurons by samples.

    python -m benchmarks.elementwise bias
    python -m benchmarks.elementwise activation --json
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import rich_click as click

from benchmarks.record import machine
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import console, progress, table
from glnn.errors import GlnnError
from glnn.kernels import kernels_for
from glnn.ops import Activation, Bias, Op

SHAPES = ((1024, 1024), (256, 4096), (4096, 256))


@click.command()
@click.argument("op", type=click.Choice(["bias", "activation"]))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(op: str, as_json: bool) -> None:
    """Time the kernels of OP on the compute backend."""
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    made: Op = Bias() if op == "bias" else Activation("sigmoid")
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for kernel in bar.track(kernels_for(op, "compute"), description="timing"):
            for neurons, samples in SHAPES:
                x = np.random.default_rng(0).random((samples, neurons), dtype=np.float32)
                operands = {"x": x} | ({"bias": x[0].copy()} if op == "bias" else {})
                row: dict[str, Any] = {"kernel": kernel.name, "shape": [neurons, samples]}
                try:
                    timing = kernel_time(backend, made, operands, kernel.name)
                except GlnnError as error:
                    rows.append({**row, "us": None, "reason": str(error)})
                    continue
                us = 1e6 * timing.seconds
                speed = 8 * x.size / timing.seconds / 1e9
                rows.append({**row, "us": us, "gb_s": speed, "by_timer": timing.by_timer})
    result = {**machine(backend.device), "op": op, "rows": rows}
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = console()
    out.print(", ".join(f"{k} {v}" for k, v in result.items() if k != "rows"))
    shown = table("microseconds", "kernel", *(f">{a} x {b}" for a, b in SHAPES))
    for name in dict.fromkeys(row["kernel"] for row in rows):
        cells = [row["us"] for row in rows if row["kernel"] == name]
        shown.add_row(name, *("-" if us is None else f"{us:.1f}" for us in cells))
    out.print(shown)


if __name__ == "__main__":
    main()
