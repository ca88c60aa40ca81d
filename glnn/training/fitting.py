"""The epochs of `Trainer.fit`: which batches there are, and what happens between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from glnn.training.callbacks import Callback, Checkpoint, Training
from glnn.training.checkpoint import Batches, Place
from glnn.training.data import Samples
from glnn.training.generator import permutation
from glnn.training.history import History, Row
from glnn.training.interruption import Interruption, noted
from glnn.training.progress import Bar, progress
from glnn.training.recipe import Asked
from glnn.training.steps import Steps


@dataclass
class Course:
    """How far training is; it changes as that goes on."""

    batches: Batches = field(default_factory=Batches)
    """How the epochs are cut."""
    history: History = field(default_factory=History)
    """The epochs that are over."""
    epoch: int = 0
    """How many these are."""
    sample: int = 0
    """Samples of the next one that were trained on."""
    began: int = 0
    """Epochs that were over when `fit` began."""
    seconds: float = 0.0
    """What the epoch took until `resumed`."""
    resumed: float = field(default_factory=perf_counter)
    """When the epoch began or went on, by the clock of `perf_counter`."""
    stopped: bool = False
    """Whether a callback asked for the end."""

    @property
    def spent(self) -> float:
        """The seconds that the epoch took so far; 0 between two."""
        return self.seconds + perf_counter() - self.resumed if self.sample else 0.0

    @property
    def place(self) -> Place:
        """The same for a checkpoint."""
        return Place(self.epoch, self.sample, self.began, self.spent)

    def begin(self, place: Place, batches: Batches, history: History) -> None:
        """Be there."""
        self.epoch, self.sample, self.began = place.epoch, place.sample, place.began
        self.seconds, self.resumed = place.seconds, perf_counter()
        self.batches, self.history = batches, history


@dataclass(frozen=True)
class Fit:
    """What one call of `fit` does."""

    steps: Steps
    """What computes."""
    course: Course
    """How far it is."""
    samples: Samples
    """What is trained on."""
    validation: Samples | None
    """What the model is evaluated on after each epoch."""
    epochs: int
    """How many, from where `fit` began."""
    seed: int | None
    """Of the order of the samples; None: they stay as they are."""
    learning_rate: Callable[[int], float]
    """That of the step after so many."""

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
        with noted() as interruption, progress(shown) as bar:
            for callback in after:
                callback.on_begin(trainer)
            while course.epoch < last and not course.stopped:
                self._epoch(trainer, after, bar, interruption)
                if interruption.noted:
                    break
            for callback in before:
                callback.on_end(trainer, interruption.noted)
        if interruption.noted:
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
        asked: dict[int, Asked] = {}
        for end, batch in samples.batches(batches.batch_size, order, course.sample):
            if (count := end - course.sample) not in asked:
                asked[count] = Asked.of(samples, count, parts=batches.accumulate)
            self.steps.perform(asked[count], batch)
            course.sample = end
            for call in every_step:
                call(trainer)
            if bar.due():
                found = self.steps.found(samples)
                bar.show(end, found.loss, found.accuracy)
            if interruption.noted or (course.stopped and end < samples.count):
                return
        self._end(trainer, callbacks)

    def _end(self, trainer: Training, callbacks: Sequence[Callback]) -> None:
        """Note what the epoch gave, which is over."""
        course, found = self.course, self.steps.found(self.samples)
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
