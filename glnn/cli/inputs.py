"""What a user hands to a model on the command line: pictures, arrays, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np

from glnn import data
from glnn.cli.reader import Reader
from glnn.cli.sample_files import ENDINGS, SampleFile
from glnn.cli.sources import ArrayFile, Arrays, Inputs, Part, PictureFile, Source
from glnn.errors import ModelError, ShapeError
from glnn.images.files import is_picture
from glnn.images.place import TAKEN
from glnn.model.builders import BUILDERS
from glnn.model.model import Model
from glnn.model.samples import fit_samples
from glnn.reading import check_file

__all__ = ["TAKEN", "Inputs", "batch_size", "read_inputs", "source_of"]


def batch_size(model: Model, asked: int | None, default: int) -> int:
    """Samples a run: as many as were asked for, unless the model itself says how many.

    Raises ShapeError where the two disagree.
    """
    fixed = next(iter(model.inputs[0].shape), None)
    if not isinstance(fixed, int):
        return asked or default
    if asked not in (None, fixed):
        raise ShapeError(f"--batch: {model.name} takes {fixed} samples a run, got {asked}")
    return fixed


def source_of(
    model: Model,
    paths: Sequence[str],
    model_name: str,
    asked: Mapping[str, Any] | None = None,
    instead: str | None = None,
    keep: bool = False,
) -> Source:
    """Where the samples come from: files `paths`, folders and patterns of them; the bundled digits
    for a bundled model without any.

    A model that is built by name, whose weights are random, gets one random sample without any.
    asked, instead: how pictures are read, as `Reader.of` has it. keep: whether they are kept
    themselves. Files are looked for, and the headers of arrays read, at once. Raises ModelError
    where one is missing or malformed, ShapeError where it does not fit.
    """
    if len(model.inputs) != 1:
        raise ModelError(f"{model_name} has {len(model.inputs)} inputs, the command line takes one")
    info = model.inputs[0]
    if info.dtype not in TAKEN:
        took = f"takes {info.dtype.value}, the command line float32, float16 or uint8"
        raise ModelError(f"{model_name}: input {info.name!r} {took}")
    if not paths:
        return Source([_bundled(model, model_name)])
    files = [file for path in paths for file in found(path)]
    pictures = [file for file in files if file.suffix not in ENDINGS]
    reader = Reader.of(model, asked or {}, instead) if pictures else None
    parts: list[Part] = []
    for file in files:
        if reader is None or file.suffix in ENDINGS:
            parts.append(ArrayFile(SampleFile.of(file, info)))
        else:
            parts.append(PictureFile(file, reader, keep))
    return Source(parts, reader)


def read_inputs(model: Model, paths: Sequence[str], model_name: str) -> Inputs:
    """All samples of `source_of` at once, its errors among them."""
    return source_of(model, paths, model_name).whole()


def _bundled(model: Model, model_name: str) -> Part:
    """The samples of a model without INPUT."""
    info = model.inputs[0]
    if model_name in BUILDERS:
        x = np.random.default_rng(0).random(info.with_batch(1), np.float32)
        return Arrays(x, "random sample", None, ("no INPUT: one random sample",))
    if model_name not in data.MODELS:
        raise ModelError(f"{model_name} needs an INPUT: an image, a .npy or a .npz file")
    images, labels = data.digits()
    return Arrays(fit_samples(images, info, "the bundled digits")[0], "digit {}", labels)


def found(text: str) -> list[Path]:
    """The files that an INPUT stands for: itself, the pictures in a folder, those of a pattern.

    Sorted by name. Raises ModelError where there are none.
    """
    if not text:
        raise ModelError("an INPUT must be the name of a file, got an empty text")
    path = Path(text)
    try:
        folder, there = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name too long, or one that holds a zero byte
        folder, there = False, False
    if folder:
        pictures = sorted(one for one in path.iterdir() if is_picture(one))
        if not pictures:
            raise ModelError(f"{text}: is not a file, nor a folder of pictures")
        return pictures
    if not there and has_magic(text):
        matched = sorted(Path(one) for one in glob(text, recursive=True) if not Path(one).is_dir())
        if matched:
            return matched
    check_file(path)
    return [path]
