"""The arrays of a model's inputs on the command line: files, or random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np

from glnn import data
from glnn.cli.sources import (
    ENDINGS,
    ArrayFile,
    Arrays,
    Inputs,
    PictureFile,
    SampleFile,
    SampleGroup,
    SampleReader,
    SampleStream,
    read_npy,
)
from glnn.core.fileio import check_file
from glnn.core.plural import count_of
from glnn.core.types import UNKNOWN, Array, DType, Shape, to_float32
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Identity, Pointwise
from glnn.graph.operators.gather import Lookup
from glnn.graph.operators.move import Move
from glnn.graph.operators.views import View
from glnn.graph.passes import expand_composites
from glnn.images.files import is_picture
from glnn.images.preprocessing import DTYPES
from glnn.images.preprocessing_config import PreprocessingChoice
from glnn.model import TensorInfo
from glnn.model.load import BUILDERS
from glnn.model.model import Model
from glnn.model.npz import open_npz
from glnn.model.samples import fit_samples

BYTES = (DType.uint8, DType.int8)


def random_feeds(
    model: Model, shapes: Mapping[str, Shape], names: tuple[str, ...]
) -> dict[str, Array]:
    """Make random arrays for the inputs called `names`; the same in every run.

    shapes: of all inputs. Floats are in [0, 1), bytes and bools of any value. Other integers are
    below the size of the axis that the model indexes with them, so that an id names any row of its
    table; where they index nothing, as lengths and masks, they are 0 or 1. Raises ModelError for an
    input of texts, or that is no tensor.
    """
    inputs = [info for info in model.inputs if info.name in names]
    has_integers = any(_is_integer(info.dtype) for info in inputs)
    sizes = table_rows(model, shapes) if has_integers else {}
    generator = np.random.default_rng(0)
    return {i.name: _random(generator, i, shapes[i.name], sizes.get(i.name)) for i in inputs}


def _is_integer(dtype: DType) -> bool:
    return dtype.numpy.kind in "iu"


def _random(
    generator: np.random.Generator, info: TensorInfo, shape: Shape, end: int | None
) -> Array:
    dtype = info.dtype
    if dtype is DType.object:
        what = info.holds or "texts"
        raise ModelError(f"input {info.name!r} is of {what}: there are none at random")
    if end is not None:
        return generator.integers(0, end, shape).astype(dtype.numpy)
    if dtype in BYTES:
        return generator.integers(*_range(dtype), shape, endpoint=True).astype(dtype.numpy)
    if _is_integer(dtype) or dtype.numpy.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype.numpy)
    return generator.random(shape, np.float32).astype(dtype.numpy)


def _range(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def table_rows(model: Model, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the smallest size of the axes that each integer input is an index into, by input.

    Inputs are followed through moves and casts, but not into loops and branches. Empty for a model
    whose shapes depend on values of its inputs.
    """
    types = model.graph.input_types(shapes)
    try:
        graph = expand_composites(model.graph, types)
    except GlnnError:  # a run reports it better
        return {}
    result: dict[str, int] = {}
    for value in graph.inputs:
        if sizes := _lookup_sizes(graph, value):
            result[value.name] = min(sizes)
    return result


def _lookup_sizes(graph: Graph, start: Value) -> list[int]:
    """Return the sizes of all axes that `start`, or values computed from it, are indices into."""
    sizes: list[int] = []
    visited, pending = {start}, [start]
    while pending:
        value = pending.pop()
        for node in graph.readers.get(value, ()):
            if isinstance(node.operator, Lookup):
                sizes += _table_sizes(node.operator, node, value)
            elif _preserves_numbers(node) and node.outputs[0] not in visited:
                visited.add(node.outputs[0])
                pending.append(node.outputs[0])
    return [size for size in sizes if size > 0]


def _table_sizes(operator: Lookup, node: Node, index: Value) -> list[int]:
    operands = operator.named(node.inputs)
    x = operands["x"]
    if operands["index"] is not index or x is None:
        return []
    return [n for n in operator.bounds(x.type) if isinstance(n, int)]


