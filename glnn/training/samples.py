"""The samples that a model is trained on: checked once, shuffled, cut into batches.

Random numbers of training are Threefry's, which are functions of counters: the same seed gives the
same numbers on every backend, and there is no state. Its four words are for Dropout the index in a
sample; the number of the sample and that of the layer (LAYERS of them); the seed; and the number of
batches so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.errors import GlnnError, ShapeError, shown
from glnn.graph.threefry import threefry
from glnn.model import Model
from glnn.training.losses import Loss
from glnn.training.step_graph import TARGET

HELD_OUT = 2**31  # the number of epoch, never trained, whose order selects held-out samples
PROBED = 2  # samples in a batch that the type of a model's output is inferred for


@dataclass(eq=False, slots=True)
class Samples:
    """Arrays whose first dimension counts the samples, by name: the model's inputs, `target`."""

    arrays: Mapping[str, Array]
    """The arrays, all of the same number of samples."""

    loss: Loss
    """The loss, as it suits their targets."""

    target: DType
    """The type of the targets' numbers."""

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(next(iter(self.arrays.values())))

    @property
    def classified(self) -> bool:
        """True where the targets are classes, so that there is an accuracy."""
        return self.loss.counts(TensorType((), self.target))

    def part(self, start: int, stop: int) -> dict[str, Array]:
        """Return the samples from `start` up to `stop`, as views."""
        return {name: array[start:stop] for name, array in self.arrays.items()}

    def split(self, fraction: float, order: Array) -> tuple[Samples, Samples]:
        """Split into samples to train on and a fraction for validation, the first ones in `order`.

        Raises ShapeError where one of the two would be empty.
        """
        count = round(fraction * self.count)
        if not 0 < count < self.count:
            raise ShapeError(
                f"validation={fraction} of {self.count} samples leaves {self.count - count} "
                f"to train on and {count} to validate"
            )
        trained, validated = (
            {name: array[np.sort(indices)] for name, array in self.arrays.items()}
            for indices in (order[count:], order[:count])
        )
        return replace(self, arrays=trained), replace(self, arrays=validated)

    def batches(
        self, size: int, order: Array | None, start: int = 0
    ) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yield the end of each batch and the batch, from sample `start` on; the last batch may be
        smaller.

        order: of the samples; None: as they are. The arrays of a batch are overwritten by the next
        batch.
        """
        buffers = {
            name: np.empty((min(size, self.count), *array.shape[1:]), array.dtype)
            for name, array in (self.arrays.items() if order is not None else ())
        }
        for begin in range(start, self.count, size):
            end = min(begin + size, self.count)
            if order is None:
                yield end, self.part(begin, end)
                continue
            indices = order[begin:end]
            batch = {name: array[: end - begin] for name, array in buffers.items()}
            for name, array in batch.items():
                # All indices are valid; with "clip" NumPy checks none, and so buffers nothing.
                np.take(self.arrays[name], indices, axis=0, out=array, mode="clip")
            yield end, batch


class SampleConverter:
    """Checks arrays of samples against a model and a loss, and converts them for training steps."""

    def __init__(self, model: Model, loss: Loss) -> None:
        self._model, self._loss = model, loss
        self._last_types: tuple[object, ...] = ()  # shapes and dtypes of `_last`
        self._last: Samples | None = None  # None where all checks must be repeated
        self._names = [info.name for info in model.inputs]
        self._classes: int | None = None  # the number of classes; None where targets are no labels
        self._unsigned: np.dtype[Any] | None = None  # the unsigned type of the labels' size

    def samples(self, x: object, y: object) -> Samples:
        """Return the samples `x`, an array or arrays by the names of the model's inputs, with
        targets `y`.

        Where both have the types of the last ones, only labels are checked. Raises ShapeError where
        they do not fit the model, the loss or each other.
        """
        last = self._last
        if last is not None and self._matches_last(x, y):
            target = y.astype(last.arrays[TARGET].dtype, copy=False)  # type: ignore[attr-defined]
            arrays: dict[str, Any] = {self._names[0]: x, TARGET: target}
            return Samples(arrays, last.loss, last.target)
        inputs = _checked_inputs(self._model, x)
        count, output = len(next(iter(inputs.values()))), _output(self._model, inputs)
        target = _checked_target(y, count, self._loss, output)
        result = Samples(
            {**inputs, TARGET: target}, self._loss.suited(target), DType.from_array(target)
        )
        self._classes, self._last = None, None
        if self._loss.counts(TensorType.from_array(target)):
            self._classes = output.shape[1]
            all_labels = np.arange(self._classes, dtype=np.int32)
            if result.loss != self._loss.suited(all_labels):  # the loss depends on the labels
                return result
        if type(x) is np.ndarray and type(y) is np.ndarray:
            self._last, self._last_types = result, (x.shape, x.dtype, y.shape, y.dtype)
            if self._classes is not None:
                self._unsigned = np.dtype(y.dtype.str.replace("i", "u"))
        return result

    def _matches_last(self, x: object, y: object) -> bool:
        """Return True where the arrays have the last ones' types, and all labels are valid."""
        if not (type(x) is np.ndarray and type(y) is np.ndarray):
            return False
        if (x.shape, x.dtype, y.shape, y.dtype) != self._last_types:
            return False
        if self._classes is None or self._unsigned is None:
            return True
        # A negative label is a large unsigned number, so that one pass finds it, too. NumPy's `max`
        # is written in Python and would take longer.
        return bool(np.maximum.reduce(y.view(self._unsigned), None) < self._classes)


