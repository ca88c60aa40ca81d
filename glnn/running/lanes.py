"""The lanes of a plan, and the runs that are under way in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Generic, TypeVar

from glnn.running.lane import Lane
from glnn.running.run import Begun

L = TypeVar("L", bound=Lane)


def at_once(room: int, free: int | None) -> int:
    """How many runs may be under way, where a second takes `room` bytes and so many are `free`.

    Who knows of no bound, None, has none.
    """
    return 2 if free is None or room <= free else 1


class Lanes(Generic[L]):
    """Room for runs of a plan, at first for one. Only inside `perform`.

    make: gives a lane beside the one that it is given, None for the first. most: how many there may
    be, which is asked once a second run is to be under way.
    """

    def __init__(self, make: Callable[[L | None], L], most: Callable[[], int]) -> None:
        self._make, self._ask = make, most
        self._lanes = [make(None)]
        self.latest = self._lanes[0]
        """That of the last run."""
        self._runs: deque[Begun] = deque()

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, place: int) -> L:
        return self._lanes[place]

    def add(self, run: Begun) -> None:
        """Note that `run` is under way."""
        self._runs.append(run)

    def free(self) -> L:
        """Room for a run: where none is left, that of the first that is under way."""
        while self._runs and self._runs[0].over:
            self._runs.popleft()
        taken = [run.lane for run in self._runs]
        found = next((lane for lane in self._lanes if lane not in taken), None)
        if found is None and len(self._lanes) < self._most:
            found = self._make(self._lanes[0])
            self._lanes.append(found)
        if found is None:
            first = self._runs.popleft()
            with suppress(Exception):  # who asked for it gets that
                first.results()
            found = next(lane for lane in self._lanes if lane is first.lane)
        self.latest = found
        return found

    def only(self) -> L:
        """The lane of the last run, once no run that was begun needs its outputs any more."""
        while self._runs:
            self._runs.popleft().results()
        return self.latest

    @cached_property
    def _most(self) -> int:
        return self._ask()