def _preserves_numbers(node: Node) -> bool:
    """Return True where the result of `node` has the same numbers as its only operand."""
    operator = node.operator
    if isinstance(operator, Pointwise):  # a cast, or a correction of negative ones
        return len(node.inputs) == 1 and _is_integer(node.outputs[0].type.dtype)
    return isinstance(operator, (Identity, Move, View))


InputFiles = dict[str, tuple[str, ...]]
"""The files of each input that has some; files with arrays of several inputs under ANY_INPUT."""
ANY_INPUT = ""
"""A key that is no input's name."""


def match_files(model: Model, model_name: str, paths: Sequence[str]) -> InputFiles:
    """Assign `paths`, of which any may be `name=file`, to the inputs of `model`.

    model_name: the model's on the command line, as for the functions below. Files without a name
    are for the only input of a model of one. Raises ModelError for a name of no input.
    """
    names = [info.name for info in model.inputs]
    result: dict[str, list[str]] = {}
    for path in paths:
        prefixes = [name for name in names if path.startswith(f"{name}=")]
        if prefixes:
            name = max(prefixes, key=len)
            path = path[len(name) + 1 :]
        else:
            name = names[0] if len(names) == 1 else ANY_INPUT
            _check_name(model_name, path, names)
        if not path:
            raise ModelError("an INPUT must be the name of a file, got an empty text")
        result.setdefault(name, []).append(path)
    return {name: tuple(files) for name, files in result.items()}


def _check_name(model_name: str, path: str, names: Sequence[str]) -> None:
    """Raise ModelError where `path` is `name=file` with the name of no input."""
    name, equals, file = path.partition("=")
    if equals and Path(file).is_file() and not Path(path).exists():
        listed = ", ".join(map(repr, names))
        raise ModelError(f"{path}: {model_name} has no input {name!r}, it takes {listed}")


def read_files(model: Model, model_name: str, files: InputFiles) -> dict[str, Array]:
    """Read `files` into arrays by input; several files of one input are joined along the first
    axis.

    Raises ModelError where a file is missing or malformed, ShapeError where it does not fit.
    """
    parts: dict[str, list[Array]] = {}
    inputs = {info.name: info for info in model.inputs}
    for path in files.get(ANY_INPUT, ()):
        for name, array in _read_archive(model_name, Path(path), inputs).items():
            parts.setdefault(name, []).append(array)
    for name, paths in files.items():
        if name != ANY_INPUT:
            arrays = [_read(model, Path(path), inputs[name]) for path in paths]
            parts.setdefault(name, []).extend(arrays)
    return {name: _concatenate(inputs[name], arrays) for name, arrays in parts.items()}


def _read_archive(
    model_name: str, path: Path, inputs: Mapping[str, TensorInfo]
) -> dict[str, Array]:
    """Read the arrays of an .npz file that have the names of inputs."""
    if path.suffix != ".npz":
        listed = ", ".join(map(repr, inputs))
        first = next(iter(inputs))
        raise ModelError(
            f"{path}: {model_name} takes {listed}: expected {first}=FILE for each, or an .npz file"
        )
    with open_npz(path) as archive:
        matches = {
            name: _as_input(path, archive.read(name), info)
            for name, info in inputs.items()
            if name in archive.names
        }
    if not matches:
        raise ModelError(f"{path}: there is no array {next(iter(inputs))!r}")
    return matches


def _read(model: Model, path: Path, info: TensorInfo) -> Array:
    """Read the array of one input from a file of any kind."""
    if path.suffix == ".npy":
        return _as_input(path, read_npy(path), info)
    if path.suffix != ".npz":
        outputs = model.output_shapes.values()
        return PreprocessingChoice.for_input(
            info, model.metadata, outputs=outputs
        ).preprocessing.read(path, info)
    with open_npz(path) as archive:
        name = info.name if len(archive.names) != 1 else archive.names[0]
        if name not in archive.names:
            raise ModelError(f"{path}: there is no array {name!r}")
        return _as_input(path, archive.read(name), info)


