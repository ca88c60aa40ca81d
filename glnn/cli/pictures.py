"""Pictures from files to files: which, and what is done to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend, open_backend
from glnn.cli.options import print_json
from glnn.cli.screen import Column, Screen, Table, figures, number, progress, say
from glnn.errors import ModelError
from glnn.images.files import check_picture, is_picture, read_picture, write_picture

LEFT_OUT = 2
"""The exit status where some of several pictures could not be read."""
Picture = NDArray[np.uint8]
Work = Callable[[Picture, Backend], Picture]
"""What is done to a picture on a backend."""


@dataclass(frozen=True)
class Pair:
    """A picture to read, and the file to write what becomes of it."""

    source: Path
    target: Path


def pairs(source: str, target: str) -> list[Pair]:
    """The pictures that `source` stands for, a file, a folder or a pattern, and where they go.

    target: a file for a file, else a folder, in which each keeps its name. Raises ModelError where
    there are none, or one would be written over one that is read, or twice.
    """
    several = Path(source).is_dir() or (has_magic(source) and not Path(source).exists())
    if Path(source).is_dir():
        found = [path for path in sorted(Path(source).iterdir()) if is_picture(path)]
    else:
        found = sorted(map(Path, glob(source))) if several else [Path(source)]
    if not found:
        raise ModelError(f"{source}: no pictures there")
    into = several or Path(target).is_dir()
    if several and Path(target).exists() and not Path(target).is_dir():
        raise ModelError(f"{target}: expected a folder for several pictures, got a file")
    made = [Pair(path, Path(target) / path.name if into else Path(target)) for path in found]
    _check(made)
    return made


def _check(made: Sequence[Pair]) -> None:
    """Raise ModelError where a picture would be lost, or cannot be written as it is called."""
    read = {pair.source.resolve() for pair in made}
    written: set[Path] = set()
    for pair in made:
        check_picture(pair.target)
        if pair.target.resolve() in read:
            raise ModelError(f"{pair.target}: IN and OUT are the same file")
        if pair.target in written:
            raise ModelError(f"{pair.target}: two pictures of IN are called so")
        written.add(pair.target)


def work_on(
    name: str,
    made: Sequence[Pair],
    work: Work,
    backend: str,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> int:
    """Do `work`, called `name`, to each picture, and say or print what was done.

    Of several, those that cannot be read are left out and named; the exit status is 2 then, else 0.
    """
    opened = open_backend(backend, gpu=gpu, limits=limits)
    device = opened.device
    where = device.capabilities.renderer if device else "CPU (NumPy)"
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    with progress(not as_json and len(made) > 1) as bar:
        for pair in bar.track(made, description="filtering"):
            try:
                picture = read_picture(pair.source)
            except ModelError as error:
                if len(made) == 1:
                    raise
                say(str(error))
                failed.append({"in": str(pair.source), "error": str(error)})
            else:
                rows.append(_done(pair, picture, work, opened))
    if as_json:
        about = {"filter": name, "backend": opened.name, "device": where}
        print_json({**about, "pictures": rows, "failed": failed})
    else:
        _show(rows, wide, f"{name} on {opened.name}: {where}")
    return LEFT_OUT if failed else 0


def _show(rows: Sequence[dict[str, Any]], wide: bool, title: str) -> None:
    heads = (Column("in"), Column("out"), figures("width"), figures("height"), figures("ms"))
    table = Table(heads)
    for row in rows:
        sizes = (str(row["width"]), str(row["height"]))
        table.add(row["in"], row["out"], *sizes, number(row["ms"]))
    Screen(wide).show(table, title)


def _done(pair: Pair, picture: Picture, work: Work, backend: Backend) -> dict[str, Any]:
    """Of one picture; ms is of the work alone, neither of reading nor of writing."""
    start = perf_counter()
    found = work(picture, backend)
    took = 1e3 * (perf_counter() - start)
    pair.target.parent.mkdir(parents=True, exist_ok=True)
    write_picture(pair.target, found)
    height, width = found.shape[:2]
    names = {"in": str(pair.source), "out": str(pair.target)}
    return {**names, "width": width, "height": height, "ms": took}
