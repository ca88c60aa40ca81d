"""Runner: uploads inputs, launches commands, downloads outputs; and the runs under way."""

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

MOST_WORK = 1 << 16  # `max_work` of NumPy's search for an element that strided arrays share


class Run(Protocol):
    """A run under way or finished. Its methods are called inside `Performer.perform`."""

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait for the device no longer than `seconds`; return True where it is done.

        Raises DeviceError where the device was closed or reset.
        """

    def results(self) -> dict[str, Array]:
        """Wait for the requested outputs, and return them by name. Raises what `wait` raises."""


@dataclass(frozen=True)
class FinishedRun(Generic[T]):
    """A run without anything to wait for."""

    outputs: T
    """The requested outputs."""

    def wait(self, seconds: float = float("inf")) -> bool:
        return True

    def results(self) -> T:
        return self.outputs


class ThreadSafeRun:
    """A run for any thread: each method calls that of `run` inside `performer.perform`."""

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

    names: of the requested outputs. computed: those that commands compute and the host reads; their
    downloads start at once. device_arrays: those that stay on the device. fetch: returns any other
    one, once the device is done.
    """

    def __init__(
        self,
        buffers: BufferSet,
        names: Sequence[str],
        computed: Iterable[str],
        device_arrays: Mapping[str, DeviceArray],
        fetch: Callable[[str], Any],
    ) -> None:
        self.buffers, self._names = buffers, names
        self._device_arrays, self._fetch = device_arrays, fetch
        self._results: dict[str, Array] | None = None
        self._error: BaseException | None = None
        self.fence: Fence | None = None
        """The fence behind the run; None where fetching a result waits for it."""
        self.queue: deque[InFlightRun] | None = None
        """The runner's queue of runs; the run removes itself once its results are fetched."""
        for name in computed:
            buffers.result(name).start_download()

    @property
    def is_over(self) -> bool:
        """True once its BufferSet is free: results were fetched or failed, or none are wanted."""
        done = not self._names and self.fence is not None and self.fence.is_signaled
        return done or self._results is not None or self._error is not None

    def wait(self, seconds: float = float("inf")) -> bool:
        """See `Run`."""
        device = self.buffers.device
        if not self.is_over and device is not None and device.closed:
            raise DeviceError(device.lost or "the device was closed in the middle of a run")
        return self.is_over or self.fence is None or self.fence.wait(seconds)

    def results(self) -> dict[str, Array]:
        """See `Run`."""
        if self._error is not None:  # a later run may have its BufferSet by now
            raise self._error
        if self._results is None:
            try:
                if self.fence is not None:
                    self.wait()
                on_device: Mapping[str, Any] = self._device_arrays
                self._results = {
                    name: on_device[name] if name in on_device else self._fetch(name)
                    for name in self._names
                }
            except BaseException as error:
                self._error = error
                raise
            finally:
                del self._fetch, self._device_arrays  # a reference cycle by way of the runner
                if self.queue is not None:  # so that the caller alone refers to the arrays
                    with suppress(ValueError):
                        self.queue.remove(self)
                    self.queue = None
        return self._results


Out = Array | DeviceArray | type[DeviceArray]
"""The destination of an output: an array of the caller's; the class DeviceArray, where it stays on
the device; or a DeviceArray that is given up, whose memory the output may take.
"""


