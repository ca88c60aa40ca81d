"""Steps of training by glnn, in a process of its own (see `benchmarks.training_process`)."""

from __future__ import annotations

from typing import Any

from benchmarks.network_process import answer
from benchmarks.record import machine
from benchmarks.training_process import (
    CHECKED,
    MOMENTUM,
    RATE,
    Row,
    TrainingRequest,
    Work,
    batches,
    time_steps,
)
from glnn.backends import Backend, open_backend
from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.errors import GlnnError
from glnn.graph.passes import Pass
from glnn.profiling import profile
from glnn.training import SGD, CrossEntropyLoss, Trainer, training_step

REPEAT = 20  # of each step that is profiled


def measure(work: Work, batch: int, request: TrainingRequest) -> Row:
    """Return losses of the first steps, times of later ones, and the launches of a step."""
    backend = open_backend(request.backend)  # the trainer shares it
    trainer = Trainer(work.model(), CrossEntropyLoss(), _optimizer(), request.backend)
    data, losses = batches(work, batch), []
    for i in range(CHECKED):
        trainer.step(*data[i % len(data)])
        losses.append(trainer.loss)
    steps: list[Any] = [lambda xy=xy: trainer.step(*xy) for xy in data]
    row = {"losses": losses, **time_steps(steps, backend.finish, request.seconds)}
    plan, inputs = plan_step(work, batch, backend)
    row["launches"] = len(plan.steps)
    if request.profile:
        feeds = dict(zip(inputs, data[0], strict=True))
        row["steps"] = profile(plan, feeds, REPEAT).to_json()["layers"]
    return row


def _optimizer() -> SGD:
    return SGD(lr=RATE, momentum=MOMENTUM)


def plan_step(
    work: Work, batch: int, backend: Backend, without: frozenset[Pass] = frozenset()
) -> tuple[Plan, list[str]]:
    """Plan one step as Trainer.step does, with new states; return the plan and its inputs' names.

    without: the passes that are left out.
    """
    model, loss = work.model(), CrossEntropyLoss(ignore_index=None)  # labels are all valid
    step = training_step(model, loss, _optimizer(), batch, totals=False, counting=False)
    states = States(backend)
    step.add_to(states)
    inputs = {value.name: value.type.shape for value in step.graph.inputs}
    shapes = {name: shape for name, shape in inputs.items() if name not in step.states}
    plan = Plan(step.graph, backend, shapes, states=states, updates=step.updates, without=without)
    return plan, list(shapes)


def main(request: TrainingRequest) -> Row:
    """Measure all works, and return their rows."""
    rows: list[Row] = []
    name = f"glnn {request.backend}"
    for work, batch in request.each():
        try:
            row = measure(work, batch, request)
        except GlnnError as error:
            row = {"reason": str(error)}
        rows.append({"work": work.name, "batch": batch, "name": name, **row})
    device = open_backend(request.backend).device
    return {"rows": rows, **machine(device)}


if __name__ == "__main__":
    answer(main(TrainingRequest.from_arguments()))
