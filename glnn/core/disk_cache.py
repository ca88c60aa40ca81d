"""The cache folder: checksummed entries of this user, written atomically.

    magic, 8 bytes | parts, each aligned to 64 bytes | table, JSON | footer, 28 bytes

The table has the entry's name and description, and the offset, bytes and CRC-32 of each part; the
footer has the offset, bytes and CRC-32 of the table. Checksums cover every byte but the padding. A
truncated file has no footer, and is no entry.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
import stat
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn.core.settings import Settings

try:
    import fcntl
except ImportError:  # systems without such locks
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Self


MAGIC = b"glnnkpt1"
FOOTER = struct.Struct("<QQI8s")  # the table's offset, bytes and CRC-32; MAGIC
ALIGNMENT = 64  # bytes of a part's offset: processors and drivers copy it fastest
NAME = re.compile(r"([a-z]{1,20})/([A-Za-z0-9_-][A-Za-z0-9._-]{0,120})", re.ASCII)


class DamagedError(Exception):
    """The content of a file is damaged."""


class ForeignError(Exception):
    """A file belongs to another user, or others may write it."""


def check_name(name: str) -> tuple[str, str]:
    """Return the kind and the rest of an entry's name. Raises ValueError for a malformed one."""
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"expected an entry's name, as in programs/0a1b2c, got {name!r}")
    return match[1], match[2]


@dataclass(frozen=True)
class EntryPart:
    """The range of a part in its file, and its CRC-32."""

    offset: int
    nbytes: int
    crc: int

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.offset, self.nbytes, self.crc)):
            raise ValueError(f"expected three counts, got {self.offset}, {self.nbytes}, {self.crc}")


