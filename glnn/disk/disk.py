"""The folder on disk that keeps what can be made again: bounded, checked, and this user's own."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from glnn.disk.draft import SUFFIX as DRAFT
from glnn.disk.draft import Draft, abandoned
from glnn.disk.entry import Entry, ForeignError, OddError, check_name
from glnn.settings import Settings

LOG = logging.getLogger(__name__)
SUFFIX = ".glnn-kept"  # nobody else's: the folder may hold other things
MOST_READ = 64 << 20  # bytes of an entry that is read at once
STALE = 86400.0  # seconds after which the use of an entry is noted anew
SWEPT = 60.0  # seconds that a draft has been left alone before it may be swept
COUNTED = 16  # entries are counted anew when this part of what may be kept was written


def digest(*parts: str | bytes | int | None) -> str:
    """A name for what is made of `parts`, in 64 hexadecimal digits: SHA-256.

    Other parts, and the same text divided in another way, have another one.
    """
    found = sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        found.update(b"%s%d " % (b"bytes" if isinstance(part, bytes) else b"", len(raw)))
        found.update(raw)
    return found.hexdigest()


@dataclass(frozen=True)
class Listed:
    """An entry of the folder, for people to look at."""

    name: str
    """As `Disk` knows it: kind/rest."""
    nbytes: int
    """What its file takes."""
    used: float
    """When it was made or, by the day, last used: seconds since 1970."""
    about: Mapping[str, str] | None
    """What its maker says of it; None where it is not usable."""

    @property
    def kind(self) -> str:
        """What it is one of."""
        return self.name.partition("/")[0]


@dataclass
class _Tally:
    """What was written through a `Disk`."""

    since: int | None = None
    """Bytes since the entries were last counted; None where they never were."""


@dataclass(frozen=True)
class Disk:
    """Entries by name, as in programs/0a1b2c, each a file of named parts with a checksum of each.

    Nothing is an error: what cannot be written is not kept, what is damaged, of another owner or
    half there is as if it was not. Any threads and processes may use the same folder at once:
    entries come and go whole, and who has one keeps it. ValueError where a name is none.
    """

    folder: Path | None
    """Where the kinds have folders; None where nothing is kept."""
    most: int = 2 << 30
    """Bytes of all entries together: what was not used for longest goes."""
    _tally: _Tally = field(default_factory=_Tally, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"most: expected at least 0 bytes, got {self.most}")

    @classmethod
    def of(cls, settings: Settings) -> Disk:
        """What `GLNN_CACHE` and `GLNN_CACHE_SIZE` say."""
        return cls(settings.cache if settings.cache_size else None, settings.cache_size)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept."""
        return self.folder is not None

    def read(self, name: str) -> dict[str, bytes] | None:
        """All parts of a small entry, checked; None where there is none."""
        found = self.map(name)
        if found is None or found.nbytes > MOST_READ:
            return None
        for part in found.parts:
            if not found.check(part):
                self._odd(name, f"the checksum of {part!r} is wrong")
                return None
        return {part: bytes(found.part(part)) for part in found.parts}

    def map(self, name: str) -> Entry | None:
        """An entry with its parts as they lie on disk, none of them checked; None if there is none.

        Who finds one damaged calls `remove`.
        """
        path = self._path(name)
        if path is None:
            return None
        try:
            found, known = Entry.opened(path, name)
            if not -STALE < time.time() - known.st_mtime < STALE:
                with suppress(OSError):  # a folder that may only be read
                    os.utime(path)
            return found
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OddError as error:
            self._odd(name, str(error))
        except (OSError, ForeignError) as error:
            LOG.debug("%s: not used: %s", name, getattr(error, "strerror", None) or error)
        return None

    def _odd(self, name: str, why: str) -> None:
        LOG.debug("%s: removed from the cache: %s", name, why)
        self.remove(name)

    def writer(self, name: str, **about: str) -> Draft:
        """An entry to be written part by part, which is there once it is committed.

        about: what `entries` says of it, as device="llvmpipe".
        """
        draft = Draft(self._path(name), name, about, self.most, self._wrote)
        self._wrote(0)
        return draft

    def write(self, name: str, parts: Mapping[str, Any], **about: str) -> bool:
        """Keep an entry of these parts, in place of any that there is; whether that was possible.

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
        """Keep the entry no more."""
        path = self._path(name)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def entries(self) -> list[Listed]:
        """What is kept, what was used last first."""
        found: list[Listed] = []
        for path, known in self._files(SUFFIX):
            name = f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}"
            try:
                about: Mapping[str, str] | None = Entry.opened(path, name)[0].about
            except (OSError, OddError, ForeignError):
                about = None
            found.append(Listed(name, known.st_size, known.st_mtime, about))
        return sorted(found, key=lambda one: (-one.used, one.name))

    def clear(self, kinds: Iterable[str] | None = None) -> tuple[int, int]:
        """Remove all entries, or those of `kinds`; how many went, and their bytes."""
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
        for path, known in list(self._files(DRAFT)):
            if time.time() - known.st_mtime > SWEPT and abandoned(path):
                with suppress(OSError):
                    path.unlink()

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        """The files of all kinds that end so; some may be gone by now."""
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
