"""Samples to train with, and their files: .npz, and IDX, the format of MNIST.

Reference: http://yann.lecun.com/exdb/mnist, "FILE FORMATS".
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from glnn.core.fileio import check_file, open_regular
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import Array, to_float32
from glnn.errors import GlnnError, ModelError, ShapeError, shown
from glnn.model.files import check_inflated
from glnn.model.npz import ArrayHeader, Npz, open_npz, read_array
from glnn.model.samples import fit_samples
from glnn.training.samples import permutation

PAIRS = (("x", "y"), ("images", "labels"), ("image", "label"), ("x_train", "y_train"))
"""The names of the arrays of an .npz file: samples and targets."""
HELD_OUT = ("x_test", "y_test")
"""The names of the arrays of test samples and targets."""
CLASSES = "classes"
"""The name of the array of the classes' names."""
TRAINING, TEST = "train", "t10k"
"""The prefixes of the names of MNIST's files."""
LISTED = 8  # names of a file or a folder in an error


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their targets.

    Raises ShapeError where there are none, or the numbers of samples and targets differ.
    """

    x: Array
    """(n, ...), of the model's type, or bytes of images."""
    y: Array
    """int32, (n,) for classes by their numbers, or float32, (n, ...); others are converted."""
    classes: tuple[str, ...] = ()
    """The names of the classes, where these are known."""

    def __post_init__(self) -> None:
        for name, array in (("x", self.x), ("y", self.y)):
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
                got = f"{array.dtype} array" if isinstance(array, np.ndarray) else shown(array)
                raise ShapeError(f"{name} must be a NumPy array of numbers, got {got}")
            if not array.ndim or not len(array):
                raise ShapeError(f"{name} must have a sample at least, got shape {array.shape}")
        if len(self.x) != len(self.y):
            raise ShapeError(
                f"x and y must be of as many samples, got shapes {self.x.shape} and {self.y.shape}"
            )
        x = to_float32("x", self.x) if self.x.dtype.kind == "f" else self.x
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", _convert_targets(self.y))
        if self.classes and self.y.dtype == np.int32 and self.y.max() >= len(self.classes):
            raise ShapeError(f"y has class {self.y.max()}, {len(self.classes)} have names")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, places: Array | slice) -> Dataset:
        """Return the samples at these indices."""
        return Dataset(self.x[places], self.y[places], self.classes)

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Return a training part and a held-out part of about `fraction` of the samples, both
        shuffled by `seed`.

        Raises GlnnError where a part would be empty.
        """
        valid = isinstance(fraction, (int, float)) and 0 < fraction < 1
        count = round(fraction * len(self)) if valid else 0
        if not 0 < count < len(self):
            raise GlnnError(
                f"fraction must leave a sample of {len(self)} on either side, got {shown(fraction)}"
            )
        order = permutation(seed, 0, len(self))
        return self[order[count:]], self[order[:count]]

    def split_by_class(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split as `split` does, but hold out about `fraction` of each class.

        A class of two samples or more has some in both parts; a single sample is trained with.
        Raises GlnnError where no class has two samples.
        """
        order, held_out = permutation(seed, 0, len(self)), np.zeros(len(self), bool)
        for number in np.unique(self.y):
            indices = order[self.y[order] == number]
            count = round(fraction * len(indices))
            held_out[indices[: min(max(count, 1), len(indices) - 1)]] = True
        if not held_out.any():
            raise GlnnError("no sample can be held out: each class has one")
        return self[order[~held_out[order]]], self[order[held_out[order]]]

    def fitting(self, info: TensorInfo) -> Dataset:
        """Return the samples converted for the input `info`.

        Bytes are scaled to 0..1 for float32; a channel is added, or samples are flattened, for an
        input of such a shape. Raises ShapeError where `x` does not fit.
        """
        return Dataset(fit_samples(self.x, info, "x")[0], self.y, self.classes)


def _convert_targets(y: Array) -> Array:
    """Convert targets to int32 or float32."""
    if y.dtype.kind not in "iu":
        return to_float32("y", y.astype(np.float32) if y.dtype.kind == "b" else y)
    bounds = np.iinfo(np.int32)
    if not bounds.min <= int(y.min()) <= int(y.max()) <= bounds.max:
        raise ShapeError(f"y has numbers that int32 does not hold, got {y.dtype}")
    return y.astype(np.int32, copy=False)


def read_dataset(path: str | os.PathLike[str]) -> tuple[Dataset, Dataset | None]:
    """Return the training samples in `path`, and the test samples or None.

    path: an .npz file with two arrays, called x and y, or images and labels, or anything where
    there are no other arrays (the one of one dimension is y). With x_train and y_train, x_test and
    y_test are the test samples. `classes` may name the classes. Or a folder with MNIST's files,
    train-images-idx3-ubyte and train-labels-idx1-ubyte, where t10k in place of train are the test
    samples; each may be packed, .gz. Raises ModelError, in one sentence, for every fault.
    """
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise ModelError(f"data are in a file or a folder, got {shown(path)}")
    path = Path(path)
    try:
        if os.path.isdir(path):
            return _read_folder(path)
        if path.suffix != ".npz":
            raise ModelError(
                "expected an .npz file, a folder of IDX files, or one with a folder of pictures "
                "for each class"
            )
        with open_npz(path) as archive:
            return _read_npz(archive)
    except ShapeError as error:
        raise ModelError(f"{path}: {error}") from None
    except ModelError as error:
        message = str(error)
        named = message.startswith(str(path))
        raise ModelError(message if named else f"{path}: {message}") from None


