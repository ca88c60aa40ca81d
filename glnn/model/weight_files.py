"""Files that hold weights alone: arrays by PyTorch's names, `conv1.weight`.

A .safetensors file has the length of a header, the header as JSON, and the tensors' numbers:

    8 bytes         the bytes of the header, little-endian
    the header      {"conv1.weight": {"dtype": "F32", "shape": [8, 1, 3, 3],
                                      "data_offsets": [0, 288]}, ..., "__metadata__": {...}}
    the numbers     of each tensor between its offsets, row major, little-endian

It is read here as the package `safetensors` returns no bfloat16 as NumPy arrays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.core.fileio import atomic_write, check_file, open_regular
from glnn.core.types import Array, Shape, from_bfloat16, of_tensor
from glnn.errors import ModelError, ShapeError, fault, shown
from glnn.model.files import MOST_JSON, parse_json
from glnn.model.npz import open_npz, save_arrays
from glnn.registry import module_for

TORCH = (".pt", ".pth")
ENDINGS = (".safetensors", ".npz", *TORCH)
"""Endings of files of weights."""
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys of a training checkpoint that may have the state dict."""


def load_weights(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays in a file of weights, by their names.

    path: a .safetensors or .npz file; or a .pt or .pth file of `torch.save(model.state_dict(),
    path)`, or of a checkpoint that has one as `state_dict`, `model_state_dict` or `model`, where
    PyTorch is installed. The arrays have the types of the file; bfloat16 becomes float32. No code
    of a file is run: pickled objects are refused. Raises ModelError, in one sentence that names the
    file, for every fault.
    """
    file, ending = _check_path(path)
    if ending == ".safetensors":
        return read_safetensors(file)
    if ending == ".npz":
        return _read_npz(file)
    return arrays_of(state_dict_of(_torch_module(file, "read").read(file), str(file)), str(file))


def save_weights(state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state dict to the file `path`, whole or not at all.

    state_dict: NumPy arrays or PyTorch's tensors by name, as returned by `Model.state_dict`. path:
    see `load_weights`. bfloat16 is written as float32. Raises ModelError where it cannot be
    written.
    """
    file, ending = _check_path(path)
    arrays = arrays_of(state_dict_of(state_dict, "state_dict"), str(file))
    if ending == ".safetensors":
        save_safetensors(file, arrays)
    elif ending == ".npz":
        save_arrays(file, arrays)
    else:
        _torch_module(file, "write").save(file, arrays)


def is_weights(path: str | os.PathLike[str]) -> bool:
    """Return True for the name of a file of weights alone."""
    return Path(path).suffix.lower() in ENDINGS


def state_dict_of(checkpoint: object, where: str) -> Mapping[str, Any]:
    """Return `checkpoint` if it is a state dict, or the state dict that it has under one of
    WRAPPERS.

    where: its name in errors. Raises ModelError where it is none, or has one by another name.
    """
    if not isinstance(checkpoint, Mapping):
        hint = ""
        if callable(getattr(checkpoint, "state_dict", None)):
            hint = ": give what its state_dict() gives"
        got = shown(checkpoint) if isinstance(checkpoint, (int, str)) else type(checkpoint).__name__
        raise ModelError(f"{where}: expected arrays by their names, got {got}{hint}")
    for key in WRAPPERS:
        if isinstance(checkpoint.get(key), Mapping):
            return state_dict_of(checkpoint[key], where)
    for key in checkpoint:
        if not isinstance(key, str):
            raise ModelError(f"{where}: expected arrays by their names, got {shown(key)} as a name")
    if not any(map(_is_array, checkpoint.values())):
        for key, one in checkpoint.items():
            if isinstance(one, Mapping) and any(map(_is_array, one.values())):
                raise ModelError(
                    f"{where}: expected arrays by their names, got a checkpoint, whose "
                    f'"{key}" has them: give torch.load(path)["{key}"]'
                )
    return checkpoint


def _is_array(value: object) -> bool:
    return hasattr(value, "shape")


def arrays_of(state_dict: Mapping[str, Any], where: str) -> dict[str, Array]:
    """Return the state dict with all values as NumPy arrays of numbers."""
    result = {}
    for name, value in state_dict.items():
        try:
            array = of_tensor(repr(name), value)
        except ShapeError as error:
            raise ModelError(f"{where}: {error}") from None
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(value).__name__
            raise ModelError(f"{where}: {name!r} must be an array or a tensor, got {got}")
        if np.ma.is_masked(array):
            raise ModelError(f"{where}: {name!r} has masked values, which are no numbers")
        result[name] = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return result


def _check_path(path: object) -> tuple[Path, str]:
    """Return the path and its ending. Raises ModelError for an ending that is not in ENDINGS."""
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"weights lie in a file, expected its path, got {shown(path)}")
    file = Path(path)
    if not is_weights(file):
        raise ModelError(f"{file}: a file of weights ends with {', '.join(ENDINGS)}")
    return file, file.suffix.lower()


