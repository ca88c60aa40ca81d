"""An entry that is being written."""

from __future__ import annotations

import logging
import os
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # where files have no such locks
    fcntl = None  # type: ignore[assignment]

from glnn.disk.entry import ALIGNED, MAGIC, Part, table

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger(__name__)
SUFFIX = ".glnn-part"
PRIVATE, OWN = 0o700, 0o600  # of folders, of files


class Draft:
    """A file beside its place, locked, that becomes the entry by `commit` and is gone otherwise.

    For one thread at a time. What the disk refuses ends it without an error: then nothing is kept.
    """

    def __init__(
        self,
        path: Path | None,
        name: str,
        about: Mapping[str, str],
        most: int,
        wrote: Callable[[int], object],
    ) -> None:
        """path: None writes nothing. most: the bytes it may have. wrote: told how many it has."""
        self._path, self._name, self._about = path, name, about
        self._most, self._wrote = most, wrote
        self._parts: dict[str, Part] = {}
        self._at = 0
        self._end: weakref.finalize[Any, Any] | None = None
        self._handle = -1
        if path is not None:
            try:
                self._begin(path)
            except OSError as error:
                self._give_up(error)

    def _begin(self, path: Path) -> None:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(PRIVATE, exist_ok=True)
        draft = path.with_name(f"{path.stem[:40]}.{os.urandom(8).hex()}{SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._handle = os.open(draft, flags, OWN)
        self._draft = draft
        self._end = weakref.finalize(self, _discard, self._handle, draft, os.getpid())
        if fcntl is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._put(memoryview(MAGIC))

    @property
    def open(self) -> bool:
        """Whether it still comes to something."""
        return self._end is not None and self._end.alive

    def append(self, part: str, content: Any) -> bool:
        """Add a part; whether that was possible.

        content: bytes, an array, or whatever else lies in memory without gaps.
        Raises ValueError where there is such a part.
        """
        if part in self._parts:
            raise ValueError(f"{self._name}: there is a part {part!r}")
        view = memoryview(content)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if not self.open:
            return False
        try:
            self._put(memoryview(bytes(-self._at % ALIGNED)))
            place = Part(self._at, view.nbytes, zlib.crc32(view))
            self._put(view)
        except OSError as error:
            return self._give_up(error)
        self._parts[part] = place
        return True

    def _put(self, view: memoryview) -> None:
        if self._at + view.nbytes > self._most:
            raise OSError(0, f"it is larger than {self._most} bytes")
        while view:
            written = os.write(self._handle, view)
            self._at += written
            view = view[written:]

    def commit(self) -> bool:
        """Make it the entry, in place of any that there is; whether that was possible."""
        if not self.open:
            return False
        assert self._path is not None
        try:
            self._put(memoryview(table(self._name, self._about, self._parts, self._at)))
            self._draft.replace(self._path)
        except OSError as error:
            return self._give_up(error)
        self.discard()  # its name is gone: this closes it
        LOG.debug("%s: kept, %d bytes", self._name, self._at)
        self._wrote(self._at)
        return True

    def _give_up(self, error: OSError) -> bool:
        LOG.debug("%s: not kept: %s", self._name, error.strerror or error)
        self.discard()
        return False

    def discard(self) -> None:
        """Leave nothing of it. Harmless when repeated."""
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


def _discard(handle: int, draft: Path, process: int) -> None:
    os.close(handle)
    if process == os.getpid():  # a fork has the file open, too, but it is not its own
        with suppress(OSError):
            draft.unlink()


def abandoned(draft: Path) -> bool:
    """Whether nobody is writing `draft` any more: the system unlocks what a process had open."""
    if fcntl is None:
        return False
    try:
        handle = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
