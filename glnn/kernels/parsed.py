"""The kernels that ship with glnn as they were declared to an earlier process.

Reading a hundred TOML files takes ten times as long as reading what became of them. That is kept as
Python keeps the code of modules: in `__pycache__` beside this one, by the same settings, and used
while all files that it was made of are the same.
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

from glnn import writing
from glnn.kernels.kernel import Kernel
from glnn.version import VERSION

Read = Callable[[Path], tuple[Kernel, ...]]


def parsed(folder: Path, read: Read) -> tuple[Kernel, ...]:
    """What `read` makes of `folder`, or has made of it before. Raises what that raises."""
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
            with writing.whole(path) as file:
                file.write(state + pickle.dumps(kernels))
    return kernels


def _state(folder: Path) -> bytes:
    """A digest of what kernels are made of: the files in `folder`, and the modules that read."""
    found = sha256(repr((VERSION, sys.version, str(folder))).encode())
    for path in (folder, Path(__file__).parent):
        for entry in _files(path):
            stat = entry.stat()
            found.update(f"{entry.path}\0{stat.st_size} {stat.st_mtime_ns}\0".encode())
    return found.digest()


def _files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """The files in `folder` and in its folders, in order."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if not entry.is_dir():
                yield entry
            elif entry.name != "__pycache__":
                yield from _files(entry.path)
