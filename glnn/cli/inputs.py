"""What a user hands to a model on the command line: images, arrays, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn import data
from glnn.errors import GlnnError, ModelError, ShapeError, first_line
from glnn.model.builders import BUILDERS
from glnn.images.digits import read_image
from glnn.model.model import Model
from glnn.model.npz import MOST_HEADER, open_npz, parse_header, read_array
from glnn.model.samples import check_samples, fit_samples
from glnn.reading import check_file, regular
from glnn.tensor_info import TensorInfo
from glnn.types import DType, Shape

LABELS = ("label", "labels")
TAKEN = (DType.float32, DType.uint8)


@dataclass(frozen=True)
class Inputs:
    """Samples of a model's input, what they are called, their labels where they are known."""

    x: NDArray[Any]
    names: tuple[str, ...]
    labels: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()


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


def read_inputs(model: Model, paths: Sequence[str], model_name: str) -> Inputs:
    """The samples in the files `paths`; the bundled digits for a bundled model without any.

    A model that is built by name, whose weights are random, gets one random sample without any.
    Raises ModelError where a file is missing or malformed, ShapeError where it does not fit.
    """
    if len(model.inputs) != 1:
        raise ModelError(f"{model_name} has {len(model.inputs)} inputs, the command line takes one")
    info = model.inputs[0]
    if info.dtype not in TAKEN:
        took = f"takes {info.dtype.value}, the command line float32 or uint8"
        raise ModelError(f"{model_name}: input {info.name!r} {took}")
    if not paths:
        if model_name in BUILDERS:
            x = np.random.default_rng(0).random(info.with_batch(1), np.float32)
            return Inputs(x, ("random sample",), None, ("no INPUT: one random sample",))
        if model_name not in data.MODELS:
            raise ModelError(f"{model_name} needs an INPUT: an image, a .npy or a .npz file")
        images, labels = data.digits()
        names = tuple(f"digit {i}" for i in range(len(images)))
        return Inputs(fit_samples(images, info, "the bundled digits")[0], names, labels)
    if "" in paths:
        raise ModelError("an INPUT must be the name of a file, got an empty text")
    read = [_read(Path(path), info) for path in paths]
    known = [r.labels for r in read if r.labels is not None]
    return Inputs(
        np.concatenate([r.x for r in read]),
        tuple(name for r in read for name in r.names),
        np.concatenate(known) if len(known) == len(read) else None,
        tuple(note for r in read for note in r.notes),
    )


def _read(path: Path, info: TensorInfo) -> Inputs:
    if path.suffix not in (".npy", ".npz"):
        image, notes = read_image(path, info)
        return Inputs(image, (str(path),), None, tuple(f"{path}: {note}" for note in notes))
    array, labels = _arrays(path, info)
    x, notes = fit_samples(array, info, str(path))
    names = tuple(f"{path}[{i}]" for i in range(len(x)))
    return Inputs(x, names, labels, tuple(notes))


def _arrays(path: Path, info: TensorInfo) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The samples in a .npy or .npz file, and their labels where it has them."""
    if path.suffix == ".npy":
        return _array(path, info), None
    with open_npz(path) as archive:
        labels = next((name for name in LABELS if name in archive.names), None)
        others = [name for name in archive.names if name != labels]
        if info.name not in others and len(others) != 1:
            found = ", ".join(others) or "none"
            raise ModelError(
                f"{path}: expected an array {info.name!r}, or only one; it has {found}"
            )
        samples = info.name if info.name in others else others[0]
        header = archive.header(samples)
        check_samples(header.shape, header.dtype, info, str(path))
        if labels is None:
            return archive.read(samples), None
        known = archive.header(labels)
        _check_labels(path, known.shape, known.dtype, header.shape[0])
        return archive.read(samples), archive.read(labels)


def _array(path: Path, info: TensorInfo) -> NDArray[Any]:
    """The array in a .npy file."""
    check_file(path)
    try:
        with open(path, "rb", opener=regular) as file:
            begun = file.read(MOST_HEADER)
            header = parse_header(begun)
            if header.dtype.hasobject:
                raise ValueError("Object arrays cannot be loaded")
            check_samples(header.shape, header.dtype, info, str(path))
            missing = header.start + header.nbytes - path.stat().st_size
            if missing > 0:
                raise ValueError(f"it is {missing} bytes too short")
            return read_array(header, begun[header.start :], file)
    except GlnnError:
        raise
    except Exception as error:  # a damaged header can raise nearly anything
        raise ModelError(f"{path}: cannot be read as .npy: {first_line(error)}") from None


def _check_labels(path: Path, shape: Shape, dtype: np.dtype[Any], samples: int) -> None:
    if shape != (samples,):
        raise ShapeError(f"{path}: {samples} samples need as many labels, got shape {shape}")
    if dtype.kind not in "iuf":
        raise ShapeError(f"{path}: labels must be the numbers of classes, got {dtype}")
