"""Runs, and the runner that begins them: it uploads inputs, runs commands, downloads outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import inf
from typing import Any, Generic, Protocol
from weakref import ref

import numpy as np

from glnn.core.array_functions import overlaps_itself
from glnn.core.cached_property import cached_property
from glnn.core.process import out_of_memory, process_lock
from glnn.core.settings import Settings
from glnn.core.types import (
    MAX_SMALL,
    MOST,
    Array,
    ArrayTypes,
    DType,
    Shape,
    as_float,
    check_indices,
    check_small,
    lies_within,
    narrowed,
    to_float16,
)
from glnn.errors import DeviceError, ModelError, NoRoomError, ShapeError, shown
from glnn.gl import Device, Fence
from glnn.runtime.buffer_set import EMPTY, NO_OUTPUTS, BufferSet, Resources
from glnn.runtime.device_array import (
    DeviceArray,
    Feed,
    any_on_device,
    as_host_array,
    stays_on_device,
)
from glnn.runtime.executable import Executable, Input, Output
from glnn.runtime.store import Performer, T

MOST_WORK = 1 << 16  # of NumPy, to see whether strided arrays share an element


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

    def __init__(self, performer: ModelExecutor, run: Run) -> None:
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
    download is asked for at once. kept: those that stay on the device. take: returns another one,
    once the device is done.
    """

    def __init__(
        self,
        buffers: BufferSet,
        names: Sequence[str],
        computed: Iterable[str],
        kept: Mapping[str, DeviceArray],
        take: Callable[[str], Any],
    ) -> None:
        self.buffers, self._names, self._kept, self._take = buffers, names, kept, take
        self._found: dict[str, Array] | None = None
        self._error: BaseException | None = None
        self.fence: Fence | None = None
        """Behind the run; None where to take a result is to wait for it."""
        self.under_way: deque[InFlightRun] | None = None
        """The runner's list of runs, which it leaves once its results are taken."""
        for name in computed:
            buffers.result(name).start_download()

    @property
    def over(self) -> bool:
        """True once its BufferSet is free: results were taken, cannot be, or none are wanted."""
        done = not self._names and self.fence is not None and self.fence.is_signaled
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
                kept: Mapping[str, Any] = self._kept
                self._found = {
                    name: kept[name] if name in kept else self._take(name) for name in self._names
                }
            except BaseException as error:
                self._error = error
                raise
            finally:
                del self._take, self._kept  # it refers to the runner, which may refer to this
                if self.under_way is not None:  # so that nothing keeps the arrays but who has them
                    with suppress(ValueError):
                        self.under_way.remove(self)
                    self.under_way = None
        return self._found


Out = Array | DeviceArray | type[DeviceArray]
"""Where an output is to be: in an array of the caller's, or on the device as a DeviceArray; where
it is one, a DeviceArray that is given up, whose memory the output may have.
"""


def unaliased(feeds: Mapping[str, Feed], out: Mapping[str, Out]) -> Mapping[str, Feed]:
    """Return `feeds`, copied where they may share memory with arrays of `out`.

    An output that is an input is taken from there, perhaps once others were written.
    """
    written = [one for one in out.values() if isinstance(one, np.ndarray)]
    if not written:
        return feeds
    return {
        name: array.copy()
        if isinstance(array, np.ndarray) and any(np.may_share_memory(array, one) for one in written)
        else array
        for name, array in feeds.items()
    }


def check_disjoint(out: Mapping[str, Out]) -> None:
    """Raise ShapeError where two arrays of `out` share memory."""
    given = [(name, one) for name, one in out.items() if one is not DeviceArray]
    given_up = [one for _, one in given if isinstance(one, DeviceArray)]
    if len({*map(id, given_up)}) < len(given_up):
        raise ShapeError("out has one DeviceArray for two outputs: each replaces its own")
    arrays = [(name, one) for name, one in given if isinstance(one, np.ndarray)]
    for (name, one), (other, another) in combinations(arrays, 2):
        if np.may_share_memory(one, another) and _share_memory(one, another):
            raise ShapeError(
                f"out[{name!r}] and out[{other!r}] overlap: each must have its own memory"
            )


