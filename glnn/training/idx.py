"""IDX files, the format of MNIST: http://yann.lecun.com/exdb/mnist, "FILE FORMATS"."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ModelError
from glnn.fileio import check_file, open_regular
from glnn.model.files import check_inflated
from glnn.model.npz import ArrayHeader, read_array

BYTES = 0x08
"""The third byte for unsigned bytes; the fourth is the number of dimensions."""


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Read the IDX file `path`, which has bytes in `rank` dimensions; .gz is inflated.

    No more memory is taken than what the file says of itself, once its size allows that. Raises
    ModelError, in one sentence, for every fault.
    """
    check_file(path)
    try:
        with open(path, "rb", opener=open_regular) as file:
            if path.suffix != ".gz":
                return _read(path, file, rank)
            with io.BufferedReader(gzip.GzipFile(fileobj=file)) as inflated:
                return _read(path, inflated, rank)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        fault = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{path}: cannot be read as IDX: {fault}") from None


def _read(path: Path, stream: IO[bytes], rank: int) -> NDArray[np.uint8]:
    """Read the array in `stream`, the content of `path`.

    Raises ValueError where it is too short or long.
    """
    begin = stream.read(4 * (1 + rank))
    magic = int.from_bytes(begin[:4], "big")
    expected = BYTES << 8 | rank
    if len(begin) >= 4 and magic != expected:
        what = f"bytes in {rank} {'dimension' if rank == 1 else 'dimensions'}"
        raise ModelError(f"{path}: expected the magic number {expected} of {what}, got {magic}")
    if len(begin) < 4 * (1 + rank):
        raise ValueError(f"it ends after {len(begin)} bytes, in its header")
    shape = struct.unpack(f">{rank}I", begin[4:])
    size = os.stat(path).st_size
    header = ArrayHeader(shape, np.dtype(np.uint8), False, len(begin))
    if path.suffix == ".gz":
        check_inflated(path, size, header.nbytes)
    elif size != len(begin) + header.nbytes:
        fault = f"{shape} take {header.nbytes} bytes behind its header"
        raise ValueError(f"{fault}, it has {size - len(begin)}")
    return read_array(header, b"", stream)
