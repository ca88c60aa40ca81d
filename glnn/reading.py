"""Opening files that anyone may have put there: a pipe or a device is never waited for."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from glnn.errors import ModelError


@dataclass(frozen=True)
class Noted:
    """A file that was opened to be read."""

    path: str
    """Where, from the root on; links are not followed."""
    known: os.stat_result
    """What the system knew of it."""
    at: int
    """When that was, in nanoseconds since 1970."""


_NOTED: ContextVar[list[Noted] | None] = ContextVar("noted", default=None)


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """Which files `regular` opens meanwhile in this thread."""
    found: list[Noted] = []
    token = _NOTED.set(found)
    try:
        yield found
    finally:
        _NOTED.reset(token)


def regular(path: str, flags: int) -> int:
    """What `open` takes as `opener`: OSError unless `path` is a regular file, at once."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    known = os.fstat(handle)
    if stat.S_ISREG(known.st_mode):
        noted = _NOTED.get()
        if noted is not None:
            noted.append(Noted(_absolute(path), known, time.time_ns()))
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "is not a file", path)


def _absolute(path: str) -> str:
    """`path` from the root on, where that can be told."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return path


def read(path: Path, most: int) -> bytes:
    """What the file holds. Raises OSError where it is none or holds more than `most` bytes."""
    with open(path, "rb", opener=regular) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"holds more than {most} bytes", str(path))
    return content


def check_file(path: Path) -> None:
    """Raise ModelError unless `path` is a regular file: reading a pipe might never end."""
    try:
        if path.is_file():
            return
        fault = "is not a file" if path.exists() else "no such file"
    except (OSError, ValueError):  # a name too long, or one that holds a zero byte
        fault = "not a usable file name"
    raise ModelError(f"{path}: {fault}")


def inside(folder: Path, file: Path, name: object, home: Path | None = None) -> Path:
    """The path of the file that `file` calls `name`, which must lie in `folder`, or in `home`.

    `name` is relative to `file`. Links are followed before the place is judged.
    """
    if not isinstance(name, str) or not name:
        raise ModelError(f"{file}: expected a file name, got {name!r}")
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise ModelError(f"{file}: the path {name!r} must be relative to the model's folder")
    try:
        path = file.parent / name
        place, homes = path.resolve(), [folder] if home is None else [folder, home]
        allowed = any(place.is_relative_to(one.resolve()) for one in homes)
    except (OSError, ValueError, RuntimeError):  # a zero byte, or links in a circle
        raise ModelError(f"{file}: {name!r} is not a usable file name") from None
    if not allowed:
        raise ModelError(f"{file}: the path {name!r} leaves the model's folder")
    return path