def unaliased(feeds: Mapping[str, Feed], out: Mapping[str, Out]) -> Mapping[str, Feed]:
    """Return `feeds`, copied where they may share memory with arrays of `out`.

    An output that is an input is copied from the feed, perhaps after other outputs were written.
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
    given_up = [array for array in out.values() if isinstance(array, DeviceArray)]
    if len({*map(id, given_up)}) < len(given_up):
        raise ShapeError("out has one DeviceArray for two outputs: each replaces its own")
    arrays = [(name, array) for name, array in out.items() if isinstance(array, np.ndarray)]
    for (name_a, a), (name_b, b) in combinations(arrays, 2):
        if np.may_share_memory(a, b) and _share_memory(a, b):
            raise ShapeError(
                f"out[{name_a!r}] and out[{name_b!r}] overlap: each must have its own memory"
            )


def _share_memory(a: Array, b: Array) -> bool:
    """Return True unless the arrays are known to share no element."""
    try:
        return np.shares_memory(a, b, max_work=MOST_WORK)  # type: ignore[arg-type]
    except RuntimeError:  # NumPy's TooHardError, which moved
        return True


def check_out(name: str, array: object, shape: Shape, dtype: DType) -> None:
    """Raise ShapeError unless `array` can take the output called `name`, of that type.

    The class DeviceArray takes any output.
    """
    if array is DeviceArray:
        return
    if isinstance(array, DeviceArray):
        if (array.shape, array.dtype) != (shape, dtype.numpy):
            wanted = f"a DeviceArray of {dtype.value} {shape}, which it replaces"
            raise ShapeError(f"out[{name!r}] must be {wanted}, got {array!r}")
        return
    fits = isinstance(array, np.ndarray) and (array.shape, array.dtype) == (shape, dtype.numpy)
    if fits and array.flags.writeable:  # type: ignore[attr-defined]
        if overlaps_itself(array):  # type: ignore[arg-type]
            raise ShapeError(
                f"out[{name!r}] overlaps itself: each element must have its own memory"
            )
        return
    got = shown(array)
    if isinstance(array, np.ndarray):
        access = "" if array.flags.writeable else "read-only "
        got = f"a {access}{array.dtype} array of shape {array.shape}"
    wanted = f"a writeable {dtype.value} array of shape {shape}"
    raise ShapeError(f"out[{name!r}] must be {wanted}, got {got}")


INT64 = DType.int64.numpy


def check_numbers(input: Input, array: Array, below: tuple[int, ...]) -> None:
    """Raise ShapeError where `array` has numbers that `input` does not admit.

    Indices must be within the tables of the sizes `below`; other integers must be small, or fit
    int32, as `input` says.
    """
    least, most = -inf, inf
    if len(below) == 1:
        least, most = -below[0], below[0] - 1
    if input.small:
        least, most = max(least, -MAX_SMALL), min(most, MAX_SMALL)
    if input.narrowed and array.dtype == INT64:
        least, most = max(least, -MOST - 1), min(most, MOST)
    if len(below) < 2 and array.dtype.kind in "iu" and lies_within(array, least, most):
        return  # the common case, in one pass
    if below:
        check_indices(input.error_name or f"input {input.name!r}", array, below)
    if input.small:
        check_small(input.name, array)
    if input.narrowed:
        narrowed(f"input {input.name!r}", array)


def within_memory(performer: Performer, work: Callable[[], T]) -> T:
    """Perform `work` and return its result. Raises LimitError where the host's memory runs out."""
    try:
        return performer.perform(work)
    except MemoryError as error:
        raise out_of_memory(error) from None


