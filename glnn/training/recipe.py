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
class BatchKey:
    """The computation of a batch, by which plans are kept."""

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
    def for_samples(cls, samples: Samples, count: int, **more: Any) -> BatchKey:
        """Make the key of `count` of the samples; `more` are fields."""
        return cls(count, samples.loss, samples.target, **more)

    def suits(self, batch: Samples) -> bool:
        """Return True where a batch has as many samples, and the same kind of targets."""
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

    def training(self, key: BatchKey) -> StepGraph:
        """Build the graph of one update by a whole batch."""
        options = {**self.options, "target": key.target, "totals": key.totals}
        options["counting"] = False  # the host does
        return training_step(self.model, key.loss, self.optimizer, key.count, **options)

    def accumulating(self, key: BatchKey, size: int) -> StepGraph:
        """Build the graph that adds the gradients of `size` samples to those of the parts
        before.
        """
        options = {name: self.options[name] for name in ("frozen", "seed")}
        options |= {"target": key.target, "totals": key.totals}
        return accumulating(self.model, key.loss, size, **options)

    def applying(self, key: BatchKey) -> StepGraph:
        """Build the graph of one update by the accumulated gradients."""
        options = {name: value for name, value in self.options.items() if name != "seed"}
        return applying(self.model, key.loss, self.optimizer, counting=False, **options)

    def evaluating(self, key: BatchKey, size: int) -> StepGraph:
        """Build the graph of the loss of `size` samples, and of how many are right."""
        frozen = self.options["frozen"]
        return evaluating(self.model, key.loss, size, frozen=frozen, target=key.target)
