"""Activation, five variants (and ours), on the matrices of Rovder 2017, figure 9.2.

GB/s of the matrix, read and written; every kernel's result is checked before it is timed.

    python -m benchmarks.activation
    python -m benchmarks.activation --function relu --shapes 1024x1024 --json
"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from benchmarks.command import run
from benchmarks.elementwise import json_option, plot_option, report, shapes_option
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise


@click.command(help=__doc__)
@click.option(
    "--function",
    type=click.Choice(["sigmoid", "relu", "tanh"]),
    default="sigmoid",
    show_default=True,
    help="What to apply; the document applied the winner for the sigmoid to ReLU.",
)
@shapes_option
@plot_option
@json_option
def main(function: str, shapes: str | None, plot: Path | None, as_json: bool) -> None:
    report(Pointwise(call(function, Arg(0))), "figure_9_2", shapes, plot, as_json)


if __name__ == "__main__":
    run(main)
