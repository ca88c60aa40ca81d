"""C beside the benchmarks, compiled when it is needed: what a document measured on the CPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from glnn.errors import GlnnError

FLAGS = ("-O3", "-shared", "-fPIC", "-std=gnu11")
"""No -ffast-math: sums stay in the order in which they are written."""


@cache
def library(source: Path, *more: str) -> ctypes.CDLL:
    """The functions of the C file `source`, compiled by `CC`, or cc, with FLAGS and `more`.

    Raises GlnnError where there is no compiler, or where it refuses the file.
    """
    with TemporaryDirectory(prefix="glnn-") as folder:
        built = compiled(source, Path(folder), *more)
        try:
            return ctypes.CDLL(str(built))  # which stays when its file goes
        except OSError as error:
            raise GlnnError(f"{source.name} as it was compiled does not load: {error}") from None


def compiled(source: Path, folder: Path, *more: str) -> Path:
    """The library in `folder` that `source` is compiled to. Raises what `library` raises."""
    asked = os.environ.get("CC", "cc")
    compiler = shutil.which(asked)
    if compiler is None:
        raise GlnnError(f"{source.name} needs a C compiler: no {asked} on the path")
    built = folder / f"{source.stem}.so"
    command = [compiler, *FLAGS, *more, str(source), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line]
        raise GlnnError(f"{asked} refuses {source.name}: {(said or ['it does not say why'])[0]}")
    return built
