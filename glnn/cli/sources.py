"""Sources of samples, read as many at a time as a run takes: files, arrays, iterables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.cli.screen import say
from glnn.core.fileio import check_file, open_regular
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import DType, Shape
from glnn.errors import GlnnError, ModelError, ShapeError, first_line
from glnn.images.files import check_pillow, flatten, image_of, open_image
from glnn.images.preprocessing import ImageInput, digit_of, read_image
from glnn.images.preprocessing_config import PreprocessingChoice, described, read_preprocessing
from glnn.model import Model
from glnn.model.npz import MOST_HEADER, Npz, open_npz, parse_header, read_array
from glnn.model.samples import check_samples, fit_samples

LABELS = ("label", "labels")
ENDINGS = (".npy", ".npz")


@dataclass(frozen=True)
class SampleFile:
    """A .npy or .npz file whose samples fit an input."""

    path: Path
    """The file's path."""
    info: TensorInfo
    """The input."""
    count: int
    """The number of samples by its header."""

    @classmethod
    def open(cls, path: Path, info: TensorInfo) -> SampleFile:
        """Open the file `path` for the input `info`.

        Raises ModelError or ShapeError where it does not hold such samples, as far as its header
        says.
        """
        if path.suffix == ".npy":
            return cls(path, info, read_npy(path, info, header_only=True).shape[0])
        with open_npz(path) as archive:
            samples, _ = _array_names(archive, path, info)
            return cls(path, info, archive.header(samples).shape[0])

    def read(self) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Read the samples, and their labels where there are any. Raises as `open`."""
        if self.path.suffix == ".npy":
            return read_npy(self.path, self.info), None
        with open_npz(self.path) as archive:
            samples, labels = _array_names(archive, self.path, self.info)
            return archive.read(samples), None if labels is None else archive.read(labels)


def _array_names(archive: Npz, path: Path, info: TensorInfo) -> tuple[str, str | None]:
    """Return the names of the samples in an .npz file, and of their labels where it has them."""
    labels = next((name for name in LABELS if name in archive.names), None)
    others = [name for name in archive.names if name != labels]
    if info.name not in others and len(others) != 1:
        result = ", ".join(others) or "none"
        raise ModelError(f"{path}: expected an array {info.name!r}, or only one; it has {result}")
    samples = info.name if info.name in others else others[0]
    header = archive.header(samples)
    check_samples(header.shape, header.dtype, info, str(path))
    if labels is not None:
        label_header = archive.header(labels)
        _check_labels(path, label_header.shape, label_header.dtype, header.shape[0])
    return samples, labels


def read_npy(path: Path, info: TensorInfo | None = None, header_only: bool = False) -> NDArray[Any]:
    """Read the array of a .npy file; with `header_only`, an array of zeros of its type and shape.

    info: the input whose samples the header must describe. Raises ModelError where the file cannot
    be read, ShapeError where it does not fit.
    """
    check_file(path)
    try:
        with open(path, "rb", opener=open_regular) as file:
            prefix = file.read(MOST_HEADER)
            header = parse_header(prefix)
            if header.dtype.hasobject:
                raise ValueError("Object arrays cannot be loaded")
            if info is not None:
                check_samples(header.shape, header.dtype, info, str(path))
            missing = header.start + header.nbytes - path.stat().st_size
            if missing > 0:
                raise ValueError(f"it is {missing} bytes too short")
            if header_only:
                return np.broadcast_to(np.zeros((), header.dtype), header.shape)
            return read_array(header, prefix[header.start :], file)
    except GlnnError:
        raise
    except Exception as error:  # a damaged header can raise nearly anything
        raise ModelError(f"{path}: cannot be read as .npy: {first_line(error)}") from None


def _check_labels(path: Path, shape: Shape, dtype: np.dtype[Any], samples: int) -> None:
    if shape != (samples,):
        raise ShapeError(f"{path}: {samples} samples need as many labels, got shape {shape}")
    if dtype.kind not in "iuf":
        raise ShapeError(f"{path}: labels must be the numbers of classes, got {dtype}")


Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class SampleReader:
    """Reads pictures, and converts them to samples of an input."""

    info: TensorInfo
    """The input."""
    chosen: PreprocessingChoice | None
    """The preprocessing; None for digits, white on black."""
    invert: bool = True
    """Whether digits on a light background are inverted."""

    @classmethod
    def for_model(
        cls, model: Model, changes: Mapping[str, Any], preprocessing: str | None
    ) -> SampleReader:
        """Make the reader for the only input of `model`.

        preprocessing: taken in place of the model's own, see `read_preprocessing`. changes: fields
        of it that take other values, and `invert`. Where neither these nor the model say anything,
        an input of grey pictures of one size gets digits, white on black. Raises ModelError
        without Pillow and for values that cannot be, ShapeError where the input takes no pictures.
        """
        check_pillow()
        info = model.inputs[0]
        image = ImageInput.from_info(info)
        outputs = model.output_shapes.values()
        fields = {name: value for name, value in changes.items() if name != "invert"}
        unspecified = (
            not fields and preprocessing is None and described(model.metadata, outputs) is None
        )
        if unspecified and image.channels == 1 and image.first and image.fixed_size is not None:
            return cls(info, None, changes.get("invert", True))
        base = None if preprocessing is None else read_preprocessing(preprocessing)
        return cls(info, PreprocessingChoice.for_input(info, model.metadata, fields, base, outputs))

    def read(self, path: Path, keep: bool) -> tuple[NDArray[Any], list[str], Picture | None]:
        """Read the picture in the file `path`; return it as a sample (1, ...), notes on it, and the
        picture, H x W x 3; None for that of a digit unless `keep`. Raises ModelError or ShapeError
        where it cannot be a sample.
        """
        if self.chosen is None:
            sample, notes = read_image(path, self.info, self.invert)
            return sample, notes, np.asarray(flatten(open_image(path))[0]) if keep else None
        image, notes = flatten(open_image(path))
        pixels = np.asarray(image)
        return self.chosen.preprocessing.sample(pixels, self.info), notes, pixels

    def sample(self, picture: Picture) -> NDArray[Any]:
        """Convert a picture, uint8 H x W x 3, to a sample (1, ...). Raises ShapeError as `read`."""
        if self.chosen is None:
            return digit_of(image_of(picture), self.info, self.invert)[0]
        return self.chosen.preprocessing.sample(picture, self.info)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on all pictures, to be printed once."""
        if self.chosen is None or not self.chosen.assumed:
            return ()
        assumed = self.chosen.preprocessing
        assumed = replace(assumed, scale=255.0) if self.info.dtype is DType.uint8 else assumed
        return (f"the model says nothing of pictures, taken are: {assumed}",)

    def to_json(self) -> dict[str, Any]:
        """The preprocessing as plain dicts; empty for digits."""
        return {} if self.chosen is None else {"preprocessing": self.chosen.preprocessing.to_json()}


