"""A stored plan that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from glnn.device import Buffer, Device
from glnn.device.played import Packed, Played
from glnn.layout import parse
from glnn.running.lane import Lane
from glnn.running.lanes import Lanes, at_once
from glnn.running.runner import Runner
from glnn.running.store import OnDevice, Store
from glnn.settings import Settings
from glnn.stored.plan import StoredPlan
from glnn.types import Array


class RestoredLane(Lane):
    """The lane of a stored plan, beside another of its lanes."""

    def __init__(
        self,
        plan: StoredPlan,
        device: Device,
        weights: Sequence[Packed],
        beside: RestoredLane | None = None,
    ) -> None:
        shared = None if beside is None else beside._played
        self._played: Played = Played(plan.tape, device, weights, shared)
        self._stores: dict[str, Store] = {}
        for one in plan.places:
            self._stores[one.name] = Buffer(
                one.shape,
                parse(one.layout),
                capacity=one.capacity,
                memory=self._played.memories[one.block],
                dtype=one.dtype,
                offset=one.offset,
            )
        super().__init__(device, {one.name: self._stores[one.name] for one in plan.ends.inputs})

    @property
    def stores(self) -> Mapping[str, Store]:
        """See `Lane`."""
        return self._stores

    def _perform(self) -> None:
        self._played.recording()

    def result(self, name: str) -> Store:
        """See `Lane`."""
        found = self._stores[name]
        if name not in self.inputs:
            assert isinstance(found, Buffer)
            found.wrote()
        return found


class Restored(Runner[RestoredLane]):
    """`plan` on `device`, whose `weights` are there. Only inside `Device.perform`.

    fixed: the arrays of the outputs that no run changes. Raises what `Played` raises.
    """

    def __init__(
        self,
        plan: StoredPlan,
        device: Device,
        weights: Sequence[Packed],
        fixed: Mapping[str, Array],
    ) -> None:
        lanes = Lanes(partial(RestoredLane, plan, device, weights), partial(_most, plan, device))
        super().__init__(OnDevice(device), lanes, plan.ends)
        self.plan, self._constants = plan, dict(fixed)

    def fixed(self, name: str) -> Array:
        """See `Runner`."""
        return np.array(self._constants[name])


def available(device: Device) -> int | None:
    """Bytes that plans may take on `device`; None where nobody knows."""
    allowed = Settings.from_environment().memory
    return device.memory_available() if allowed is None else allowed


def _most(plan: StoredPlan, device: Device) -> int:
    """How many runs may be under way: a second one needs inputs and outputs of its own."""
    if not plan.room:
        return 1
    free = available(device)
    if free is not None and Settings.from_environment().memory is not None:
        free -= plan.nbytes
    return at_once(plan.room, free)
