"""Cache of the parsed declarations of the kernels that ship with glnn.

Parsing a hundred TOML files takes ten times as long as loading the pickled kernels. The pickle is
stored as Python stores the code of modules, in `__pycache__` beside this module and by the same
settings, and used while all files that it was made from are unchanged.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from glnn import fileio
from glnn.kernels.kernel import Kernel
from glnn.version import VERSION

Read = Callable[[Path], tuple[Kernel, ...]]


def parsed(folder: Path, read: Read) -> tuple[Kernel, ...]:
    """Return `read(folder)`, from the cache where it is valid. Raises as `read` does."""
    try:
        state = _state(folder)
        path = Path(importlib.util.cache_from_source(__file__))
    except (OSError, NotImplementedError):  # the folder is none, or Python keeps no code
        return read(folder)
    path = path.with_suffix(".pickle")
    with suppress(Exception):  # whatever is not there, or damaged, is made again
        kept = path.read_bytes()
        if kept.startswith(state):
            found: tuple[Kernel, ...] = pickle.loads(kept[len(state) :])
            return found
    kernels = read(folder)
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with fileio.atomic_write(path) as file:
                file.write(state + pickle.dumps(kernels))
    return kernels


def _state(folder: Path) -> bytes:
    """Return a digest of the files in `folder` and of the modules that read them."""
    found = sha256(repr((VERSION, sys.version, str(folder))).encode())
    for path in (folder, Path(__file__).parent):
        for entry in _files(path):
            stat = entry.stat()
            found.update(f"{entry.path}\0{stat.st_size} {stat.st_mtime_ns}\0".encode())
    return found.digest()


def _files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield the files in `folder` and its subfolders, in order."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if not entry.is_dir():
                yield entry
            elif entry.name != "__pycache__":
                yield from _files(entry.path)
