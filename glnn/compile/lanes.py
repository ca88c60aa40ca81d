"""The lanes of a plan, and the runs that are under way in them."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import cached_property

from glnn.compile.lane import Lane, room, ways
from glnn.compile.outline import Outline
from glnn.compile.run import Begun
from glnn.compile.states import States
from glnn.compile.weights import Weights
from glnn.settings import Settings


class Lanes:
    """Room for runs of what `outline` says, at first for one. Only inside `perform`."""

    def __init__(self, outline: Outline, weights: Weights, states: States | None) -> None:
        self._outline, self._weights, self._states = outline, weights, states
        self._lanes = [Lane(outline, weights, states)]
        self.latest = self._lanes[0]
        """That of the last run."""
        self._runs: deque[Begun] = deque()

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, place: int) -> Lane:
        return self._lanes[place]

    def add(self, run: Begun) -> None:
        """Note that `run` is under way."""
        self._runs.append(run)

    def free(self) -> Lane:
        """Room for a run: where none is left, that of the first that is under way."""
        while self._runs and self._runs[0].over:
            self._runs.popleft()
        taken = [run.lane for run in self._runs]
        found = next((lane for lane in self._lanes if lane not in taken), None)
        if found is None and len(self._lanes) < self._most:
            found = Lane(self._outline, self._weights, self._states, self._lanes[0])
            self._lanes.append(found)
        if found is None:
            first = self._runs.popleft()
            with suppress(Exception):  # who asked for it gets that
                first.results()
            found = first.lane
        self.latest = found
        return found

    def only(self) -> Lane:
        """The lane of the last run, once no run that was begun needs its outputs any more."""
        while self._runs:
            self._runs.popleft().results()
        return self.latest

    @cached_property
    def _most(self) -> int:
        """How many runs may be under way: a second one needs inputs and outputs of its own."""
        outline, states = self._outline, self._states
        backend = outline.schedule.backend
        free = backend.available() if states is None else states.available()
        if free is None or not ways(outline):
            return 1
        if Settings.from_environment().memory is not None:
            at = outline.schedule, outline.arena
            own = {block for one in outline.carried for block in one.blocks(*at)}
            free -= outline.nbytes - sum(outline.blocks[block] for block in own)
        return 2 if room(outline) <= free else 1
