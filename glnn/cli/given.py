"""Files by the inputs that they are for: `name=file`, or .npz files with an array for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from glnn.arrays import to_float32
from glnn.cli.sample_files import read_npy
from glnn.errors import ModelError, ShapeError
from glnn.images.chosen import Chosen
from glnn.model import Model, TensorInfo
from glnn.model.npz import open_npz
from glnn.types import Array, DType

Files = dict[str, tuple[str, ...]]
"""The files of each input that has some; those of no input in particular under EACH."""
EACH = ""
"""No input is called so."""


def files_of(model: Model, paths: Sequence[str]) -> Files:
    """Which of `paths`, of which any may be `name=file`, are for which input of `model`.

    A model of one input takes all others for that. Raises ModelError for a name of no input.
    """
    names = [info.name for info in model.inputs]
    found: dict[str, list[str]] = {}
    for path in paths:
        named = [name for name in names if path.startswith(f"{name}=")]
        if named:
            name = max(named, key=len)
            path = path[len(name) + 1 :]
        else:
            name = names[0] if len(names) == 1 else EACH
            _check_name(model, path, names)
        if not path:
            raise ModelError("an INPUT must be the name of a file, got an empty text")
        found.setdefault(name, []).append(path)
    return {name: tuple(files) for name, files in found.items()}


def _check_name(model: Model, path: str, names: Sequence[str]) -> None:
    """Raise ModelError where `path` is no file, and looks like that of an input there is not."""
    name, equals, file = path.partition("=")
    if equals and Path(file).is_file() and not Path(path).exists():
        listed = ", ".join(map(repr, names))
        raise ModelError(f"{path}: {model.name} has no input {name!r}, it takes {listed}")


def read_given(model: Model, files: Files) -> dict[str, Array]:
    """What `files` hold for the inputs of `model`, several for one put one behind the other.

    Raises ModelError where a file is missing or malformed, ShapeError where it does not fit.
    """
    parts: dict[str, list[Array]] = {}
    known = {info.name: info for info in model.inputs}
    for path in files.get(EACH, ()):
        for name, array in _archive(model, Path(path), known).items():
            parts.setdefault(name, []).append(array)
    for name, paths in files.items():
        if name != EACH:
            read = [_read(model, Path(path), known[name]) for path in paths]
            parts.setdefault(name, []).extend(read)
    return {name: _joined(known[name], arrays) for name, arrays in parts.items()}


def _archive(model: Model, path: Path, known: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """The arrays of an .npz file that are called as inputs are."""
    if path.suffix != ".npz":
        listed = ", ".join(map(repr, known))
        first = next(iter(known))
        raise ModelError(
            f"{path}: {model.name} takes {listed}: expected {first}=FILE for each, or an .npz file"
        )
    with open_npz(path) as archive:
        found = {
            name: _as_input(path, archive.read(name), info)
            for name, info in known.items()
            if name in archive.names
        }
    if not found:
        raise ModelError(f"{path}: there is no array {next(iter(known))!r}")
    return found


def _read(model: Model, path: Path, info: TensorInfo) -> Array:
    """What a file of any kind holds for an input."""
    if path.suffix == ".npy":
        return _as_input(path, read_npy(path), info)
    if path.suffix != ".npz":
        outputs = model.output_shapes.values()
        return Chosen.of(info, model.metadata, outputs=outputs).how.read(path, info)
    with open_npz(path) as archive:
        name = info.name if len(archive.names) != 1 else archive.names[0]
        if name not in archive.names:
            raise ModelError(f"{path}: there is no array {name!r}")
        return _as_input(path, archive.read(name), info)


def _as_input(path: Path, array: Array, info: TensorInfo) -> Array:
    """`array`, which the file holds, of the input's type; float64 is rounded to float32.

    Raises ShapeError, which begins with the file, where it is of another type.
    """
    try:
        double = info.dtype is DType.float32 and array.dtype == np.float64
        return to_float32(f"input {info.name!r}", array) if double else info.array(array)
    except ShapeError as error:
        raise ShapeError(f"{path}: {error}") from None


def _joined(info: TensorInfo, arrays: Sequence[Array]) -> Array:
    """The arrays one behind the other, as the input `info`."""
    if len(arrays) == 1:
        return info.fitting(arrays[0])
    sizes = {array.shape[1:] for array in arrays}
    if len(sizes) > 1 or not arrays[0].ndim:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ShapeError(
            f"input {info.name!r}: files one behind the other must have all sizes but the first "
            f"alike, got {shapes}"
        )
    return info.fitting(np.concatenate(arrays))
