"""What one run of a plan has for itself: inputs, outputs, and the recording between them."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.backends.backend import Store, Way
from glnn.compile.outline import Outline
from glnn.compile.prepared import Prepared
from glnn.compile.task import Entry
from glnn.compile.weights import Weights
from glnn.graph.operators import Pointwise
from glnn.graph.operators.reorder import Reorder
from glnn.types import Array


def ways(outline: Outline) -> dict[int, Way]:
    """The blocks of memory whose content goes to the host or comes from there in each run.

    None where the host takes part in between: it reads and writes as it needs to.
    """
    schedule, block = outline.schedule, outline.arena.block
    if any(entry.host for entry in schedule.entries):
        return {}
    memory = {name: tensor.memory for name, tensor in schedule.tensors.items()}
    found: dict[int, Way] = {}
    for name in (memory[name] for name in outline.outputs.values()):
        found |= {block[name]: Way.TO_HOST} if name in block else {}
    for name in (memory[value.name] for value in outline.graph.inputs):
        readers = [
            e for e in schedule.entries for t in e.task.operands.values() if memory[t] == name
        ]
        way = Way.STREAMED if len(readers) == 1 and _streams(readers[0]) else Way.TO_DEVICE
        found |= {block[name]: way} if name in block else {}
    return found


def _streams(entry: Entry) -> bool:
    """Whether each number of the operands is read once."""
    problem = entry.problem
    alike = all(shape == problem.output for shape in problem.shapes.values())
    return isinstance(problem.op, Reorder) or (isinstance(problem.op, Pointwise) and alike)


class Lane:
    """The inputs, the outputs and the commands of one run at a time. Only inside `perform`.

    Those of a plan share everything else: one may be filled, and read, while another runs.
    """

    def __init__(self, outline: Outline, weights: Weights, beside: Lane | None = None) -> None:
        self.backend = outline.schedule.backend
        others = None if beside is None else beside.prepared
        self.prepared: Prepared = Prepared.of(outline, weights, ways(outline), others)
        self.stores = self.prepared.stores
        self.inputs: dict[str, Store] = {v.name: self.stores[v.name] for v in outline.graph.inputs}
        self._stretch = 0  # of the device's work, by which its last run is over

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs to where the device reads them, once it does not read others there."""
        device = self.backend.device
        if device is not None and device.timeline.done < self._stretch:
            self.backend.finish()
        for name, store in self.inputs.items():
            store.put(feeds[name])

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        try:
            self.prepared.together()
        finally:
            if (device := self.backend.device) is not None:
                self._stretch = (
                    device.timeline.now
                )  # only now: within it the device may be waited for

    def result(self, name: str) -> Store:
        """The store of the tensor called `name`, as the last run left it."""
        return self.inputs.get(name) or self.prepared.result(name)
