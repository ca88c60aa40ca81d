"""`glnn filter`: pictures filtered into pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from glob import glob, has_magic
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from glnn import filters
from glnn.backends import Backend, open_backend
from glnn.cli.options import (
    FileName,
    OutputFile,
    WritingCommand,
    backend_option,
    check_absent,
    device_options,
    print_json,
)
from glnn.cli.screen import Column, Screen, Table, figures, number, progress, say
from glnn.core.fileio import make_folder
from glnn.errors import ModelError, fault
from glnn.filters.filter import BORDERS
from glnn.filters.linear_filters import INTERPOLATIONS
from glnn.images.files import check_picture, is_picture, read_picture, write_picture

LEFT_OUT = 2
"""The exit status where some of several pictures could not be read."""
Picture = NDArray[np.uint8]
Work = Callable[[Picture, Backend], Picture]
"""A function that filters a picture on a backend."""


@dataclass(frozen=True)
class PicturePair:
    """A picture to read, and the file to write its result to."""

    source: Path
    target: Path


def find_pairs(source: str, target: str) -> list[PicturePair]:
    """Return the pictures that `source` names, a file, a folder or a pattern, with their targets.

    target: a file for a file, else a folder, in which each keeps its name. Raises ModelError where
    there are none, or one would be written over one that is read, or twice.
    """
    is_several = Path(source).is_dir() or (has_magic(source) and not Path(source).exists())
    if Path(source).is_dir():
        sources = [path for path in sorted(Path(source).iterdir()) if is_picture(path)]
    else:
        sources = sorted(map(Path, glob(source))) if is_several else [Path(source)]
    if not sources:
        raise ModelError(f"{source}: no pictures there")
    to_folder = is_several or Path(target).is_dir()
    if is_several and Path(target).exists() and not Path(target).is_dir():
        raise ModelError(f"{target}: expected a folder for several pictures, got a file")
    pairs = [
        PicturePair(path, Path(target) / path.name if to_folder else Path(target))
        for path in sources
    ]
    _check(pairs)
    return pairs


def _check(pairs: Sequence[PicturePair]) -> None:
    """Raise ModelError where a picture would be overwritten, or has a suffix of no format."""
    read = {os.path.realpath(pair.source) for pair in pairs}
    written: set[Path] = set()
    for pair in pairs:
        check_picture(pair.target)
        if os.path.realpath(pair.target) in read:
            raise ModelError(f"{pair.target}: IN and OUT are the same file")
        if pair.target in written:
            raise ModelError(f"{pair.target}: two pictures of IN are called so")
        check_absent("OUT", pair.target)
        written.add(pair.target)


def filter_pairs(
    name: str,
    pairs: Sequence[PicturePair],
    work: Work,
    backend: str,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> int:
    """Apply `work`, the filter called `name`, to each picture, print a report, and return the exit
    status.

    Of several pictures, those that cannot be read are left out and named; the status is 2 then.
    """
    opened = open_backend(backend, gpu=gpu, limits=limits)
    device = opened.device
    renderer = device.capabilities.renderer if device else "CPU (NumPy)"
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    with progress(not as_json and len(pairs) > 1) as bar:
        for pair in bar.track(pairs, description="filtering"):
            try:
                picture = read_picture(pair.source)
            except ModelError as error:
                if len(pairs) == 1:
                    raise
                say(str(error))
                failed.append({"in": str(pair.source), "error": str(error)})
            else:
                rows.append(_filter_picture(pair, picture, work, opened))
    if as_json:
        about = {"filter": name, "backend": opened.name, "device": renderer}
        print_json({**about, "pictures": rows, "failed": failed})
    else:
        _show(rows, wide, f"{name} on {opened.name}: {renderer}")
    return LEFT_OUT if failed else 0


def _show(rows: Sequence[dict[str, Any]], wide: bool, title: str) -> None:
    heads = (Column("in"), Column("out"), figures("width"), figures("height"), figures("ms"))
    table = Table(heads)
    for row in rows:
        sizes = (str(row["width"]), str(row["height"]))
        table.add(row["in"], row["out"], *sizes, number(row["ms"]))
    Screen(wide).show(table, title)


def _filter_picture(
    pair: PicturePair, picture: Picture, work: Work, backend: Backend
) -> dict[str, Any]:
    """Filter one picture, write the result and describe both.

    ms: the filter's time alone, without reading and writing. Raises ModelError where the result
    cannot be written.
    """
    start = perf_counter()
    result = work(picture, backend)
    ms = 1e3 * (perf_counter() - start)
    folder = pair.target.parent
    try:
        make_folder(folder)
    except OSError as error:
        raise ModelError(f"OUT: cannot write to {folder}: {fault(error)}") from None
    write_picture(pair.target, result)
    height, width = result.shape[:2]
    names = {"in": str(pair.source), "out": str(pair.target)}
    return {**names, "width": width, "height": height, "ms": ms}


Command = TypeVar("Command", bound=Callable[..., Any])
Array = NDArray[Any]
DERIVATIVES = {"magnitude": None, "dx": 0, "dy": 1}
"""The choices of --show, with the index of the derivative."""


class Filters(click.RichGroup):
    """A command for each filter."""

    command_class = WritingCommand


@click.group(cls=Filters)
def filter() -> None:
    """Filter the picture IN, and write the picture OUT.

    IN may be a folder or a pattern in quotes, as 'photos/*.jpg'; OUT is then a folder, in which
    each picture keeps its name; one that cannot be read is named and left out, and the exit status
    is 2. Pictures are PNG, JPEG, WEBP, BMP, GIF, TIFF or PPM, and are written whole or not at all.

    \b
    Examples:
      glnn filter sobel in.png out.png
      glnn filter gaussian_blur in.png out.png --kernel-size 9 --sigma 2
      glnn filter resize photos small --size 640,480 --interpolation area
      glnn filter median 'scans/*.png' clean --backend feedback --json
    """


def _pictures(make: Callable[..., Work]) -> Callable[..., int]:
    """Make the command that applies the filter that `make` returns for its options."""

    @click.argument("source", metavar="IN", type=FileName())
    @click.argument("target", metavar="OUT", type=OutputFile(folder=lambda name: True))
    @backend_option
    @device_options
    @wraps(make)
    def command(source: str, target: str, **options: Any) -> int:
        names = ("backend", "gpu", "limits", "wide", "as_json")
        shared = {name: options.pop(name) for name in names}
        return filter_pairs(make.__name__, find_pairs(source, target), make(**options), **shared)

    return command


def _number_parser(kind: Callable[[str], float], counts: range) -> Callable[..., Any]:
    """Return a parser of numbers separated by commas, whose number is in `counts`.

    Where one or two are allowed, it returns a single number not as a tuple.
    """

    def parse(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            result = tuple(kind(part) for part in text.split(","))
        except ValueError:
            result = ()
        if len(result) not in counts:
            raise click.BadParameter(f"expected numbers as {parameter.metavar}, got {text!r}")
        return result[0] if len(result) == 1 and len(counts) == 2 else result

    return parse


def _sizes(name: str, help: str, **attributes: Any) -> Callable[[Command], Command]:
    """Make the option `name`, a size or two."""
    parse = _number_parser(int, range(1, 3))
    return click.option(name, metavar="N|WIDTH,HEIGHT", callback=parse, help=help, **attributes)


def _weights(name: str, along: str) -> Callable[[Command], Command]:
    """Make the option `name`, the weights of a kernel."""
    parse, help = _number_parser(float, range(1, 1000)), f"The weights along {along}."
    return click.option(name, metavar="A,B,...", required=True, callback=parse, help=help)


def _border(default: str = "reflect") -> Callable[[Command], Command]:
    return click.option(
        "--border",
        type=click.Choice(BORDERS),
        default=default,
        show_default=True,
        help="What lies beyond the picture.",
    )


def _show_option(command: Command) -> Command:
    return click.option(
        "--show",
        type=click.Choice(list(DERIVATIVES)),
        default="magnitude",
        show_default=True,
        help="The length of the gradient, or one derivative, on grey.",
    )(command)


@filter.command("gaussian_blur")
@_sizes("--kernel-size", "In pixels, odd; without it, it follows from sigma.")
@click.option(
    "--sigma",
    metavar="S|X,Y",
    callback=_number_parser(float, range(1, 3)),
    help="The standard deviation in pixels; without it, it follows from the size.",
)
@_border()
@_pictures
def gaussian_blur(kernel_size: Any, sigma: Any, border: str) -> Work:
    """Blur by a Gaussian."""
    return partial(_run_filter, filters.gaussian_blur, kernel_size, sigma, border)


@filter.command()
@_sizes("--kernel-size", "In pixels.", default="3", show_default=True)
@_border()
@_pictures
def box(kernel_size: Any, border: str) -> Work:
    """The means of boxes."""
    return partial(_run_filter, filters.box, kernel_size, border)


@filter.command()
@_border("replicate")
@_pictures
def median(border: str) -> Work:
    """The median of each pixel and its eight neighbours."""
    return partial(_run_filter, filters.median, border)


@filter.command()
@_weights("--kernel-x", "rows")
@_weights("--kernel-y", "columns")
@_border()
@_pictures
def separable(kernel_x: Any, kernel_y: Any, border: str) -> Work:
    """Correlate rows with one kernel, then columns with another."""
    return partial(_run_filter, filters.separable, kernel_x, kernel_y, border)


@filter.command()
@_sizes("--size", "In pixels.", required=True)
@click.option(
    "--interpolation",
    type=click.Choice(INTERPOLATIONS),
    default="linear",
    show_default=True,
    help="area is the one for much smaller pictures.",
)
@_pictures
def resize(size: Any, interpolation: str) -> Work:
    """Another size."""
    return partial(_run_filter, filters.resize, size, interpolation)


@filter.command()
@_pictures
def grey() -> Work:
    """Grey values; transparency does not count."""
    return _grey


@filter.command()
@_show_option
@_pictures
def sobel(show: str) -> Work:
    """Edges, by Sobel's derivatives of the grey values.

    White is a step from black to white. A derivative alone is grey where it is 0, and brighter
    where the picture becomes brighter to the right, or downwards.
    """

    def work(picture: Picture, backend: Backend) -> Picture:
        dx, dy = filters.sobel(_grey(picture, backend), backend)
        return _gradient(dx, -dy.astype(np.float32), 127.5, show)  # its dy grows upwards

    return work


@filter.command()
@_show_option
@_border()
@_pictures
def scharr(show: str, border: str) -> Work:
    """Edges, by Scharr's derivatives of the grey values.

    White is a step from black to white. A derivative alone is grey where it is 0, and brighter
    where the picture becomes brighter to the right, or downwards.
    """

    def work(picture: Picture, backend: Backend) -> Picture:
        dx, dy = filters.scharr(_grey(picture, backend), border, backend)
        return _gradient(dx, dy, 4080, show)

    return work


@filter.command()
@click.option(
    "--kernel-size",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="1 is of the four neighbours, 3 of those at the corners.",
)
@_border()
@_pictures
def laplacian(kernel_size: str, border: str) -> Work:
    """The absolute Laplacian of the grey values."""

    def work(picture: Picture, backend: Backend) -> Picture:
        grey = _grey(picture, backend)
        return _bytes(np.abs(filters.laplacian(grey, int(kernel_size), border, backend)))

    return work


def _run_filter(work: Callable[..., Array], *arguments: Any) -> Picture:
    """Run `work` on a picture and a backend, the last two of `arguments`."""
    *options, picture, backend = arguments
    return work(picture, *options, backend=backend)


def _grey(picture: Picture, backend: Backend) -> Picture:
    return picture if picture.ndim == 2 else filters.grey(picture, backend)


def _gradient(dx: Array, dy: Array, most: float, show: str) -> Picture:
    """Convert derivatives to a picture. most: the derivative of an edge from black to white."""
    both = np.stack([dx, dy]) * np.float32(255 / most)
    index = DERIVATIVES[show]
    return _bytes(np.hypot(*both) if index is None else 128 + both[index] / 2)


def _bytes(values: Array) -> Picture:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
