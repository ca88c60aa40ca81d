"""Index: the description of one model on disk, and the list of its stored plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glnn.runtime.executable import ShapeRange
from glnn.stored.identity import FileStamp
from glnn.tensor_info import TensorInfo
from glnn.types import Array, Shape

FORM = 2  # of the index; another one is not read
MOST_PLANS = 12  # of a model: the latest
PLAIN = "biuf"
"""The kinds of NumPy's numbers that arrays are stored of."""


@dataclass(frozen=True)
class Part:
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
class Fixed:
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
        """The array that `content` holds. Raises ValueError where it is not as long."""
        return np.frombuffer(content, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Listed:
    """A stored plan: the shapes that it is for, and the parts that have it."""

    range: ShapeRange
    """The shapes of the inputs that it is for."""
    small: bool
    """Whether inputs of int64 must be small."""
    part: str
    """The part of the index's own entry that has it."""
    weights: tuple[Part, ...]
    """Its weights."""
    fixed: tuple[Fixed, ...]
    """Its outputs that no run changes."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the index's own entry that are its."""
        return self.part, *(one.part for one in self.fixed)

    @property
    def key(self) -> tuple[ShapeRange, bool]:
        """What it is found by."""
        return self.range, self.small


@dataclass(frozen=True)
class Index:
    """A model for a device and options, and its plans. Raises what is wrong with it."""

    name: str
    """The model's."""
    inputs: tuple[TensorInfo, ...]
    """What a user gives."""
    outputs: tuple[TensorInfo, ...]
    """What a user gets."""
    metadata: Mapping[str, str]
    """What its file says besides."""
    backend: str
    """The backend whose kernels the plans have."""
    files: tuple[FileStamp, ...]
    """What it was read from."""
    plans: tuple[Listed, ...] = ()
    """The latest last."""

    def __post_init__(self) -> None:
        texts = [self.name, self.backend, *self.metadata, *self.metadata.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a model has a name, a backend and metadata, all of them texts")

    def unchanged(self) -> bool:
        """Whether the files are what they were."""
        return all(one.unchanged() for one in self.files)

    def find(self, shapes: Mapping[str, Shape], small: bool) -> Listed | None:
        """The plan for inputs of `shapes`."""
        found = (one for one in self.plans if one.small == small and one.range.admits(shapes))
        return next(found, None)

    def data(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "form": FORM,
            "name": self.name,
            "inputs": [[*vars(one).values()] for one in self.inputs],
            "outputs": [[*vars(one).values()] for one in self.outputs],
            "metadata": dict(self.metadata),
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
    def of(cls, data: Any) -> Index:
        """What `data` gave, from JSON of which nothing is known. Raises ValueError."""
        try:
            if data["form"] != FORM:
                raise ValueError("of another form")
            return cls(
                data["name"],
                tuple(map(_info, data["inputs"])),
                tuple(map(_info, data["outputs"])),
                data["metadata"],
                data["backend"],
                tuple(FileStamp(*one) for one in data["files"]),
                tuple(map(_listed, data["plans"])),
            )
        except Exception as error:  # of the wrong types anywhere
            raise ValueError(f"no index: {error}") from None


def _info(data: Any) -> TensorInfo:
    name, shape, type, free = data
    return TensorInfo(name, tuple(shape), type, bool(free))


def _listed(data: Any) -> Listed:
    return Listed(
        ShapeRange.of(data["range"]),
        bool(data["small"]),
        str(data["part"]),
        tuple(Part(entry, tuple(pieces)) for entry, pieces in data["weights"]),
        tuple(Fixed(n, part, dtype, tuple(shape)) for n, part, dtype, shape in data["fixed"]),
    )
