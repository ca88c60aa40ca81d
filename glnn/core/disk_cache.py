"""The cache folder: checked entries of this user, written whole or not at all.

    magic, 8 bytes | parts, each from a multiple of 64 bytes on | table, JSON | foot, 28 bytes

The table has the entry's name, what is said of it, and each part's place, bytes and CRC-32; the
foot has the table's. Every byte but the padding's is under a checksum; a file cut short is none.
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
except ImportError:  # where files have no such locks
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Self


MAGIC = b"glnnkpt1"
FOOT = struct.Struct("<QQI8s")  # the table's place, bytes and CRC-32; MAGIC
ALIGNED = 64  # bytes: what processors and drivers copy fastest
NAME = re.compile(r"([a-z]{1,20})/([A-Za-z0-9_-][A-Za-z0-9._-]{0,120})", re.ASCII)


class DamagedError(Exception):
    """A file is not as it was written."""


class ForeignError(Exception):
    """A file is not this user's alone."""


def check_name(name: str) -> tuple[str, str]:
    """Return the kind and the rest of an entry's name. Raises ValueError where it is none."""
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"expected an entry's name, as in programs/0a1b2c, got {name!r}")
    return match[1], match[2]


@dataclass(frozen=True)
class EntryPart:
    """The place of a part in its file, and its checksum."""

    at: int
    """Its first byte."""
    nbytes: int
    """The number of its bytes."""
    crc: int
    """Its CRC-32."""

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.at, self.nbytes, self.crc)):
            raise ValueError(f"expected three counts, got {self.at}, {self.nbytes}, {self.crc}")


