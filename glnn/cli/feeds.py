"""What one run of a model is given on the command line: files, or numbers at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from glnn import data
from glnn.cli.inputs import TAKEN, batch_size, read_inputs
from glnn.errors import ModelError
from glnn.model import Model, TensorInfo
from glnn.model.npz import open_npz
from glnn.types import Array, DType, Shape


def shapes_of(
    model: Model, batch: int | None, given: Mapping[str, Shape], default: int = 1
) -> dict[str, Shape]:
    """The shape of each input: the one given, or the model's with the batch for what is open.

    Raises ModelError for a shape of no input, ShapeError where one does not fit.
    """
    known = {info.name: info for info in model.inputs}
    for name in given:
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise ModelError(f"--shape: {model.name} has no input {name!r}, it takes {listed}")
    count = batch_size(model, batch, default)
    shapes = {name: given.get(name, info.with_batch(count)) for name, info in known.items()}
    model.check(shapes)
    return shapes


def read_feeds(
    model: Model,
    paths: Sequence[str],
    model_name: str,
    batch: int | None,
    given: Mapping[str, Shape],
    most: int = 1,
    random: bool = True,
) -> dict[str, Array]:
    """An array for each input of `model`.

    Of the samples in `paths`, or the bundled digits of a bundled model, as many as `batch`, or up
    to `most`; where there are several inputs, an .npz file with an array for each; numbers at
    random, where these will do, without a file. given: the inputs' shapes, for these. Raises
    ModelError where a file is missing or malformed, ShapeError where it does not fit.
    """
    (first, *others) = model.inputs
    if not paths and (given or others or model_name not in data.MODELS):
        if not random:
            raise ModelError(f"{model_name} needs an INPUT: a .npy or a .npz file")
        shapes = shapes_of(model, batch, given)
        generator = np.random.default_rng(0)
        return {i.name: _random(generator, i, shapes[i.name]) for i in model.inputs}
    if given:
        raise ModelError("--shape is for inputs of random numbers: expected it without INPUT")
    if others or first.dtype not in TAKEN:
        return _named(model, paths)
    x = read_inputs(model, paths, model_name).x
    count = batch_size(model, batch, min(len(x), most))
    return {first.name: np.resize(x, (count, *x.shape[1:]))}


def _random(generator: np.random.Generator, info: TensorInfo, shape: Shape) -> Array:
    """Floats from 0 to 1; 0 and 1 of other types, which any table has."""
    if info.dtype in (DType.float32, DType.float16, DType.float64):
        return generator.random(shape, np.float32).astype(info.dtype.numpy)
    if info.dtype is DType.object:
        raise ModelError(f"input {info.name!r} is of texts: there are none at random")
    return generator.integers(0, 2, shape).astype(info.dtype.numpy)


def _named(model: Model, paths: Sequence[str]) -> dict[str, Array]:
    """The arrays of an .npz file that are called as the inputs are."""
    names = [info.name for info in model.inputs]
    if len(paths) != 1 or Path(paths[0]).suffix != ".npz":
        listed = ", ".join(map(repr, names))
        raise ModelError(f"{model.name} takes one .npz file as INPUT, with {listed}")
    with open_npz(Path(paths[0])) as archive:
        if missing := [name for name in names if name not in archive.names]:
            raise ModelError(f"{paths[0]}: there is no array {missing[0]!r}")
        return {info.name: info.fitting(archive.read(info.name)) for info in model.inputs}
