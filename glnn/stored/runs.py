"""Runs of a model by stored plans, without loading it, as long as they admit the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from glnn.core.process import process_lock
from glnn.core.types import Array, ArrayTypes, Shape, all_small, beyond_int32
from glnn.errors import DeviceError, LimitError
from glnn.gl import Device
from glnn.gl.command_buffer import FormatError
from glnn.runtime.device_array import Feed, deciding_types, host_arrays, located
from glnn.runtime.runner import FinishedRun, ModelExecutor, Out, Run, Runner, run_within
from glnn.runtime.store import OnDevice, T
from glnn.stored.plan_cache import StoredModel

Result = TypeVar("Result")
KEPT = 8  # stored plans on the device


class StoredRuns:
    """Runs a model by stored plans, as long as one admits the inputs and the device is not lost.

    stored: the plans. load_executor: returns the executor that runs the model from then on; called
    inside `Device.perform` or outside. keep: how many plans stay on the device. Any thread may use
    it.
    """

    def __init__(
        self, stored: StoredModel, load_executor: Callable[[], ModelExecutor], keep: int = KEPT
    ) -> None:
        self._stored: StoredModel | None = stored
        self._on, self._keep = OnDevice(stored.device), keep
        self._load_executor = load_executor
        self._names = frozenset(one.name for one in stored.info.outputs)
        self._lock = process_lock()
        self._plans: list[tuple[bool, Runner]] = []
        """True where int64 inputs must be small, and the plan; the most recently used one first."""
        self._latest: tuple[dict[str, Shape], bool] | None = None
        """The shapes of the inputs that the first plan ran last, and True if int64 ones were small.
        """
        self._latest_types: ArrayTypes | None = None
        """The types of inputs that the first plan runs; None where numbers matter, or unknown."""

    def give_up(self) -> None:
        """Drop all stored plans, for good."""
        with self._lock:
            self._stored = None
            self._plans.clear()

    def _fallback(self) -> ModelExecutor:
        result = self._load_executor()
        if self._stored is not None:
            self.give_up()
        return result

    @property
    def device(self) -> Device | None:
        """See `ModelExecutor`."""
        return self._fallback().device if self._stored is None else self._on.device

    def run(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """See `ModelExecutor`."""
        names = None if outputs is None else tuple(outputs)
        if self._usable():
            feeds = located(feeds, self._on.device)

        def inside() -> dict[str, Array] | None:
            return self._by_plan(feeds, lambda plan: plan.run_on_thread(feeds, names, out))

        def begin() -> Run | FinishedRun[dict[str, Array] | None]:
            if names == ():
                return FinishedRun(inside())
            nothing: FinishedRun[dict[str, Array] | None] = FinishedRun(None)
            return self._by_plan(feeds, lambda plan: plan.begin(feeds, names, out)) or nothing

        results = run_within(self._on, inside, begin) if self._usable() else None
        return self._fallback().run(feeds, names, out) if results is None else results

    def perform(self, work: Callable[[], T]) -> T:
        """See `ModelExecutor`."""
        return (self._on if self._usable() else self._fallback()).perform(work)

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """See `ModelExecutor`."""
        begun = self._by_plan(feeds, lambda plan: plan.begin(feeds, outputs, out))
        return self._fallback().begin(feeds, outputs, out) if begun is None else begun

    def settle(self) -> None:
        """See `ModelExecutor`."""
        if self._stored is None:
            self._fallback().settle()

    @property
    def restored(self) -> bool:
        """Return True where a stored plan was loaded."""
        return bool(self._plans)

    def _usable(self) -> bool:
        """Return True where stored plans may be used: their device was not lost."""
        stored = self._stored
        return stored is not None and stored.device.lost is None

    def _by_plan(self, feeds: Mapping[str, Feed], run: Callable[[Runner], Result]) -> Result | None:
        """Call `run` with the stored plan for `feeds`; None without a usable plan."""
        try:
            plan = self._plan(feeds)
            return None if plan is None else run(plan)
        except (LimitError, MemoryError):  # the executor's plan may need less memory
            self._plans.clear()
            return None
        except (DeviceError, FormatError, ArithmeticError):  # the stored plan may be damaged
            stored = self._stored
            if stored is None or stored.device.closed:
                raise
            stored.refuse()
            return None

    def _plan(self, feeds: Mapping[str, Feed]) -> Runner | None:
        """Return the stored plan that admits `feeds`, if there is one."""
        with self._lock:
            if self._plans and self._latest_types is not None and self._latest_types.match(feeds):
                return self._plans[0][1]
        shapes = {name: array.shape for name, array in feeds.items()}
        on_host = host_arrays(feeds)
        if any(name not in on_host and one.dtype == np.float16 for name, one in feeds.items()):
            return None  # stored plans take float16 from the host
        small = all_small(on_host)
        if not small and beyond_int32(on_host):
            return None  # a GPU may refuse these numbers: the executor chooses a backend
        with self._lock:
            if self._latest == (shapes, small) and self._plans:
                self._latest_types = deciding_types(feeds)
                return self._plans[0][1]
            self._latest_types = None
            for i, (is_small, runner) in enumerate(self._plans):
                if is_small == small and runner.executable.admits(feeds):
                    self._plans.insert(0, self._plans.pop(i))
                    break
            else:
                plan = None if self._stored is None else self._stored.plan(shapes, small)
                if plan is None or not self._names.issubset(plan.outputs):
                    return None  # an output may have the name of an inner tensor
                self._plans.insert(0, (small, plan))
                del self._plans[self._keep :]
            self._latest = shapes, small
            return self._plans[0][1]
