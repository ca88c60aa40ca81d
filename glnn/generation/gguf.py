"""GGUF files: a language model's settings, its tokenizer, and its weights in GGML's formats.

A file has, in little-endian order (GGML's docs/gguf.md, versions 2 and 3):

    "GGUF", version         4 bytes each
    counts                  of tensors and of entries, 8 bytes each
    entries                 a key, the type of its value, the value
    tensors                 a name, dimensions (the last one first), format, offset
    data of the tensors     each at a multiple of `general.alignment`

Every count, length and offset is checked against the size of the file before it is used: none makes
this module read, or allocate, more than the file has.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from glnn.core.fileio import check_file, open_regular
from glnn.core.types import Array
from glnn.errors import ModelError, fault, shown
from glnn.generation.settings import setting
from glnn.graph.quantization import GGML_FORMATS, JoinedBlocks, QuantizedFormat

MAGIC = b"GGUF"
VERSIONS = 2, 3
MOST_ENTRIES = 1 << 14  # files have fewer than a hundred
MOST_TENSORS = 1 << 16
MOST_NAME = 1 << 16  # bytes of a key or name: the format's own bound
MOST_DIMENSIONS = 4
MOST_TEXT = 16 << 20  # bytes of one string
DEFAULT_ALIGNMENT = 32
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""The types of numbers in entries, by their codes."""
TEXT, LIST = 8, 9
FORMAT_NAMES = {
    **{row.code: row.name for row in GGML_FORMATS.values()},
    **{9: "q8_1", 10: "q2_k", 11: "q3_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs"},
    **{19: "iq1_s", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32"},
    **{27: "i64", 28: "f64", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4"},
}
"""The names of GGML's formats by their codes. Those of `GGML_FORMATS` run here."""
_BY_CODE = {row.code: row for row in GGML_FORMATS.values()}


class LazyTexts(Sequence[str]):
    """Strings of a file, each decoded when it is read."""

    def __init__(self, raw: bytes, ends: array[int]) -> None:
        """raw: the bytes of all strings. ends: the offset of each string's end in `raw`."""
        self._raw, self._ends = raw, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return a string; bytes that are not UTF-8 become U+FFFD."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        begin = self._ends[i - 1] if i else 0
        return self._raw[begin : self._ends[i]].decode("utf-8", "replace")


Value = bool | int | float | str | Array | LazyTexts


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor of a file: its name, shape (row major), format, and position in the file."""

    name: str
    shape: tuple[int, ...]
    code: int
    """GGML's code of the format."""
    start: int
    """Its first byte in the file."""
    nbytes: int

    @property
    def format(self) -> QuantizedFormat | None:
        """Return the format; None for one that does not run here."""
        return _BY_CODE.get(self.code)

    @property
    def format_name(self) -> str:
        """Return the name of the format, as GGML writes it."""
        return FORMAT_NAMES.get(self.code, f"format {self.code}").upper()


class TensorBlocks:
    """The blocks of a tensor in an open file, read on demand; see `Blocks`."""

    def __init__(self, file: IO[bytes], entry: GGUFTensor, block_bytes: int) -> None:
        self._file, self._entry, self._width = file, entry, block_bytes

    def __len__(self) -> int:
        return self._entry.nbytes // self._width

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        """Return the bytes of some blocks. Raises ModelError where the file became shorter."""
        first, last, _ = rows.indices(len(self))
        table = np.empty((max(last - first, 0), self._width), np.uint8)
        self._file.seek(self._entry.start + first * self._width)
        if self._file.readinto(table.reshape(-1).data) != table.size:  # type: ignore[attr-defined]
            raise ModelError(f"{self._file.name}: it ends inside {self._entry.name!r:.60}")
        return table


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name, whose data is read on demand.

    It is a `glnn.generation.architectures.WeightSource`. Use it as a context manager, or call
    `close`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the header of the file at `path`.

        Raises ModelError, in one sentence that names the file, for every fault of it.
        """
        self.path = Path(path)
        check_file(self.path)
        try:
            self._file = open(self.path, "rb", opener=open_regular)  # noqa: SIM115
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {fault(error)}") from None
        try:
            reader = _HeaderReader(self._file)
            self.metadata, entries = reader.header()
            self.tensors = {entry.name: entry for entry in entries}
        except (OSError, ValueError) as error:
            self.close()
            raise ModelError(f"{self.path}: cannot be read as GGUF: {fault(error)}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def entry(self, name: str) -> GGUFTensor:
        """Return the tensor called `name`. Raises ModelError where there is none."""
        if name not in self.tensors:
            raise ModelError(f"{self.path}: there is no tensor {name!r}")
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def other_tensors(self, names: Iterable[str]) -> list[str]:
        """Return the names of the tensors that are not in `names`."""
        known = set(names)
        return [name for name in self.tensors if name not in known]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape. Raises ModelError where there is no such tensor."""
        return self.entry(name).shape

    def have_same_format(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        return len({self.entry(name).code for name in names}) == 1

    def packed(self, *names: str) -> tuple[QuantizedFormat, NDArray[np.int32]]:
        """Return matrices of one format, stacked by rows, as one packed weight.

        Raises ModelError where there is no such tensor, or its format does not run here.
        """
        entries = [self.entry(name) for name in names]
        format = self.format_of(entries[0])
        for entry in entries:
            if len(entry.shape) != 2:
                raise ModelError(
                    f"{self.path}: {entry.name!r} must have two dimensions, got {entry.shape}"
                )
        (k,) = {entry.shape[1] for entry in entries}
        blocks = JoinedBlocks([self.blocks(entry) for entry in entries])
        return format, format.pack(blocks, sum(entry.shape[0] for entry in entries), k)

    def blocks(self, entry: GGUFTensor) -> TensorBlocks:
        """Return the blocks of a tensor. Raises ModelError where its format does not run here."""
        return TensorBlocks(self._file, entry, self.format_of(entry).block_bytes)

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a tensor as float32. Raises what `packed` does."""
        entry = self.entry(name)
        format = self.format_of(entry)
        n, k = prod(entry.shape[:-1]), entry.shape[-1]
        packed = format.pack(self.blocks(entry), n, k)
        return format.unpack(packed, n, k, slice(None)).reshape(entry.shape)

    def format_of(self, entry: GGUFTensor) -> QuantizedFormat:
        """Return the format of a tensor. Raises ModelError for one that does not run here."""
        if entry.format is None:
            known = ", ".join(map(str, GGML_FORMATS.values()))
            raise ModelError(
                f"{self.path}: {entry.name!r} is {entry.format_name}, which does not run here: "
                f"formats that do are {known}"
            )
        return entry.format

    def value(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """Return the value of `key` as `kind`: bool, int, float, str, LazyTexts or np.ndarray.

        default, and errors: see `setting`.
        """
        return setting(self.path, self.metadata, key, kind, default)


class _HeaderReader:
    """Reads the header of a file, never more than the file has."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._position = 0

    @property
    def _remaining(self) -> int:
        return self._size - self._position

    def _take(self, nbytes: int, what: str) -> bytes:
        """Read `nbytes` bytes. Raises ValueError where fewer remain."""
        if nbytes > self._remaining:
            raise ValueError(f"{what} takes {nbytes} bytes, {self._remaining} are left in the file")
        result = self._file.read(nbytes)
        if len(result) != nbytes:  # the file became shorter meanwhile
            raise ValueError(f"it ends inside {what}")
        self._position += nbytes
        return result

    def _number(self, code: str, what: str) -> int:
        (number,) = struct.unpack(f"<{code}", self._take(struct.calcsize(code), what))
        return int(number)

    def _count(self, what: str, item_bytes: int, most: int) -> int:
        """Read a count of items. most: its limit. item_bytes: the least bytes of an item."""
        count = self._number("Q", what)
        if count > most:
            raise ValueError(f"it has {count} {what}, more than {most}")
        if count * item_bytes > self._remaining:
            left = self._remaining
            raise ValueError(f"it has {count} {what}, for which {left} bytes are too few")
        return count

    def _text(self, what: str, most: int) -> str:
        raw = self._take(self._count(f"bytes of {what}", 1, most), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{what} is no UTF-8: {shown(raw)}") from None

    def header(self) -> tuple[Mapping[str, Value], Sequence[GGUFTensor]]:
        """Return the entries by key, and the tensors. Raises ValueError for every fault."""
        magic = self._take(min(4, self._remaining), "its beginning")
        if magic != MAGIC:
            raise ValueError(f"it begins with {magic!r}, not with {MAGIC!r}")
        version = self._number("I", "the version")
        if version not in VERSIONS:
            hint = " (is it of a machine with the highest byte first?)"
            is_swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            raise ValueError(
                f"it has version {version}{hint if is_swapped else ''}, known are 2, 3"
            )
        tensors = self._count("tensors", 24, MOST_TENSORS)
        metadata = dict(self._entries(self._count("entries", 13, MOST_ENTRIES)))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment must be a power of two, got {shown(alignment)}")
        rows = [self._tensor() for _ in range(tensors)]
        origin = -(-self._position // alignment) * alignment
        return metadata, _tensor_entries(rows, origin, alignment, self._size)

    def _entries(self, count: int) -> Iterator[tuple[str, Value]]:
        keys: set[str] = set()
        for _ in range(count):
            key = self._text("a key", MOST_NAME)
            if key in keys:
                raise ValueError(f"it has {key!r:.60} twice")
            keys.add(key)
            yield key, self._value(self._number("I", "the type of a value"), key)

    def _value(self, code: int, key: str) -> Value:
        what = f"the value of {key!r:.60}"
        if code == TEXT:
            return self._text(what, MOST_TEXT)
        if code == LIST:
            return self._list(what)
        if code not in NUMBERS:
            raise ValueError(f"{what} is of type {code}, which is none")
        value = np.frombuffer(self._take(NUMBERS[code].itemsize, what), NUMBERS[code])[0]
        return value.item()  # type: ignore[no-any-return]

    def _list(self, what: str) -> Array | LazyTexts:
        code = self._number("I", what)
        if code in NUMBERS:
            width = NUMBERS[code].itemsize
            count = self._count(f"numbers in {what}", width, self._size)
            return np.frombuffer(self._take(count * width, what), NUMBERS[code])
        if code != TEXT:
            kind = "lists" if code == LIST else f"type {code}"
            raise ValueError(f"{what} is a list of {kind}, which nobody reads")
        raw, ends = bytearray(), array("q")
        for _ in range(self._count(f"strings in {what}", 8, self._size)):
            (length,) = struct.unpack("<Q", self._take(8, what))
            if length > MOST_TEXT:
                raise ValueError(f"a string in {what} has {length} bytes, more than {MOST_TEXT}")
            raw += self._take(length, what)
            ends.append(len(raw))
        return LazyTexts(bytes(raw), ends)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return a tensor's name, shape, format and offset."""
        name = self._text("a tensor's name", MOST_NAME)
        rank = self._number("I", f"the dimensions of {name!r:.60}")
        if not 1 <= rank <= MOST_DIMENSIONS:
            raise ValueError(f"{name!r:.60} has {rank} dimensions, not 1 to {MOST_DIMENSIONS}")
        sizes = [self._number("Q", f"the shape of {name!r:.60}") for _ in range(rank)]
        code = self._number("I", f"the format of {name!r:.60}")
        return name, tuple(reversed(sizes)), code, self._number("Q", f"the offset of {name!r:.60}")


def _tensor_entries(
    rows: Sequence[tuple[str, tuple[int, ...], int, int]], origin: int, alignment: int, size: int
) -> list[GGUFTensor]:
    """Return the tensors of `rows`. Raises ValueError where two have a name or bytes in common.

    origin: offset of the tensors' data in the file. size: of the file.
    """
    result = [_entry(row, origin, alignment, size) for row in rows]
    name, times = Counter(entry.name for entry in result).most_common(1)[0] if result else ("", 0)
    if times > 1:
        raise ValueError(f"it has the tensor {name!r:.60} twice")
    end = origin
    for entry in sorted(result, key=lambda entry: (entry.start, entry.nbytes)):
        if entry.start < end:
            raise ValueError(f"{entry.name!r:.60} begins inside another tensor")
        end = entry.start + entry.nbytes
    return result


def _entry(
    row: tuple[str, tuple[int, ...], int, int], origin: int, alignment: int, size: int
) -> GGUFTensor:
    name, shape, code, offset = row
    if offset % alignment:
        raise ValueError(f"{name!r:.60} begins at {offset}, which is no multiple of {alignment}")
    nbytes = 0
    if prod(shape):
        format = _BY_CODE.get(code)
        # The size of a format that does not run here is unknown.
        nbytes = 1 if format is None else _nbytes(name, shape, format)
    if origin + offset + nbytes > size:
        raise ValueError(
            f"{name!r:.60} {shape} takes {nbytes} bytes from {origin + offset} on, the file has "
            f"{size}"
        )
    return GGUFTensor(name, shape, code, origin + offset, nbytes)


def _nbytes(name: str, shape: tuple[int, ...], format: QuantizedFormat) -> int:
    if shape[-1] % format.block:
        raise ValueError(
            f"{name!r:.60} {shape} is {format}, whose rows must have whole blocks of {format.block}"
        )
    return prod(shape[:-1]) * format.row_bytes(shape[-1])