def run_within(
    performer: Performer, run: Callable[[], T], begin: Callable[[], Run | FinishedRun[T]]
) -> T:
    """Perform `run` and return its result. Raises LimitError where the host's memory runs out.

    Where other threads wait for the device, `begin` is called instead, and their runs begin while
    the device computes this one.
    """
    device = performer.device
    try:
        if device is None or not device.contended:
            return performer.perform(run)
        untyped: Callable[[], Any] = begin
        result: T = device.overlap(untyped, lambda begun: begun.results())
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
        """Run `feeds` and return the outputs called `outputs`; see `Runner.run`."""

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` on the thread where `begin` may be called; return or raise what it does."""

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """Begin a run as `run` does, without waiting for it. Only inside `perform`."""

    def settle(self) -> None:
        """Pass new plans to the writer of the disk cache after a run. Only inside `perform`."""


class Runner:
    """Runs `executable` for all shapes that its guards admit. Any thread may use it.

    performer: the backend or device that it runs on. resources: what its BufferSets share. sizes:
    the sizes of the symbols that it is bound to first. fixed: returns an output that no command
    computes, as a new array. nbytes: bytes of device memory that it takes for these sizes, without
    states. lock: held by runs on a backend without a device; None for a new lock.

    It is created inside `performer.perform`. Raises DeviceError where GL reports an error, as where
    memory runs out, LimitError where a texture is too large.
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
        """Held by each run without a device, as several threads may call at once."""
        io = executable.io
        self.outputs = tuple(one.name for one in io.outputs)
        """The names of the outputs."""
        self._fixed = frozenset(io.fixed())
        self._checked = tuple(
            one for one in io.inputs if one.narrowed or one.small or one.table_sizes
        )
        """The inputs whose numbers each run checks."""
        self._admitted: ArrayTypes | None = None
        """The types of the inputs that were admitted last; None where their numbers matter, too."""
        self._inputs = tuple((one.name, one.device_dtype is DType.float32) for one in io.inputs)
        """The names of the inputs, and whether each is widened to float32."""
        self._outputs = {one.name: one for one in io.outputs}
        self._runs: deque[InFlightRun] = deque()
        self._latest = BufferSet(executable, resources)
        self._latest.bind(sizes)
        self._sets = [self._latest]
        self._nbytes_of_rest = nbytes - self._nbytes_of_blocks
        """Bytes of device memory beside blocks, as of weights and textures."""
        self_ref = ref(self)  # no reference cycle: dropping the runner frees device memory at once

        def available() -> int | None:
            runner = self_ref()
            return None if runner is None else runner.available()

        resources.available, resources.checks_free_memory = available, True

    @property
    def buffers(self) -> BufferSet:
        """The BufferSet of the last run."""
        return self._latest

    @property
    def _nbytes_of_blocks(self) -> int:
        """Bytes of the blocks of all BufferSets, and of those that they share."""
        of_sets = sum(one.nbytes for one in self._sets)
        return of_sets + sum(memory.nbytes for memory in self._resources.memories.values())

    def available(self) -> int | None:
        """Return the bytes of device memory that are free beside it; None where unknown."""
        free = self._available()
        if free is not None and Settings.from_environment().memory is not None:
            free -= self._nbytes_of_rest + self._nbytes_of_blocks  # GLNN_MEMORY covers these, too
        return free

    @property
    def states_lost(self) -> bool:
        """Return True where the last run was interrupted while it updated states: their content is
        invalid.
        """
        return self._resources.states_lost

    def reserve(self, feeds: Mapping[str, Array]) -> None:
        """Allocate memory for a run of `feeds`. Only inside `perform`. Raises NoRoomError."""
        self._bind(self.executable.sizes(feeds))

    def fixed(self, name: str) -> Array:
        """Return the output `name`, which no command computes, as a new array."""
        return self._fixed_output(name, self._latest)

    def _inner(self, name: str) -> Output:
        """Return a description of the inner tensor called `name`. Raises ModelError."""
        raise ModelError(f"a plan of {', '.join(map(repr, self.outputs))} keeps no tensor {name!r}")

    def _prepare_run(self, names: Sequence[str]) -> None:
        """Check the names of outputs and refresh weights before a run. Only inside `perform`."""

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Bind to the sizes of the inputs, and upload these."""
        self._check(feeds)

        def upload() -> None:
            buffers = self._idle_buffers()
            buffers.bind(self.executable.sizes(feeds))
            self._upload(buffers, feeds)

        self._performer.perform(upload)

    def _check(self, feeds: Mapping[str, Array]) -> None:
        """Raise ShapeError unless the executable admits `feeds`."""
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
            # Of inputs alone: other entries of `feeds` are ignored, and need not be arrays.
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
            buffers.bind(buffers.sizes)  # detaches the memory of DeviceArrays
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
        """Run the inputs `feeds` and return the outputs called `outputs`, None for all.

        feeds: arrays of the inputs' own types. out: arrays to write outputs to, by the output's
        name, each of the output's shape and dtype. Weights that were assigned since the last run
        are uploaded first. Without outputs it does not wait for the device. Raises ShapeError on
        arrays of other shapes or types.
        """
        self._check(feeds)
        names, device = None if outputs is None else tuple(outputs), self._performer.device
        if names == () and device is not None:  # `begin` ends with a fence
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
            self.begin(feeds, outputs, out)
            return {}
        run = self._begin_run(feeds, outputs, out)
        fence = self._performer.fence()  # flushes, so that the device begins; results wait for it
        try:
            return run.results()
        finally:
            if fence is not None and not device.closed:  # a closed context has no fences
                fence.delete()

    def begin(
        self,
        feeds: Mapping[str, Feed],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Out] | None = None,
    ) -> InFlightRun:
        """Begin a run without waiting for it. Only inside `Performer.perform`.

        Where as many runs are under way as there are BufferSets, it waits for the oldest.
        """
        run = self._begin_run(feeds, outputs, out)
        run.fence = self._performer.fence()
        self._runs.append(run)
        run.queue = self._runs
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
        out_arrays: dict[str, Out] = {}
        device_arrays: dict[str, DeviceArray] = {}
        if any_on_device(feeds):
            device_arrays = {k: one for k, one in feeds.items() if isinstance(one, DeviceArray)}
            by_host = device_arrays.keys() - self.executable.device_inputs.keys()
            if by_host:
                feeds = {**feeds, **{name: device_arrays.pop(name).numpy() for name in by_host}}
        if out:
            out_arrays = {name: one for name, one in out.items() if one is not DeviceArray}
            device_outputs = {
                name: one if isinstance(one, DeviceArray) else None
                for name, one in out.items()
                if name not in out_arrays or stays_on_device(one)
            }
        sizes = self.executable.sizes(feeds)
        buffers = self._latest = self._bind(sizes, device_arrays, device_outputs)
        if out_arrays:
            for one in self.executable.io.outputs:
                if one.name in out_arrays:
                    check_out(one.name, out_arrays[one.name], buffers.shape(one), one.dtype)
            feeds = unaliased(feeds, out_arrays)
        self._upload(buffers, feeds)
        buffers.launch()
        return self._in_flight(buffers, self.outputs if outputs is None else outputs, out or {})

    def _bind(
        self,
        sizes: tuple[int, ...],
        arrays: Mapping[str, DeviceArray] = EMPTY,
        device_outputs: Mapping[str, DeviceArray | None] = NO_OUTPUTS,
    ) -> BufferSet:
        """Return a BufferSet for a new run, bound by `BufferSet.bind`. Where memory has no room for
        several, drop all but the first.
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
            with suppress(Exception):  # the run's caller gets the error
                self._runs.popleft().results()
        self._latest = buffers
        del self._sets[1:]
        buffers.bind(sizes, arrays, device_outputs)
        return buffers

    def _free_buffers(self) -> BufferSet:
        """Return a BufferSet for a new run; where all are in use, wait for the oldest run's."""
        while self._runs and self._runs[0].is_over:
            finished = self._runs.popleft()
            if finished.fence is not None:  # a later fence may have signaled it
                finished.fence.delete()
        if not self._runs:
            return self._sets[0]
        busy = [run.buffers for run in self._runs]
        result = next((one for one in self._sets if one not in busy), None)
        if result is None and len(self._sets) < self._most_runs:
            result = BufferSet(self.executable, self._resources)
            self._sets.append(result)
        if result is None:
            first = self._runs.popleft()
            with suppress(Exception):  # the run's caller gets the error
                first.results()
            result = first.buffers
        return result

    def _idle_buffers(self) -> BufferSet:
        """Wait for all runs under way, and return the BufferSet of the last run."""
        while self._runs:
            self._runs.popleft().results()
        return self._latest

    @cached_property
    def _most_runs(self) -> int:
        """The most runs under way at once; a second one needs memory for inputs and outputs."""
        if self._performer.device is None or not any(one.own for one in self.executable.blocks):
            return 1
        free = self.available()
        return 2 if free is None or self._latest.nbytes_of_another <= free else 1

    def _in_flight(
        self, buffers: BufferSet, names: Sequence[str], out: Mapping[str, Out]
    ) -> InFlightRun:
        """Start the downloads of the outputs `names` of the run in `buffers`; return the run."""
        kept: Mapping[str, DeviceArray] = EMPTY
        if out:
            wanted = [name for name in dict.fromkeys(names) if stays_on_device(out.get(name))]
            kept = buffers.keep([self._outputs[name] for name in wanted])
        computed = [name for name in names if name not in kept and name not in self._fixed]

        def fetch(name: str) -> Any:
            output, target = self._outputs.get(name) or self._inner(name), out.get(name)
            array = self._array(output, buffers, target if isinstance(target, np.ndarray) else None)
            return DeviceArray.of_host(array) if stays_on_device(target) else array

        return InFlightRun(buffers, names, computed, kept, fetch)

    def _array(self, output: Output, buffers: BufferSet, out: Array | None) -> Array:
        """Return an output as the run in `buffers` left it, in `out` or in a new array."""
        dtype, target = output.dtype, None
        if output.fixed:
            result = self._fixed_output(output.name, buffers)
        else:
            store = buffers.output(output.name)
            if out is not None and dtype is not DType.float16:
                target = out.reshape(store.shape)
            result = store.fetch(target).reshape(buffers.shape(output))
        if dtype is DType.float16:
            result = to_float16(result)
        elif dtype is DType.int64:
            result = result.astype(np.int64, copy=False)
        else:
            result = as_float(result)
        if out is None:
            return result
        if target is None or not np.may_share_memory(target, out):  # `reshape` made a copy
            out[...] = result
        return out
