"""Exit codes, error messages and plots that the benchmarks' command lines share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rich_click as click

from glnn.errors import GlnnError, extra

USER_ERROR, INTERRUPTED = 2, 130
SUFFIXES = (".png", ".svg")


def run(command: click.Command) -> None:
    """Run `command` and exit: 2 after a user's mistake, which is printed, 130 when interrupted."""
    try:
        code = command(standalone_mode=False)
    except click.ClickException as error:
        code = _complain(error.format_message())
    except (GlnnError, MemoryError) as error:
        code = _complain(str(error) or "not enough memory")
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    click.echo(" ".join(message.split()), err=True)
    return USER_ERROR


def check_picture(path: Path | None) -> None:
    """Raise GlnnError before the work begins if no picture can be drawn to `path`."""
    if path is None:
        return
    if path.suffix not in SUFFIXES or path.is_dir():
        raise GlnnError(f"--plot: expected a .png or .svg file, got {path}")
    pyplot()


def check_folder(path: Path | None) -> None:
    """Raise GlnnError before the work begins if no pictures can be drawn into `path`."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise GlnnError(f"--plot: expected a folder, got the file {path}")
    pyplot()


def pyplot() -> Any:
    """Import matplotlib's pyplot, without a window. Raises GlnnError where it is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as module
    except ImportError:
        raise GlnnError(f"pictures need matplotlib: {extra('bench')}") from None
    return module


@contextmanager
def chart(path: Path, xlabel: str, ylabel: str) -> Iterator[Any]:
    """Yield axes to draw on; add labels, a legend and a grid, and save the figure to `path`."""
    figure, axes = pyplot().subplots(figsize=(7, 5))
    yield axes
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend()
    axes.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    save(figure, path)


def save(figure: Any, path: Path, metadata: dict[str, Any] | None = None) -> None:
    """Write `figure` to `path` and close it. Raises GlnnError where that fails.

    metadata: replaces matplotlib's metadata of the file, as the date in .svg.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise GlnnError(f"--plot: {path} cannot be written: {error.strerror}") from None
    finally:
        pyplot().close(figure)