@dataclass(frozen=True)
class CacheEntry:
    """An entry mapped into memory. It stays valid if the file is removed."""

    name: str
    """The name in `DiskCache`."""
    about: Mapping[str, str]
    """The writer's description of the entry."""
    parts: Mapping[str, EntryPart]
    """The parts, in the order in which they were written."""
    _view: memoryview
    """The whole file, mapped."""

    @classmethod
    def open(cls, path: Path, name: str) -> tuple[CacheEntry, os.stat_result]:
        """Return the entry called `name` in the file `path`, and the file's status.

        Raises OSError where it cannot be read, DamagedError where it is damaged, ForeignError where
        another user owns it or may write it: the driver executes the programs in it.
        """
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError("it is no file")
            if status.st_uid != os.geteuid():
                raise ForeignError(f"it is of user {status.st_uid}")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ForeignError("others may write it")
            if status.st_size < len(MAGIC) + FOOTER.size:
                raise DamagedError(f"{status.st_size} bytes are too few")
            view = memoryview(mmap.mmap(handle, status.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
        return cls._parse(view, name), status

    @classmethod
    def _parse(cls, view: memoryview, name: str) -> CacheEntry:
        start, nbytes, crc, magic = FOOTER.unpack_from(view, len(view) - FOOTER.size)
        text = view[start : start + nbytes]
        is_complete = start >= len(MAGIC) and start + nbytes == len(view) - FOOTER.size
        if view[: len(MAGIC)] != MAGIC or magic != MAGIC or not is_complete:
            raise DamagedError("it is cut short, or of another form")
        if zlib.crc32(text) != crc:
            raise DamagedError("the table's checksum is wrong")
        try:
            document = json.loads(bytes(text))
            written_name = document["name"]
            about = {str(key): str(value) for key, value in document["about"].items()}
            parts = {part: EntryPart(*entry) for part, entry in document["parts"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"the table is malformed: {error}") from None
        if written_name != name:
            raise DamagedError("it is another entry")
        if any(part.offset + part.nbytes > start for part in parts.values()):
            raise DamagedError("a part is beyond the end")
        return cls(name, about, parts, view)

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    def part(self, name: str) -> memoryview:
        """Return the bytes of a part, unchecked. Raises KeyError."""
        part = self.parts[name]
        return self._view[part.offset : part.offset + part.nbytes]

    def span(self, names: Sequence[str]) -> memoryview:
        """Return the bytes of adjacent parts. Raises KeyError, DamagedError."""
        parts = [self.parts[name] for name in names]
        if any(one.offset + one.nbytes != other.offset for one, other in pairwise(parts)):
            raise DamagedError("parts do not follow one another")
        return self._view[parts[0].offset : parts[-1].offset + parts[-1].nbytes]

    def check(self, name: str) -> bool:
        """Return True where a part matches its checksum. Raises KeyError. It releases the GIL."""
        return zlib.crc32(self.part(name)) == self.parts[name].crc


def table(name: str, about: Mapping[str, str], parts: Mapping[str, EntryPart], start: int) -> bytes:
    """Return an entry's table and footer, to be written at the byte `start` after its parts."""
    document: dict[str, Any] = {"name": name, "about": dict(about)}
    document["parts"] = {key: [part.offset, part.nbytes, part.crc] for key, part in parts.items()}
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    return text + FOOTER.pack(start, len(text), zlib.crc32(text), MAGIC)


LOG = logging.getLogger(__name__)
DRAFT_SUFFIX = ".glnn-part"
FOLDER_MODE, FILE_MODE = 0o700, 0o600


class Draft:
    """A locked temporary file that `commit` renames to the entry's; it is deleted otherwise.

    For one thread at a time. A failed write discards the draft, and raises nothing.
    """

    def __init__(
        self,
        path: Path | None,
        name: str,
        about: Mapping[str, str],
        most: int,
        count_bytes: Callable[[int], object],
    ) -> None:
        """Open the file.

        path: the entry's file; None writes nothing. most: the largest size in bytes. count_bytes:
        is called with the size once the draft is committed.
        """
        self._path, self._name, self._about = path, name, about
        self._most, self._count_bytes = most, count_bytes
        self._parts: dict[str, EntryPart] = {}
        self._size = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._handle = -1
        if path is not None:
            try:
                self._open_file(path)
            except OSError as error:
                self._give_up(error)

    def _open_file(self, path: Path) -> None:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(FOLDER_MODE, exist_ok=True)
        draft = path.with_name(f"{path.stem[:40]}.{os.urandom(8).hex()}{DRAFT_SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._handle = os.open(draft, flags, FILE_MODE)
        self._draft = draft
        self._finalizer = weakref.finalize(self, _discard, self._handle, draft, os.getpid())
        if fcntl is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._write(memoryview(MAGIC))

    @property
    def is_open(self) -> bool:
        """True until it is committed or discarded, or a write fails."""
        return self._finalizer is not None and self._finalizer.alive

    def append(self, part: str, content: Any) -> bool:
        """Add a part; return True where it was written.

        content: bytes, an array, or any other contiguous buffer. Raises ValueError where the draft
        has such a part.
        """
        if part in self._parts:
            raise ValueError(f"{self._name}: there is a part {part!r}")
        view = memoryview(content)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if not self.is_open:
            return False
        try:
            self._write(memoryview(bytes(-self._size % ALIGNMENT)))
            entry_part = EntryPart(self._size, view.nbytes, zlib.crc32(view))
            self._write(view)
        except OSError as error:
            return self._give_up(error)
        self._parts[part] = entry_part
        return True

    def _write(self, view: memoryview) -> None:
        if self._size + view.nbytes > self._most:
            raise OSError(0, f"it is larger than {self._most} bytes")
        while view:
            written = os.write(self._handle, view)
            self._size += written
            view = view[written:]

    def commit(self) -> bool:
        """Make the draft the entry, replacing any other; return True where that succeeded."""
        if not self.is_open:
            return False
        assert self._path is not None
        try:
            self._write(memoryview(table(self._name, self._about, self._parts, self._size)))
            self._draft.replace(self._path)
        except OSError as error:
            return self._give_up(error)
        self.discard()  # closes the file; the draft's name no longer exists
        LOG.debug("%s: kept, %d bytes", self._name, self._size)
        self._count_bytes(self._size)
        return True

    def _give_up(self, error: OSError) -> bool:
        LOG.debug("%s: not kept: %s", self._name, error.strerror or error)
        self.discard()
        return False

    def discard(self) -> None:
        """Close and delete the draft. Harmless when repeated."""
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


def _discard(handle: int, draft: Path, process: int) -> None:
    os.close(handle)
    if process == os.getpid():  # a fork inherits the open file, but must not delete it
        with suppress(OSError):
            draft.unlink()


def is_abandoned(draft: Path) -> bool:
    """Return True where no process writes `draft`: the system unlocks it when its writer ends."""
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


SUFFIX = ".glnn-kept"  # tells entries from other files in the folder
MOST_READ = 64 << 20  # bytes of an entry that `DiskCache.read` reads
STALE = 86400.0  # seconds after which the time of an entry's last use is updated
SWEPT = 60.0  # seconds without a write after which an abandoned draft is deleted
COUNTED = 16  # the bytes of all entries are counted again after writes of 1 / COUNTED of the limit


def digest(*parts: str | bytes | int | None) -> str:
    """Return the SHA-256 of `parts` in 64 hexadecimal digits, as a name.

    The same text divided into other parts has another digest.
    """
    hashed = sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        hashed.update(b"%s%d " % (b"bytes" if isinstance(part, bytes) else b"", len(raw)))
        hashed.update(raw)
    return hashed.hexdigest()


@dataclass(frozen=True)
class EntryInfo:
    """An entry of the folder, for people to look at."""

    name: str
    """The name in `DiskCache`: kind/rest."""
    nbytes: int
    """The bytes of its file."""
    used: float
    """The time when it was written or, to the day, last used: seconds since 1970."""
    about: Mapping[str, str] | None
    """The writer's description of the entry; None where it is not usable."""

    @property
    def kind(self) -> str:
        """The folder that it is in, as "programs"."""
        return self.name.partition("/")[0]


@dataclass
class _Tally:
    """A count of bytes written through a `DiskCache`."""

    since: int | None = None
    """Bytes since the entries were last counted; None where they never were."""


@dataclass(frozen=True)
class DiskCache:
    """Entries by name, as programs/0a1b2c; each is a file of named parts with checksums.

    Failures raise nothing: an entry that cannot be written is not kept, and one that is damaged,
    incomplete or another user's counts as missing. Threads and processes may use the same folder at
    once: entries are replaced atomically, and a mapped entry stays valid. A malformed name raises
    ValueError.
    """

    folder: Path | None
    """The folder, with one folder for each kind; None where nothing is kept."""
    most: int = 2 << 30
    """The most bytes of all entries together; the least recently used ones are removed first."""
    _tally: _Tally = field(default_factory=_Tally, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"most: expected at least 0 bytes, got {self.most}")

    @classmethod
    def from_settings(cls, settings: Settings) -> DiskCache:
        """Return the cache that `GLNN_CACHE` and `GLNN_CACHE_SIZE` ask for."""
        return cls(settings.cache if settings.cache_size else None, settings.cache_size)

    @property
    def keeps(self) -> bool:
        """True where there is a folder to keep entries in."""
        return self.folder is not None

    def read(self, name: str) -> dict[str, bytes] | None:
        """Return all parts of a small entry, checked; None where there is none."""
        entry = self.map(name)
        if entry is None or entry.nbytes > MOST_READ:
            return None
        for part in entry.parts:
            if not entry.check(part):
                self._drop_damaged(name, f"the checksum of {part!r} is wrong")
                return None
        return {part: bytes(entry.part(part)) for part in entry.parts}

    def map(self, name: str) -> CacheEntry | None:
        """Map an entry into memory, its parts unchecked; None where there is none.

        A caller that finds a damaged part calls `remove`.
        """
        path = self._path(name)
        if path is None:
            return None
        try:
            result, status = CacheEntry.open(path, name)
            if not -STALE < time.time() - status.st_mtime < STALE:
                with suppress(OSError):  # a read-only folder
                    os.utime(path)
            return result
        except (FileNotFoundError, NotADirectoryError):
            pass
        except DamagedError as error:
            self._drop_damaged(name, str(error))
        except (OSError, ForeignError) as error:
            LOG.debug("%s: not used: %s", name, getattr(error, "strerror", None) or error)
        return None

    def _drop_damaged(self, name: str, why: str) -> None:
        LOG.debug("%s: removed from the cache: %s", name, why)
        self.remove(name)

    def writer(self, name: str, **about: str) -> Draft:
        """Return a draft to write the entry part by part; its `commit` adds it to the cache.

        about: the entry's description, as device="llvmpipe".
        """
        draft = Draft(self._path(name), name, about, self.most, self._count_bytes)
        self._count_bytes(0)
        return draft

    def write(self, name: str, parts: Mapping[str, Any], **about: str) -> bool:
        """Write an entry, replacing any other; return True where that succeeded.

        parts: bytes, arrays, or other contiguous buffers, by name.
        """
        with self.writer(name, **about) as draft:
            for part, content in parts.items():
                draft.append(part, content)
            return draft.commit()

    def _count_bytes(self, nbytes: int) -> None:
        """Count `nbytes` more; trim the cache at the first call, and again after many bytes."""
        since = self._tally.since
        if since is not None and since + nbytes <= self.most // COUNTED:
            self._tally.since = since + nbytes
        else:
            self._tally.since = 0
            self.trim()

    def remove(self, name: str) -> None:
        """Remove an entry."""
        path = self._path(name)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def entries(self) -> list[EntryInfo]:
        """Return all entries, the most recently used first."""
        infos: list[EntryInfo] = []
        for path, status in self._files(SUFFIX):
            name = f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}"
            try:
                about: Mapping[str, str] | None = CacheEntry.open(path, name)[0].about
            except (OSError, DamagedError, ForeignError):
                about = None
            infos.append(EntryInfo(name, status.st_size, status.st_mtime, about))
        return sorted(infos, key=lambda one: (-one.used, one.name))

    def clear(self, kinds: Iterable[str] | None = None) -> tuple[int, int]:
        """Remove all entries, or those of `kinds`; return their number and bytes."""
        wanted = None if kinds is None else frozenset(kinds)
        count = nbytes = 0
        for path, status in list(self._files(SUFFIX)):
            if wanted is None or path.parent.name in wanted:
                with suppress(OSError):
                    path.unlink()
                    count, nbytes = count + 1, nbytes + status.st_size
        self._remove_abandoned_drafts()
        return count, nbytes

    def trim(self) -> None:
        """Remove the least recently used entries until `most` is met, and abandoned drafts."""
        self._remove_abandoned_drafts()
        files = sorted(self._files(SUFFIX), key=lambda one: one[1].st_mtime)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            if total <= self.most:
                break
            LOG.debug("%s: removed from the cache, which is to have %d bytes", path, self.most)
            with suppress(OSError):
                path.unlink()
            total -= status.st_size

    def _remove_abandoned_drafts(self) -> None:
        for path, status in list(self._files(DRAFT_SUFFIX)):
            if time.time() - status.st_mtime > SWEPT and is_abandoned(path):
                with suppress(OSError):
                    path.unlink()

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files with `suffix` of all kinds; others may remove them meanwhile."""
        if self.folder is None:
            return
        with suppress(OSError):
            for kind in sorted(self.folder.iterdir()):
                with suppress(OSError):
                    for path in kind.iterdir():
                        if path.name.endswith(suffix):
                            with suppress(OSError):
                                status = path.lstat()
                                if stat.S_ISREG(status.st_mode):
                                    yield path, status

    def _path(self, name: str) -> Path | None:
        kind, rest = check_name(name)
        return None if self.folder is None else self.folder / kind / f"{rest}{SUFFIX}"
