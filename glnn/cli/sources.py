"""Where samples come from, as many at a time as a run takes: files, arrays, or anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.cli.reader import Picture, Reader
from glnn.cli.sample_files import SampleFile
from glnn.cli.screen import say
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.model.samples import fit_samples

AT_ONCE = min(16, 2 * (os.cpu_count() or 1))
"""Pictures that threads read at once; Pillow lets the others on meanwhile."""


@dataclass(frozen=True)
class Sample:
    """One sample of an input."""

    x: NDArray[Any]
    """(1, ...), as the input takes it."""
    name: str
    """What it is called."""
    label: Any = None
    """The number of its class, where that is known."""
    picture: Picture | None = None
    """What it was made of, uint8 H x W x 3, where that is kept."""
    notes: tuple[str, ...] = ()
    """What was done to it."""
    size: tuple[int, int] | None = None
    """Height and width of the picture that it was made of, if it was."""


@dataclass(frozen=True)
class Inputs:
    """Samples of a model's input."""

    x: NDArray[Any]
    """(n, ...)"""
    names: tuple[str, ...]
    """What they are called."""
    labels: NDArray[Any] | None = None
    """The numbers of their classes, where all are known."""
    notes: tuple[str, ...] = ()
    """What was done to them."""
    pictures: tuple[Picture | None, ...] = ()
    """What each was made of, where that is kept."""
    sizes: tuple[tuple[int, int] | None, ...] = ()
    """Height and width of the pictures that they were made of."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Inputs:
        """The samples together; their shapes are the same."""
        labels = [one.label for one in samples]
        return cls(
            np.concatenate([one.x for one in samples]),
            tuple(one.name for one in samples),
            None if any(label is None for label in labels) else np.array(labels),
            tuple(note for one in samples for note in one.notes),
            tuple(one.picture for one in samples),
            tuple(one.size for one in samples),
        )


class Part(Protocol):
    """Some samples, which come one after the other."""

    @property
    def count(self) -> int | None:
        """How many; None where nobody knows."""

    def samples(self) -> Iterator[Sample]:
        """Each of them. Raises ModelError or ShapeError where one cannot be had."""


@dataclass(frozen=True)
class Arrays:
    """Samples in memory."""

    x: NDArray[Any]
    """(n, ...)"""
    name: str
    """What they are called, with {} for the number of each."""
    labels: NDArray[Any] | None = None
    """The numbers of their classes."""
    notes: tuple[str, ...] = ()
    """What is said of them."""

    @property
    def count(self) -> int | None:
        return len(self.x)

    def samples(self) -> Iterator[Sample]:
        for i in range(len(self.x)):
            label = None if self.labels is None else self.labels[i]
            notes = self.notes if i == 0 else ()
            yield Sample(self.x[i : i + 1], self.name.replace("{}", str(i)), label, None, notes)


@dataclass(frozen=True)
class ArrayFile:
    """Samples in a .npy or .npz file."""

    file: SampleFile
    """The file."""

    @property
    def count(self) -> int | None:
        return self.file.count

    def samples(self) -> Iterator[Sample]:
        array, labels = self.file.read()
        x, notes = fit_samples(array, self.file.info, str(self.file.path))
        for i in range(len(x)):
            label = None if labels is None else labels[i]
            said = tuple(notes) if i == 0 else ()
            yield Sample(x[i : i + 1], f"{self.file.path}[{i}]", label, None, said)


@dataclass(frozen=True)
class PictureFile:
    """A picture in a file."""

    path: Path
    """Where it is."""
    reader: Reader
    """What makes a sample of it."""
    keep: bool = False
    """Whether the picture itself is kept."""

    @property
    def count(self) -> int | None:
        return 1

    def samples(self) -> Iterator[Sample]:
        x, notes, picture = self.reader.read(self.path, self.keep)
        said = tuple(f"{self.path}: {note}" for note in notes)
        size = None if picture is None else (picture.shape[0], picture.shape[1])
        yield Sample(x, str(self.path), None, picture if self.keep else None, said, size)


def _runs(parts: Sequence[Part], most: int) -> Iterator[tuple[int, int]]:
    """Where parts begin and end that are had together: up to `most` pictures, others alone."""
    start = 0
    while start < len(parts):
        end = start + 1
        while (
            end < min(len(parts), start + most)
            and isinstance(parts[start], PictureFile)
            and isinstance(parts[end], PictureFile)
        ):
            end += 1
        yield start, end
        start = end


def _read(part: Part) -> Sample | GlnnError:
    """The sample of a picture, or why there is none."""
    try:
        return next(part.samples())
    except (ModelError, ShapeError) as error:
        return error


@dataclass
class Source:
    """Samples of all parts, one after the other."""

    parts: Sequence[Part]
    """Where they come from."""
    reader: Reader | None = None
    """What makes samples of pictures, where there are any."""
    failed: list[dict[str, str]] = field(default_factory=list)
    """The pictures that could not be read, and why: filled as they are come to."""

    @property
    def total(self) -> int | None:
        """How many samples there are; None where nobody knows."""
        counts = [part.count for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(self, count: int) -> Iterator[Inputs]:
        """All samples, `count` at a time; fewer at the end, and where sizes change.

        Of several parts, a picture that cannot be read is left out, and said on standard error.
        Raises ModelError or ShapeError for all else, and where none is left.
        """
        waiting: list[Sample] = []
        any_there = False
        for sample in self._samples(min(count, AT_ONCE)):
            any_there = True
            if waiting and sample.x.shape[1:] != waiting[0].x.shape[1:]:
                yield Inputs.of(waiting)
                waiting = []
            waiting.append(sample)
            if len(waiting) == count:
                yield Inputs.of(waiting)
                waiting = []
        if waiting:
            yield Inputs.of(waiting)
        if not any_there:
            raise self._none_left()

    def _samples(self, at_once: int) -> Iterator[Sample]:
        """All of them; of pictures behind one another so many are read at once."""
        for start, end in _runs(self.parts, at_once):
            if not isinstance(self.parts[start], PictureFile):
                yield from self.parts[start].samples()
                continue
            with ThreadPoolExecutor(end - start) as pool:
                read = list(pool.map(_read, self.parts[start:end]))
            for part, found in zip(self.parts[start:end], read, strict=True):
                if isinstance(found, Sample):
                    yield found
                elif len(self.parts) == 1:
                    raise found
                else:
                    self._fail(part, found)

    def _fail(self, part: Part, error: GlnnError) -> None:
        """Say that a picture is left out, and why."""
        path, said = str(getattr(part, "path", "")), str(error)
        said = said if path in said else f"{path}: {said}"
        say(said)
        self.failed.append({"in": path, "error": said})

    def _none_left(self) -> ModelError:
        return ModelError(f"none of the {len(self.failed)} pictures could be read")

    @property
    def notes(self) -> list[str]:
        """What is said once, of all pictures."""
        return [] if self.reader is None else list(self.reader.notes)

    def whole(self, most: int | None = None) -> Inputs:
        """All samples at once, or the first `most`. Raises ShapeError where their sizes differ,
        else as `batches`.
        """
        found = list(islice(self._samples(AT_ONCE), most))
        if not found:
            raise self._none_left()
        for one in found:
            if one.x.shape[1:] != found[0].x.shape[1:]:
                sizes = f"{found[0].x.shape[1:]} and {one.x.shape[1:]}"
                raise ShapeError(f"{one.name}: expected samples of one shape, got {sizes}")
        return Inputs.of(found)