def _read_npz(file: Path) -> dict[str, Array]:
    result = {}
    with open_npz(file) as archive:
        for name in archive.names:
            dtype = archive.header(name).dtype
            if dtype.kind not in "fiub":
                raise ModelError(f"{file}: the array {name!r} must be of numbers, got {dtype}")
            result[name] = archive.read(name)
    return result


def _torch_module(file: Path, what: str) -> Any:
    """Return the front end that reads and writes PyTorch's files, which imports torch."""
    try:
        return module_for("read and write torch weights")
    except ImportError as error:
        raise ModelError(
            f"{file}: to {what} it PyTorch is needed, and {error.name} is not installed: pip "
            "install torch, or take a .safetensors file, which needs no package"
        ) from None


METADATA = "__metadata__"
MOST_DIMENSIONS = 32  # NumPy's before 2.0
BFLOAT16 = "BF16"
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    BFLOAT16: np.dtype("<u2"),  # the upper half of a float32
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""NumPy's types by the names in the file."""
OTHERS: Mapping[bytes, str] = {
    b"PK\x03\x04": "a .pt, .npz or .zip file does",
    b"\x80": "a .pt or .pkl file does, as a pickle",
    b"\x93NUMPY": "an .npy file does",
    b"\x89HDF": "an .h5 file does",
}
"""Kinds of other files by their first bytes."""


@dataclass(frozen=True)
class TensorEntry:
    """The header's entry of a tensor."""

    name: str
    kind: str
    """A name of DTYPES."""
    shape: Shape
    start: int
    """The offset of its numbers behind the header, in bytes."""
    end: int

    @classmethod
    def from_json(cls, name: str, entry: object) -> TensorEntry:
        """Return the entry in the JSON value `entry`. Raises ValueError where that is none."""
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r:.60} must have dtype, shape and data_offsets")
        kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(kind, str) or kind not in DTYPES:
            raise ValueError(f"{name!r:.60} is of {shown(kind)}; known are {', '.join(DTYPES)}")
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"{name!r:.60} has no sizes, or no two offsets")
        if len(shape) > MOST_DIMENSIONS:  # before they are multiplied
            what = f"{name!r:.60} has {len(shape)} dimensions"
            raise ValueError(f"{what}, NumPy has at most {MOST_DIMENSIONS}")
        start, end = offsets
        needed = prod(shape) * DTYPES[kind].itemsize
        if end - start != needed:
            what = f"{name!r:.60} of shape {shown(tuple(shape))}"
            raise ValueError(f"{what} takes {needed} bytes, it has {end - start}")
        return cls(name, kind, tuple(shape), start, end)


class TensorFile:
    """The header of a file of tensors; `read` reads a tensor's numbers."""

    format: ClassVar[str]
    """The format's name in errors."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError, in one sentence that names the file, for every fault."""
        check_file(path)
        self.path = path
        with self._opened() as file:
            entries = self.read_header(file, os.fstat(file.fileno()).st_size)
        self.entries = {entry.name: entry for entry in entries}

    def read_header(self, file: IO[bytes], size: int) -> list[TensorEntry]:
        """Return the tensors of a file of `size` bytes, each with its place in it.

        Raises ModelError or ValueError for every fault.
        """
        raise NotImplementedError

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        try:
            with open(self.path, "rb", opener=open_regular) as file:
                yield file
        except (OSError, ValueError, MemoryError) as error:
            reason = fault(error)  # type: ignore[arg-type]
            raise ModelError(f"{self.path}: cannot be read as {self.format}: {reason}") from None

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor's numbers."""
        with self._opened() as file:
            return _read_bytes(self.entries[name], file)

    def read(self, name: str) -> Array:
        """Return a tensor, bfloat16 as float32."""
        with self._opened() as file:
            return _read_tensor(self.entries[name], file)

    def read_all(self) -> dict[str, Array]:
        """Return all tensors by name, bfloat16 as float32."""
        with self._opened() as file:
            return {name: _read_tensor(entry, file) for name, entry in self.entries.items()}


