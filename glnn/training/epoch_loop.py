"""The epochs of `Trainer.fit`: batches, callbacks, the progress bar, interruption by Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import FrameType
from typing import Any, Protocol

from glnn.progress_bar import numbers_column, rich_bar, share_bar
from glnn.training.callbacks import Callback, Checkpoint, Training
from glnn.training.checkpoint import Batches, Position
from glnn.training.data import Samples
from glnn.training.generator import permutation
from glnn.training.history import History, Row
from glnn.training.steps import BatchKey, Steps

BAR_INTERVAL = 0.25  # seconds between two updates of the bar: each reads from the device


@dataclass
class FitProgress:
    """The progress of `fit`."""

    batches: Batches = field(default_factory=Batches)
    """The division of the epochs into batches."""
    history: History = field(default_factory=History)
    """The epochs that are over."""
    epoch: int = 0
    """The number of epochs that are over."""
    sample: int = 0
    """Samples of the next one that were trained on."""
    began: int = 0
    """Epochs that were over when `fit` began."""
    seconds: float = 0.0
    """The time that the epoch took until `resumed`."""
    resumed: float = field(default_factory=perf_counter)
    """The time at which the epoch began or went on, by `perf_counter`."""
    stopped: bool = False
    """Whether a callback asked for the end."""

    @property
    def spent(self) -> float:
        """The seconds that the epoch took so far; 0 between two."""
        return self.seconds + perf_counter() - self.resumed if self.sample else 0.0

    @property
    def place(self) -> Position:
        """The same for a checkpoint."""
        return Position(self.epoch, self.sample, self.began, self.spent)

    def begin(self, place: Position, batches: Batches, history: History) -> None:
        """Be there."""
        self.epoch, self.sample, self.began = place.epoch, place.sample, place.began
        self.seconds, self.resumed = place.seconds, perf_counter()
        self.batches, self.history = batches, history


@dataclass(frozen=True)
class Fit:
    """The arguments and state of one call of `fit`."""

    steps: Steps
    """The steps of the training."""
    course: FitProgress
    """The progress."""
    samples: Samples
    """The samples to train on."""
    validation: Samples | None
    """The samples to evaluate on after each epoch."""
    epochs: int
    """The number of epochs, from where `fit` began."""
    seed: int | None
    """The seed of the order of the samples; None: they stay as they are."""
    learning_rate: Callable[[int], float]
    """A function of the number of steps, which returns the learning rate of the next."""

    def run(self, trainer: Training, callbacks: Sequence[Callback], shown: bool | None) -> None:
        """Train. trainer: what `callbacks` are given. shown: see `progress`.

        Raises KeyboardInterrupt after Ctrl-C, once the step that is under way is over and the
        callbacks were told.
        """
        course, last = self.course, self.course.began + self.epochs
        course.stopped = False
        # A checkpoint is of what the others have seen, and of what they then leave behind.
        after = sorted(callbacks, key=lambda one: isinstance(one, Checkpoint))
        before = sorted(callbacks, key=lambda one: not isinstance(one, Checkpoint))
        with defer_interrupt() as interruption, progress(shown) as bar:
            for callback in after:
                callback.on_begin(trainer)
            while course.epoch < last and not course.stopped:
                self._epoch(trainer, after, bar, interruption)
                if interruption.requested:
                    break
            for callback in before:
                callback.on_end(trainer, interruption.requested)
        if interruption.requested:
            raise KeyboardInterrupt

    def _epoch(
        self,
        trainer: Training,
        callbacks: Sequence[Callback],
        bar: Bar,
        interruption: Interruption,
    ) -> None:
        """Train on what is left of an epoch, or until something ends that."""
        course, samples, batches = self.course, self.samples, self.course.batches
        order = None
        if self.seed is not None:
            order = permutation(self.seed, course.epoch, samples.count)
        if not course.sample:
            self.steps.clear()
            course.seconds, course.resumed = 0.0, perf_counter()
        bar.begin(course.epoch - course.began + 1, self.epochs, samples.count, course.sample)
        every_step = [c.on_step_end for c in callbacks if _overrides(c, "on_step_end")]
        asked: dict[int, BatchKey] = {}
        for end, batch in samples.batches(batches.batch_size, order, course.sample):
            if (count := end - course.sample) not in asked:
                asked[count] = BatchKey.for_samples(samples, count, parts=batches.accumulate)
            self.steps.perform(asked[count], batch)
            course.sample = end
            for call in every_step:
                call(trainer)
            if bar.due():
                found = self.steps.read_evaluation(samples)
                bar.show(end, found.loss, found.accuracy)
            if interruption.requested or (course.stopped and end < samples.count):
                return
        self._end(trainer, callbacks)

    def _end(self, trainer: Training, callbacks: Sequence[Callback]) -> None:
        """Record the metrics of the epoch that is over."""
        course, found = self.course, self.steps.read_evaluation(self.samples)
        validation = None
        if self.validation is not None:
            validation = self.steps.evaluate(self.validation, course.batches.batch_size)
        row = Row(
            course.epoch + 1,
            self.steps.count,
            found.loss,
            found.accuracy,
            validation.loss if validation else None,
            validation.accuracy if validation else None,
            self.learning_rate(self.steps.count),
            course.spent,
        )
        course.epoch, course.sample = course.epoch + 1, 0
        course.history = History((*course.history.rows, row))
        for callback in callbacks:
            callback.on_epoch_end(trainer)


def _overrides(callback: Callback, method: str) -> bool:
    return getattr(type(callback), method) is not getattr(Callback, method)


@dataclass
class Interruption:
    """A request by Ctrl-C to end training."""

    requested: bool = False
    """Set at the first time; the second raises KeyboardInterrupt at once."""


@contextmanager
def defer_interrupt() -> Iterator[Interruption]:
    """Defer the first Ctrl-C to the end of the step, within the context.

    In other threads than the main one, or where the program handles SIGINT itself, nothing is
    changed.
    """
    found = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if found.requested:
            raise KeyboardInterrupt
        found.requested = True

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield found
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Bar(Protocol):
    """Shows the progress of training."""

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        """Show an epoch, the `epoch`-th of `epochs`, of so many samples; some may be done."""

    def due(self) -> bool:
        """Return True where it is time for `show`."""

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        """Show that so many samples of the epoch are done, and what is known of them."""


class _Hidden:
    """A progress bar that is not shown."""

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        pass

    def due(self) -> bool:
        return False

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        pass


class _Shown:
    """A bar of rich's, which is drawn when it is told to and by no thread."""

    def __init__(self, bar: Any) -> None:
        self._drawn, self._task = bar, None
        self._next = self._began = 0.0
        self._before = 0

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        if self._task is not None:
            self._drawn.remove_task(self._task)
        described = f"epoch {epoch}/{epochs}"
        self._task = self._drawn.add_task(described, total=samples, completed=done, numbers="")
        self._drawn.refresh()
        self._before, self._began = done, perf_counter()
        self._next = self._began + BAR_INTERVAL

    def due(self) -> bool:
        return perf_counter() >= self._next

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        now = perf_counter()
        pace = (done - self._before) / max(now - self._began, 1e-9)
        right = "" if accuracy is None else f"accuracy {accuracy:.2%}  "
        numbers = f"loss {loss:.4f}  {right}{pace:,.0f} samples/s"
        self._drawn.update(self._task, completed=done, numbers=numbers)
        self._drawn.refresh()
        self._next = perf_counter() + BAR_INTERVAL


@contextmanager
def progress(shown: bool | None) -> Iterator[Bar]:
    """Show a bar until the end of the context.

    shown: None means where standard error is a terminal.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield _Hidden()
        return
    from rich.progress import MofNCompleteColumn

    made = rich_bar(MofNCompleteColumn(), numbers_column(), prints=True)
    with made as drawn, share_bar(drawn):
        yield _Shown(drawn)
