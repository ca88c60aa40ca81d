"""Callbacks of training: early stopping, checkpoints, and those of users."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf, isfinite
from time import monotonic
from typing import Protocol

import numpy as np

from glnn.core.fileio import try_write
from glnn.core.types import Array
from glnn.errors import GlnnError, ModelError, fault, shown
from glnn.training.history import MISSING, History

MONITORED = ("loss", *MISSING)
"""The metrics that early stopping can monitor."""


class TrainerView(Protocol):
    """The part of the trainer that callbacks use."""

    @property
    def history(self) -> History:
        """The epochs that have ended."""

    @property
    def steps(self) -> int:
        """Updates of the parameters so far."""

    def weights(self) -> dict[str, Array]:
        """Return copies of the parameters and running statistics, by name; waits for the device."""

    def assign(self, weights: Mapping[str, Array]) -> None:
        """Replace the parameters and running statistics."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint."""

    def stop(self) -> None:
        """End `fit` after the current step, or the current epoch."""


class Callback:
    """The functions that `Trainer.fit` calls; subclasses override those that they need."""

    def on_begin(self, trainer: TrainerView) -> None:
        """Run before the first step of `fit`, after a checkpoint was restored."""

    def on_step_end(self, trainer: TrainerView) -> None:
        """Run after each update. Reading from the device here makes every step wait for it."""

    def on_epoch_end(self, trainer: TrainerView) -> None:
        """Run after each epoch, whose numbers are `trainer.history[-1]`."""

    def on_end(self, trainer: TrainerView, interrupted: bool) -> None:
        """Run at the end of `fit`, also after Ctrl-C (`interrupted`), but not after an error."""

    def state(self) -> dict[str, Array]:
        """Return the arrays that a checkpoint keeps of the callback, by name."""
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore the arrays that `state` returned."""


class EarlyStopping(Callback):
    """Ends training once a metric has not improved for `patience` epochs.

    monitor: the metric, `validation_loss`, `validation_accuracy`, `loss` or `accuracy`; a loss
    improves when it falls. min_delta: smaller changes are no improvement; nor is a NaN.
    restore_best: whether the model has the weights of the best epoch in the end. Raises GlnnError
    for other arguments, and from `fit` where the epochs have no such metric.
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        if monitor not in MONITORED:
            raise GlnnError(f"monitor must be one of {', '.join(MONITORED)}, got {shown(monitor)}")
        if type(patience) is not int or patience < 1:
            raise GlnnError(f"patience must be a positive int, got {shown(patience)}")
        if not isinstance(min_delta, (int, float)) or not 0 <= min_delta < inf:
            raise GlnnError(f"min_delta must be a number of at least 0, got {shown(min_delta)}")
        self.monitor, self.patience = monitor, patience
        self.min_delta, self.restore_best = float(min_delta), restore_best
        self._sign = -1 if monitor.endswith("accuracy") else 1
        self._reset()

    def _reset(self) -> None:
        self._best, self._waited = inf, 0
        self._weights: dict[str, Array] = {}

    @property
    def best(self) -> float | None:
        """The best value so far; None before the first epoch."""
        return self._sign * self._best if isfinite(self._best) else None

    def on_begin(self, trainer: TrainerView) -> None:
        if self._waited >= self.patience:  # it had stopped before the checkpoint
            trainer.stop()

    def on_epoch_end(self, trainer: TrainerView) -> None:
        value = getattr(trainer.history[-1], self.monitor)
        if value is None:
            needs = "validation data" if self.monitor.startswith("validation") else "classes"
            raise GlnnError(f"monitor={self.monitor!r} needs {needs}, this training has none")
        if self._sign * value < self._best - self.min_delta:
            self._best, self._waited = self._sign * value, 0
            self._weights = trainer.weights() if self.restore_best else {}
            return
        self._waited += 1
        if self._waited >= self.patience:
            trainer.stop()

    def on_end(self, trainer: TrainerView, interrupted: bool) -> None:
        if interrupted:
            return
        if self._weights:
            trainer.assign(self._weights)
        self._reset()  # for another `fit`

    def state(self) -> dict[str, Array]:
        result = {"best": np.array(self._best), "waited": np.array(self._waited)}
        return result | {f"weights/{name}": array for name, array in self._weights.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        scalars = arrays.get("best"), arrays.get("waited")
        kinds = [one.dtype.kind for one in scalars if one is not None and not one.shape]
        if kinds != ["f", "i"]:
            raise ModelError("the checkpoint has nothing of EarlyStopping")
        self._best, self._waited = float(arrays["best"]), int(arrays["waited"])
        names = [name for name in arrays if name.startswith("weights/")]
        self._weights = {name.removeprefix("weights/"): arrays[name] for name in names}


class Checkpoint(Callback):
    """Writes a checkpoint to `path` at intervals, and at the end.

    epochs, steps, seconds: the intervals, whichever comes first; each epoch where none is given.
    The file is replaced atomically. Raises GlnnError for intervals that are not positive, or no
    path; ModelError from `fit`, before the first step, where `path` cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        epochs: int | None = None,
        steps: int | None = None,
        seconds: float | None = None,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise GlnnError(f"path must be that of a file, got {shown(path)}")
        for name, value in (("epochs", epochs), ("steps", steps)):
            if value is not None and (type(value) is not int or value < 1):
                raise GlnnError(f"{name} must be a positive int or None, got {shown(value)}")
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 < seconds < inf):
            raise GlnnError(f"seconds must be positive or None, got {shown(seconds)}")
        self.path = path
        self.epochs = 1 if epochs is steps is seconds is None else epochs
        self.steps, self.seconds = steps, seconds
        self._saved, self._due = (-1, -1), inf

    def on_begin(self, trainer: TrainerView) -> None:
        try:
            try_write(self.path)
        except (OSError, ValueError) as error:
            raise ModelError(f"{os.fspath(self.path)}: cannot be written: {fault(error)}") from None
        self._saved = -1, -1
        self._due = inf if self.seconds is None else monotonic() + self.seconds

    def on_step_end(self, trainer: TrainerView) -> None:
        if (self.steps and trainer.steps % self.steps == 0) or monotonic() >= self._due:
            self._save(trainer)

    def on_epoch_end(self, trainer: TrainerView) -> None:
        if self.epochs and len(trainer.history) % self.epochs == 0:
            self._save(trainer)

    def on_end(self, trainer: TrainerView, interrupted: bool) -> None:
        if self._saved != (trainer.steps, len(trainer.history)):
            self._save(trainer)

    def _save(self, trainer: TrainerView) -> None:
        trainer.save(self.path)
        self._saved = trainer.steps, len(trainer.history)
        if self.seconds is not None:
            self._due = monotonic() + self.seconds