def _as_input(path: Path, array: Array, info: TensorInfo) -> Array:
    """Convert `array`, read from a file, to the input's type; float64 is rounded to float32.

    Raises ShapeError, which begins with the file, where it is of another type.
    """
    try:
        double = info.dtype is DType.float32 and array.dtype == np.float64
        return to_float32(f"input {info.name!r}", array) if double else info.array(array)
    except ShapeError as error:
        raise ShapeError(f"{path}: {error}") from None


def _concatenate(info: TensorInfo, arrays: Sequence[Array]) -> Array:
    """Concatenate arrays along the first axis for the input `info`."""
    if len(arrays) == 1:
        return info.fitting(arrays[0])
    sizes = {array.shape[1:] for array in arrays}
    if len(sizes) > 1 or not arrays[0].ndim:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ShapeError(
            f"input {info.name!r}: files one behind the other must have all sizes but the first "
            f"alike, got {shapes}"
        )
    return info.fitting(np.concatenate(arrays))


__all__ = ["DTYPES", "Inputs", "batch_size", "open_samples", "read_inputs"]


def batch_size(model: Model, model_name: str, batch: int | None, default: int) -> int:
    """Return the samples of a run: `batch` or `default`, unless the model fixes the number.

    model_name: the model's on the command line. Raises ShapeError where the two disagree.
    """
    fixed = next(iter(model.inputs[0].shape), None)
    if not isinstance(fixed, int):
        return batch or default
    if batch not in (None, fixed):
        takes = f"{model_name} takes {count_of(fixed, 'sample')} a run"
        raise ShapeError(f"--batch: {takes}, got {batch}")
    return fixed


def open_samples(
    model: Model,
    paths: Sequence[str],
    model_name: str,
    changes: Mapping[str, Any] | None = None,
    preprocessing: str | None = None,
    keep: bool = False,
) -> SampleStream:
    """Return the samples in `paths`: files, folders and patterns.

    Without paths, a bundled model gets the bundled digits, and a model that is built by name with
    random weights one random sample. changes, preprocessing: how pictures are read, see
    `SampleReader.for_model`. keep: whether the pictures are kept beside the samples. Files are
    found, and the headers of arrays read, at once. Raises ModelError where one is missing or
    malformed, ShapeError where it does not fit.
    """
    if len(model.inputs) != 1:
        raise ModelError(f"{model_name} has {len(model.inputs)} inputs, the command line takes one")
    info = model.inputs[0]
    if info.dtype not in DTYPES:
        types = f"takes {info.dtype.value}, the command line float32, float16 or uint8"
        raise ModelError(f"{model_name}: input {info.name!r} {types}")
    if not paths:
        return SampleStream([_default_samples(model, model_name)])
    files = [file for path in paths for file in expand_path(path)]
    pictures = [file for file in files if file.suffix not in ENDINGS]
    reader = SampleReader.for_model(model, changes or {}, preprocessing) if pictures else None
    parts: list[SampleGroup] = []
    for file in files:
        if reader is None or file.suffix in ENDINGS:
            parts.append(ArrayFile(SampleFile.open(file, info)))
        else:
            parts.append(PictureFile(file, reader, keep))
    return SampleStream(parts, reader)


def read_inputs(model: Model, paths: Sequence[str], model_name: str) -> Inputs:
    """Read all samples of `open_samples` at once; raises what it raises."""
    return open_samples(model, paths, model_name).read_all()


def _default_samples(model: Model, model_name: str) -> SampleGroup:
    """Return the samples for a model without INPUT."""
    info = model.inputs[0]
    if model_name in BUILDERS:
        x = np.random.default_rng(0).random(info.with_batch(1), np.float32)
        return Arrays(x, "random sample", None, ("no INPUT: one random sample",))
    if model_name not in data.MODELS:
        raise ModelError(f"{model_name} needs an INPUT: an image, a .npy or a .npz file")
    images, labels = data.digits()
    return Arrays(fit_samples(images, info, "the bundled digits")[0], "digit {}", labels)


