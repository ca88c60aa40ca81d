"""Samples from a folder that has a folder of pictures for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from glnn.core.process import memory_limit, readable_bytes
from glnn.core.progress_bar import report_work
from glnn.core.types import Array
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.images.files import has_picture_name
from glnn.images.labels import Labels
from glnn.training.dataset import Dataset

TRAINING, HELD_OUT = "train", ("val", "valid", "validation", "test")
"""Folders that have a folder for each class in turn; of the others the first that is there."""
AT_ONCE = min(16, 2 * (os.cpu_count() or 1))
LISTED = 6  # names in an error

Read = Callable[[Path], Array]
"""Reads a picture as one sample, (1, ...)."""


@dataclass(frozen=True)
class PictureFolder:
    """The pictures of a folder, by class."""

    path: Path
    classes: tuple[str, ...]
    """Names by the numbers of classes; empty for a number that has no folder and no name."""
    training: Sequence[tuple[Path, int]]
    """Files to train with, and their classes."""
    validation: Sequence[tuple[Path, int]] = ()
    """Files that are held out, those in a folder of such a name, and their classes."""
    failed: list[dict[str, str]] = field(default_factory=list)
    """Pictures that could not be read, and why: filled as they are read."""

    @classmethod
    def find(
        cls,
        path: str | os.PathLike[str],
        outputs: int | None = None,
        labels: Labels | None = None,
        classes: Sequence[str] = (),
    ) -> PictureFolder | None:
        """List what is in a folder of class folders; None where `path` is none.

        Folders that are called as `labels` say have these numbers; else they are numbered in the
        order of their names, numbers by their size. With a folder `train` the classes are in that,
        and those of `val`, `valid`, `validation` or `test` are held out.

        Args:
            path: The folder.
            outputs: The number of classes that the model gives; None where that is not known.
            labels: Names of classes that the model knows.
            classes: Names by their numbers, of which all folders must be; empty for any.

        Raises:
            ModelError: A class has no pictures, there are too few or too many classes, or Pillow is
                missing.
        """
        place = Path(path)
        folders = _folders(place)
        if not folders:
            return None
        others: Mapping[str, Path] = {}
        if TRAINING in folders and (inside := _folders(folders[TRAINING])):
            apart = next((folders[name] for name in HELD_OUT if name in folders), None)
            folders, others = inside, {} if apart is None else _folders(apart)
        if classes:
            names = dict(enumerate(classes))
        elif labels and set(folders) <= set(labels.values()):
            names = dict(labels)
        else:
            names = dict(enumerate(_sort_names(place, tuple(folders), outputs)))
        numbers = {name: number for number, name in names.items()}
        for name, folder in (*folders.items(), *others.items()):
            if name not in numbers:
                raise ModelError(f"{folder}: there is no class {name!r} to train with")
        named = tuple(names.get(i, "") for i in range(max(names) + 1))
        training, held = (_pictures(some, numbers) for some in (folders, others))
        return cls(place, named, training, held)

    def read(self, read: Read) -> tuple[Dataset, Dataset | None]:
        """Read all pictures: to train with, and those that are held out, if any.

        Those that cannot be read are left out and noted in `failed`. Raises ModelError where none
        is left, or where they take more memory than there is; ShapeError where they do not all
        become of one shape.
        """
        result = self._dataset(self.training, read)
        return result, self._dataset(self.validation, read) if self.validation else None

    def _dataset(self, files: Sequence[tuple[Path, int]], read: Read) -> Dataset:
        x: Array | None = None
        taken: list[int] = []

        def sample(file: tuple[Path, int]) -> Array | GlnnError:
            try:
                return read(file[0])
            except (ModelError, ShapeError) as error:
                return error

        on = f"pictures of {self.path.name}"
        with ThreadPoolExecutor(AT_ONCE) as pool, report_work("reading", on, len(files)) as work:
            for start in range(0, len(files), AT_ONCE):  # few at a time: they are large
                part = files[start : start + AT_ONCE]
                for (path, number), one in zip(part, pool.map(sample, part), strict=True):
                    work.advance()
                    if isinstance(one, GlnnError):
                        self.failed.append({"in": str(path), "error": str(one)})
                        continue
                    if x is None:
                        self._check_memory(len(files), one)
                        x = np.empty((len(files), *one.shape[1:]), one.dtype)
                    if one.shape[1:] != x.shape[1:]:
                        sizes = f"{x.shape[1:]} and {one.shape[1:]}"
                        raise ShapeError(f"{path}: expected samples of one shape, got {sizes}")
                    x[len(taken)] = one[0]
                    taken.append(number)
        if x is None:
            raise ModelError(f"{self.path}: none of the {len(files)} pictures could be read")
        return Dataset(x[: len(taken)], np.array(taken, np.int32), self.classes)

    def _check_memory(self, count: int, sample: Array) -> None:
        needed, there = count * sample.nbytes, memory_limit()
        if needed > there:
            raise ModelError(
                f"{self.path}: {count} samples of {sample.shape[1:]} take {readable_bytes(needed)} "
                f"of {readable_bytes(there)} of memory: expected smaller or fewer ones"
            )


def _folders(place: Path) -> dict[str, Path]:
    """List the folders in a folder by name, without hidden ones."""
    try:
        there = sorted(one for one in place.iterdir() if one.is_dir())
    except (OSError, ValueError):
        return {}
    return {one.name: one for one in there if not one.name.startswith((".", "__"))}


def _sort_names(place: Path, names: Sequence[str], outputs: int | None) -> list[str]:
    """Sort names, those that are numbers by their value."""
    if len(names) < 2:
        raise ModelError(f"{place}: expected a folder for each class, got {names[0]!r} alone")
    if outputs is not None and len(names) > outputs:
        listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        raise ModelError(
            f"{place}: expected at most as many classes as the model gives, {outputs}, got "
            f"{len(names)}: {listed}"
        )
    whole = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=lambda name: (int(name), name) if whole else (0, name))


def _pictures(folders: Mapping[str, Path], numbers: Mapping[str, int]) -> list[tuple[Path, int]]:
    """List the pictures of each class, also in folders within, by name."""
    result: list[tuple[Path, int]] = []
    for name, folder in folders.items():
        files = sorted(
            Path(inside, file)
            for inside, _, files in os.walk(folder)
            for file in files
            if not file.startswith(".") and has_picture_name(Path(file))
        )
        if not files:
            raise ModelError(f"{folder}: there are no pictures in it")
        result += [(file, numbers[name]) for file in files]
    return result
