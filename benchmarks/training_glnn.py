"""Steps of training by glnn, in a process of its own (see `benchmarks.training_process`)."""

from __future__ import annotations

from typing import Any

from benchmarks.network_process import answer
from benchmarks.record import machine
from benchmarks.training_process import (
    CHECKED,
    MOMENTUM,
    RATE,
    Asked,
    Found,
    Work,
    batches,
    timed,
)
from glnn.backends import Backend, open_backend
from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.errors import GlnnError
from glnn.graph.passes import Pass
from glnn.profiling import profile
from glnn.training import SGD, CrossEntropyLoss, Trainer, training_step

REPEAT = 20  # of each step that is profiled


def measured(work: Work, batch: int, asked: Asked) -> Found:
    """The losses of the first steps, the times of later ones, what a step launches."""
    backend = open_backend(asked.backend)  # the one that the trainer shares
    trainer = Trainer(work.model(), CrossEntropyLoss(), _optimizer(), asked.backend)
    given, losses = batches(work, batch), []
    for i in range(CHECKED):
        trainer.step(*given[i % len(given)])
        losses.append(trainer.loss)
    steps: list[Any] = [lambda one=one: trainer.step(*one) for one in given]
    found = {"losses": losses, **timed(steps, backend.finish, asked.seconds)}
    plan, fed = planned(work, batch, backend)
    found["launches"] = len(plan.steps)
    if asked.profile:
        feeds = dict(zip(fed, given[0], strict=True))
        found["steps"] = profile(plan, feeds, REPEAT).to_json()["layers"]
    return found


def _optimizer() -> SGD:
    return SGD(lr=RATE, momentum=MOMENTUM)


def planned(
    work: Work, batch: int, backend: Backend, without: frozenset[Pass] = frozenset()
) -> tuple[Plan, list[str]]:
    """The plan of one step, as Trainer.step has it, on states of its own, and what is fed to it.

    without: the passes that are left out.
    """
    model, loss = work.model(), CrossEntropyLoss(ignore_index=None)  # no label is such a one
    step = training_step(model, loss, _optimizer(), batch, totals=False, counting=False)
    states = States(backend)
    step.add_to(states)
    inputs = {value.name: value.type.shape for value in step.graph.inputs}
    shapes = {name: shape for name, shape in inputs.items() if name not in step.states}
    plan = Plan(step.graph, backend, shapes, states=states, updates=step.updates, without=without)
    return plan, list(shapes)


def main(asked: Asked) -> Found:
    """A row for each work."""
    rows: list[Found] = []
    name = f"glnn {asked.backend}"
    for work, batch in asked.each():
        try:
            found = measured(work, batch, asked)
        except GlnnError as error:
            found = {"reason": str(error)}
        rows.append({"work": work.name, "batch": batch, "name": name, **found})
    device = open_backend(asked.backend).device
    return {"rows": rows, **machine(device)}


if __name__ == "__main__":
    answer(main(Asked.from_arguments()))
