"""Writing files that are there whole or not at all, whatever interrupts it."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file to write that replaces `path` atomically at the end; discard it on an exception.

    A link is followed. Raises OSError where `path` cannot be written, or exists and is no file.
    """
    target = _target(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as stream:
            yield stream
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def probe(path: str | os.PathLike[str]) -> None:
    """Raise OSError where `whole` could not write `path`. Leaves nothing behind."""
    target = _target(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        draft.open("xb").close()
    finally:
        draft.unlink(missing_ok=True)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the target of the link `path`. Raises OSError where it exists and is no file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return target
