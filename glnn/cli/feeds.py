"""What one run of a model is given on the command line: files, or numbers at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glnn import data
from glnn.cli.at_random import random_feeds
from glnn.cli.given import Files, files_of, read_given
from glnn.cli.inputs import TAKEN, batch_size, read_inputs
from glnn.errors import ModelError, ShapeError
from glnn.model import Model
from glnn.types import UNKNOWN, Array, Shape


@dataclass(frozen=True)
class Feeds:
    """An array for each input of a model."""

    arrays: Mapping[str, Array]
    """By the inputs' names, in their order."""
    random: tuple[str, ...] = ()
    """The names of those whose numbers are of no file."""

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of each input."""
        return {name: array.shape for name, array in self.arrays.items()}

    def to_json(self) -> dict[str, Any]:
        """The shape and type of each, and whether it is at random."""
        return {
            name: {"shape": array.shape, "type": str(array.dtype), "random": name in self.random}
            for name, array in self.arrays.items()
        }

    def __str__(self) -> str:
        """The same in one line."""
        each = (
            f"{name} {array.dtype} {array.shape}{' at random' if name in self.random else ''}"
            for name, array in self.arrays.items()
        )
        return ", ".join(each)


def shapes_of(
    model: Model, batch: int | None, given: Mapping[str, Shape], default: int = 1
) -> dict[str, Shape]:
    """The shape of each input: the one given, or the model's with a number for what is open.

    given: shapes by the inputs' names, or a size by the name that the model has for it. An open
    size is the one given, or that of an input whose shape is given, or else the batch. Raises
    ModelError for a shape of no input, ShapeError where one does not fit.
    """
    known = {info.name: info for info in model.inputs}
    open_sizes = {n for info in model.inputs for n in info.shape if isinstance(n, str)} - {UNKNOWN}
    sizes = _sizes(model, given, known, open_sizes)
    count = batch_size(model, batch, default)
    first = next(iter(model.inputs[0].shape), None)
    if batch is not None and isinstance(first, str):
        sizes[first] = batch
    for name, info in known.items():
        if len(given.get(name, ())) == len(info.shape):
            for symbol, n in zip(info.shape, given.get(name, ()), strict=True):
                if isinstance(symbol, str) and symbol != UNKNOWN:
                    sizes.setdefault(symbol, n)
    shapes = {
        name: given.get(
            name, tuple(sizes.get(n, count) if isinstance(n, str) else n for n in info.shape)
        )
        for name, info in known.items()
    }
    model.check(shapes)
    return shapes


def _sizes(
    model: Model, given: Mapping[str, Shape], known: Mapping[str, Any], open_sizes: set[str]
) -> dict[str, int]:
    """The open sizes that are given by name."""
    sizes: dict[str, int] = {}
    for name, shape in given.items():
        if name in known:
            continue
        if name not in open_sizes:
            listed = ", ".join(map(repr, known))
            more = f", of sizes {', '.join(sorted(open_sizes))}" if open_sizes else ""
            raise ModelError(
                f"--shape: {model.name} has no input {name!r}, it takes {listed}{more}"
            )
        if len(shape) != 1:
            raise ShapeError(f"--shape: {name} is one size, got {len(shape)}: {shape}")
        sizes[name] = shape[0]
    return sizes


def read_feeds(
    model: Model,
    paths: Sequence[str],
    model_name: str,
    batch: int | None,
    given: Mapping[str, Shape],
    most: int = 1,
    random: bool = True,
) -> Feeds:
    """An array for each input of `model`.

    Of the samples in `paths`, or the bundled digits of a bundled model, as many as `batch`, or up
    to `most`; where there are several inputs, `name=file` for each, or an .npz file with an array
    for each, and as many samples as these hold; numbers at random, where these will do, for inputs
    without a file. given: as for `shapes_of`, for these. Raises ModelError where a file is missing
    or malformed, ShapeError where it does not fit.
    """
    (first, *others) = model.inputs
    files = files_of(model, paths)
    plain = not others and first.dtype in TAKEN
    if not paths and plain and not given and model_name in data.MODELS:
        return Feeds(_samples(model, (), model_name, batch, most))
    if not paths and not random:
        which = f"{first.name}=FILE for each input, or" if others else "a .npy or"
        raise ModelError(f"{model_name} needs an INPUT: {which} a .npz file")
    if plain and paths:
        if given:
            raise ModelError("--shape is for inputs of random numbers: expected it without INPUT")
        return Feeds(_samples(model, files[first.name], model_name, batch, most))
    return _fed(model, files, batch, given, random)


def _samples(
    model: Model, paths: Sequence[str], model_name: str, batch: int | None, most: int
) -> dict[str, Array]:
    """As many of the samples as are wanted, for a model of one input."""
    x = read_inputs(model, paths, model_name).x
    count = batch_size(model, batch, min(len(x), most))
    return {model.inputs[0].name: np.resize(x, (count, *x.shape[1:]))}


def _fed(
    model: Model, files: Files, batch: int | None, given: Mapping[str, Shape], random: bool
) -> Feeds:
    """What the files hold, and numbers at random for the other inputs, of sizes that fit."""
    read, shapes = read_sized(model, files, batch, given)
    names = [info.name for info in model.inputs]
    missing = tuple(name for name in names if name not in read)
    if missing and not random:
        named = f"{missing[0]}=FILE, or an .npz file with an array for each input"
        raise ModelError(f"{model.name}: no INPUT has {missing[0]!r}: expected {named}")
    found = {**read, **random_feeds(model, shapes, missing)}
    return Feeds({name: found[name] for name in names}, missing)


def read_sized(
    model: Model, files: Files, batch: int | None, given: Mapping[str, Shape]
) -> tuple[dict[str, Array], dict[str, Shape]]:
    """Read the files, with `batch` samples where they have a batch, and the shapes of all inputs.

    given: as for `shapes_of`, for inputs without a file. Raises ModelError where a file is missing
    or malformed, or has a shape given, too; ShapeError where it does not fit.
    """
    read = read_given(model, files)
    missing = [info.name for info in model.inputs if info.name not in read]
    if both := [name for name in given if name in read or not missing]:
        raise ModelError(
            "--shape is for inputs of random numbers: expected it without INPUT, got "
            f"both for {both[0]!r}"
        )
    if batch is not None:
        read = _of_batch(model, read, batch)
    shapes = {**given, **{name: array.shape for name, array in read.items()}}
    return read, shapes_of(model, batch, shapes)


def _of_batch(model: Model, read: Mapping[str, Array], batch: int) -> dict[str, Array]:
    """The arrays that have a batch, as the first input has it, with so many samples of theirs."""
    symbol = next(iter(model.inputs[0].shape), None)
    found = dict(read)
    for info in model.inputs:
        if info.name in found and isinstance(symbol, str) and info.shape[:1] == (symbol,):
            found[info.name] = np.resize(found[info.name], (batch, *found[info.name].shape[1:]))
    return found
