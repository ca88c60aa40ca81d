"""The graphs of one model's training, by what a batch is computed for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glnn.model import Model
from glnn.training.data import Samples
from glnn.training.losses import Loss
from glnn.training.optimizers import Optimizer
from glnn.training.step import StepGraph, accumulating, applying, evaluating, training_step
from glnn.types import DType


@dataclass(frozen=True)
class Asked:
    """What a batch is computed for; plans are kept by it."""

    count: int
    """Samples of the batch."""
    loss: Loss
    """The loss, as it suits the targets."""
    target: DType | None
    """The type of the target's numbers; None: the usual one."""
    trains: bool = True
    """Whether the parameters are updated, or the model is only evaluated."""
    parts: int = 1
    """Parts of the batch that are computed by themselves, at least."""
    totals: bool = True
    """Whether what an epoch's progress shows adds up."""

    @classmethod
    def of(cls, samples: Samples, count: int, **more: Any) -> Asked:
        """For `count` of the samples; `more` are fields."""
        return cls(count, samples.loss, samples.target, **more)

    def suits(self, batch: Samples) -> bool:
        """Whether it is for so many samples, and for such targets."""
        like = self.count == batch.count and self.target is batch.target
        return like and (self.loss is batch.loss or self.loss == batch.loss)


@dataclass(frozen=True, eq=False)
class Recipe:
    """With what a model is trained."""

    model: Model
    """The model."""
    optimizer: Optimizer
    """How its parameters are updated."""
    options: Mapping[str, Any]
    """What `training_step` is given besides: `frozen`, `schedule`, `clip_norm`, `clip_value` and
    `seed`."""

    def training(self, asked: Asked) -> StepGraph:
        """One update by a whole batch."""
        options = {**self.options, "target": asked.target, "totals": asked.totals}
        options["counting"] = False  # the host does
        return training_step(self.model, asked.loss, self.optimizer, asked.count, **options)

    def accumulating(self, asked: Asked, size: int) -> StepGraph:
        """The gradients over a part of `size` samples, added to those of the parts before."""
        options = {name: self.options[name] for name in ("frozen", "seed")}
        options |= {"target": asked.target, "totals": asked.totals}
        return accumulating(self.model, asked.loss, size, **options)

    def applying(self, asked: Asked) -> StepGraph:
        """One update by the gradients that were added up."""
        options = {name: value for name, value in self.options.items() if name != "seed"}
        return applying(self.model, asked.loss, self.optimizer, counting=False, **options)

    def evaluating(self, asked: Asked, size: int) -> StepGraph:
        """The loss of `size` samples, and how many are right."""
        frozen = self.options["frozen"]
        return evaluating(self.model, asked.loss, size, frozen=frozen, target=asked.target)
