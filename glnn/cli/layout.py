"""`glnn layout`: a picture of how a matrix lies in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from glnn.cli.options import OutputFile, WritingCommand, output_options, print_json
from glnn.cli.screen import Screen, Table, figures
from glnn.core.layout import parse
from glnn.errors import GlnnError, LayoutError, extra

MOST = 64  # rows or columns that fit on a screen or a page
LARGEST = 1 << 20  # places, padding included


@click.command(cls=WritingCommand)
@click.argument("layout")
@click.argument("rows", type=click.IntRange(1, MOST))
@click.argument("columns", type=click.IntRange(1, MOST))
@click.option(
    "--plot",
    metavar="FILE",
    type=OutputFile(),
    help="Also draw the path through memory to this file, .png or .svg.",
)
@output_options
def layout(
    layout: str, rows: int, columns: int, plot: str | None, wide: bool, as_json: bool
) -> None:
    """Draw where each element of a ROWS x COLUMNS matrix lies in LAYOUT.

    A layout is R (row major, the elements one after the other), R4 (row major, each row padded to
    four so that it begins on a vec4), C, a Hybrid Morton Order such as "C 4 2 C" (underscores may
    stand for the blanks), or a blocked tag of a matrix such as IO4i4o, whose rows are o and columns
    i.

    \b
    Examples:
      glnn layout "C 4 2 C" 8 8
      glnn layout R_4_4_R_2_2_R 8 8 --plot z-order.svg
      glnn layout IO4i4o 8 8 --json
    """
    name, offsets = _offsets(layout, rows, columns)
    if plot is not None:
        draw(name, offsets, Path(plot))
    if as_json:
        print_json({"layout": name, "rows": rows, "columns": columns, "places": offsets.tolist()})
        return
    heads = (figures(""), *(figures(str(j)) for j in range(columns)))
    shown = Table(heads, split=True)
    for i, row in enumerate(offsets):
        shown.add(str(i), *map(str, row))
    Screen(wide).show(shown, f"{name}, {rows} x {columns}")


def _offsets(text: str, rows: int, columns: int) -> tuple[str, NDArray[np.int64]]:
    """Return the layout's name, and the place of each element: the matrix of its own indices,
    packed.
    """
    layout = parse(text)
    if layout.ranks is not None and 2 not in layout.ranks:
        raise LayoutError(f"layout {text!r} is not for matrices")
    if (size := layout.size((rows, columns))) > LARGEST:
        raise LayoutError(
            f"layout {text!r}: {rows} x {columns} would be padded to {size} places, more than the "
            f"{LARGEST} that are drawn"
        )
    numbers = np.arange(1, 1 + rows * columns, dtype=np.float32).reshape(rows, columns)
    stored = layout.pack(numbers).astype(np.int64)  # 0 is padding
    offsets = np.zeros(rows * columns + 1, np.int64)
    offsets[stored] = np.arange(stored.size)
    return layout.name, offsets[1:].reshape(rows, columns)


def draw(name: str, offsets: NDArray[Any], path: Path) -> None:
    """Draw elements as dots and the path through memory as a line, as in Rovder 2017, figure
    8.1.
    """
    if path.suffix not in (".png", ".svg"):
        raise GlnnError(f"--plot: expected a .png or .svg file, got {path}")
    try:
        import matplotlib

        matplotlib.use("Agg")  # no window
        from matplotlib import pyplot
    except ImportError:
        raise GlnnError(f"--plot needs matplotlib: {extra('bench')}") from None
    rows, columns = offsets.shape
    order = np.argsort(offsets, axis=None)
    figure, axes = pyplot.subplots(figsize=(1 + columns / 2.5, 1 + rows / 2.5))
    axes.plot(order % columns, order // columns, "-", color="tab:blue", linewidth=1)
    axes.plot(order % columns, order // columns, "o", color="black", markersize=3)
    axes.set_title(name)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.axis("off")
    try:
        figure.savefig(path)
    except OSError as error:
        raise GlnnError(f"--plot: {path} cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)
