"""Archives of arrays, read safely: names and headers are checked before anything is inflated."""

from __future__ import annotations

import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from glnn.core.fileio import atomic_write, check_file, open_regular
from glnn.core.types import Shape
from glnn.errors import GlnnError, ModelError, fault, first_line, printable
from glnn.model.files import check_inflated

Array = NDArray[Any]
MOST_HEADER = 1024  # bytes before an array's numbers: those of plain arrays take 128
MOST_READ = 4 << 20  # bytes at once; as a list of members, some 40,000 of them
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class ArrayHeader:
    """The header of an array, whose numbers are the `nbytes` bytes from `start` on."""

    shape: Shape
    dtype: np.dtype[Any]
    fortran: bool
    start: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Npz:
    """An open .npz archive; `names` are those of its arrays."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, size: int) -> None:
        self._path, self._archive, self._size = path, archive, size
        self._inflated = 0
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise ModelError(f"{path}: {info.filename!r} is not an array")
        counts = Counter(info.filename.removesuffix(".npy") for info in archive.infolist())
        for name, count in counts.items():
            if count > 1:
                raise ModelError(f"{path}: {count} arrays are called {name!r}")
        self.names = tuple(counts)

    def header(self, name: str) -> ArrayHeader:
        """Return the header of the array `name`; no more of the array is inflated."""
        with self._member(name) as stream:
            return self._header(name, stream)[0]

    def read(self, name: str) -> Array:
        """Return the array `name`, of its header's shape and dtype, which callers check first."""
        with self._member(name) as stream:
            header, head = self._header(name, stream)
            self._inflated += header.nbytes
            check_inflated(self._path, self._size, self._inflated)
            return read_array(header, head, stream)

    def _member(self, name: str) -> IO[bytes]:
        info = self._archive.getinfo(f"{name}.npy")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ModelError(f"{self._path}: {name!r} is not compressed as .npz files are")
        return self._archive.open(info)

    def _header(self, name: str, stream: IO[bytes]) -> tuple[ArrayHeader, bytes]:
        """Return the header of an array, and the bytes behind it that were read with it."""
        begin = stream.read(MOST_HEADER)
        header = parse_header(begin)
        if header.dtype.hasobject:
            raise ModelError(f"{self._path}: {name!r} holds pickled objects, which are refused")
        declared = self._archive.getinfo(f"{name}.npy").file_size - header.start
        if declared != header.nbytes:
            what = f"{name!r} of shape {header.shape} takes {header.nbytes} bytes"
            raise ModelError(f"{self._path}: {what}, it has {declared}")
        return header, begin[header.start :]


class _Archive(io.FileIO):
    """A file of which no more than MOST_READ bytes are read at once.

    zipfile reads the list of members in one go, and makes ten times as many bytes of it.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = MOST_READ + 1
        if size > MOST_READ and size != MOST_READ + 1:
            raise ValueError("its list of arrays is too long")
        content = super().read(size)
        if content is None or len(content) > MOST_READ:
            raise ValueError("its list of arrays is too long")
        return content


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """Open the archive in the file `path`. Every fault is a ModelError that names the file."""
    check_file(path)
    try:
        with _Archive(path, "rb", opener=open_regular) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                fault = ", got one that is cut short" if file.read(2) == b"PK" else ""
                raise ModelError(f"{path}: expected an .npz archive of arrays{fault}")
            with zipfile.ZipFile(file) as archive:
                yield Npz(path, archive, path.stat().st_size)
    except GlnnError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise ModelError(f"{path}: cannot be read as .npz: {first_line(error)}") from None


def parse_header(begin: bytes) -> ArrayHeader:
    """Return the header in the first MOST_HEADER bytes of an .npy file.

    Raises nearly any exception where there is none.
    """
    stream = io.BytesIO(begin)
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"its format {version} is not known")
    shape, fortran, dtype = HEADERS[version](stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape {shape} is negative")
    return ArrayHeader(tuple(int(size) for size in shape), dtype, bool(fortran), stream.tell())


def read_array(header: ArrayHeader, head: bytes, stream: IO[bytes]) -> Array:
    """Read the array of `header`: its first bytes are `head`, the others come from `stream`.

    Reads at most one byte more than it needs. Raises ValueError where there are fewer bytes, or
    more.
    """
    flat = np.empty(header.nbytes, np.uint8)
    view = memoryview(flat.data)
    filled = min(len(head), len(flat))
    view[:filled] = head[:filled]
    while filled < len(flat):
        part = stream.read(min(1 << 20, len(flat) - filled))
        if not part:
            raise ValueError(f"it ends after {filled} of {len(flat)} bytes")
        view[filled : filled + len(part)] = part
        filled += len(part)
    if len(head) > len(flat) or stream.read(1):
        raise ValueError(f"it holds more than {len(flat)} bytes")
    array = flat.view(header.dtype)
    return array.reshape(header.shape[::-1]).T if header.fortran else array.reshape(header.shape)


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to `path` as an .npz file, whole or not at all.

    Any name is possible, and `np.load` returns it; characters that are not printable are escaped
    as in Python, `\\x00`. Raises ModelError where the file cannot be written.
    """
    try:
        with (
            atomic_write(path) as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
        ):
            for name, array in arrays.items():  # np.savez takes no array with the name "file"
                info = zipfile.ZipInfo(f"{printable(name)}.npy".replace("\n", "\\n"))
                with archive.open(info, "w", force_zip64=True) as member:
                    npy.write_array(member, np.asanyarray(array), allow_pickle=False)
    except (OSError, ValueError) as error:  # a full disk, a path that holds a zero byte
        raise ModelError(f"{os.fspath(path)}: cannot be written: {fault(error)}") from None
