"""Index: the stored plans of a model, and keys of what they depend on: files, device, settings.

It is found without reading the model. A file counts as unchanged as long as its path, size and
times are the same, unless it was written a moment ago: it may change again within the resolution of
the clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from glnn.core.disk_cache import digest
from glnn.core.fileio import OpenedFile
from glnn.core.glsl import shaders_folder
from glnn.core.process import processors
from glnn.core.settings import Settings
from glnn.core.tensor_info import ModelInfo, TensorInfo
from glnn.core.types import Array, Shape
from glnn.gl import Device
from glnn.runtime.executable import ShapeRange
from glnn.runtime.options import Options
from glnn.version import VERSION

PACKAGE = Path(__file__).parents[1]
SUFFIXES = (".onnx", ".json")
"""The suffixes of model files."""
YOUNG = 20_000_000  # nanoseconds: a file that is younger may change and have the same times
STARTED = time.time_ns()
DEPTH = 4  # of folders in folders: links may lead in circles
TUNED = "choices", "certificates"
"""Folders of the cache whose files influence the choice of kernels."""
OPENING = ("device", "gpu", "limits")
"""Options that say which device is opened."""
FileState = tuple[str, int, int]
"""A file: its path, its bytes, and the time of its last change, in nanoseconds since 1970."""
FORM = 6  # of the index; an index of another form is not read
MOST_PLANS = 12  # of a model: the latest
PLAIN = "biuf"
"""The kinds of NumPy's dtypes that stored arrays may have."""


@dataclass(frozen=True)
class FileStamp:
    """A file's path and status at one time."""

    path: str
    """The path that was opened, with its links unresolved, as a link may change."""
    device: int
    """The number of its file system."""
    inode: int
    """Its number in the file system."""
    nbytes: int
    """Its size."""
    modified: int
    """The time of the last change of its content, in nanoseconds."""
    changed: int
    """The time of the last change of its content or status."""

    def __post_init__(self) -> None:
        numbers = self.device, self.inode, self.nbytes, self.modified, self.changed
        if not isinstance(self.path, str) or any(type(one) is not int for one in numbers):
            raise ValueError(f"a file is known by a path and numbers, got {self.path!r:.200}")

    @classmethod
    def from_status(cls, path: str, status: os.stat_result) -> FileStamp:
        """Return the stamp of the file at `path`, from the result of os.stat."""
        times = status.st_mtime_ns, status.st_ctime_ns
        return cls(path, status.st_dev, status.st_ino, status.st_size, *times)

    def unchanged(self) -> bool:
        """Return True where the file has the same status now."""
        try:
            return FileStamp.from_status(self.path, os.stat(self.path)) == self
        except (OSError, ValueError):
            return False


def stamp_files(read: Iterable[OpenedFile]) -> tuple[FileStamp, ...] | None:
    """Return stamps of the files that were read; None where a change could go unnoticed."""
    stamps: dict[str, FileStamp] = {}
    for file in read:
        stamp = FileStamp.from_status(file.path, file.status)
        is_young = max(stamp.modified, stamp.changed) > file.time - YOUNG
        if is_young or stamps.setdefault(file.path, stamp) != stamp:
            return None
    return tuple(stamps.values())


