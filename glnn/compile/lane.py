"""What one run of a plan has for itself, where it was planned here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glnn.backends.backend import Memory, Way
from glnn.compile.outline import Outline
from glnn.compile.prepared import Prepared
from glnn.compile.states import State, States
from glnn.compile.weights import Weights
from glnn.running.lane import Lane
from glnn.running.lanes import at_once
from glnn.running.store import Store
from glnn.settings import Settings


def ways(outline: Outline) -> dict[int, Way]:
    """The blocks of memory whose content goes to the host or comes from there in each run.

    None where the host takes part in between: it reads and writes as it needs to.
    """
    schedule, block = outline.schedule, outline.arena.block
    if any(entry.host for entry in schedule.entries):
        return {}
    found: dict[int, Way] = {}
    carried = {one.name for one in outline.carried}
    inputs = [v.name for v in outline.graph.inputs if v.name not in carried]
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


def most(outline: Outline, states: States | None) -> int:
    """How many runs may be under way: a second one needs inputs and outputs of its own."""
    backend = outline.schedule.backend
    if backend.device is None or not ways(outline):
        return 1
    free = backend.available() if states is None else states.available()
    if free is not None and Settings.from_environment().memory is not None:
        at = outline.schedule, outline.arena
        own = {block for one in outline.carried for block in one.blocks(*at)}
        free -= outline.nbytes - sum(outline.blocks[block] for block in own)
    return at_once(room(outline), free)


class PlannedLane(Lane):
    """The lane of a plan that has an outline, beside another of its lanes.

    The commands are others for each arrangement of states in their memories: they are prepared when
    a run meets it.
    """

    def __init__(
        self,
        outline: Outline,
        weights: Weights,
        states: States | None = None,
        beside: PlannedLane | None = None,
    ) -> None:
        self.backend = outline.schedule.backend
        self._outline, self._weights = outline, weights
        self._states: dict[str, State] = {
            one.name: states[one.name] for one in outline.carried if states is not None
        }
        self._turning = self._doubled()
        own = ways(outline).items()
        self._memories = {i: self.backend.memory(outline.arena.sizes[i], way) for i, way in own}
        self._made: dict[tuple[int, ...], Prepared] = {}
        self.prepared: Prepared = self._ready(None if beside is None else beside.prepared)
        """What the last run took."""
        fed = (v.name for v in outline.graph.inputs if v.name not in self._states)
        super().__init__(self.backend.device, {name: self.prepared.stores[name] for name in fed})

    def _doubled(self) -> tuple[State, ...]:
        """The states that a run reads in one memory and writes to another."""
        schedule, arena = self._outline.schedule, self._outline.arena
        found = []
        for one in self._outline.carried if self.backend.device is not None else ():
            if len(one.blocks(schedule, arena)) > 1:
                self._states[one.name].reserve()
                found.append(self._states[one.name])
        return tuple(found)

    def _ready(self, beside: Prepared | None) -> Prepared:
        """What runs where the states lie now; what it shares with `beside` is not made anew."""
        key = tuple(state.current for state in self._states.values())
        found = self._made.get(key)
        if found is None:
            given: dict[int, Memory | None] = dict(self._memories)
            for one in self._outline.carried:
                state = self._states[one.name]
                blocks = one.blocks(self._outline.schedule, self._outline.arena)
                for turn, block in enumerate(blocks):
                    given[block] = state.memories[(state.current + turn) % len(state.memories)]
            found = Prepared.of(self._outline, self._weights, given, beside)
            self._made[key] = found
        return found

    @property
    def stores(self) -> Mapping[str, Store]:
        """The tensors, as the last run had them; outputs as the host takes them."""
        return self.prepared.shown

    def _perform(self) -> None:
        if self._states:
            self.prepared = self._ready(self.prepared)
        if self.device is None:
            self._perform_here()
        else:
            self.prepared.together()
        for state in self._turning:
            state.turn()

    def _perform_here(self) -> None:
        """The same where arrays are the host's: those of states change places."""
        for name, state in self._states.items():
            if name in self.stores:
                self.stores[name].set(state.get())
        self.prepared.together()
        changed = [one for one in self._outline.carried if one.after is not None]
        for one in changed:
            found, state = self.stores[one.after or ""].pull(), self._states[one.name]
            # A view may be one of an input, which is the caller's own, and has that one's shape.
            own = found if found.base is None else np.array(found)
            state.set(own.reshape(state.type.shape))

    def result(self, name: str) -> Store:
        """The store of the tensor called `name`, as the last run left it."""
        return self.inputs.get(name) or self.prepared.result(self._outline.outputs.get(name, name))
