"""How `glnn train` trains: the loss, the optimiser and the schedule that its options name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import rich_click as click

from glnn.errors import GlnnError
from glnn.training import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    BCEWithLogitsLoss,
    ConstantLR,
    CosineAnnealingLR,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    Loss,
    MSELoss,
    OneCycleLR,
    Optimizer,
    RMSprop,
    Schedule,
    StepLR,
)

Command = TypeVar("Command", bound=Callable[..., Any])
LOSSES: Mapping[str, type[Loss]] = {
    "cross-entropy": CrossEntropyLoss,
    "bce": BCEWithLogitsLoss,
    "mse": MSELoss,
    "l1": L1Loss,
    "huber": HuberLoss,
    "kl": KLDivLoss,
}
OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "sgd": SGD,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}
SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "constant": lambda steps, lr, warmup: ConstantLR(1.0, warmup=warmup),
    "step": lambda steps, lr, warmup: StepLR(max(1, -(-steps // 3)), warmup=warmup),
    "cosine": lambda steps, lr, warmup: CosineAnnealingLR(steps, warmup=warmup),
    "one-cycle": lambda steps, lr, warmup: OneCycleLR(lr, steps, warmup=warmup),
}
"""By the number of all steps, the optimiser's learning rate, and the steps of a warm-up."""


def recipe_options(command: Command) -> Command:
    """The options of a `Recipe`."""
    options = (
        click.option(
            "--lr", type=float, help="The learning rate: the optimiser's own, if not given."
        ),
        click.option(
            "--optimizer",
            type=click.Choice([*OPTIMIZERS]),
            default="adam",
            show_default=True,
            help="How parameters follow from their gradients.",
        ),
        click.option(
            "--loss",
            type=click.Choice([*LOSSES]),
            default="cross-entropy",
            show_default=True,
            help="What is made less.",
        ),
        click.option(
            "--schedule",
            type=click.Choice([*SCHEDULES]),
            default="constant",
            show_default=True,
            help="Of the learning rate: a tenth after each third of all steps (step), down to 0 "
            "(cosine), or up to it and down again (one-cycle).",
        ),
        click.option(
            "--warmup",
            type=click.IntRange(0),
            default=0,
            metavar="STEPS",
            help="Over how many steps at first the learning rate grows.",
        ),
        click.option("--momentum", type=float, help="Of sgd and rmsprop."),
        click.option("--weight-decay", type=float, help="The optimiser's own, if not given."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Recipe:
    """What the options say."""

    loss: str
    """One of LOSSES."""
    optimizer: str
    """One of OPTIMIZERS."""
    schedule: str
    """One of SCHEDULES."""
    warmup: int
    """For how many steps the learning rate grows."""
    lr: float | None
    """None for the optimiser's own, as for the next two."""
    momentum: float | None
    weight_decay: float | None

    def made(self, steps: int) -> tuple[Loss, Optimizer, Schedule | None]:
        """What trains for so many steps. Raises GlnnError for numbers that do not suit them."""
        optimizer = self._optimizer()
        schedule = None
        if self.schedule != "constant" or self.warmup:
            schedule = SCHEDULES[self.schedule](steps, optimizer.lr, self.warmup)
        return LOSSES[self.loss](), optimizer, schedule

    def _optimizer(self) -> Optimizer:
        kind = OPTIMIZERS[self.optimizer]
        known = {one.name for one in fields(kind)}
        given = {
            name: value
            for name in ("lr", "momentum", "weight_decay")
            if (value := getattr(self, name)) is not None
        }
        for name in given:
            if name not in known:
                option = f"--{name.replace('_', '-')}"
                raise GlnnError(f"{option}: {self.optimizer} has none")
        return kind(**given)