@dataclass(frozen=True)
class CacheEntry:
    """An entry whose parts are mapped into memory; the file may be removed meanwhile."""

    name: str
    """The name by which it is looked up."""
    about: Mapping[str, str]
    """The writer's description of the entry."""
    parts: Mapping[str, EntryPart]
    """The parts, in the order in which they were written."""
    _view: memoryview
    """The whole file, mapped."""

    @classmethod
    def opened(cls, path: Path, name: str) -> tuple[CacheEntry, os.stat_result]:
        """Return the entry called `name` in the file `path`, and the file's status.

        Raises OSError where it cannot be read, DamagedError where it is damaged, ForeignError where
        others made it or may write it: the driver runs what programs hold.
        """
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            known = os.fstat(handle)
            if not stat.S_ISREG(known.st_mode):
                raise DamagedError("it is no file")
            if known.st_uid != os.geteuid():
                raise ForeignError(f"it is of user {known.st_uid}")
            if known.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ForeignError("others may write it")
            if known.st_size < len(MAGIC) + FOOT.size:
                raise DamagedError(f"{known.st_size} bytes are too few")
            view = memoryview(mmap.mmap(handle, known.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
        return cls._parse(view, name), known

    @classmethod
    def _parse(cls, view: memoryview, name: str) -> CacheEntry:
        at, nbytes, crc, magic = FOOT.unpack_from(view, len(view) - FOOT.size)
        table = view[at : at + nbytes]
        whole = at >= len(MAGIC) and at + nbytes == len(view) - FOOT.size
        if view[: len(MAGIC)] != MAGIC or magic != MAGIC or not whole:
            raise DamagedError("it is cut short, or of another form")
        if zlib.crc32(table) != crc:
            raise DamagedError("the table's checksum is wrong")
        try:
            known = json.loads(bytes(table))
            called = known["name"]
            about = {str(key): str(value) for key, value in known["about"].items()}
            parts = {part: EntryPart(*place) for part, place in known["parts"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"the table is malformed: {error}") from None
        if called != name:
            raise DamagedError("it is another entry")
        if any(part.at + part.nbytes > at for part in parts.values()):
            raise DamagedError("a part is beyond the end")
        return cls(name, about, parts, view)

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    def part(self, name: str) -> memoryview:
        """Return the bytes of a part as they lie in the file, unchecked. Raises KeyError."""
        part = self.parts[name]
        return self._view[part.at : part.at + part.nbytes]

    def span(self, names: Sequence[str]) -> memoryview:
        """Return the bytes of adjacent parts. Raises KeyError, DamagedError."""
        parts = [self.parts[name] for name in names]
        if any(one.at + one.nbytes != other.at for one, other in pairwise(parts)):
            raise DamagedError("parts do not follow one another")
        return self._view[parts[0].at : parts[-1].at + parts[-1].nbytes]

    def check(self, name: str) -> bool:
        """Return True where a part has its checksum. Raises KeyError. It releases the GIL."""
        return zlib.crc32(self.part(name)) == self.parts[name].crc


def table(name: str, about: Mapping[str, str], parts: Mapping[str, EntryPart], at: int) -> bytes:
    """Return the table and foot that follow the parts of an entry, from the byte `at` on."""
    known: dict[str, Any] = {"name": name, "about": dict(about)}
    known["parts"] = {key: [part.at, part.nbytes, part.crc] for key, part in parts.items()}
    text = json.dumps(known, separators=(",", ":")).encode("ascii")
    return text + FOOT.pack(at, len(text), zlib.crc32(text), MAGIC)


LOG = logging.getLogger(__name__)
DRAFT_SUFFIX = ".glnn-part"
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
        self._parts: dict[str, EntryPart] = {}
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
        draft = path.with_name(f"{path.stem[:40]}.{os.urandom(8).hex()}{DRAFT_SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._handle = os.open(draft, flags, OWN)
        self._draft = draft
        self._end = weakref.finalize(self, _discard, self._handle, draft, os.getpid())
        if fcntl is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._put(memoryview(MAGIC))

    @property
    def open(self) -> bool:
        """True until it was committed, discarded or refused by the disk."""
        return self._end is not None and self._end.alive

    def append(self, part: str, content: Any) -> bool:
        """Add a part, and return True where the disk took it.

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
            place = EntryPart(self._at, view.nbytes, zlib.crc32(view))
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
        """Make it the entry, in place of any that there is; return True where the disk did."""
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


def is_abandoned(draft: Path) -> bool:
    """Return True where nobody is writing `draft`: the system unlocks files as a process ends."""
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


SUFFIX = ".glnn-kept"  # nobody else's: the folder may hold other things
MOST_READ = 64 << 20  # bytes of an entry that is read at once
STALE = 86400.0  # seconds after which the use of an entry is noted anew
SWEPT = 60.0  # seconds that a draft has been left alone before it may be swept
COUNTED = 16  # entries are counted anew when this part of what may be kept was written


def digest(*parts: str | bytes | int | None) -> str:
    """Return a name for what is made of `parts`: SHA-256 in 64 hexadecimal digits.

    Other parts, and the same text divided in another way, have another one.
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
    """When it was made or, by the day, last used: seconds since 1970."""
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
    """Entries by name, as in programs/0a1b2c, each a file of named parts with a checksum of each.

    Nothing is an error: what cannot be written is not kept, what is damaged, of another owner or
    half there is as if it was not. Any threads and processes may use the same folder at once:
    entries come and go whole, and who has one keeps it. ValueError where a name is none.
    """

    folder: Path | None
    """The folder with one folder for each kind; None where nothing is kept."""
    most: int = 2 << 30
    """Bytes of all entries together: what was not used for longest goes."""
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

        Who finds one damaged calls `remove`.
        """
        path = self._path(name)
        if path is None:
            return None
        try:
            result, known = CacheEntry.opened(path, name)
            if not -STALE < time.time() - known.st_mtime < STALE:
                with suppress(OSError):  # a folder that may only be read
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
        """Return an entry to be written part by part, which is there once it is committed.

        about: what `entries` says of it, as device="llvmpipe".
        """
        draft = Draft(self._path(name), name, about, self.most, self._wrote)
        self._wrote(0)
        return draft

    def write(self, name: str, parts: Mapping[str, Any], **about: str) -> bool:
        """Write an entry of these parts in place of any other; return True where that worked.

        parts: bytes, arrays, or whatever else lies in memory without gaps.
        """
        with self.writer(name, **about) as draft:
            for part, content in parts.items():
                draft.append(part, content)
            return draft.commit()

    def _wrote(self, nbytes: int) -> None:
        """Note that so much more is kept, and trim now and then, the first time in any case."""
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
        """Return all entries, the one used last first."""
        infos: list[EntryInfo] = []
        for path, known in self._files(SUFFIX):
            name = f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}"
            try:
                about: Mapping[str, str] | None = CacheEntry.opened(path, name)[0].about
            except (OSError, DamagedError, ForeignError):
                about = None
            infos.append(EntryInfo(name, known.st_size, known.st_mtime, about))
        return sorted(infos, key=lambda one: (-one.used, one.name))

    def clear(self, kinds: Iterable[str] | None = None) -> tuple[int, int]:
        """Remove all entries, or those of `kinds`; return how many went, and their bytes."""
        wanted = None if kinds is None else frozenset(kinds)
        count = nbytes = 0
        for path, known in list(self._files(SUFFIX)):
            if wanted is None or path.parent.name in wanted:
                with suppress(OSError):
                    path.unlink()
                    count, nbytes = count + 1, nbytes + known.st_size
        self._sweep()
        return count, nbytes

    def trim(self) -> None:
        """Remove what was not used for longest until all is within `most`, and drafts left over."""
        self._sweep()
        files = sorted(self._files(SUFFIX), key=lambda one: one[1].st_mtime)
        total = sum(known.st_size for _, known in files)
        for path, known in files:
            if total <= self.most:
                break
            LOG.debug("%s: removed from the cache, which is to have %d bytes", path, self.most)
            with suppress(OSError):
                path.unlink()
            total -= known.st_size

    def _sweep(self) -> None:
        """Remove the drafts of processes that ended in the middle."""
        for path, known in list(self._files(DRAFT_SUFFIX)):
            if time.time() - known.st_mtime > SWEPT and is_abandoned(path):
                with suppress(OSError):
                    path.unlink()

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files of all kinds whose names end so; some may be gone by now."""
        if self.folder is None:
            return
        with suppress(OSError):
            for kind in sorted(self.folder.iterdir()):
                with suppress(OSError):
                    for path in kind.iterdir():
                        if path.name.endswith(suffix):
                            with suppress(OSError):
                                known = path.lstat()
                                if stat.S_ISREG(known.st_mode):
                                    yield path, known

    def _path(self, name: str) -> Path | None:
        kind, rest = check_name(name)
        return None if self.folder is None else self.folder / kind / f"{rest}{SUFFIX}"
