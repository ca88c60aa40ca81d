"""Opening files that anyone may have put there: a pipe or a device is never waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def regular(path: str, flags: int) -> int:
    """What `open` takes as `opener`: OSError unless `path` is a regular file, at once."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "is not a file", path)


def read(path: Path, most: int) -> bytes:
    """What the file holds. Raises OSError where it is none or holds more than `most` bytes."""
    with open(path, "rb", opener=regular) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"holds more than {most} bytes", str(path))
    return content
