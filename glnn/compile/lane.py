"""What one run of a plan has for itself: inputs, outputs, and the recording between them."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.backends.backend import Store, Way
from glnn.compile.outline import Outline
from glnn.compile.prepared import Prepared
from glnn.compile.weights import Weights
from glnn.types import Array


def ways(outline: Outline) -> dict[int, Way]:
    """The blocks of memory whose content goes to the host or comes from there in each run.

    None where the host takes part in between: it reads and writes as it needs to.
    """
    schedule, block = outline.schedule, outline.arena.block
    if any(entry.host for entry in schedule.entries):
        return {}
    found: dict[int, Way] = {}
    inputs = [value.name for value in outline.graph.inputs]
    for names, way in ((outline.outputs.values(), Way.TO_HOST), (inputs, Way.TO_DEVICE)):
        for memory in (schedule.tensors[name].memory for name in names):
            found |= {block[memory]: way} if memory in block else {}
    return found


def room(outline: Outline) -> int:
    """Bytes that another lane takes: inputs, outputs, and copies in textures for what uses them."""
    own, block = ways(outline), outline.arena.block
    tensors, entries = outline.schedule.tensors, outline.schedule.entries
    used = {name for name, tensor in tensors.items() if block.get(tensor.memory) in own}
    steps = zip(outline.steps, entries, strict=True)
    copies = (step.nbytes[2] for step, entry in steps if used.intersection(entry.tensors))
    return sum(outline.blocks[i] for i in own) + sum(copies)


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
            device.wait()
        for name, store in self.inputs.items():
            store.put(feeds[name])

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        try:
            self.prepared.together()
        finally:
            device = self.backend.device
            if device is not None:  # only now: a run may wait for the device in the middle
                self._stretch = device.timeline.now

    def result(self, name: str) -> Store:
        """The store of the tensor called `name`, as the last run left it."""
        return self.inputs.get(name) or self.prepared.result(name)