def _share_memory(one: Array, other: Array) -> bool:
    """Return True unless the arrays are known to share no element."""
    try:
        return np.shares_memory(one, other, max_work=MOST_WORK)  # type: ignore[arg-type]
    except RuntimeError:  # NumPy's TooHardError, which moved
        return True


def check_out(name: str, array: object, shape: Shape, dtype: DType) -> None:
    """Raise ShapeError unless `array` can take the output called `name`, of that type.

    So can DeviceArray, the class, whatever the output is.
    """
    if array is DeviceArray:
        return
    if isinstance(array, DeviceArray):
        if (array.shape, array.dtype) != (shape, dtype.numpy):
            wanted = f"a DeviceArray of {dtype.value} {shape}, which it replaces"
            raise ShapeError(f"out[{name!r}] must be {wanted}, got {array!r}")
        return
    like = isinstance(array, np.ndarray) and (array.shape, array.dtype) == (shape, dtype.numpy)
    if like and array.flags.writeable:  # type: ignore[attr-defined]
        if overlaps_itself(array):  # type: ignore[arg-type]
            raise ShapeError(
                f"out[{name!r}] overlaps itself: each element must have its own memory"
            )
        return
    got = shown(array)
    if isinstance(array, np.ndarray):
        fixed = "" if array.flags.writeable else "read-only "
        got = f"a {fixed}{array.dtype} array of shape {array.shape}"
    wanted = f"a writeable {dtype.value} array of shape {shape}"
    raise ShapeError(f"out[{name!r}] must be {wanted}, got {got}")


INT64 = DType.int64.numpy


def check_numbers(input: Input, array: Array, below: tuple[int, ...]) -> None:
    """Raise ShapeError where `array` has numbers that a run does not take for `input`.

    Indices must be of tables of the sizes `below`, other integers small, or such as int32 holds, as
    the input says.
    """
    least, most = -inf, inf
    if len(below) == 1:
        least, most = -below[0], below[0] - 1
    if input.small:
        least, most = max(least, -MAX_SMALL), min(most, MAX_SMALL)
    if input.narrowed and array.dtype == INT64:
        least, most = max(least, -MOST - 1), min(most, MOST)
    if len(below) < 2 and array.dtype.kind in "iu" and lies_within(array, least, most):
        return  # most often, and at one look
    if below:
        check_indices(input.error_name or f"input {input.name!r}", array, below)
    if input.small:
        check_small(input.name, array)
    if input.narrowed:
        narrowed(f"input {input.name!r}", array)


def within_memory(performer: Performer, work: Callable[[], T]) -> T:
    """Return what `work` gives. Raises LimitError where the host has too little memory."""
    try:
        return performer.perform(work)
    except MemoryError as error:
        raise out_of_memory(error) from None


def run_within(
    performer: Performer, inside: Callable[[], T], begin: Callable[[], Run | FinishedRun[T]]
) -> T:
    """Return what `inside` gives; LimitError where the host has too little memory.

    Where other threads wait for the device, `begin` is called in its place, and theirs are begun
    while this run is computed.
    """
    device = performer.device
    try:
        if device is None or not device.contended:
            return performer.perform(inside)
        run: Callable[[], Any] = begin
        result: T = device.overlap(run, lambda begun: begun.results())
        return result
    except MemoryError as error:
        raise out_of_memory(error) from None


