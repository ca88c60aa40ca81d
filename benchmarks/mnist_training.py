"""What `benchmarks.mnist` trains, and how one training is timed and watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import training_zoo
from benchmarks.digits import Digits
from benchmarks.training_zoo import CLASSES, DIGIT
from glnn.model import Model
from glnn.training import (
    SGD,
    Adam,
    CosineAnnealingLR,
    CrossEntropyLoss,
    LRScheduler,
    Optimizer,
    Trainer,
)
from glnn.training.samples import permutation

Row = dict[str, Any]
Batch = tuple[NDArray[np.float32], NDArray[np.int32]]
POINTS = 10
"""Of a curve: the accuracy after each tenth of the steps."""
TESTED = 100
"""Samples at a time, as Cheng tested."""


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained."""

    name: str
    """What it is called here."""
    model: Callable[..., Model]
    """Makes it from a `seed`."""
    optimizer: Optimizer
    """What updates it."""
    batch: int
    """Images a step."""
    steps: int
    """Of the whole training."""
    flat: bool = True
    """Whether an image is a row of 784 numbers."""
    annealed: bool = False
    """Whether the learning rate falls to 0 by a cosine."""

    def trainer(self, backend: str, kernels: Mapping[str, str] | None, seed: int) -> Trainer:
        """One that begins from `seed`; raises what Trainer does."""
        schedule: LRScheduler | None = CosineAnnealingLR(self.steps) if self.annealed else None
        return Trainer(
            self.model(seed=seed),
            CrossEntropyLoss(),
            self.optimizer,
            backend,
            kernels=kernels,
            schedule=schedule,
            seed=seed,
        )

    def of(self, digits: Digits) -> Digits:
        """`digits` as this network takes them."""
        return digits.flat() if self.flat else digits

    def said(self) -> str:
        """How it is trained, in words."""
        rate = ", the rate falling to 0 by a cosine" if self.annealed else ""
        network = self.model(seed=0).name.replace("_", " ")
        how = f"{type(self.optimizer).__name__} with a learning rate of {self.optimizer.lr:g}"
        return f"{network}, {how}{rate}, {self.steps} steps of {self.batch}"


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("mlp", partial(training_zoo.mlp, DIGIT, 256, CLASSES), SGD(lr=0.006), 100, 600),
        Recipe("dnn", partial(training_zoo.mlp, DIGIT, 512, 512, CLASSES), Adam(1e-3), 1000, 160),
        Recipe("lenet", training_zoo.lenet, Adam(lr=1e-3), 64, 1875, flat=False, annealed=True),
    )
}
"""By name; Cheng's are `mlp` and `dnn`."""


def batches(digits: Digits, batch: int, seed: int) -> Iterator[Batch]:
    """Batches without end, each pass over the digits in an order of its own; what is left of a
    pass that is no whole batch is left out of it.
    """
    batch = min(batch, len(digits.x))
    epoch = 0
    while True:
        order = permutation(seed, epoch, len(digits.x))
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first : first + batch]
            yield digits.x[chosen], digits.y[chosen]
        epoch += 1


def trained(
    recipe: Recipe,
    digits: Digits,
    backend: str,
    kernels: Mapping[str, str] | None = None,
    seed: int = 0,
    advance: Callable[[int], object] = lambda _: None,
) -> Row:
    """One training: its accuracy in percent, the seconds of its steps, `curve` the accuracy after
    each tenth of them.

    The clock stands while the network is tested and while the first step is made ready and taken,
    whose seconds are `first_s`. advance: told how many steps were done since it was last.
    """
    digits = recipe.of(digits)
    given = batches(digits, recipe.batch, seed)
    begun = perf_counter()
    trainer = recipe.trainer(backend, kernels, seed)
    trainer.step(*next(given))
    first_loss = trainer.loss
    first = perf_counter() - begun
    advance(1)
    seconds, curve = 0.0, list[float]()
    done, tested = 1, 0
    for point in range(1, POINTS + 1):
        until = max(1, recipe.steps * point // POINTS)
        started = perf_counter()
        for _ in range(until - done):
            trainer.step(*next(given))
        last_loss = trainer.loss  # waits for the device
        seconds += perf_counter() - started
        advance(until - done)
        done = until
        if tested != done:  # else there was no step since
            found = trainer.evaluate(digits.test_x, digits.test_y, batch_size=TESTED)
            accuracy, tested = 100 * (found.accuracy or 0.0), done
        curve.append(accuracy)
    return {
        "model": recipe.name, "backend": backend, "kernels": dict(kernels or {}), "seed": seed,
        "accuracy": curve[-1], "seconds": seconds, "steps": recipe.steps, "first_s": first,
        "loss": [first_loss, last_loss], "curve": curve,
    }  # fmt: skip


def losses(recipe: Recipe, digits: Digits, backend: str, steps: int, seed: int = 0) -> list[float]:
    """The loss of each of the first `steps` steps, by the default kernels."""
    digits = recipe.of(digits)
    trainer, found = recipe.trainer(backend, None, seed), []
    for _, (x, y) in zip(range(steps), batches(digits, recipe.batch, seed)):
        trainer.step(x, y)
        found.append(trainer.loss)
    return found


def apart(one: list[float], other: list[float]) -> float:
    """The greatest relative difference of two curves, over the greater of both at a step."""
    a, b = np.array(one), np.array(other)
    return float((np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-12)).max())
