"""Samples to train with, and the files that hold them, also IDX files, the format of MNIST.

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
    """Samples, and their targets.

    Raises ShapeError where there is none, or there are not as many of one as of the other.
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
        """Return the samples at those places."""
        return Dataset(self.x[places], self.y[places], self.classes)

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split into all but about `fraction` of the samples, and these, both in an order by
        `seed`.

        Raises GlnnError unless either has a sample.
        """
        number = isinstance(fraction, (int, float)) and 0 < fraction < 1
        held = round(fraction * len(self)) if number else 0
        if not 0 < held < len(self):
            raise GlnnError(
                f"fraction must leave a sample of {len(self)} on either side, got {shown(fraction)}"
            )
        order = permutation(seed, 0, len(self))
        return self[order[held:]], self[order[:held]]

    def split_by_class(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split as `split` does, but about `fraction` of each class.

        A class of two samples or more has some on either side, one of a single sample is trained
        with. Raises GlnnError unless either side has a sample.
        """
        order, held = permutation(seed, 0, len(self)), np.zeros(len(self), bool)
        for number in np.unique(self.y):
            places = order[self.y[order] == number]
            count = round(fraction * len(places))
            held[places[: min(max(count, 1), len(places) - 1)]] = True
        if not held.any():
            raise GlnnError("no sample can be held out: each class has one")
        return self[order[~held[order]]], self[order[held[order]]]

    def fitting(self, info: TensorInfo) -> Dataset:
        """Return the samples as the input `info` takes them.

        Bytes are scaled to 0..1 for float32; a channel is added or samples are flattened where the
        input is so. Raises ShapeError where `x` does not fit.
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
    """Read the training samples in `path`, and the test samples that it has, if any.

    path: an .npz file with two arrays, called x and y, images and labels, or as they please where
    there are no others (what has one dimension is y); with x_train and y_train those of x_test and
    y_test are held apart; `classes` may name the classes. Or a folder with MNIST's files,
    train-images-idx3-ubyte and train-labels-idx1-ubyte, of which those that begin with t10k are
    held apart; each may be packed, .gz. Raises ModelError, in one sentence, for every fault.
    """
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise ModelError(f"data are in a file or a folder, got {shown(path)}")
    place = Path(path)
    try:
        if os.path.isdir(place):
            return _read_folder(place)
        if place.suffix != ".npz":
            raise ModelError(
                "expected an .npz file, a folder of IDX files, or one with a folder of pictures "
                "for each class"
            )
        with open_npz(place) as archive:
            return _read_npz(archive)
    except ShapeError as error:
        raise ModelError(f"{place}: {error}") from None
    except ModelError as error:
        said = str(error)
        raise ModelError(said if said.startswith(str(place)) else f"{place}: {said}") from None


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
    there = [name for name in archive.names if name != CLASSES]
    for pair in PAIRS:
        if {*pair} <= {*there}:
            return pair
    flat = [name for name in there if len(archive.header(name).shape) == 1]
    if len(there) == 2 and len(flat) == 1:
        (samples,) = {*there} - {*flat}
        return samples, flat[0]
    raise ModelError(
        "expected the arrays x and y, or images and labels, or only one of samples and one of "
        f"labels; it has {_join_names(archive.names)}"
    )


def _check_headers(archive: Npz, x: str, y: str) -> None:
    """Raise ShapeError for arrays that are no samples, before they are read."""
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
    there = _files(folder)
    parts: dict[str, Dataset] = {}
    for part in (TRAINING, TEST):
        wanted = {f"{part}-images-idx3-ubyte": 3, f"{part}-labels-idx1-ubyte": 1}
        missing = [name for name in wanted if name not in there]
        if not missing:
            x, y = (read_idx(there[name], rank) for name, rank in wanted.items())
            parts[part] = Dataset(x, y)
        elif part == TRAINING or len(missing) == 1:
            has = _join_names(sorted(path.name for path in there.values()))
            pictures = ", or a folder of pictures for each class" if len(missing) == 2 else ""
            raise ModelError(f"expected {missing[0]}, or {missing[0]}.gz{pictures}, it has {has}")
    return parts[TRAINING], parts.get(TEST)


def _files(folder: Path) -> Mapping[str, Path]:
    """List the files of a folder by MNIST's names without .gz; unpacked files take precedence."""
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}") from None
    plain = (name.removesuffix(".gz").replace(".idx", "-idx") for name in names)  # as some have it
    return dict(zip(plain, (folder / name for name in names), strict=True))


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


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
