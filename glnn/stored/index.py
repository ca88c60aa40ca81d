"""Index: what is stored of a model, and what its plans depend on: files, device and settings.

No model is read for it. A file is taken for unchanged as long as its path, size and times are. One
that was written a moment ago is not: it may change again within the resolution of the clock.
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
"""Folders of the cache whose files say which kernels are taken, or which a doctor saw."""
OPENING = ("device", "gpu", "limits")
"""Options that say which device is opened."""
FileState = tuple[str, int, int]
"""A file: where, its bytes, and when it was changed, in nanoseconds since 1970."""
FORM = 6  # of the index; another one is not read
MOST_PLANS = 12  # of a model: the latest
PLAIN = "biuf"
"""The kinds of NumPy's numbers that arrays are stored of."""


@dataclass(frozen=True)
class FileStamp:
    """A file as the system knew it."""

    path: str
    """Where it was read, links and all: another file is there once a link leads elsewhere."""
    device: int
    """The file system that it is on."""
    inode: int
    """Its number there."""
    nbytes: int
    """Its size."""
    modified: int
    """When its content changed, in nanoseconds."""
    changed: int
    """When anything of it changed."""

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
        """Return True where such a file is there now."""
        try:
            return FileStamp.from_status(self.path, os.stat(self.path)) == self
        except (OSError, ValueError):
            return False


def stamp_files(read: Iterable[OpenedFile]) -> tuple[FileStamp, ...] | None:
    """Return stamps of the files that were read; None where a change could go unseen."""
    stamps: dict[str, FileStamp] = {}
    for noted in read:
        one = FileStamp.from_status(noted.path, noted.known)
        young = max(one.modified, one.changed) > noted.at - YOUNG
        if young or stamps.setdefault(noted.path, one) != one:
            return None
    return tuple(stamps.values())


def source_key(source: object) -> tuple[str, ...] | None:
    """Return what identifies a model before it is read; None where it is an object in Python."""
    if isinstance(source, bytes):
        return "bytes", digest(source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    if not isinstance(path, str):
        return None
    if os.path.splitext(path)[1] not in SUFFIXES:
        return "name", path  # one of glnn's own
    try:
        return "file", os.path.abspath(path), os.path.realpath(path)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class GlnnFiles:
    """The files that plans are made by: path, bytes, and when they were changed."""

    own: tuple[FileState, ...]
    """Those of glnn's modules, as they were when this process first asked."""
    others: tuple[FileState, ...]
    """Shaders, the user's kernels, what tuning found."""

    @classmethod
    def from_settings(cls, settings: Settings) -> GlnnFiles:
        """Return the files that there are now."""
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
    versions = VERSION, sys.version, np.__version__, sys.byteorder  # an image's files have no times
    return tuple(map(repr, (files.own, files.others, chosen, versions, device.capabilities)))


def options_key(options: Options) -> tuple[str, ...]:
    """Return texts of the options that plans depend on."""
    parts: list[Any] = []
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name == "kernels":
            value = sorted((value or {}).items())
        elif one.name == "without" and isinstance(value, tuple):
            value = sorted(str(getattr(each, "value", each)) for each in value)
        if one.name not in OPENING:
            parts.append((one.name, value))
    if options.backend == "auto":  # which it took, it took beside so many
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
    """The place of a weight: parts of another entry."""

    entry: str
    """The entry's name."""
    pieces: tuple[str, ...]
    """The names of its parts, which are one behind the other there."""

    def __post_init__(self) -> None:
        names = (self.entry, *self.pieces)
        if not self.pieces or any(not isinstance(name, str) for name in names):
            raise ValueError(f"weights lie in an entry's parts, got {names!r:.200}")


@dataclass(frozen=True)
class StoredOutput:
    """An output that no run changes; its array is a part of the index's own entry."""

    name: str
    """The output's."""
    part: str
    """The part's."""
    dtype: str
    """NumPy's text for what its numbers are."""
    shape: Shape
    """Its own."""

    def __post_init__(self) -> None:
        numbers = np.dtype(self.dtype)
        if numbers.kind not in PLAIN or any(type(n) is not int or n < 0 for n in self.shape):
            raise ValueError(f"{self.name!r} is no array of {self.dtype!r} {self.shape!r}")

    def array(self, content: bytes) -> Array:
        """Return the array that `content` holds. Raises ValueError where it is not as long."""
        return np.frombuffer(content, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class StoredPlan:
    """A stored plan: the shapes that it is for, and the parts that have it."""

    range: ShapeRange
    """The shapes of the inputs that it is for."""
    small: bool
    """True where int64 inputs must be small."""
    part: str
    """The part of the index's own entry that has it."""
    weights: tuple[StoredWeight, ...]
    """Its weights, and behind them the constants that its weights of sizes are made of."""
    fixed: tuple[StoredOutput, ...]
    """Its outputs that no run changes."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the index's own entry that are its."""
        return self.part, *(one.part for one in self.fixed)

    @property
    def key(self) -> tuple[ShapeRange, bool]:
        """The shapes and the kind of int64 inputs that it is found by."""
        return self.range, self.small


@dataclass(frozen=True)
class Index:
    """A model for a device and options, and its plans. Raises what is wrong with it."""

    info: ModelInfo
    """The model's description for users."""
    backend: str
    """The backend whose kernels the plans have."""
    files: tuple[FileStamp, ...]
    """The files that it was read from."""
    plans: tuple[StoredPlan, ...] = ()
    """The latest last."""

    def __post_init__(self) -> None:
        known = self.info
        texts = [known.name, self.backend, *known.metadata, *known.metadata.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a model has a name, a backend and metadata, all of them texts")
        if not isinstance(known.random_weights, bool):
            raise ValueError("random_weights is true or false")

    def unchanged(self) -> bool:
        """Return True where the files are what they were."""
        return all(one.unchanged() for one in self.files)

    def find(self, shapes: Mapping[str, Shape], small: bool) -> StoredPlan | None:
        """Return the plan for inputs of `shapes`, that of just these where there is one."""
        admitting = (one for one in self.plans if one.small == small and one.range.admits(shapes))
        return min(admitting, key=lambda one: len(one.range.symbols), default=None)

    def data(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
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
