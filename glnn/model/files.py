"""Reading and writing model files: every fault is a ModelError that names the file."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ModelError

Array = NDArray[Any]


def read(path: Path) -> bytes:
    """What the file holds."""
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def check_file(path: Path) -> None:
    """Raise ModelError unless `path` is a regular file: reading a pipe might never end."""
    try:
        if path.is_file():
            return
        fault = "is not a file" if path.exists() else "no such file"
    except (OSError, ValueError):  # a name too long, or one that holds a zero byte
        fault = "not a usable file name"
    raise ModelError(f"{path}: {fault}")


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object that `data`, the content of `where`, holds."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ModelError(f"{where}: expected a JSON object, got {type(document).__name__}")
    return document


def inside(folder: Path, file: Path, name: object) -> Path:
    """The path of the file that `file` calls `name`, which must lie in `folder`.

    `name` is relative to `file`. Links are followed before the place is judged.
    """
    if not isinstance(name, str) or not name:
        raise ModelError(f"{file}: expected a file name, got {name!r}")
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise ModelError(f"{file}: the path {name!r} must be relative to the model's folder")
    try:
        path = file.parent / name
        allowed = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a zero byte, or links in a circle
        raise ModelError(f"{file}: {name!r} is not a usable file name") from None
    if not allowed:
        raise ModelError(f"{file}: the path {name!r} leaves the model's folder")
    return path


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, none of them pickled."""
    check_file(path)
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as stream:
                begins = stream.read(2) == b"PK"
            fault = ", this one is damaged or cut short" if begins else ""
            raise ModelError(f"{path}: expected an .npz archive of arrays{fault}")
        with np.load(path, allow_pickle=False) as archive:
            return {name: _member(path, archive, name) for name in archive.files}
    except ModelError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise ModelError(f"{path}: cannot be read as .npz: {first_line(error)}") from None


def _member(path: Path, archive: Mapping[str, Array], name: str) -> Array:
    try:
        array = archive[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise ModelError(f"{path}: {name!r} holds pickled objects, which are refused") from None
        raise
    if not isinstance(array, np.ndarray):
        raise ModelError(f"{path}: {name!r} is not an array")
    return array


def first_line(error: Exception) -> str:
    """What `error` says, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def write_together(files: Mapping[Path, Callable[[IO[bytes]], None]]) -> None:
    """Write each file with its writer; they appear only when all of them are complete."""
    ready = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}") for path in files}
    path = Path()
    try:
        for path, write in files.items():
            if path.is_dir():
                raise ModelError(f"{path}: cannot be written: it is a folder")
            with ready[path].open("xb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
        for path in files:
            ready[path].replace(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        for temporary in ready.values():
            with suppress(OSError):
                temporary.unlink()
