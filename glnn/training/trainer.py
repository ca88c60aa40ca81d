"""Training of a model: `Trainer`, and the epochs of its `fit`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, Protocol

from glnn.backends import Backend, open_backend
from glnn.compiler.backend_autotune import candidates
from glnn.core.plural import count_of
from glnn.core.progress_bar import can_draw, numbers_column, rich_bar, share_bar
from glnn.core.types import Array
from glnn.errors import GlnnError, ModelError, shown
from glnn.gl import Device
from glnn.model import Model
from glnn.model.onnx_format import GraphModel
from glnn.runtime.options import BackendChoice
from glnn.training.callbacks import Callback, Checkpoint, TrainerView
from glnn.training.checkpoint import (
    EpochBatches,
    Position,
    Setup,
    Snapshot,
    check_setup,
    read,
    write,
)
from glnn.training.history import History, Row
from glnn.training.losses import CrossEntropyLoss, Loss
from glnn.training.optimizers import Adam, LRScheduler, Optimizer
from glnn.training.samples import SampleConverter, Samples, permutation, split_validation
from glnn.training.step_graph import frozen_parameters
from glnn.training.step_runner import BatchKey, Evaluation, Recipe, StepRunner, choose_backend
from glnn.version import VERSION

LOG = logging.getLogger(__name__)


class Trainer:
    """Trains a model. Weights and the optimiser's slots stay on the device.

    model: the model, with initial parameters. loss: the loss to minimise; None: CrossEntropyLoss.
    optimizer: None: Adam. backend, device, gpu, limits: as those of InferenceSession; with "auto"
    the first batch is timed on each backend that opens, and the fastest trains. kernels: kernels to
    use, by op. frozen: parameters that are not trained, by the names of layers (`c1`), their own
    (`c1.weight`) or patterns (`c*.bias`). schedule: the learning rate's schedule; None for a
    constant one. clip_norm: the greatest norm of all gradients together. clip_value: the greatest
    magnitude of each number of a gradient. seed: of dropout and of the order of samples; with the
    same seed and backend, results are the same bit for bit.

    Raises GlnnError for other arguments, DeviceError where the backend does not open. Where the
    device is lost, what was trained since the last checkpoint is lost with it.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        backend: str = "auto",
        *,
        device: Device | None = None,
        gpu: int | str | None = None,
        limits: str | None = None,
        kernels: Mapping[str, str] | None = None,
        frozen: Sequence[str] = (),
        schedule: LRScheduler | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        seed: int = 0,
    ) -> None:
        self._loss = CrossEntropyLoss() if loss is None else loss
        self._optimizer = Adam(lr=1e-3) if optimizer is None else optimizer
        for name, value, kind in (
            ("model", model, Model),
            ("loss", self._loss, Loss),
            ("optimizer", self._optimizer, Optimizer),
        ):
            if not isinstance(value, kind):
                article = "an" if kind is Optimizer else "a"
                raise GlnnError(f"{name} must be {article} {kind.__name__}, got {shown(value)}")
        if not (schedule is None or isinstance(schedule, LRScheduler)):
            raise GlnnError(f"schedule must be an LRScheduler or None, got {shown(schedule)}")
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise GlnnError(f"seed must be an int from 0 to 2^32 - 1, got {shown(seed)}")
        if not isinstance(kernels or {}, Mapping):
            raise GlnnError(f"kernels must map ops to kernels' names, got {shown(kernels)}")
        self._model, self._schedule, self._seed = model, schedule, seed
        frozen = (frozen,) if isinstance(frozen, str) else frozen
        frozen_parameters(model, frozen)
        options: dict[str, Any] = {"frozen": tuple(frozen), "clip_norm": clip_norm}
        options["clip_value"] = clip_value
        self._options = ", ".join(f"{name}={value}" for name, value in options.items())
        options |= {"schedule": schedule, "seed": seed}
        backend_options: dict[str, Any] = {"device": device, "gpu": gpu, "limits": limits}
        opened = open_backend(backend, **backend_options, gl_kernels=bool(kernels))
        self._recipe = Recipe(model, self._optimizer, options)
        self._steps = StepRunner(self._recipe, opened, kernels or {})
        # empty once one is chosen
        self._candidates = candidates(backend, kernels or {}, **backend_options)
        self._choice: BackendChoice | None = None
        self._converter, self._progress = SampleConverter(model, self._loss), FitProgress()
        self._model_step: int | None = None  # the step whose weights the model has
        self._callbacks: tuple[Callback, ...] = ()
        self._key: BatchKey | None = None  # of the last `step`

    def step(self, x: object, y: object) -> None:
        """Update the parameters once, by the gradients over the samples `x` and targets `y`.

        x: an array of the model's input, or arrays by name where it has several. The arrays are
        uploaded; it does not wait for the device. Raises ShapeError where they do not fit.
        """
        samples, key = self._converter.samples(x, y), self._key
        if key is None or not key.matches(samples):
            self._key = key = BatchKey.for_samples(samples, samples.count, totals=False)
        if self._candidates:
            self._choose_backend(key, samples.arrays)
        self._steps.perform(key, samples.arrays)

    @property
    def loss(self) -> float:
        """The loss of the last step, before its update; waits for the device. NaN before the first.

        Where a batch was computed in parts, it is the loss of the last part.
        """
        states = self._steps.states
        if "loss" not in states or not self._steps.count:
            return float("nan")
        return float(states.read(("loss",))["loss"])

    @property
    def steps(self) -> int:
        """Updates of the parameters so far."""
        return self._steps.count

    @property
    def backend(self) -> Backend:
        """The backend that trains; with "auto" it is chosen at the first batch."""
        return self._steps.backend

    @property
    def choice(self) -> BackendChoice | None:
        """The choice of "auto" at the first batch, and its times; None where nothing was chosen."""
        return self._choice

    def __repr__(self) -> str:
        backend = "auto" if self._candidates else self.backend.name
        setup = f"{self._loss}, {self._optimizer}"
        return f"Trainer({self._model.name} on {backend}: {setup}, {count_of(self.steps, 'step')})"

    @property
    def history(self) -> History:
        """The finished epochs."""
        return self._progress.history

    @property
    def model(self) -> Model:
        """The model with the current weights; waits for the device.

        It is the model that the Trainer was made with, whose layers are assigned; of an ONNX model
        it is a new one.
        """
        if self._model_step != self._steps.count:
            self._model = assign_parameters(self._model, self._steps.weights())
            self._model_step = self._steps.count
        return self._model

    def weights(self) -> dict[str, Array]:
        """Return copies of the parameters and running statistics, by name; waits for the device.

        Raises ModelError where there is nothing to train.
        """
        self._steps.begin(self._loss)
        return self._steps.weights()

    def assign(self, weights: Mapping[str, Array]) -> None:
        """Set parameters and running statistics; the optimiser's slots stay.

        Raises ModelError for an unknown name, ShapeError for an array of another shape or dtype.
        """
        current = self.weights()
        if unknown := next((name for name in weights if name not in current), None):
            raise ModelError(f"there is no parameter {unknown!r} that is trained")
        self._steps.states.write(weights)
        self._model_step = None

    def fit(
        self,
        x: object,
        y: object,
        epochs: int = 1,
        batch_size: int = 64,
        *,
        validation: tuple[object, object] | float | None = None,
        callbacks: Sequence[Callback] = (),
        shuffle: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int | None = None,
        resume: bool = False,
        progress: bool | None = None,
        accumulate: int = 1,
    ) -> History:
        """Train for `epochs` epochs on the samples `x` and their targets `y`.

        x, y: see `step`; an epoch has each sample once. batch_size: samples of an update; the last
        update of an epoch may have fewer. validation: samples and targets that the model is
        evaluated on after each epoch, or the fraction of `x` that is held out for that. callbacks:
        see `Callback`. shuffle: whether the samples of each epoch are shuffled. checkpoint: a file
        to write checkpoints to, also at the end. every: updates between checkpoints; None: one
        checkpoint after each epoch. resume: continue from the checkpoint, until `epochs` are over
        since that `fit` began; without such a file training begins anew. progress: whether a bar is
        shown; None: on a terminal, and in notebooks. accumulate: the number of parts that a batch
        is computed in. Their gradients are accumulated, so the update is that of the whole batch,
        but for layers whose results depend on other samples of a batch. Where memory is too short
        for a part, there are more parts.

        Ctrl-C ends it after the current step: a last checkpoint is written, the model has its
        weights, and KeyboardInterrupt is raised. Returns `history`. Raises ShapeError where the
        arrays do not fit, GlnnError for other arguments, ModelError for a checkpoint that does not
        fit or cannot be written.
        """
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            _positive(name, value)
        _positive("accumulate", accumulate)
        if checkpoint is None and (resume or every is not None):
            raise GlnnError("resume and every need a checkpoint, got None")
        converter, checkpoints = self._converter.samples, Checkpoint(checkpoint or "", steps=every)
        self._callbacks = _check_callbacks(callbacks, () if checkpoint is None else (checkpoints,))
        samples, held_out = split_validation(converter(x, y), validation, converter, self._seed)
        batches = EpochBatches(samples.count, batch_size, accumulate, bool(shuffle))
        self._begin(batches, checkpoint if resume else None)
        size = min(batch_size, samples.count)
        self._choose_backend(
            BatchKey.for_samples(samples, size, parts=accumulate), samples.part(0, size)
        )
        order = self._seed if shuffle else None
        fit = Fit(self._steps, self._progress, samples, held_out, epochs, order, self._rate)
        try:
            fit.run(self, self._callbacks, progress)
        except KeyboardInterrupt:
            _ = self.model  # has its weights from now on
            raise
        finally:
            self._callbacks = ()
        _ = self.model
        return self.history

    def stop(self) -> None:
        """End `fit` after the current step or epoch: for callbacks."""
        self._progress.stopped = True

    def evaluate(self, x: object, y: object, batch_size: int = 64) -> Evaluation:
        """Return the mean loss over the samples `x` and targets `y`, and the accuracy.

        The layers compute as at inference. batch_size: samples that are computed at once, at most.
        Raises ShapeError where the arrays do not fit.
        """
        _positive("batch_size", batch_size)
        return self._steps.evaluate(self._converter.samples(x, y), batch_size)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to `path`, an .npz file, which is replaced atomically.

        Raises ModelError where it cannot be written.
        """
        progress, steps = self._progress, self._steps
        snapshot = Snapshot(
            steps.saved(self._loss),
            progress.position,
            progress.batches,
            self._setup(),
            {**steps.recorded, **steps.kernels},
            progress.history,
            tuple(callback.state() for callback in self._callbacks),
        )
        write(path, snapshot)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue training from the checkpoint in `path`.

        Raises ModelError where it is no checkpoint, or one of another model, optimiser or seed. A
        warning is logged where other kernels are chosen, or the loss or an argument differs:
        training then does not continue bit for bit.
        """
        snapshot, name = read(path), os.fspath(path)
        if snapshot.setup.backend in self._candidates:  # the same bits as without a break
            self._move_to(self._candidates[snapshot.setup.backend])
        check_setup(name, snapshot.setup, self._setup())
        callback_states = snapshot.callbacks if self._callbacks else ()  # outside of `fit`: none
        if len(callback_states) != len(self._callbacks):
            counts = f"{len(callback_states)} callbacks, got {len(self._callbacks)}"
            raise ModelError(f"{name}: was written by a fit with {counts}")
        try:
            self._steps.restore(self._loss, snapshot.states, snapshot.kernels)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from None
        for callback, arrays in zip(self._callbacks, callback_states, strict=True):
            callback.restore(arrays)
        self._progress.begin(snapshot.position, snapshot.batches, snapshot.history)
        self._model_step = None

    def _setup(self) -> Setup:
        """Return the setup that a checkpoint must agree with."""
        backend = self._steps.backend
        device = "" if backend.device is None else str(backend.device)
        texts = (repr(self._loss), repr(self._optimizer), repr(self._schedule or ""), self._options)
        return Setup(self._model.name, *texts, self._seed, VERSION, backend.name, device)

    def _choose_backend(self, key: BatchKey, batch: Mapping[str, Array]) -> None:
        """Choose the fastest backend for `batch` and move to it, unless one is chosen already."""
        if self._candidates:
            self._choice = choose_backend(self._recipe, self._candidates, key, batch)
            LOG.info("training of %s: auto takes %s", self._model.name, self._choice)
            self._move_to(self._candidates[self._choice.backend])

    def _move_to(self, backend: Backend) -> None:
        self._candidates = {}
        if backend is not self._steps.backend:
            self._steps = self._steps.moved_to(backend, self._loss)

    def _begin(self, batches: EpochBatches, checkpoint: str | os.PathLike[str] | None) -> None:
        """Begin to fit, or continue from the file `checkpoint`, if there is one."""
        progress = self._progress
        if checkpoint is None or not Path(checkpoint).exists():
            position = Position(progress.epoch, 0, progress.epoch)
            progress.begin(position, batches, progress.history)
            return
        self.restore(checkpoint)
        if progress.sample and progress.batches != batches:
            raise ModelError(
                f"{os.fspath(checkpoint)}: was written within an epoch of {progress.batches}, "
                f"got {batches}"
            )
        progress.batches = batches

    def _rate(self, step: int) -> float:
        """Return the learning rate of the step after `step` steps."""
        return (
            self._optimizer.lr
            if self._schedule is None
            else self._schedule.at(step, self._optimizer.lr)
        )