AT_ONCE = min(16, 2 * (os.cpu_count() or 1))
"""Pictures that threads read at once, as Pillow releases the GIL."""


@dataclass(frozen=True)
class InputSample:
    """A sample of an input."""

    x: NDArray[Any]
    """(1, ...), as the input takes it."""
    name: str
    """The sample's name."""
    label: Any = None
    """The number of its class, where that is known."""
    picture: Picture | None = None
    """The picture of the sample, uint8 H x W x 3, where it is kept."""
    notes: tuple[str, ...] = ()
    """Notes on how it was converted."""
    size: tuple[int, int] | None = None
    """Height and width of the picture that it was made of, if it was."""


@dataclass(frozen=True)
class Inputs:
    """Samples of a model's input, concatenated."""

    x: NDArray[Any]
    """(n, ...)"""
    names: tuple[str, ...]
    """The samples' names."""
    labels: NDArray[Any] | None = None
    """The numbers of their classes, where all are known."""
    notes: tuple[str, ...] = ()
    """Notes on how they were converted."""
    pictures: tuple[Picture | None, ...] = ()
    """The picture of each sample, where it is kept."""
    sizes: tuple[tuple[int, int] | None, ...] = ()
    """Height and width of the pictures that they were made of."""

    @classmethod
    def concatenate(cls, samples: Sequence[InputSample]) -> Inputs:
        """Concatenate samples of the same shape."""
        labels = [one.label for one in samples]
        return cls(
            np.concatenate([one.x for one in samples]),
            tuple(one.name for one in samples),
            None if any(label is None for label in labels) else np.array(labels),
            tuple(note for one in samples for note in one.notes),
            tuple(one.picture for one in samples),
            tuple(one.size for one in samples),
        )


class SampleGroup(Protocol):
    """Protocol of parts of the samples: an array, a file of arrays, a picture."""

    @property
    def count(self) -> int | None:
        """The number of samples; None where it is unknown."""

    def samples(self) -> Iterator[InputSample]:
        """Yield each sample. Raises ModelError or ShapeError where one cannot be read."""


@dataclass(frozen=True)
class Arrays:
    """Samples in memory."""

    x: NDArray[Any]
    """(n, ...)"""
    name: str
    """The samples' name, with {} for the number of each."""
    labels: NDArray[Any] | None = None
    """The numbers of their classes."""
    notes: tuple[str, ...] = ()
    """Notes on the samples."""

    @property
    def count(self) -> int | None:
        return len(self.x)

    def samples(self) -> Iterator[InputSample]:
        for i in range(len(self.x)):
            label = None if self.labels is None else self.labels[i]
            notes = self.notes if i == 0 else ()
            yield InputSample(
                self.x[i : i + 1], self.name.replace("{}", str(i)), label, None, notes
            )