def source_key(source: object) -> tuple[str, ...] | None:
    """Return the key of a model before it is read; None where it is an object in Python."""
    if isinstance(source, bytes):
        return "bytes", digest(source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    if not isinstance(path, str):
        return None
    if os.path.splitext(path)[1] not in SUFFIXES:
        return "name", path  # a bundled model
    try:
        return "file", os.path.abspath(path), os.path.realpath(path)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class GlnnFiles:
    """The state of glnn's files, which plans depend on."""

    own: tuple[FileState, ...]
    """The files of glnn's package, as this process first saw them."""
    others: tuple[FileState, ...]
    """Shaders, the user's kernels, and results of tuning."""

    @classmethod
    def from_settings(cls, settings: Settings) -> GlnnFiles:
        """Return the present state of the files."""
        others = list(_files(shaders_folder(), None))
        if settings.kernels is not None:
            others += _files(settings.kernels, None)
        for folder in TUNED if settings.cache is not None else ():
            others += _files(Path(settings.cache or "") / folder, None)
        return cls(_package_files(), tuple(others))

    @property
    def suited(self) -> bool:
        """Return True where no module was changed since this process began."""
        return all(modified <= STARTED - YOUNG for _, _, modified in self.own)

    @property
    def fresh(self) -> bool:
        """Return True where the other files cannot have changed since this process read them."""
        return all(modified <= STARTED - YOUNG for _, _, modified in self.others)


@cache
def _package_files() -> tuple[FileState, ...]:
    return tuple(_files(PACKAGE, (".py", ".json", ".npz")))


def environment_key(device: Device, settings: Settings, files: GlnnFiles) -> tuple[str, ...]:
    """Return texts of all that plans depend on beside the model and the options."""
    chosen: tuple[object, ...] = settings.trust, settings.launch, settings.memory
    chosen += str(settings.kernels), settings.backends, device.low_priority
    # Versions, too: the files of a container image may all have the same time.
    versions = VERSION, sys.version, np.__version__, sys.byteorder
    return tuple(map(repr, (files.own, files.others, chosen, versions, device.capabilities)))


def options_key(options: Options) -> tuple[str, ...]:
    """Return texts of the options that plans depend on."""
    parts: list[Any] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name == "kernels":
            value = sorted((value or {}).items())
        elif field.name == "without" and isinstance(value, tuple):
            value = sorted(str(getattr(each, "value", each)) for each in value)
        if field.name not in OPENING:
            parts.append((field.name, value))
    if options.backend == "auto":  # its choice depends on the CPU's speed
        parts.append(("processors", processors()))
    return tuple(map(repr, parts))


def _files(
    folder: Path, suffixes: tuple[str, ...] | None, depth: int = DEPTH
) -> Iterator[FileState]:
    """Yield the files below `folder` whose names end with one of `suffixes` (None: all)."""
    try:
        with os.scandir(folder) as entries:
            in_order = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in in_order:
        try:
            if entry.is_dir():
                if depth and entry.name != "__pycache__":
                    yield from _files(Path(entry.path), suffixes, depth - 1)
            elif suffixes is None or entry.name.endswith(suffixes):
                known = entry.stat()
                yield entry.path, known.st_size, known.st_mtime_ns
        except OSError:
            yield entry.path, -1, 0


@dataclass(frozen=True)
class StoredWeight:
    """A weight on disk: adjacent parts of an entry of weights."""

    entry: str
    """The entry's name."""
    pieces: tuple[str, ...]
    """The names of the parts, in order."""

    def __post_init__(self) -> None:
        names = (self.entry, *self.pieces)
        if not self.pieces or any(not isinstance(name, str) for name in names):
            raise ValueError(f"weights lie in an entry's parts, got {names!r:.200}")


@dataclass(frozen=True)
class StoredOutput:
    """An output that no command computes; its array is a part of the index's entry."""

    name: str
    """The name of the output."""
    part: str
    """The name of the part."""
    dtype: str
    """NumPy's text of its dtype."""
    shape: Shape
    """Its shape."""

    def __post_init__(self) -> None:
        numbers = np.dtype(self.dtype)
        if numbers.kind not in PLAIN or any(type(n) is not int or n < 0 for n in self.shape):
            raise ValueError(f"{self.name!r} is no array of {self.dtype!r} {self.shape!r}")

    def array(self, content: bytes) -> Array:
        """Return the array of these bytes. Raises ValueError where their number is wrong."""
        return np.frombuffer(content, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class StoredPlan:
    """A stored plan: the shapes that it admits, and its parts on disk."""

    range: ShapeRange
    """The shapes of the inputs that it admits."""
    small: bool
    """True where int64 inputs must be small."""
    part: str
    """The part of the index's entry with its executable."""
    weights: tuple[StoredWeight, ...]
    """Its weights, and behind them the constants of its array program."""
    fixed: tuple[StoredOutput, ...]
    """Its outputs that no command computes."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the index's entry that belong to it."""
        return self.part, *(one.part for one in self.fixed)

    @property
    def key(self) -> tuple[ShapeRange, bool]:
        """The shapes and the kind of int64 inputs that it is found by."""
        return self.range, self.small


@dataclass(frozen=True)
class Index:
    """A model for a device and options, and its plans. Raises ValueError for wrong types."""

    info: ModelInfo
    """The model's description for users."""
    backend: str
    """The backend whose kernels the plans have."""
    files: tuple[FileStamp, ...]
    """The files that it was read from."""
    plans: tuple[StoredPlan, ...] = ()
    """The plans, the latest last."""

    def __post_init__(self) -> None:
        known = self.info
        texts = [known.name, self.backend, *known.metadata, *known.metadata.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a model has a name, a backend and metadata, all of them texts")
        if not isinstance(known.random_weights, bool):
            raise ValueError("random_weights is true or false")

    def unchanged(self) -> bool:
        """Return True where the model's files have not changed."""
        return all(one.unchanged() for one in self.files)

    def find(self, shapes: Mapping[str, Shape], small: bool) -> StoredPlan | None:
        """Return the plan for inputs of `shapes`, the one with the fewest open dimensions."""
        admitting = (one for one in self.plans if one.small == small and one.range.admits(shapes))
        return min(admitting, key=lambda one: len(one.range.symbols), default=None)

    def data(self) -> dict[str, Any]:
        """Return all of it as data for JSON."""
        return {
            "form": FORM,
            "name": self.info.name,
            "inputs": [[*vars(one).values()] for one in self.info.inputs],
            "outputs": [[*vars(one).values()] for one in self.info.outputs],
            "metadata": dict(self.info.metadata),
            "random_weights": self.info.random_weights,
            "backend": self.backend,
            "files": [[*vars(one).values()] for one in self.files],
            "plans": [
                {
                    "range": one.range.data(),
                    "small": one.small,
                    "part": one.part,
                    "weights": [[each.entry, each.pieces] for each in one.weights],
                    "fixed": [[*vars(each).values()] for each in one.fixed],
                }
                for one in self.plans
            ],
        }

    @classmethod
    def from_data(cls, data: Any) -> Index:
        """Return the index that JSON holds. Raises ValueError where it is no index."""
        try:
            if data["form"] != FORM:
                raise ValueError("of another form")
            inputs, outputs = tuple(map(_info, data["inputs"])), tuple(map(_info, data["outputs"]))
            return cls(
                ModelInfo(data["name"], inputs, outputs, data["metadata"], data["random_weights"]),
                data["backend"],
                tuple(FileStamp(*one) for one in data["files"]),
                tuple(map(_stored_plan, data["plans"])),
            )
        except Exception as error:  # of the wrong types anywhere
            raise ValueError(f"no index: {error}") from None


def _info(data: Any) -> TensorInfo:
    name, shape, type, free = data
    return TensorInfo(name, tuple(shape), type, bool(free))


def _stored_plan(data: Any) -> StoredPlan:
    return StoredPlan(
        ShapeRange.from_data(data["range"]),
        bool(data["small"]),
        str(data["part"]),
        tuple(StoredWeight(entry, tuple(pieces)) for entry, pieces in data["weights"]),
        tuple(
            StoredOutput(n, part, dtype, tuple(shape)) for n, part, dtype, shape in data["fixed"]
        ),
    )