def _check_callbacks(
    callbacks: Sequence[Callback], builtin: tuple[Callback, ...]
) -> tuple[Callback, ...]:
    """Return `callbacks` and `builtin`. Raises GlnnError where one is no callback."""
    is_list = isinstance(callbacks, Sequence)
    if not is_list or not all(isinstance(callback, Callback) for callback in callbacks):
        raise GlnnError(f"callbacks must be a list of Callbacks, got {shown(callbacks)}")
    return (*callbacks, *builtin)


def _positive(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise GlnnError(f"{name} must be a positive int, got {shown(value)}")


def assign_parameters(model: Model, weights: Mapping[str, Array]) -> Model:
    """Assign `weights` to the parameters of `model`, by name, and return the model.

    A model of layers is changed in place; of an ONNX model a new one is returned.
    """
    if isinstance(model, GraphModel):
        return model.with_parameters(weights) if weights else model
    for node in model.nodes:
        for name in node.layer.shapes:
            if (full := f"{node.name}.{name}") in weights:
                setattr(node.layer, name, weights[full])
    return model


BAR_INTERVAL = 0.25  # seconds between two updates of the bar: each reads from the device


@dataclass
class FitProgress:
    """The progress of `fit`."""

    batches: EpochBatches = field(default_factory=EpochBatches)
    """The division of the epochs into batches."""
    history: History = field(default_factory=History)
    """The finished epochs."""
    epoch: int = 0
    """The number of finished epochs."""
    sample: int = 0
    """Samples of the current epoch that were trained on."""
    began: int = 0
    """Epochs that were finished when `fit` began."""
    seconds: float = 0.0
    """The time that the current epoch took until `resumed`."""
    resumed: float = field(default_factory=perf_counter)
    """The time at which the current epoch began or was resumed, by `perf_counter`."""
    stopped: bool = False
    """Whether a callback called `Trainer.stop`."""

    @property
    def elapsed(self) -> float:
        """Seconds that the current epoch took so far; 0 between epochs."""
        return self.seconds + perf_counter() - self.resumed if self.sample else 0.0

    @property
    def position(self) -> Position:
        """The position and the seconds so far, for a checkpoint."""
        return Position(self.epoch, self.sample, self.began, self.elapsed)

    def begin(self, position: Position, batches: EpochBatches, history: History) -> None:
        """Begin an epoch, or resume one, at `position`."""
        self.epoch, self.sample, self.began = position.epoch, position.sample, position.began
        self.seconds, self.resumed = position.seconds, perf_counter()
        self.batches, self.history = batches, history


@dataclass(frozen=True)
class Fit:
    """The arguments and state of one call of `fit`."""

    steps: StepRunner
    """The steps of the training."""
    progress: FitProgress
    """The progress."""
    samples: Samples
    """The samples to train on."""
    validation: Samples | None
    """The samples to evaluate on after each epoch."""
    epochs: int
    """The number of epochs, from where `fit` began."""
    seed: int | None
    """The seed of the order of the samples; None: they are not shuffled."""
    learning_rate: Callable[[int], float]
    """A function of the number of steps, which returns the learning rate of the next."""

    def run(self, trainer: TrainerView, callbacks: Sequence[Callback], shown: bool | None) -> None:
        """Train. trainer: the argument of callbacks. shown: see `progress_bar`.

        Raises KeyboardInterrupt after Ctrl-C, once the current step is over and the callbacks'
        `on_end` was called.
        """
        progress, last = self.progress, self.progress.began + self.epochs
        progress.stopped = False
        # After each step and epoch, checkpoints come last, so that they have the other callbacks'
        # new states; at the end they come first, before the others reset their states.
        checkpoints_last = sorted(callbacks, key=lambda c: isinstance(c, Checkpoint))
        checkpoints_first = sorted(callbacks, key=lambda c: not isinstance(c, Checkpoint))
        with defer_interrupt() as interruption, progress_bar(shown) as bar:
            for callback in checkpoints_last:
                callback.on_begin(trainer)
            while progress.epoch < last and not progress.stopped:
                self._epoch(trainer, checkpoints_last, bar, interruption)
                if interruption.requested:
                    break
            for callback in checkpoints_first:
                callback.on_end(trainer, interruption.requested)
        if interruption.requested:
            raise KeyboardInterrupt

    def _epoch(
        self,
        trainer: TrainerView,
        callbacks: Sequence[Callback],
        bar: Bar,
        interruption: Interruption,
    ) -> None:
        """Train until the end of the current epoch, or until Ctrl-C or `Trainer.stop`."""
        progress, samples, batches = self.progress, self.samples, self.progress.batches
        order = None
        if self.seed is not None:
            order = permutation(self.seed, progress.epoch, samples.count)
        if not progress.sample:
            self.steps.clear()
            progress.seconds, progress.resumed = 0.0, perf_counter()
        number = progress.epoch - progress.began + 1
        bar.begin(number, self.epochs, samples.count, progress.sample)
        every_step = [c.on_step_end for c in callbacks if _overrides(c, "on_step_end")]
        keys: dict[int, BatchKey] = {}
        for end, batch in samples.batches(batches.batch_size, order, progress.sample):
            if (count := end - progress.sample) not in keys:
                keys[count] = BatchKey.for_samples(samples, count, parts=batches.accumulate)
            self.steps.perform(keys[count], batch)
            progress.sample = end
            for call in every_step:
                call(trainer)
            if bar.due():
                result = self.steps.read_evaluation(samples)
                bar.show(end, result.loss, result.accuracy)
            if interruption.requested or (progress.stopped and end < samples.count):
                return
        self._finish_epoch(trainer, callbacks)

    def _finish_epoch(self, trainer: TrainerView, callbacks: Sequence[Callback]) -> None:
        """Record the metrics of the epoch, and call the callbacks."""
        progress, result = self.progress, self.steps.read_evaluation(self.samples)
        validation = None
        if self.validation is not None:
            validation = self.steps.evaluate(self.validation, progress.batches.batch_size)
        row = Row(
            progress.epoch + 1,
            self.steps.count,
            result.loss,
            result.accuracy,
            validation.loss if validation else None,
            validation.accuracy if validation else None,
            self.learning_rate(self.steps.count),
            progress.elapsed,
        )
        progress.epoch, progress.sample = progress.epoch + 1, 0
        progress.history = History((*progress.history.rows, row))
        for callback in callbacks:
            callback.on_epoch_end(trainer)


def _overrides(callback: Callback, method: str) -> bool:
    return getattr(type(callback), method) is not getattr(Callback, method)


@dataclass
class Interruption:
    """A request by Ctrl-C to end training."""

    requested: bool = False
    """Set by the first Ctrl-C; the second raises KeyboardInterrupt at once."""


@contextmanager
def defer_interrupt() -> Iterator[Interruption]:
    """Defer the first Ctrl-C to the end of the step, within the context.

    It does nothing in other threads than the main one, or where the program handles SIGINT itself.
    """
    result = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if result.requested:
            raise KeyboardInterrupt
        result.requested = True

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield result
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield result
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Bar(Protocol):
    """Shows the progress of training."""

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        """Begin epoch number `epoch` of `epochs`, of `samples`, of which `done` are done."""

    def due(self) -> bool:
        """Return True where it is time for `show`."""

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        """Show that `done` samples of the epoch are done, and their loss and accuracy."""


class _HiddenBar:
    """A progress bar that is not shown."""

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        pass

    def due(self) -> bool:
        return False

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        pass


class _VisibleBar:
    """A bar of rich's, which is drawn by `begin` and `show` only, not by a thread."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._task = bar, None
        self._next = self._began = 0.0
        self._done_before = 0  # samples that were done at `begin`

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        description = f"epoch {epoch}/{epochs}"
        self._task = self._bar.add_task(description, total=samples, completed=done, numbers="")
        self._bar.refresh()
        self._done_before, self._began = done, perf_counter()
        self._next = self._began + BAR_INTERVAL

    def due(self) -> bool:
        return perf_counter() >= self._next

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        now = perf_counter()
        rate = (done - self._done_before) / max(now - self._began, 1e-9)
        accuracy_text = "" if accuracy is None else f"accuracy {accuracy:.2%}  "
        numbers = f"loss {loss:.4f}  {accuracy_text}{rate:,.0f} samples/s"
        self._bar.update(self._task, completed=done, numbers=numbers)
        self._bar.refresh()
        self._next = perf_counter() + BAR_INTERVAL


@contextmanager
def progress_bar(shown: bool | None) -> Iterator[Bar]:
    """Show a bar until the end of the context.

    shown: None: where standard error is a terminal, and in notebooks.
    """
    if not (can_draw() if shown is None else shown):
        yield _HiddenBar()
        return
    from rich.progress import MofNCompleteColumn

    with rich_bar(MofNCompleteColumn(), numbers_column(), prints=True) as bar, share_bar(bar):
        yield _VisibleBar(bar)
