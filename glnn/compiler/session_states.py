"""States of a session: inputs that stay on the device from run to run, updated by outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

import numpy as np

from glnn.backends import Backend
from glnn.compiler.backend_autotune import AutoExecutor
from glnn.compiler.executor import Executor
from glnn.compiler.partitioned_graph import PartitionedGraph
from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.core.cached_property import cached_property
from glnn.core.process import THIS_PROCESS, out_of_memory, process_lock
from glnn.core.tensor_info import ModelInfo, TensorInfo, check_shared_sizes, shared_sizes
from glnn.core.types import UNKNOWN, Array, DType, TensorType, narrowed
from glnn.errors import DeviceError, ModelError, ShapeError, UnsupportedOpError, shown
from glnn.gl import Device
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import Pointwise
from glnn.runtime.device_array import Feed, as_host_array
from glnn.runtime.requests import Requests, RunRequest
from glnn.runtime.runner import FinishedRun, Out, Run, ThreadSafeRun
from glnn.runtime.store import T

R = TypeVar("R")
DTYPES = {
    DType.float32: DType.float32,
    DType.float16: DType.float32,
    DType.int32: DType.int32,
    DType.int64: DType.int32,
    DType.int8: DType.int32,
    DType.uint8: DType.int32,
    DType.bool: DType.int32,
}
"""The dtypes that a state may have, and the dtype as which a device stores each."""


def stored_dtype(dtype: DType, backend: Backend) -> DType:
    """Return the dtype as which `backend` stores a state of `dtype`: the host has int64."""
    return dtype if dtype is DType.int64 and backend.device is None else DTYPES[dtype]


class SessionStates:
    """The states of one stream of runs: inputs of a model that outputs update.

    `InferenceSession.make_states` makes them, `run` and `run_async` take them. They are on the
    device from the first run on: neither fed nor read back. Each object of a session is a stream of
    its own; the streams share plans and the memory that plans use, so that the content of one is
    parked in other memory while another stream runs. Any thread may use them.

    executor: runs the model. pairs: by the name of an input, the output that updates it. initial:
    the arrays that states begin with; those that it leaves out begin with zeros. shared: the plans
    of all streams of the session.
    """

    def __init__(
        self,
        executor: Executor | AutoExecutor,
        model: ModelInfo,
        pairs: Mapping[str, str] | None,
        initial: Mapping[str, Array] | None,
        shared: SharedPlans,
    ) -> None:
        self.updates = checked_pairs(model.name, model.inputs, model.outputs, pairs)
        """By the names of the inputs that are states, those of the outputs that update them."""
        self._initial = _initial(model.inputs, self.updates, {} if initial is None else initial)
        self.shapes = {name: array.shape for name, array in self._initial.items()}
        """The shape of each."""
        self._executor, self._model = executor, model.name
        self.shared, self._lock = shared, shared.lock
        self._pending = dict(self._initial)
        """The arrays that are written to the states before the next run."""
        self._plans: Plans | None = None
        self._states_lost = False
        """True where the last run was stopped while it updated them."""
        self.parked: States | None = None
        """The content, after another stream took the plans' memory."""
        self._submitted: dict[int, list[Future[list[Array]]]] = {}
        """The futures of `submit` that may not be done, by process: a fork has none."""
        self._submitting = process_lock()
        """Held while `_submitted` changes."""

    def __repr__(self) -> str:
        """Each state with its shape and the output that updates it."""
        said = (f"{name} {self.shapes[name]} <- {out}" for name, out in self.updates.items())
        return f"SessionStates({self._model}: {', '.join(said)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs that are states."""
        return tuple(self.updates)

    def read(self) -> dict[str, Array]:
        """Return copies of the states by their inputs' names, as the last run left them.

        Waits for the runs that were begun. Raises DeviceError where they were lost with the device.
        """

        def read() -> dict[str, Array]:
            with self._lock:
                self._check_lost()
                contents = {name: np.array(array) for name, array in self._pending.items()}
                on_device = [name for name in self.names if name not in contents]
                if on_device and self._plans is not None:
                    states = self._plans.content(self)
                    for name in on_device:
                        array = states[name].read()
                        contents[name] = array.astype(self._initial[name].dtype, copy=False)
                return {name: contents[name] for name in self.names}

        with self._lock:
            self._check_lost()
            plans = self._plans
            if plans is None:  # nothing is on a device yet
                return read()
        return plans.backend.perform(read)

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Set states to copies of `arrays`, by name, from the next run on.

        Raises ModelError for an unknown name, ShapeError for another shape or dtype.
        """
        if not isinstance(arrays, Mapping):
            raise ShapeError(f"arrays must map states to arrays, got {shown(arrays)}")
        for name, array in arrays.items():
            if name not in self.updates:
                raise ModelError(f"there is no state {shown(name)}: there are {self.names}")
            first = self._initial[name]
            like = isinstance(array, np.ndarray) and array.dtype == first.dtype
            if not like or array.shape != first.shape:
                got = shown(array)
                if isinstance(array, np.ndarray):
                    got = f"a {array.dtype} array of shape {array.shape}"
                raise ShapeError(f"state {name!r} is {TensorType.from_array(first)}, got {got}")
        copies = {name: np.array(array) for name, array in arrays.items()}
        self._wait_for_requests()
        with self._lock:
            self._pending.update(copies)

    def reset(self) -> None:
        """Set all states to their initial arrays from the next run on."""
        self._wait_for_requests()
        with self._lock:
            self._pending = dict(self._initial)

    # Methods for `InferenceSession` and `Requests`.

    def submit(
        self, feeds: Mapping[str, Array], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Future[list[Array]]:
        """Submit a run; see `Requests.submit`."""
        request = RunRequest(feeds, outputs, out, self._requests)
        try:  # recorded first: `_wait_for_requests` must know every run that was put
            with self._submitting:
                earlier = self._submitted.get(THIS_PROCESS.id, [])
                self._submitted[THIS_PROCESS.id] = [
                    *(f for f in earlier if not f.done()),
                    request.future,
                ]
            self._requests.put(request)
        except BaseException:
            request.future.cancel()
            raise
        return request.future

    def _wait_for_requests(self) -> None:
        """Wait for the runs of `submit`: the runs of a stream follow the order of the calls.

        Not in the thread that serves the requests, as in a callback of a future: that would wait
        for itself.
        """
        if self._submitted and not self._requests.served_here:
            wait([one for one in self._submitted.get(THIS_PROCESS.id, ()) if not one.done()])

    @cached_property
    def _requests(self) -> Requests:
        """The requests, made on first use: a reference cycle, which delays freeing memory."""
        return Requests(self)

    @property
    def device(self) -> Device | None:
        """See `ModelExecutor`."""
        return self._executor.device

    def run(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """Run the model once, updating the states; see `ModelExecutor`."""
        self._wait_for_requests()
        names = None if outputs is None else tuple(outputs)
        arrays = {name: as_host_array(one) for name, one in feeds.items()}
        executor = self._fixed_executor(arrays)
        try:
            return executor.perform(
                lambda: self._run_with_states(
                    executor, arrays, lambda plan: plan.run_on_thread(arrays, names, out)
                )
            )
        except MemoryError as error:
            raise out_of_memory(error) from None

    def perform(self, work: Callable[[], T]) -> T:
        """See `ModelExecutor`."""
        return self._executor.perform(work)

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """See `ModelExecutor`."""
        arrays = {name: as_host_array(one) for name, one in feeds.items()}
        executor = self._fixed_executor(arrays)

        def begin(plan: Plan) -> Run:
            if plan.backend.device is None:
                return FinishedRun(plan.run_on_thread(arrays, outputs, out))
            return plan.begin(arrays, outputs, out)

        result = executor.perform(lambda: self._run_with_states(executor, arrays, begin))
        return result if isinstance(result, FinishedRun) else ThreadSafeRun(executor, result)

    def settle(self) -> None:
        """See `ModelExecutor`."""

    def _fixed_executor(self, feeds: Mapping[str, Array]) -> Executor:
        """Return the executor of all runs; with `auto` the first run measures and fixes it."""
        executor = self._executor
        if isinstance(executor, AutoExecutor):
            chosen = executor.executor_for({**feeds, **self._initial})
            with self._lock:  # another thread's first run may have fixed it
                if isinstance(self._executor, AutoExecutor):
                    self._executor = chosen
                executor = self._executor
            assert not isinstance(executor, AutoExecutor)
        return executor

    def _run_with_states(
        self, executor: Executor, feeds: Mapping[str, Array], run: Callable[[Plan], R]
    ) -> R:
        """Call `run` with the plan for `feeds`, after these states were loaded to the device.

        Where it raises, the states are as before or lost, or, where only reading the results
        failed, updated. Only inside `perform`.
        """
        with self._lock:
            self._check_lost()
            if self._plans is None or self._plans.backend is not executor.backend:
                self._plans = self.shared.plans_for(executor, self.updates, self._initial)
            plans = self._plans
            plan = plans.plan(feeds)
            plans.load(self, self._pending)
            self._pending = {}
            # A step of the host may raise after other steps have updated states.
            backup = plans.copied() if plan.backend.device and plan.hosted else None
            try:
                return run(plan)
            except BaseException:
                self._states_lost = backup is not None or plan.states_lost
                if backup is not None and plan.backend.device and not plan.backend.device.lost:
                    plans.restore(backup)
                    self._states_lost = False
                raise

    def _check_lost(self) -> None:
        """Raise DeviceError where the content of a state was lost with the device or a run."""
        device = None if self._plans is None else self._plans.backend.device
        lost = device is not None and (device.lost or device.closed)
        if not lost and not self._states_lost:
            return
        if missing := [name for name in self.names if name not in self._pending]:
            why = device.lost or "the device was closed" if device and lost else "a run was stopped"
            raise DeviceError(
                f"{why}; with it went the states {', '.join(map(repr, missing))} of {self._model}: "
                "reset() or write() them"
            )
        self._states_lost = False
        if lost:
            self._plans, self.parked = None, None


class SharedPlans:
    """The plans of the streams of one session, by the types of their states."""

    def __init__(self) -> None:
        self.lock = process_lock()
        """Held while the states of a stream are read or written, or a run uses them."""
        self._plans: weakref.WeakValueDictionary[tuple[object, ...], Plans]
        self._plans = weakref.WeakValueDictionary()

    def plans_for(
        self, executor: Executor, updates: Mapping[str, str], arrays: Mapping[str, Array]
    ) -> Plans:
        """Return the plans for states like `arrays`. They live as long as a stream uses them."""
        types = tuple(
            (name, TensorType.from_array(arrays[name]), out) for name, out in updates.items()
        )
        key = (id(executor.backend), types)
        result = self._plans.get(key)
        if result is None or result.backend is not executor.backend:
            result = self._plans[key] = Plans(executor, updates, arrays)
        return result


class Plans:
    """Plans that use the same states, and the stream that owns these states' content.

    Only inside `perform`.
    """

    def __init__(
        self, executor: Executor, updates: Mapping[str, str], arrays: Mapping[str, Array]
    ) -> None:
        self.backend = executor.backend
        self._types = {
            name: TensorType(one.shape, stored_dtype(DType.from_array(one), self.backend))
            for name, one in arrays.items()
        }
        self._outputs = updates
        graph, self._updates = with_states(executor.graph, updates, self._types)
        if wrong := graph.shape_input_names(
            {name: type.shape for name, type in self._types.items()}
        ):
            raise UnsupportedOpError(
                f"input {wrong[0]!r} of {graph.name} cannot be a state: its numbers decide sizes, "
                "which the host must know"
            )
        self._states = self._empty()
        self._executor = executor.with_states(graph, self._states, self._updates)
        self._owner: weakref.ref[SessionStates] | None = None

    def _empty(self) -> States:
        result = States(self.backend)
        for name, type in self._types.items():
            result.add(name, np.zeros(type.shape, type.dtype.numpy))
        return result

    def plan(self, feeds: Mapping[str, Array]) -> Plan:
        """Return the plan for inputs like `feeds`, made now unless it exists."""

        def reserve(plan: Plan | PartitionedGraph) -> Plan:
            assert isinstance(plan, Plan)  # a graph with states is not partitioned
            plan.reserve(feeds)  # before the run, which cannot be repeated once begun
            return plan

        try:
            return self._executor.with_room(feeds, self.backend, reserve)
        except ShapeError:
            self._check_updates(feeds)
            raise

    def _check_updates(self, feeds: Mapping[str, Array]) -> None:
        """Raise ShapeError where an output is of another type than the state that it updates."""
        graph = self._executor.graph
        shapes = {name: array.shape for name, array in feeds.items()}
        shapes |= {name: type.shape for name, type in self._types.items()}
        types, _ = graph.propagate_constants(
            graph.input_types(shapes), graph.shape_input_arrays(feeds)
        )
        for name, output in self._updates.items():
            type = next(types.get(value) for value in graph.outputs if value.name == output)
            if type is not None and not _fits(type, self._types[name]):
                raise _other_type(name, self._types[name], self._outputs[name], type)

    def load(self, stream: SessionStates, arrays: Mapping[str, Array]) -> None:
        """Load the content of `stream` to the states, then overwrite some by `arrays`."""
        values = {
            name: narrowed(f"state {name!r}", array)
            if self._types[name].dtype is DType.int32
            else array
            for name, array in arrays.items()
        }
        owner = None if self._owner is None else self._owner()
        if owner is not stream:
            if owner is not None:
                owner.parked = self.copied(owner.parked)
            self._owner = None  # in case this is interrupted
            if stream.parked is not None:
                self.restore(stream.parked)
            self._owner = weakref.ref(stream)
        for name, array in values.items():
            self._states[name].set(np.array(array, self._types[name].dtype.numpy))

    def content(self, stream: SessionStates) -> States:
        """Return the states that have the content of `stream`."""
        owner = None if self._owner is None else self._owner()
        return self._states if owner is stream or stream.parked is None else stream.parked

    def copied(self, into: States | None = None) -> States:
        """Return copies of the states on the device, in `into`, or in new states."""
        result = self._empty() if into is None else into
        for name in self._types:
            result[name].copy_from(self._states[name])
        return result

    def restore(self, source: States) -> None:
        """Copy the content of `source` to the states."""
        for name in self._types:
            self._states[name].copy_from(source[name])


def with_states(
    graph: Graph, updates: Mapping[str, str], types: Mapping[str, TensorType]
) -> tuple[Graph, dict[str, str]]:
    """Return `graph` with inputs that are states of `types`, and the names of the outputs that
    update them.

    A state that is stored as another dtype than the input's is cast before and after the graph.
    """
    replaced: dict[Value, Value] = {}
    casts: list[Node] = []
    inputs: list[Value] = []
    sizes = {
        dim: size
        for value in graph.inputs
        if value.name in types
        for dim, size in zip(value.type.dims, types[value.name].shape, strict=False)
        if isinstance(dim, str) and dim != UNKNOWN
    }
    for value in graph.inputs:
        type = types.get(value.name)
        if type is None:  # no state; a size that it shares with a state is known
            type = value.type.bound(sizes)
        new = Value(value.name, type, Kind.INPUT)
        inputs.append(new)
        replaced[value] = new
        if type.dtype is not value.type.dtype:
            replaced[value] = Value(f"{value.name} as {value.type.dtype.value}", value.type)
            casts.append(_cast(new, replaced[value]))
    names = {output: name for name, output in updates.items()}
    output_casts: list[Node] = []
    outputs: list[Value] = []
    renamed = dict(updates)
    for value in graph.outputs:
        output = replaced.get(value, value)
        name = names.get(value.name)
        if name is not None and types[name].dtype is not value.type.dtype:
            dtype = types[name].dtype
            stored = Value(f"{value.name} as {dtype.value}", TensorType(output.type.dims, dtype))
            output_casts.append(_cast(output, stored))
            renamed[name], output = stored.name, stored
        outputs.append(output)
    nodes = (*casts, *(node.with_values(replaced) for node in graph.nodes), *output_casts)
    return Graph(nodes, tuple(inputs), tuple(outputs), graph.name), renamed


def _cast(value: Value, result: Value) -> Node:
    function = call(f"cast_{result.type.dtype.value}", Arg(0))
    return Node(result.name, Pointwise(function), (value,), (result,))


def _fits(open_type: TensorType, type: TensorType) -> bool:
    """Return whether a tensor of `open_type`, which may have open sizes, can be of `type`."""
    if not open_type.ranked:
        return open_type.dtype is type.dtype
    pairs = zip(open_type.dims, type.dims, strict=False)
    alike = all(isinstance(a, str) or isinstance(b, str) or a == b for a, b in pairs)
    return alike and open_type.dtype is type.dtype and len(open_type.dims) == len(type.dims)


def _other_type(name: str, type: TensorType, output: str, got: TensorType) -> ShapeError:
    return ShapeError(
        f"state {name!r}, {type}, cannot be updated by output {output!r}, {got}: "
        "a state keeps its shape and dtype"
    )


def checked_pairs(
    model: str,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    pairs: Mapping[str, str] | None,
) -> dict[str, str]:
    """Return `pairs`, None for those of `past_pairs`. Raises ModelError or ShapeError where bad."""
    taken, results = {one.name: one for one in inputs}, {one.name: one for one in outputs}
    if pairs is None:
        pairs = past_pairs(model, tuple(taken), tuple(results))
    if not isinstance(pairs, Mapping) or not pairs:
        raise ModelError(f"states must map inputs to the outputs that update them: {shown(pairs)}")
    by_output: dict[str, str] = {}
    for name, output in pairs.items():
        for what, wanted, infos in (("input", name, taken), ("output", output, results)):
            if wanted not in infos:
                raise ModelError(
                    f"state {shown(name)}, updated by {shown(output)}: {model} has no {what} "
                    f"{shown(wanted)}, it has {', '.join(map(repr, infos))}"
                )
        if output in by_output:
            raise ModelError(
                f"output {output!r} cannot update both states {by_output[output]!r} and {name!r}"
            )
        by_output[output] = name
        for one in (taken[name], results[output]):
            if one.holds or one.dtype not in DTYPES:
                raise ShapeError(
                    f"state {name!r}, updated by {output!r}: {one.name!r} is {one.type}, and a "
                    f"state is of {', '.join(dtype.value for dtype in DTYPES)}"
                )
        type, got = taken[name].tensor_type, results[output].tensor_type
        if got.dtype is not type.dtype or (type.ranked and not _fits(got, type)):
            raise _other_type(name, type, output, got)
    return dict(pairs)


def past_pairs(model: str, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Return the pairs of a key-value cache by their names: `past…` and `present…`.

    `past_key_values.3.key` goes with `present.3.key` or `present_key_values.3.key`, `past_3` with
    `present_3`. Raises ModelError where an input `past…` has no output, or there is none.
    """
    result: dict[str, str] = {}
    for name in inputs:
        if not name.startswith("past"):
            continue
        rest = name.removeprefix("past")
        wanted = (f"present{rest}", f"present{rest.removeprefix('_key_values')}")
        fits = [one for one in dict.fromkeys(wanted) if one in outputs]
        if len(fits) != 1:
            raise ModelError(
                f"input {name!r} of {model} goes with no one output "
                f"({', '.join(map(repr, dict.fromkeys(wanted)))}): say which pairs are states"
            )
        result[name] = fits[0]
    if not result:
        raise ModelError(
            f"{model} has no inputs 'past…' with outputs 'present…': say which pairs are states, "
            "as {'state': 'stateN'}"
        )
    return result


def _initial(
    inputs: Sequence[TensorInfo], updates: Mapping[str, str], initial: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the arrays that states begin with: copies of `initial`, else zeros."""
    if not isinstance(initial, Mapping):
        raise ShapeError(f"initial must map states to arrays, got {shown(initial)}")
    for name in initial:
        if name not in updates:
            raise ModelError(f"initial: there is no state {shown(name)}, only {tuple(updates)}")
    contents: dict[str, Array] = {}
    states = [info for info in inputs if info.name in updates]
    for info in states:
        if info.name in initial:
            contents[info.name] = np.array(info.fitting(initial[info.name]))
            continue
        if any(isinstance(size, str) for size in info.shape):
            raise ShapeError(
                f"state {info.name!r} is {info.tensor_type}, which is open: say how it begins, "
                f"initial={{{info.name!r}: array}}"
            )
        contents[info.name] = np.zeros(info.with_batch(0), info.dtype.numpy)
    check_shared_sizes(shared_sizes(states), {name: one.shape for name, one in contents.items()})
    return {name: contents[name] for name in updates}