def _read_npz(archive: Npz) -> tuple[Dataset, Dataset | None]:
    x, y = _array_names(archive)
    _check_headers(archive, x, y)
    classes: tuple[str, ...] = ()
    if CLASSES in archive.names:
        header = archive.header(CLASSES)
        if header.dtype.kind != "U" or len(header.shape) != 1:
            raise ModelError(f"{CLASSES!r} must be a list of texts, got {header.dtype}")
        classes = tuple(map(str, archive.read(CLASSES)))
    result = Dataset(archive.read(x), archive.read(y), classes)
    if (x, y) != PAIRS[-1] or not {*HELD_OUT} <= {*archive.names}:
        return result, None
    x, y = HELD_OUT
    _check_headers(archive, x, y)
    return result, Dataset(archive.read(x), archive.read(y), classes)


def _array_names(archive: Npz) -> tuple[str, str]:
    """Return the names of the arrays of samples and of targets."""
    arrays = [name for name in archive.names if name != CLASSES]
    for pair in PAIRS:
        if {*pair} <= {*arrays}:
            return pair
    flat = [name for name in arrays if len(archive.header(name).shape) == 1]
    if len(arrays) == 2 and len(flat) == 1:
        (samples,) = {*arrays} - {*flat}
        return samples, flat[0]
    raise ModelError(
        "expected the arrays x and y, or images and labels, or only one of samples and one of "
        f"labels; it has {_join_names(archive.names)}"
    )


def _check_headers(archive: Npz, x: str, y: str) -> None:
    """Raise ShapeError, before they are read, for arrays that are no samples and targets."""
    shapes = {name: archive.header(name).shape for name in (x, y)}
    if shapes[x][:1] != shapes[y][:1] or not shapes[x]:
        raise ShapeError(
            f"{x} and {y} must be of as many samples, got shapes {shapes[x]} and {shapes[y]}"
        )
    for name in (x, y):
        dtype = archive.header(name).dtype
        if dtype.kind not in "fiub":
            raise ShapeError(f"{name} must be of numbers, got {dtype}")


def _read_folder(folder: Path) -> tuple[Dataset, Dataset | None]:
    files = _files(folder)
    parts: dict[str, Dataset] = {}
    for part in (TRAINING, TEST):
        wanted = {f"{part}-images-idx3-ubyte": 3, f"{part}-labels-idx1-ubyte": 1}
        missing = [name for name in wanted if name not in files]
        if not missing:
            x, y = (read_idx(files[name], rank) for name, rank in wanted.items())
            parts[part] = Dataset(x, y)
        elif part == TRAINING or len(missing) == 1:
            has = _join_names(sorted(path.name for path in files.values()))
            pictures = ", or a folder of pictures for each class" if len(missing) == 2 else ""
            raise ModelError(f"expected {missing[0]}, or {missing[0]}.gz{pictures}, it has {has}")
    return parts[TRAINING], parts.get(TEST)


def _files(folder: Path) -> Mapping[str, Path]:
    """Return the files of a folder by MNIST's names, without .gz; unpacked files come first."""
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}") from None
    plain = (
        name.removesuffix(".gz").replace(".idx", "-idx") for name in names
    )  # some copies have dots
    return dict(zip(plain, (folder / name for name in names), strict=True))


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


BYTES = 0x08
"""The third byte for unsigned bytes; the fourth is the number of dimensions."""


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Read the IDX file `path`, which has bytes in `rank` dimensions; .gz is inflated.

    The size in its header is checked against that of the file before memory is allocated. Raises
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
    head = stream.read(4 * (1 + rank))
    magic = int.from_bytes(head[:4], "big")
    expected = BYTES << 8 | rank
    if len(head) >= 4 and magic != expected:
        what = f"bytes in {rank} {'dimension' if rank == 1 else 'dimensions'}"
        raise ModelError(f"{path}: expected the magic number {expected} of {what}, got {magic}")
    if len(head) < 4 * (1 + rank):
        raise ValueError(f"it ends after {len(head)} bytes, in its header")
    shape = struct.unpack(f">{rank}I", head[4:])
    size = os.stat(path).st_size
    header = ArrayHeader(shape, np.dtype(np.uint8), False, len(head))
    if path.suffix == ".gz":
        check_inflated(path, size, header.nbytes)
    elif size != len(head) + header.nbytes:
        fault = f"{shape} take {header.nbytes} bytes behind its header"
        raise ValueError(f"{fault}, it has {size - len(head)}")
    return read_array(header, b"", stream)
