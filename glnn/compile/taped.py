"""What of a plan can be kept on disk: see `glnn.stored`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glnn.backends.launch import record
from glnn.compile.lane import PlannedLane, room, ways
from glnn.compile.outline import Outline
from glnn.compile.plan import Plan
from glnn.compile.weights import Kept
from glnn.device import Buffer, SharedMemory
from glnn.device.notes import Notes
from glnn.device.tape import TapeError
from glnn.settings import Settings
from glnn.stored.plan import Place, StoredPlan
from glnn.types import Array, DType


@dataclass(frozen=True)
class Taped:
    """A plan as plain data, and what is beside it."""

    plan: StoredPlan
    weights: tuple[Kept, ...]
    """Those of its tape."""
    fixed: Mapping[str, Array]
    """The outputs that no run changes."""


def taped(plan: Plan) -> Taped:
    """`plan`, which has run, as data. Only inside `Backend.perform`.

    Raises TapeError where something of it is with the host: steps, states, tensors of types that a
    device does not hold.
    """
    outline, lane, device = plan.outline, plan.lane, plan.backend.device
    if device is None or outline.carried or plan.hosted or outline.bodies:
        raise TapeError("the host has a part in it")
    if outline.tight and Settings.from_environment().memory is None:
        raise TapeError("it was made while little memory was free")
    weights = tuple(dict.fromkeys(lane.prepared.kept))
    buffers = [kept.store for kept in weights]
    if not all(isinstance(one, Buffer) for one in buffers):
        raise TapeError("a weight is with the host")
    own = ways(outline)
    blocks = [
        (block, i in own)
        for i, block in enumerate(lane.prepared.blocks)
        if isinstance(block, SharedMemory)
    ]
    notes = Notes(device, blocks=blocks, weights=buffers)  # type: ignore[arg-type]
    record(notes, lane.prepared.launches)
    fixed = {name: plan.fixed(name) for name in plan.ends.fixed()}
    if any(array.dtype == DType.object.numpy for array in fixed.values()):
        raise TapeError("an output is no tensor of numbers")
    names = [one.name for one in plan.ends.inputs]
    names += [one.name for one in plan.ends.outputs if not one.fixed]
    places = tuple(_place(outline, lane, name) for name in dict.fromkeys(names))
    second = room(outline) if own else 0
    stored = StoredPlan(notes.tape(), plan.ends, places, outline.peak, second)
    return Taped(stored, weights, fixed)


def _place(outline: Outline, lane: PlannedLane, name: str) -> Place:
    """Where the tensor called `name` lies."""
    tensor, store = outline.schedule.tensors[outline.outputs.get(name, name)], lane.stores[name]
    if not isinstance(store, Buffer) or tensor.memory not in outline.arena.block:
        raise TapeError(f"{name!r} is with the host")
    block = outline.arena.block[tensor.memory]
    layout = store.layout.name
    return Place(name, store.shape, store.dtype, layout, store.size, block, tensor.offset)