class SafetensorsFile(TensorFile):
    """The header of a .safetensors file; `read` reads a tensor's numbers."""

    format = ".safetensors"

    def read_header(self, file: IO[bytes], size: int) -> list[TensorEntry]:
        """Return the tensors that the header has."""
        return _read_header(self.path, file, size)


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the arrays in the file by name, bfloat16 as float32.

    The header is checked against the file's size before any array is read. Raises ModelError, in
    one sentence that names the file, for every fault.
    """
    return SafetensorsFile(path).read_all()


def save_safetensors(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to `path`, whole or not at all.

    Raises ModelError for dtypes that such files cannot hold, or where the file cannot be written.
    """
    names = {dtype: name for name, dtype in DTYPES.items() if name != BFLOAT16}
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # several programs require it
    start = 0
    for name, array in _by_falling_width(arrays):
        kind = names.get(array.dtype.newbyteorder("<"))
        if kind is None or name == METADATA:
            raise ModelError(f"{path}: .safetensors cannot hold {name!r:.60} of {array.dtype}")
        end = start + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with atomic_write(path) as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for _, array in _by_falling_width(arrays):
                plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                stream.write(plain.data.cast("B") if plain.size else b"")
    except (OSError, ValueError) as error:  # half of a surrogate pair in a name, a full disk
        raise ModelError(f"{path}: cannot be written: {fault(error)}") from None


def _by_falling_width(arrays: Mapping[str, Array]) -> list[tuple[str, Array]]:
    """Return the arrays by falling width of their numbers, so that each is aligned in memory."""
    return sorted(arrays.items(), key=lambda item: -item[1].itemsize)


def _read_header(path: Path, file: IO[bytes], size: int) -> list[TensorEntry]:
    """Return the header's entries, with offsets in the file. Raises ModelError or ValueError."""
    begin = file.read(8)
    length = int.from_bytes(begin, "little")
    if len(begin) < 8 or length > size - 8:
        kind = next((kind for start, kind in OTHERS.items() if begin.startswith(start)), "")
        raise ValueError(
            f"it begins as {kind}" if kind else "it is cut short, or is no .safetensors file"
        )
    if length > MOST_JSON:
        raise ValueError(f"its header has {length} bytes, more than {MOST_JSON}")
    header = parse_json(file.read(length), str(path))
    header.pop(METADATA, None)
    entries = [TensorEntry.from_json(name, one) for name, one in header.items()]
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start != end:
            raise ValueError(f"{entry.name!r:.60} begins at {entry.start}, not at {end}")
        end = entry.end
    if end != size - 8 - length:
        raise ValueError(f"its tensors take {end} bytes, it has {size - 8 - length}")
    origin = 8 + length
    return [
        TensorEntry(one.name, one.kind, one.shape, origin + one.start, origin + one.end)
        for one in entries
    ]


def _read_bytes(entry: TensorEntry, file: IO[bytes]) -> NDArray[np.uint8]:
    """Return the bytes of `entry`, whose offsets are the file's."""
    flat = np.empty(entry.end - entry.start, np.uint8)
    file.seek(entry.start)
    if file.readinto(flat.data) != len(flat):  # type: ignore[attr-defined]
        raise ValueError(f"it ends inside {entry.name!r:.60}")
    return flat


def _read_tensor(entry: TensorEntry, file: IO[bytes]) -> Array:
    """Return the numbers of `entry`, whose offsets are the file's."""
    array = _read_bytes(entry, file).view(DTYPES[entry.kind]).reshape(entry.shape)
    if entry.kind == BFLOAT16:
        array = from_bfloat16(array)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(size) is int and size >= 0 for size in values)
