"""CTranslate2's files `model.bin`: a model's kind, and its tensors.

A file has, in little-endian order:

    6, kind, revision       4 bytes, a text, 4 bytes
    number of tensors       4 bytes; then of each
        name                a text: its length in 2 bytes, and these, which end with a zero
        dimensions          their number in 1 byte, each in 4
        type                1 byte, see KINDS
        data                its length in 4 bytes, and these
    number of aliases       4 bytes; of each two texts: the alias, and the name of its tensor

Every count and length is checked against the size of the file before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import IO, TypeVar

from glnn.errors import shown
from glnn.model.weight_files import DTYPES, TensorEntry, TensorFile

VERSION = 6
MOST_TENSORS, MOST_DIMENSIONS = 1 << 16, 8
KINDS = ("F32", "I8", "I16", "I32", "F16", "BF16")
"""The types of numbers, each at the index of its code."""
T = TypeVar("T")


class CTranslate2File(TensorFile):
    """The tensors of a `model.bin`, whose data is read on demand."""

    format = "CTranslate2's model.bin"

    def __init__(self, path: Path) -> None:
        """Raises ModelError, in one sentence that names the file, for every fault."""
        self.kind, self.aliases = "", dict[str, str]()
        super().__init__(path)

    def read_header(self, file: IO[bytes], size: int) -> list[TensorEntry]:
        """Return the tensors; set `kind` and `aliases`."""
        reader = _Reader(file, size)
        version = reader.number("I", "the version")
        if version != VERSION:
            raise ValueError(f"it has version {version}, known is {VERSION}")
        self.kind = reader.text("the kind")
        reader.number("I", "the revision")
        entries = reader.several("tensors", MOST_TENSORS, 10, reader.tensor)
        names = {entry.name for entry in entries}
        if len(names) < len(entries):
            name = next(n for n in names if sum(n == e.name for e in entries) > 1)
            raise ValueError(f"it has the tensor {name!r:.60} twice")
        self.aliases = dict(reader.several("aliases", MOST_TENSORS, 4, reader.alias))
        for alias, name in self.aliases.items():
            if alias in names or name not in names:
                raise ValueError(f"{alias!r:.60} stands for {name!r:.60}, which cannot be")
        if reader.remaining:
            raise ValueError(f"{reader.remaining} bytes are behind its end")
        return entries


class _Reader:
    """Reads a file in order, never more than it has. Methods raise ValueError for every fault."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size, self._position = file, size, 0

    @property
    def remaining(self) -> int:
        """Bytes that were not read."""
        return self._size - self._position

    def _check(self, nbytes: int, what: str) -> None:
        if nbytes > self.remaining:
            left = self.remaining
            raise ValueError(f"{what} takes {nbytes} bytes, {left} are left in the file")

    def _take(self, nbytes: int, what: str) -> bytes:
        self._check(nbytes, what)
        result = self._file.read(nbytes)
        if len(result) != nbytes:  # the file became shorter meanwhile
            raise ValueError(f"it ends inside {what}")
        self._position += nbytes
        return result

    def number(self, code: str, what: str) -> int:
        """Read an integer. code: its format in `struct`."""
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"), what))
        return int(value)

    def text(self, what: str) -> str:
        """Read a text; return it without the zero that ends it."""
        raw = self._take(self.number("H", what), what)
        try:
            if raw.endswith(b"\0"):
                return raw[:-1].decode()
        except UnicodeDecodeError:
            pass
        raise ValueError(f"{what} must be UTF-8 that ends with a zero, got {shown(raw)}")

    def several(self, what: str, most: int, least: int, read: Callable[[], T]) -> list[T]:
        """Read a count, and so many items by `read`. most: items. least: bytes of an item."""
        count = self.number("I", f"the number of {what}")
        if count > most:
            raise ValueError(f"it has {count} {what}, more than {most}")
        self._check(count * least, f"{count} {what}")
        return [read() for _ in range(count)]

    def tensor(self) -> TensorEntry:
        """Read the entry of a tensor, and skip its data."""
        name = self.text("a tensor's name")
        what = f"{name!r:.60}"
        rank = self.number("B", what)
        if rank > MOST_DIMENSIONS:
            raise ValueError(f"{what} has {rank} dimensions, more than {MOST_DIMENSIONS}")
        shape = tuple(self.number("I", what) for _ in range(rank))
        code, nbytes = self.number("B", what), self.number("I", what)
        if code >= len(KINDS):
            raise ValueError(f"{what} is of type {code}, which is none")
        kind = KINDS[code]
        needed = prod(shape) * DTYPES[kind].itemsize
        if nbytes != needed:
            raise ValueError(f"{what} {shape} of {kind} takes {needed} bytes, it has {nbytes}")
        self._check(nbytes, what)
        start = self._position
        self._position += nbytes
        self._file.seek(self._position)
        return TensorEntry(name, kind, shape, start, self._position)

    def alias(self) -> tuple[str, str]:
        """Read an alias; return it and the name of its tensor."""
        return self.text("an alias"), self.text("a tensor's name")
