"""Bias addition, seven variants and ours, on the matrices of Rovder 2017, figure 9.1.

GB/s of the matrix, read and written; every kernel's result is checked before it is timed.

    python -m benchmarks.bias
    python -m benchmarks.bias --shapes 1024x1024 --plot figures/ --json
"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from benchmarks.command import run
from benchmarks.elementwise import json_option, plot_option, report, shapes_option
from glnn.graph.expression import SUM
from glnn.graph.operators import Pointwise


@click.command(help=__doc__)
@shapes_option
@plot_option
@json_option
def main(shapes: str | None, plot: Path | None, as_json: bool) -> None:
    report(Pointwise(SUM), "figure_9_1", shapes, plot, as_json)


if __name__ == "__main__":
    run(main)