def split_validation(
    samples: Samples, validation: object, convert: Callable[[object, object], Samples], seed: int
) -> tuple[Samples, Samples | None]:
    """Return the samples to train on and those to evaluate on.

    validation: (x, y), which `convert` converts; a fraction of `samples`; or None. Raises GlnnError
    for anything else, ShapeError where one of the two would be empty.
    """
    if validation is None:
        return samples, None
    if isinstance(validation, tuple) and len(validation) == 2:
        return samples, convert(*validation)
    if isinstance(validation, float) and 0 < validation < 1:
        return samples.split(validation, permutation(seed, HELD_OUT, samples.count))
    raise GlnnError(
        f"validation must be (x, y), a part between 0 and 1 or None, got {shown(validation)}"
    )


def _checked_inputs(model: Model, x: object) -> dict[str, Array]:
    """Return the model's inputs by name.

    x: an array, or arrays by name for a model of several inputs.

    Raises ShapeError where one is missing, has another dtype or shape, has no samples, or has
    another number of samples than others.
    """
    names = [info.name for info in model.inputs]
    if not isinstance(x, Mapping):
        if len(names) != 1:
            listed = ", ".join(map(repr, names))
            raise ShapeError(f"x must map {listed} to arrays, got {type(x).__name__}")
        x = {names[0]: x}
    model.check_inputs(x)
    arrays = {info.name: info.array(x[info.name]) for info in model.inputs}
    for info in model.inputs:
        if not arrays[info.name].ndim:
            raise ShapeError(f"input {info.name!r} must have samples, got a single number")
    model.check({name: array.shape for name, array in arrays.items()})
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        got = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        raise ShapeError(f"inputs must have as many samples, {got}")
    if counts == {0}:
        raise ShapeError("there must be at least one sample, got 0")
    return arrays


def _checked_target(y: object, count: int, loss: Loss, output: TensorType) -> Array:
    """Convert targets `y` for training steps. output: the model's output, for `count` samples.

    Raises ShapeError where it does not fit.
    """
    if not isinstance(y, np.ndarray):
        raise ShapeError(f"y must be a NumPy array, got {type(y).__name__}")
    if not y.ndim or len(y) != count:
        raise ShapeError(f"x has {count} samples, y has shape {y.shape}")
    if y.dtype.kind in "iub" and y.dtype not in (np.int32, np.int64):
        takes_labels = any(type.dtype is DType.int32 for type in loss.targets(output))
        y = y.astype(np.int64 if takes_labels and y.dtype.kind != "b" else np.float32)
    return loss.check(y, output)


def _output(model: Model, inputs: Mapping[str, Array]) -> TensorType:
    """Return the type of the model's output for `inputs`.

    Raises ShapeError where its first size is not the batch.
    """
    name = model.outputs[0]
    count = len(next(iter(inputs.values())))
    is_fixed = any(isinstance(info.shape[0], int) for info in model.inputs if info.shape)
    probed = count if is_fixed else PROBED
    shape = model.infer({k: (probed, *array.shape[1:]) for k, array in inputs.items()})[name]
    if shape[:1] != (probed,):
        raise ShapeError(f"{model.name}: the first size of output {name!r} must be the batch")
    return TensorType((count, *shape[1:]), model.tensors[name].dtype)


SHUFFLE = -1  # the second counter of Threefry for shuffling, which no layer uses


def permutation(seed: int, epoch: int, count: int) -> Array:
    """Return a random permutation of the numbers from 0 to count - 1, int64, by seed and epoch."""
    high, low = threefry(np.arange(count), np.array(SHUFFLE), np.array(seed), np.array(epoch))
    return np.argsort(high.astype(np.uint64) << np.uint64(32) | low, kind="stable")