def expand_path(text: str) -> list[Path]:
    """Return the files that an INPUT names: itself, the pictures in a folder, or those of a
    pattern.

    Sorted by name. Raises ModelError where there are none.
    """
    if not text:
        raise ModelError("an INPUT must be the name of a file, got an empty text")
    path = Path(text)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name too long, or one that holds a zero byte
        is_folder, exists = False, False
    if is_folder:
        pictures = sorted(one for one in path.iterdir() if is_picture(one))
        if not pictures:
            raise ModelError(f"{text}: is not a file, nor a folder of pictures")
        return pictures
    if not exists and has_magic(text):
        matched = sorted(Path(one) for one in glob(text, recursive=True) if not Path(one).is_dir())
        if matched:
            return matched
    check_file(path)
    return [path]


@dataclass(frozen=True)
class InputArrays:
    """An array for each input of a model."""

    arrays: Mapping[str, Array]
    """The arrays by the inputs' names, in their order."""
    random: tuple[str, ...] = ()
    """The names of the inputs with random numbers."""

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each input, by name."""
        return {name: array.shape for name, array in self.arrays.items()}

    def to_json(self) -> dict[str, Any]:
        """Return shape and type of each input, and whether it is random."""
        return {
            name: {"shape": array.shape, "type": str(array.dtype), "random": name in self.random}
            for name, array in self.arrays.items()
        }

    def __str__(self) -> str:
        """Describe the inputs in one line."""
        each = (
            f"{name} {array.dtype} {array.shape}{' at random' if name in self.random else ''}"
            for name, array in self.arrays.items()
        )
        return ", ".join(each)


def input_shapes(
    model: Model,
    model_name: str,
    batch: int | None,
    requested: Mapping[str, Shape],
    default: int = 1,
) -> dict[str, Shape]:
    """Return the shape of each input: the requested one, or the model's with a number for each open
    size.

    requested: shapes by the inputs' names, or a size by the name that the model has for it. An open
    size is the one given, or that of an input whose shape is given, or else the batch. Raises
    ModelError for a shape of no input, ShapeError where one does not fit.
    """
    inputs = {info.name: info for info in model.inputs}
    open_sizes = {n for info in model.inputs for n in info.shape if isinstance(n, str)} - {UNKNOWN}
    sizes = _sizes(model_name, requested, inputs, open_sizes)
    count = batch_size(model, model_name, batch, default)
    first = next(iter(model.inputs[0].shape), None)
    if batch is not None and isinstance(first, str):
        sizes[first] = batch
    for name, info in inputs.items():
        if len(requested.get(name, ())) == len(info.shape):
            for symbol, n in zip(info.shape, requested.get(name, ()), strict=True):
                if isinstance(symbol, str) and symbol != UNKNOWN:
                    sizes.setdefault(symbol, n)
    shapes = {
        name: requested.get(
            name, tuple(sizes.get(n, count) if isinstance(n, str) else n for n in info.shape)
        )
        for name, info in inputs.items()
    }
    model.check(shapes)
    return shapes


@contextmanager
def advise_shapes(
    model: Model, paths: Sequence[str], requested: Mapping[str, Shape]
) -> Iterator[None]:
    """Add to a ShapeError raised in the context which open sizes of `model` --shape can give.

    paths: the INPUTS, which give sizes, too. requested: as for `input_shapes`.
    """
    try:
        yield
    except ShapeError as error:
        batch = next(iter(model.inputs[0].shape), None)
        dims = (n for info in model.inputs if info.name not in requested for n in info.shape)
        unset = [n for n in dict.fromkeys(dims) if isinstance(n, str) and n != batch]
        unset = [n for n in unset if n not in requested]
        if paths or not unset:
            raise
        named = UNKNOWN not in unset
        example = " ".join(f"--shape {n}=64" for n in unset) if named else "--shape x=1,3,64,64"
        sizes = f"{' and '.join(unset)} {'is' if len(unset) == 1 else 'are'} open"
        raise ShapeError(f"{error}; {sizes}: give sizes, as {example}") from None


def _sizes(
    model_name: str, requested: Mapping[str, Shape], inputs: Mapping[str, Any], open_sizes: set[str]
) -> dict[str, int]:
    """Return the open sizes that are requested by name."""
    sizes: dict[str, int] = {}
    for name, shape in requested.items():
        if name in inputs:
            continue
        if name not in open_sizes:
            listed = ", ".join(map(repr, inputs))
            more = f", of sizes {', '.join(sorted(open_sizes))}" if open_sizes else ""
            raise ModelError(
                f"--shape: {model_name} has no input {name!r}, it takes {listed}{more}"
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
    requested: Mapping[str, Shape],
    most: int = 1,
    random: bool = True,
) -> InputArrays:
    """Make an array for each input of `model`.

    A model of one input gets `batch` of the samples in `paths`, or of the bundled digits if it is a
    bundled model, or else up to `most` of them. For several inputs, paths are `name=file` for each,
    or an .npz file with an array for each, of which all samples are taken. Inputs without a file
    get random numbers if `random`. requested: shapes of these, as for `input_shapes`. Raises
    ModelError where a file is missing or malformed, ShapeError where it does not fit.
    """
    (first, *others) = model.inputs
    files = match_files(model, model_name, paths)
    plain = not others and first.dtype in DTYPES
    if not paths and plain and not requested and model_name in data.MODELS:
        return InputArrays(_samples(model, (), model_name, batch, most))
    if not paths and not random:
        which = f"{first.name}=FILE for each input, or" if others else "a .npy or"
        raise ModelError(f"{model_name} needs an INPUT: {which} a .npz file")
    if plain and paths:
        if requested:
            raise ModelError("--shape is for inputs of random numbers: expected it without INPUT")
        return InputArrays(_samples(model, files[first.name], model_name, batch, most))
    return _read_arrays(model, model_name, files, batch, requested, random)


def _samples(
    model: Model, paths: Sequence[str], model_name: str, batch: int | None, most: int
) -> dict[str, Array]:
    """Read as many samples as are wanted, for a model of one input."""
    x = read_inputs(model, paths, model_name).x
    count = batch_size(model, model_name, batch, min(len(x), most))
    return {model.inputs[0].name: np.resize(x, (count, *x.shape[1:]))}


def _read_arrays(
    model: Model,
    model_name: str,
    files: InputFiles,
    batch: int | None,
    requested: Mapping[str, Shape],
    random: bool,
) -> InputArrays:
    """Read the files, and make random numbers of fitting sizes for the other inputs."""
    read, shapes = read_sized(model, model_name, files, batch, requested)
    names = [info.name for info in model.inputs]
    missing = tuple(name for name in names if name not in read)
    if missing and not random:
        expected = f"{missing[0]}=FILE, or an .npz file with an array for each input"
        raise ModelError(f"{model_name}: no INPUT has {missing[0]!r}: expected {expected}")
    result = {**read, **random_feeds(model, shapes, missing)}
    return InputArrays({name: result[name] for name in names}, missing)


def read_sized(
    model: Model,
    model_name: str,
    files: InputFiles,
    batch: int | None,
    requested: Mapping[str, Shape],
) -> tuple[dict[str, Array], dict[str, Shape]]:
    """Read the files, with `batch` samples where they have a batch, and the shapes of all inputs.

    requested: as for `input_shapes`, for inputs without a file. Raises ModelError where a file is
    missing or malformed, or has a shape given, too; ShapeError where it does not fit.
    """
    read = read_files(model, model_name, files)
    missing = [info.name for info in model.inputs if info.name not in read]
    if both := [name for name in requested if name in read or not missing]:
        raise ModelError(
            "--shape is for inputs of random numbers: expected it without INPUT, got "
            f"both for {both[0]!r}"
        )
    if batch is not None:
        read = _take_batch(model, read, batch)
    shapes = {**requested, **{name: array.shape for name, array in read.items()}}
    return read, input_shapes(model, model_name, batch, shapes)


def _take_batch(model: Model, read: Mapping[str, Array], batch: int) -> dict[str, Array]:
    """Take `batch` samples of those arrays that have a batch, as the first input has it."""
    symbol = next(iter(model.inputs[0].shape), None)
    result = dict(read)
    for info in model.inputs:
        if info.name in result and isinstance(symbol, str) and info.shape[:1] == (symbol,):
            result[info.name] = np.resize(result[info.name], (batch, *result[info.name].shape[1:]))
    return result
