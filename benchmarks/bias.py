"""Bias addition, seven variants and ours, on the matrices of Rovder 2017, figure 9.1.

python -m benchmarks.bias
python -m benchmarks.bias --plot figures/ --json
"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from benchmarks.command import run
from benchmarks.elementwise import json_option, plot_option, report
from glnn.graph.operators import Pointwise
from glnn.graph.patterns import SUM


@click.command(help=__doc__)
@plot_option
@json_option
def main(plot: Path | None, as_json: bool) -> None:
    report(Pointwise(SUM), "figure_9_1", plot, as_json)


if __name__ == "__main__":
    run(main)
