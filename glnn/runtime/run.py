"""Runs under way: commands were given to the device, which may not be done with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np

from glnn.device import Device, Fence
from glnn.errors import DeviceError, ShapeError, shown
from glnn.host_memory import out_of_memory
from glnn.runtime.buffer_set import BufferSet
from glnn.runtime.store import Performer, T
from glnn.types import Array, DType, Shape


class Run(Protocol):
    """A run under way or finished, to be asked inside `Performer.perform`."""

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait for the device no longer than `seconds`; return True where it is done.

        Raises DeviceError where the device was closed or reset.
        """

    def results(self) -> dict[str, Array]:
        """Wait for the outputs that were asked for, and return them by name. Raises the same."""


@dataclass(frozen=True)
class FinishedRun(Generic[T]):
    """A run without anything to wait for: its results are there."""

    found: T
    """The outputs that were asked for."""

    def wait(self, seconds: float = float("inf")) -> bool:
        return True

    def results(self) -> T:
        return self.found


class ThreadSafeRun:
    """A run that may be asked in any thread: it is asked inside the `perform` of `performer`."""

    def __init__(self, performer: Executing, run: Run) -> None:
        self._performer, self._run = performer, run

    def wait(self, seconds: float = float("inf")) -> bool:
        """See `Run`."""
        return self._performer.perform(lambda: self._run.wait(seconds))

    def results(self) -> dict[str, Array]:
        """See `Run`."""
        return self._performer.perform(self._run.results)


class InFlightRun:
    """A run under way in one of a runner's BufferSets.

    names: of the outputs that were asked for. computed: those of them that commands compute, whose
    download is asked for at once. take: returns one of them, once the device is done.
    """

    def __init__(
        self,
        buffers: BufferSet,
        names: Sequence[str],
        computed: Iterable[str],
        take: Callable[[str], Array],
    ) -> None:
        self.buffers, self._names, self._take = buffers, names, take
        self._found: dict[str, Array] | None = None
        self._error: BaseException | None = None
        self.fence: Fence | None = None
        """Behind the run; None where to take a result is to wait for it."""
        for name in computed:
            buffers.result(name).ask()

    @property
    def over(self) -> bool:
        """True once its BufferSet is free: results were taken, cannot be, or none are wanted."""
        done = not self._names and self.fence is not None and self.fence.over
        return done or self._found is not None or self._error is not None

    def wait(self, seconds: float = float("inf")) -> bool:
        """See `Run`."""
        device = self.buffers.device
        if not self.over and device is not None and device.closed:
            raise DeviceError(device.lost or "the device was closed in the middle of a run")
        return self.over or self.fence is None or self.fence.wait(seconds)

    def results(self) -> dict[str, Array]:
        """See `Run`."""
        if self._error is not None:  # what it left may be another's by now
            raise self._error
        if self._found is None:
            try:
                if self.fence is not None:
                    self.wait()
                self._found = {name: self._take(name) for name in self._names}
            except BaseException as error:
                self._error = error
                raise
            finally:
                del self._take  # it refers to the runner, which may refer to this
        return self._found


def unaliased(feeds: Mapping[str, Array], out: Mapping[str, Array]) -> dict[str, Array]:
    """Return `feeds`, copied where they may share memory with arrays of `out`.

    An output that is an input is taken from there, perhaps once others were written.
    """
    return {
        name: array.copy()
        if any(np.may_share_memory(array, one) for one in out.values())
        else array
        for name, array in feeds.items()
    }


def check_out(name: str, array: object, shape: Shape, dtype: DType) -> None:
    """Raise ShapeError unless `array` can take the output called `name`, of that type."""
    like = isinstance(array, np.ndarray) and (array.shape, array.dtype) == (shape, dtype.numpy)
    if like and array.flags.writeable:  # type: ignore[attr-defined]
        return
    got = shown(array)
    if isinstance(array, np.ndarray):
        fixed = "" if array.flags.writeable else "read-only "
        got = f"a {fixed}{array.dtype} array of shape {array.shape}"
    wanted = f"a writeable {dtype.value} array of shape {shape}"
    raise ShapeError(f"out[{name!r}] must be {wanted}, got {got}")


def within_memory(performer: Performer, work: Callable[[], T]) -> T:
    """Return what `work` gives. Raises LimitError where the host has too little memory."""
    with _memory_told():
        return performer.perform(work)


def run_within(
    performer: Performer, inside: Callable[[], T], begin: Callable[[], Run | FinishedRun[T]]
) -> T:
    """Return what `inside` gives; LimitError where the host has too little memory.

    Where other threads wait for the device, `begin` is called in its place, and theirs are begun
    while this run is computed.
    """
    device = performer.device
    if device is None or not device.contended:
        return within_memory(performer, inside)
    with _memory_told():
        run: Callable[[], Any] = begin
        found: T = device.overlap(run, lambda begun: begun.results())
        return found


@contextmanager
def _memory_told() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise out_of_memory(error) from None


class Executing(Protocol):
    """An executor, or stored plans, as sessions use them: `run` waits, `begin` does not."""

    @property
    def device(self) -> Device | None:
        """The device that it runs on; None where no GL is involved."""

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Return the outputs so called, None for all, for the inputs `feeds`; see `Runner.run`."""

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` where `begin` may be called; return or raise what it does."""

    def begin(
        self, feeds: Mapping[str, Array], outputs: tuple[str, ...], out: Mapping[str, Array]
    ) -> Run:
        """Have the device begin with a run, as `run` has it. To be called inside `perform`."""

    def settle(self) -> None:
        """Hand new plans to the saver, once a run gave results. Inside `perform`."""
