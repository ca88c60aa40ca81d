"""A file of named parts: how it lies on disk, and the reading of it without copying.

    magic, 8 bytes | parts, each from a multiple of 64 bytes on | table, JSON | foot, 28 bytes

The table has the entry's name, what is said of it, and each part's place, bytes and CRC-32; the
foot has the table's. Every byte but the padding's is under a checksum; a file cut short is none.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

MAGIC = b"glnnkpt1"
FOOT = struct.Struct("<QQI8s")  # the table's place, bytes and CRC-32; MAGIC
ALIGNED = 64  # bytes: what processors and drivers copy fastest
NAME = re.compile(r"([a-z]{1,20})/([A-Za-z0-9_-][A-Za-z0-9._-]{0,120})", re.ASCII)


class OddError(Exception):
    """A file is not as it was written."""


class ForeignError(Exception):
    """A file is not this user's alone."""


def check_name(name: str) -> tuple[str, str]:
    """The kind and the rest of an entry's name. Raises ValueError where it is none."""
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"expected an entry's name, as in programs/0a1b2c, got {name!r}")
    return found[1], found[2]


@dataclass(frozen=True)
class Part:
    """Where a part lies in its file."""

    at: int
    """Its first byte."""
    nbytes: int
    """How long it is."""
    crc: int
    """Its CRC-32."""

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.at, self.nbytes, self.crc)):
            raise ValueError(f"expected three counts, got {self.at}, {self.nbytes}, {self.crc}")


@dataclass(frozen=True)
class Entry:
    """An entry whose parts are mapped into memory; the file may be removed meanwhile."""

    name: str
    """As it is asked for."""
    about: Mapping[str, str]
    """What its maker says of it."""
    parts: Mapping[str, Part]
    """What it has, in the order in which it was written."""
    _view: memoryview
    """All of the file."""

    @classmethod
    def opened(cls, path: Path, name: str) -> tuple[Entry, os.stat_result]:
        """The entry called `name` in the file `path`, and what the system knows of that.

        Raises OSError where it cannot be read, OddError where it is damaged, ForeignError where
        others made it or may write it: the driver runs what programs hold.
        """
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            known = os.fstat(handle)
            if not stat.S_ISREG(known.st_mode):
                raise OddError("it is no file")
            if known.st_uid != os.geteuid():
                raise ForeignError(f"it is of user {known.st_uid}")
            if known.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ForeignError("others may write it")
            if known.st_size < len(MAGIC) + FOOT.size:
                raise OddError(f"{known.st_size} bytes are too few")
            view = memoryview(mmap.mmap(handle, known.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
        return cls._of(view, name), known

    @classmethod
    def _of(cls, view: memoryview, name: str) -> Entry:
        at, nbytes, crc, magic = FOOT.unpack_from(view, len(view) - FOOT.size)
        table = view[at : at + nbytes]
        whole = at >= len(MAGIC) and at + nbytes == len(view) - FOOT.size
        if view[: len(MAGIC)] != MAGIC or magic != MAGIC or not whole:
            raise OddError("it is cut short, or of another form")
        if zlib.crc32(table) != crc:
            raise OddError("the table's checksum is wrong")
        try:
            known = json.loads(bytes(table))
            called = known["name"]
            about = {str(key): str(value) for key, value in known["about"].items()}
            parts = {part: Part(*place) for part, place in known["parts"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OddError(f"the table is malformed: {error}") from None
        if called != name:
            raise OddError("it is another entry")
        if any(part.at + part.nbytes > at for part in parts.values()):
            raise OddError("a part is beyond the end")
        return cls(name, about, parts, view)

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    def part(self, name: str) -> memoryview:
        """The bytes of a part as they lie in the file, not checked. Raises KeyError."""
        part = self.parts[name]
        return self._view[part.at : part.at + part.nbytes]

    def span(self, names: Sequence[str]) -> memoryview:
        """The bytes of parts that lie one behind the other. Raises KeyError, OddError."""
        parts = [self.parts[name] for name in names]
        if any(one.at + one.nbytes != other.at for one, other in pairwise(parts)):
            raise OddError("parts do not follow one another")
        return self._view[parts[0].at : parts[-1].at + parts[-1].nbytes]

    def check(self, name: str) -> bool:
        """Whether a part is as it was written. Other threads run meanwhile. Raises KeyError."""
        return zlib.crc32(self.part(name)) == self.parts[name].crc


def table(name: str, about: Mapping[str, str], parts: Mapping[str, Part], at: int) -> bytes:
    """What follows the parts of an entry, from the byte `at` on."""
    known: dict[str, Any] = {"name": name, "about": dict(about)}
    known["parts"] = {key: [part.at, part.nbytes, part.crc] for key, part in parts.items()}
    text = json.dumps(known, separators=(",", ":")).encode("ascii")
    return text + FOOT.pack(at, len(text), zlib.crc32(text), MAGIC)