@dataclass(frozen=True)
class ArrayFile:
    """Samples in a .npy or .npz file."""

    file: SampleFile
    """The file."""

    @property
    def count(self) -> int | None:
        return self.file.count

    def samples(self) -> Iterator[InputSample]:
        array, labels = self.file.read()
        x, notes = fit_samples(array, self.file.info, str(self.file.path))
        for i in range(len(x)):
            label = None if labels is None else labels[i]
            said = tuple(notes) if i == 0 else ()
            yield InputSample(x[i : i + 1], f"{self.file.path}[{i}]", label, None, said)


@dataclass(frozen=True)
class PictureFile:
    """A picture in a file."""

    path: Path
    """The picture's path."""
    reader: SampleReader
    """The reader that makes a sample of it."""
    keep: bool = False
    """Whether the picture itself is kept."""

    @property
    def count(self) -> int | None:
        return 1

    def samples(self) -> Iterator[InputSample]:
        x, notes, picture = self.reader.read(self.path, self.keep)
        said = tuple(f"{self.path}: {note}" for note in notes)
        size = None if picture is None else (picture.shape[0], picture.shape[1])
        yield InputSample(x, str(self.path), None, picture if self.keep else None, said, size)


def _batch_parts(parts: Sequence[SampleGroup], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of parts that are read together: up to `most` pictures, other parts alone."""
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


def _read(part: SampleGroup) -> InputSample | GlnnError:
    """Read the sample of a picture, or return why it cannot be read."""
    try:
        return next(part.samples())
    except (ModelError, ShapeError) as error:
        return error


@dataclass
class SampleStream:
    """The samples of all parts, one after the other."""

    parts: Sequence[SampleGroup]
    """The parts, in order."""
    reader: SampleReader | None = None
    """The reader that makes samples of pictures; None where there are no pictures."""
    failed: list[dict[str, str]] = field(default_factory=list)
    """The pictures that could not be read, and why: so far."""

    @property
    def total(self) -> int | None:
        """The number of samples in all parts; None where one of them is unknown."""
        counts = [part.count for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(self, count: int) -> Iterator[Inputs]:
        """Yield all samples, `count` at a time; fewer at the end, and where sizes change.

        Of several parts, a picture that cannot be read is left out, with a note on standard error.
        Raises ModelError or ShapeError for other faults, and where no sample is left.
        """
        batch: list[InputSample] = []
        is_empty = True
        for sample in self._samples(min(count, AT_ONCE)):
            is_empty = False
            if batch and sample.x.shape[1:] != batch[0].x.shape[1:]:
                yield Inputs.concatenate(batch)
                batch = []
            batch.append(sample)
            if len(batch) == count:
                yield Inputs.concatenate(batch)
                batch = []
        if batch:
            yield Inputs.concatenate(batch)
        if is_empty:
            raise self._none_left()

    def _samples(self, at_once: int) -> Iterator[InputSample]:
        """Yield all samples; up to `at_once` pictures are read together."""
        for start, end in _batch_parts(self.parts, at_once):
            if not isinstance(self.parts[start], PictureFile):
                yield from self.parts[start].samples()
                continue
            with ThreadPoolExecutor(end - start) as pool:
                read = list(pool.map(_read, self.parts[start:end]))
            for part, result in zip(self.parts[start:end], read, strict=True):
                if isinstance(result, InputSample):
                    yield result
                elif len(self.parts) == 1:
                    raise result
                else:
                    self._fail(part, result)

    def _fail(self, part: SampleGroup, error: GlnnError) -> None:
        """Record and print that a picture is left out, and why."""
        path, message = str(getattr(part, "path", "")), str(error)
        message = message if path in message else f"{path}: {message}"
        say(message)
        self.failed.append({"in": path, "error": message})

    def _none_left(self) -> ModelError:
        return ModelError(f"none of the {len(self.failed)} pictures could be read")

    @property
    def notes(self) -> list[str]:
        """Notes on all pictures, to be printed once."""
        return [] if self.reader is None else list(self.reader.notes)

    def read_all(self, most: int | None = None) -> Inputs:
        """Read all samples, or the first `most`. Raises ShapeError where their sizes differ, else
        as `batches`.
        """
        result = list(islice(self._samples(AT_ONCE), most))
        if not result:
            raise self._none_left()
        for one in result:
            if one.x.shape[1:] != result[0].x.shape[1:]:
                sizes = f"{result[0].x.shape[1:]} and {one.x.shape[1:]}"
                raise ShapeError(f"{one.name}: expected samples of one shape, got {sizes}")
        return Inputs.concatenate(result)