class ModelExecutor(Protocol):
    """An executor, or stored plans, as sessions use them: `run` waits, `begin` does not."""

    @property
    def device(self) -> Device | None:
        """The device that it runs on; None where no GL is involved."""

    def run(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """Return the outputs so called, None for all, for the inputs `feeds`; see `Runner.run`."""

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` where `begin` may be called; return or raise what it does."""

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """Have the device begin with a run, as `run` has it. To be called inside `perform`."""

    def settle(self) -> None:
        """Hand new plans to the saver, once a run gave results. Inside `perform`."""


class Runner:
    """Runs `executable` for whatever shapes its guards admit. Any thread may use it.

    performer: the backend or device that it runs on. resources: what its BufferSets share. sizes:
    of the symbols; it is bound to these at once. fixed: gives an output that no command computes,
    as a new array. nbytes: bytes of device memory that it takes for these sizes, states aside.
    lock: held by a run on a backend without a device; None is one of its own.

    Only inside `performer.perform` can one be made. Raises DeviceError where GL meets an error, as
    where memory runs out, LimitError where a texture is too large.
    """

    def __init__(
        self,
        executable: Executable,
        performer: Performer,
        resources: Resources,
        sizes: tuple[int, ...],
        *,
        fixed: Callable[[str, BufferSet], Array],
        nbytes: int,
        lock: AbstractContextManager[object, bool | None] | None = None,
    ) -> None:
        self.executable, self._performer, self._resources = executable, performer, resources
        self._fixed_output, self._available = fixed, resources.available
        self._lock = process_lock() if lock is None else lock
        """Taken by runs without a device, which several threads begin at once."""
        io = executable.io
        self.outputs = tuple(one.name for one in io.outputs)
        """The names of the outputs."""
        self._fixed = frozenset(io.fixed())
        self._checked = tuple(
            one for one in io.inputs if one.narrowed or one.small or one.table_sizes
        )
        """The inputs whose numbers are looked at in each run."""
        self._admitted: ArrayTypes | None = None
        """The types of the inputs that were admitted last, unless their numbers matter, too."""
        self._inputs = tuple((one.name, one.device_dtype is DType.float32) for one in io.inputs)
        """The names of the inputs, and whether each is widened to float32."""
        self._outputs = {one.name: one for one in io.outputs}
        self._runs: deque[InFlightRun] = deque()
        self._latest = BufferSet(executable, resources)
        self._latest.bind(sizes)
        self._sets = [self._latest]
        self._taken = nbytes - self._nbytes
        self_ref = ref(self)  # no circle: whoever drops it gets its device memory back at once

        def available() -> int | None:
            runner = self_ref()
            return None if runner is None else runner.available()

        resources.available, resources.checks_free_memory = available, True

    @property
    def buffers(self) -> BufferSet:
        """The BufferSet of the last run."""
        return self._latest

    @property
    def _nbytes(self) -> int:
        """Bytes of its blocks of memory."""
        of_sets = sum(one.nbytes for one in self._sets)
        return of_sets + sum(memory.nbytes for memory in self._resources.memories.values())

    def available(self) -> int | None:
        """Return the bytes of device memory that are free beside it; None where nobody knows."""
        free = self._available()
        if free is not None and Settings.from_environment().memory is not None:
            free -= self._taken + self._nbytes  # what GLNN_MEMORY allows is for all together
        return free

    @property
    def states_lost(self) -> bool:
        """Return True where the last run ended while it updated states, which leaves their content
        invalid.
        """
        return self._resources.states_lost

    def reserve(self, feeds: Mapping[str, Array]) -> None:
        """Have memory for a run of `feeds`. Only inside `perform`. Raises NoRoomError."""
        self._bind(self.executable.sizes(feeds))

    def fixed(self, name: str) -> Array:
        """Return the output of that name, which follows from sizes alone: a new array."""
        return self._fixed_output(name, self._latest)

    def _inner(self, name: str) -> Output:
        """Return what describes the tensor called `name`, which is no output. Raises ModelError."""
        raise ModelError(f"a plan of {', '.join(map(repr, self.outputs))} keeps no tensor {name!r}")

    def _prepare_run(self, names: Sequence[str]) -> None:
        """Check the names of outputs and refresh weights before a run. Only inside `perform`."""

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Bind to the sizes of the inputs, and move these to the device."""

        self._check(feeds)

        def upload() -> None:
            buffers = self._idle_buffers()
            buffers.bind(self.executable.sizes(feeds))
            self._upload(buffers, feeds)

        self._performer.perform(upload)

    def _check(self, feeds: Mapping[str, Array]) -> None:
        """Raise ShapeError unless `feeds` are what it can be bound to."""
        if self._admitted is not None and self._admitted.match(feeds):
            return
        for one in self.executable.io.inputs:
            array = feeds.get(one.name)
            if not isinstance(array, np.ndarray) or array.dtype != one.dtype.numpy:
                takes = f"input {one.name!r} of {self.executable.name} takes {one.dtype.value}"
                raise ShapeError(f"{takes}, got {shown(array)}")
        if not self.executable.admits(feeds):
            io = self.executable.io.inputs
            expected = {one.name: self._latest.number(one.shape) for one in io}
            got = {one.name: feeds[one.name].shape for one in io}
            raise ShapeError(f"a plan of {self.executable.name} for {expected} was given {got}")
        if not any(one.is_number for one in self.executable.symbols):
            # Of inputs alone: what else is there is nobody's, and need not be an array.
            self._admitted = ArrayTypes({name: feeds[name] for name, _ in self._inputs})

    def _upload(self, buffers: BufferSet, feeds: Mapping[str, Feed]) -> None:
        arrays: dict[str, Array] = {}
        for name, widened in self._inputs:
            array = feeds[name]
            if isinstance(array, np.ndarray):
                arrays[name] = as_float(array) if widened else array
        for one in self._checked:
            array = as_host_array(feeds[one.name])
            check_numbers(one, array, buffers.number(one.table_sizes))
            if one.narrowed and array.dtype == INT64:
                arrays[one.name] = array.astype(np.int32)
        buffers.upload(arrays)

    def launch(self) -> None:
        """Launch every step, without waiting for the device."""

        def launch() -> None:
            buffers = self._idle_buffers()
            buffers.bind(buffers.sizes)  # what a DeviceArray has is not written again
            buffers.launch()

        self._performer.perform(launch)

    def download(self) -> dict[str, Array]:
        """Return the outputs, waiting for them."""
        return self._performer.perform(
            lambda: self._in_flight(self._latest, self.outputs, {}).results()
        )

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Return the outputs so called, None for all, for the inputs `feeds`.

        feeds: arrays of the inputs' own types. out: by the names of outputs, arrays that they are
        to be written to, each of its output's shape and dtype. Weights that were assigned since
        the last run are uploaded before. Where no outputs are wanted, nothing is waited for. Raises
        ShapeError on arrays of other shapes or types.
        """
        self._check(feeds)
        names, device = None if outputs is None else tuple(outputs), self._performer.device
        if names == () and device is not None:  # its fence is the last command
            device.perform(partial(self.begin, feeds, names, out), fenced=True)
            return {}
        return self._performer.perform(lambda: self.run_on_thread(feeds, names, out))

    def run_on_thread(
        self,
        feeds: Mapping[str, Feed],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """Run as `run` does, on the thread of the device: only inside `Performer.perform`."""
        device = self._performer.device
        if device is None:
            with self._lock:
                return self._begin_run(feeds, outputs, out).results()
        if outputs == ():
            self.begin(feeds, outputs, out)  # waits for nothing
            return {}
        run = self._begin_run(feeds, outputs, out)
        fence = self._performer.fence()  # the device begins now, and results wait for this
        try:
            return run.results()
        finally:
            if fence is not None and not device.closed:  # with the context the fence went
                fence.delete()

    def begin(
        self,
        feeds: Mapping[str, Feed],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Out] | None = None,
    ) -> InFlightRun:
        """Have the device begin with a run, for callers that are inside `Performer.perform`.

        Where as many are under way as there is room for, the first of them is waited for.
        """
        run = self._begin_run(feeds, outputs, out)
        run.fence = self._performer.fence()
        self._runs.append(run)
        run.under_way = self._runs
        return run

    def _begin_run(
        self,
        feeds: Mapping[str, Feed],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Out] | None,
    ) -> InFlightRun:
        self._resources.states_lost = False
        self._prepare_run(outputs or ())
        device_outputs: Mapping[str, DeviceArray | None] = NO_OUTPUTS
        given: dict[str, Out] = {}
        there: dict[str, DeviceArray] = {}
        if any_on_device(feeds):
            there = {name: one for name, one in feeds.items() if isinstance(one, DeviceArray)}
            by_host = there.keys() - self.executable.device_inputs.keys()
            if by_host:
                feeds = {**feeds, **{name: there.pop(name).numpy() for name in by_host}}
        if out:
            given = {name: one for name, one in out.items() if one is not DeviceArray}
            device_outputs = {
                name: one if isinstance(one, DeviceArray) else None
                for name, one in out.items()
                if name not in given or stays_on_device(one)
            }
        buffers = self._latest = self._bind(self.executable.sizes(feeds), there, device_outputs)
        if given:
            for one in self.executable.io.outputs:
                if one.name in given:
                    check_out(one.name, given[one.name], buffers.shape(one), one.dtype)
            feeds = unaliased(feeds, given)
        self._upload(buffers, feeds)
        buffers.launch()
        return self._in_flight(buffers, self.outputs if outputs is None else outputs, out or {})

    def _bind(
        self,
        sizes: tuple[int, ...],
        arrays: Mapping[str, DeviceArray] = EMPTY,
        device_outputs: Mapping[str, DeviceArray | None] = NO_OUTPUTS,
    ) -> BufferSet:
        """Return a BufferSet for a new run, bound to all this (`BufferSet.bind`); the first, where
        only one has room.
        """
        buffers = self._free_buffers()
        try:
            buffers.bind(sizes, arrays, device_outputs)
            return buffers
        except NoRoomError:
            if not self._sets[1:]:
                raise
        self._most_runs, (buffers, *_) = 1, self._sets
        while self._runs:
            with suppress(Exception):  # who asked for it gets that
                self._runs.popleft().results()
        self._latest = buffers
        del self._sets[1:]
        buffers.bind(sizes, arrays, device_outputs)
        return buffers

    def _free_buffers(self) -> BufferSet:
        """Return a BufferSet for a new run; where all are in use, wait for the oldest run's."""
        while self._runs and self._runs[0].over:
            over = self._runs.popleft()
            if over.fence is not None:  # one behind it was waited for
                over.fence.delete()
        if not self._runs:
            return self._sets[0]
        busy = [run.buffers for run in self._runs]
        result = next((one for one in self._sets if one not in busy), None)
        if result is None and len(self._sets) < self._most_runs:
            result = BufferSet(self.executable, self._resources)
            self._sets.append(result)
        if result is None:
            first = self._runs.popleft()
            with suppress(Exception):  # who asked for it gets that
                first.results()
            result = first.buffers
        return result

    def _idle_buffers(self) -> BufferSet:
        """Wait for all runs under way, and return the BufferSet of the last."""
        while self._runs:
            self._runs.popleft().results()
        return self._latest

    @cached_property
    def _most_runs(self) -> int:
        """Runs that may be under way at once: a second one needs memory for inputs and outputs."""
        if self._performer.device is None or not any(one.own for one in self.executable.blocks):
            return 1
        free = self.available()
        return 2 if free is None or self._latest.nbytes_of_another <= free else 1

    def _in_flight(
        self, buffers: BufferSet, names: Sequence[str], out: Mapping[str, Out]
    ) -> InFlightRun:
        """Ask for the outputs `names` of the run in `buffers`, and return what waits for them."""
        kept: Mapping[str, DeviceArray] = EMPTY
        if out:
            wanted = [name for name in dict.fromkeys(names) if stays_on_device(out.get(name))]
            kept = buffers.keep([self._outputs[name] for name in wanted])
        computed = [name for name in names if name not in kept and name not in self._fixed]

        def result(name: str) -> Any:
            output, to = self._outputs.get(name) or self._inner(name), out.get(name)
            array = self._array(output, buffers, to if isinstance(to, np.ndarray) else None)
            return DeviceArray.of_host(array) if stays_on_device(to) else array

        return InFlightRun(buffers, names, computed, kept, result)

    def _array(self, output: Output, buffers: BufferSet, out: Array | None) -> Array:
        """Return an output as the run in `buffers` left it, in `out` or in a new array."""
        dtype, to = output.dtype, None
        if output.fixed:
            result = self._fixed_output(
                output.name, buffers
            )  # else who changes it changes the plan's
        else:
            store = buffers.output(output.name)
            if out is not None and dtype is not DType.float16:
                to = out.reshape(store.shape)
            result = store.fetch(to).reshape(buffers.shape(output))
        if dtype is DType.float16:
            result = to_float16(result)
        elif dtype is DType.int64:
            result = result.astype(np.int64, copy=False)
        else:
            result = as_float(result)
        if out is None:
            return result
        if to is None or not np.may_share_memory(to, out):  # to reshape it was to copy it
            out[...] = result
        return out
