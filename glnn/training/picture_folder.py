"""Samples from a folder with a folder of pictures for each class."""

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
"""Folders of class folders: to train with, and held out, the first of these that exists."""
AT_ONCE = min(16, 2 * (os.cpu_count() or 1))
LISTED = 6  # names in an error

Read = Callable[[Path], Array]
"""Reads a picture as one sample, (1, ...)."""


@dataclass(frozen=True)
class PictureFolder:
    """The pictures of a folder, by class."""

    path: Path
    classes: tuple[str, ...]
    """Names by the classes' numbers; empty for a number without a folder and a name."""
    training: Sequence[tuple[Path, int]]
    """Files to train with, and their classes."""
    validation: Sequence[tuple[Path, int]] = ()
    """Files that are held out, and their classes."""
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
        """List the pictures in a folder of class folders; return None where `path` is none.

        Folders that are named as in `labels` have these numbers; else they are numbered in the
        order of their names, which are sorted by value where all are numbers. With a folder `train`
        the classes are in that, and those in `val`, `valid`, `validation` or `test` are held out.

        Args:
            path: The folder.
            outputs: The number of classes that the model gives; None where that is not known.
            labels: Names of classes that the model knows.
            classes: The only names that folders may have, by their numbers; empty for any.

        Raises:
            ModelError: A class has no pictures, there are too few or too many classes, or Pillow is
                missing.
        """
        root = Path(path)
        folders = _folders(root)
        if not folders:
            return None
        held_out: Mapping[str, Path] = {}
        if TRAINING in folders and (class_folders := _folders(folders[TRAINING])):
            parent = next((folders[name] for name in HELD_OUT if name in folders), None)
            folders, held_out = class_folders, {} if parent is None else _folders(parent)
        if classes:
            names = dict(enumerate(classes))
        elif labels and set(folders) <= set(labels.values()):
            names = dict(labels)
        else:
            names = dict(enumerate(_sort_names(root, tuple(folders), outputs)))
        numbers = {name: number for number, name in names.items()}
        for name, folder in (*folders.items(), *held_out.items()):
            if name not in numbers:
                raise ModelError(f"{folder}: there is no class {name!r} to train with")
        named = tuple(names.get(i, "") for i in range(max(names) + 1))
        training, validation = (_pictures(by_name, numbers) for by_name in (folders, held_out))
        return cls(root, named, training, validation)

    def read(self, read: Read) -> tuple[Dataset, Dataset | None]:
        """Read all pictures: those to train with, and those that are held out or None.

        Pictures that cannot be read are left out and added to `failed`. Raises ModelError where
        none is left, or where they exceed the memory; ShapeError for samples of several shapes.
        """
        result = self._dataset(self.training, read)
        return result, self._dataset(self.validation, read) if self.validation else None

    def _dataset(self, files: Sequence[tuple[Path, int]], read: Read) -> Dataset:
        x: Array | None = None
        labels: list[int] = []

        def sample(file: tuple[Path, int]) -> Array | GlnnError:
            try:
                return read(file[0])
            except (ModelError, ShapeError) as error:
                return error

        on = f"pictures of {self.path.name}"
        with ThreadPoolExecutor(AT_ONCE) as pool, report_work("reading", on, len(files)) as work:
            for start in range(0, len(files), AT_ONCE):  # few at a time: they are large
                part = files[start : start + AT_ONCE]
                for (path, number), result in zip(part, pool.map(sample, part), strict=True):
                    work.advance()
                    if isinstance(result, GlnnError):
                        self.failed.append({"in": str(path), "error": str(result)})
                        continue
                    if x is None:
                        self._check_memory(len(files), result)
                        x = np.empty((len(files), *result.shape[1:]), result.dtype)
                    if result.shape[1:] != x.shape[1:]:
                        sizes = f"{x.shape[1:]} and {result.shape[1:]}"
                        raise ShapeError(f"{path}: expected samples of one shape, got {sizes}")
                    x[len(labels)] = result[0]
                    labels.append(number)
        if x is None:
            raise ModelError(f"{self.path}: none of the {len(files)} pictures could be read")
        return Dataset(x[: len(labels)], np.array(labels, np.int32), self.classes)

    def _check_memory(self, count: int, sample: Array) -> None:
        needed, available = count * sample.nbytes, memory_limit()
        if needed > available:
            raise ModelError(
                f"{self.path}: {count} samples of {sample.shape[1:]} take {readable_bytes(needed)} "
                f"of {readable_bytes(available)} of memory: expected smaller or fewer ones"
            )


def _folders(parent: Path) -> dict[str, Path]:
    """Return the folders in a folder by name, without hidden ones."""
    try:
        folders = sorted(path for path in parent.iterdir() if path.is_dir())
    except (OSError, ValueError):
        return {}
    return {path.name: path for path in folders if not path.name.startswith((".", "__"))}


def _sort_names(root: Path, names: Sequence[str], outputs: int | None) -> list[str]:
    """Sort names, those that are numbers by their value."""
    if len(names) < 2:
        raise ModelError(f"{root}: expected a folder for each class, got {names[0]!r} alone")
    if outputs is not None and len(names) > outputs:
        listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        raise ModelError(
            f"{root}: expected at most as many classes as the model gives, {outputs}, got "
            f"{len(names)}: {listed}"
        )
    are_numbers = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=lambda name: (int(name), name) if are_numbers else (0, name))


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
