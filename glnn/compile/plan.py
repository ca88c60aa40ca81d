"""A graph made ready for a backend and input shapes: launches in order, and their tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from glnn.backends import Backend, Launch
from glnn.compile.carried import Held, check_read
from glnn.compile.hosted import Hosted
from glnn.compile.lane import Lane
from glnn.compile.lanes import Lanes
from glnn.compile.outline import Outline
from glnn.compile.run import Begun, apart, check_out
from glnn.compile.shortage import check
from glnn.compile.states import States
from glnn.compile.step import Step
from glnn.compile.weights import Weights
from glnn.errors import ModelError
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph, Value
from glnn.graph.passes import Pass
from glnn.graph.passes.small import check_small, named_small
from glnn.process import ProcessLock
from glnn.span import Span, Spans
from glnn.types import Array, DType, Shape, as_float, narrowed, to_float16

LOG = logging.getLogger(__name__)


class Plan:
    """A graph on one backend for one set of input shapes.

    graph: what to compute. backend: where. shapes: each input's shape, by its name.
    kernels: the kernel to take for an op, by the op's name; others are chosen.
    without: the passes that are left out.
    keep: whether every tensor keeps its memory, so that `value` can be asked for any.
    weights: those that several plans share; None has its own. precision: as what the weights of
    contractions and tables that are looked up are stored, float32 or float16.
    states: what stays on the device from run to run. An input called as one of them is not given
    in a run: it is that state. updates: by a state's name the name of the output that is its
    content from the next run on; whatever a run computes, it computes of the content before. Such
    an output is not read back: the state is.

    Raises UnsupportedOpError or LimitError where the backend cannot compute a layer or the device
    has too little memory, ShapeError where the shapes do not fit. Any thread may use it.
    """

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        without: frozenset[Pass] = frozenset(),
        keep: bool = False,
        weights: Weights | None = None,
        precision: DType = DType.float32,
        states: States | None = None,
        updates: Mapping[str, str] | None = None,
    ) -> None:
        self.graph, self.backend = graph, backend
        self._lock = _turns(backend, states)
        self._weights = Weights(backend) if weights is None else weights
        held = Held.of(states, updates or {}, graph, backend)
        shapes = {**shapes, **held.shapes(graph)}
        made = Spans()

        def make() -> tuple[Outline, Lanes]:
            while True:
                with made.of("outline"):
                    outline = Outline.of(
                        graph,
                        backend,
                        shapes,
                        kernels,
                        without=without,
                        keep=keep,
                        weights=self._weights,
                        precision=precision,
                        available=(available := (states or backend).available()),
                        states=held,
                    )
                check(outline, available)
                with made.of("examine"):
                    again = outline.examine()
                if not again:
                    with made.of("prepare"):
                        return outline, Lanes(outline, self._weights, states)

        with made.of("plan"):
            self.outline, self._lanes = backend.perform(make)
        self.made: tuple[Span, ...] = tuple(made)
        """When it was planned, the last of them as a whole: outlined, its kernels examined, then
        its memory and programs prepared."""
        self._log(shapes)
        ends = held.updates.values()
        self.outputs = tuple(value.name for value in graph.outputs if value.name not in ends)
        """The names of the graph's outputs, without those that are states."""
        planned = {value.name: value for value in self.outline.graph.outputs}
        self._fixed = {
            name: planned[name]
            for name in self.outputs
            if planned[name] not in self.outline.outputs
        }
        self._see_types(graph)

    def _see_types(self, graph: Graph) -> None:
        """Note which arrays have other types on the device."""
        given = (*graph.inputs, *graph.outputs)
        self._rounded = {v.name for v in given if v.type.dtype is DType.float16}
        # Whatever stands for them in the plan.
        self._of_int64 = {v.name for v in _values(graph) if v.type.dtype is DType.int64}
        inputs = self._lanes[0].inputs
        wide = self._of_int64 & inputs.keys()
        self._narrowed = {name for name in wide if inputs[name].dtype is DType.int32}
        self._small = named_small(graph)

    def _log(self, shapes: Mapping[str, Shape]) -> None:
        given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        where, took = f"{self.graph.name} for {given} on {self.backend.name}", self.made[-1].seconds
        LOG.info(
            "planned %s: %d steps, %d bytes, %.3f s", where, len(self.steps), self.nbytes, took
        )

    @property
    def uploaded(self) -> tuple[Span, ...]:
        """When the weights were, those of all plans that share them."""
        return tuple(self._weights.uploaded)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is performed, in order; `launches` has what performs it."""
        return self.outline.steps

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """What the host computes of it, of a plan for a GPU."""
        return self.outline.hosted

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What performs each step."""
        return self._lanes[0].prepared.launches

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and packed parameters."""
        return self.outline.nbytes

    def refresh(self) -> None:
        """Upload the weights that were assigned since the last run."""
        self.backend.perform(self._weights.refresh)

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs, arrays of the plan's shapes and of their own types, to the device."""
        self.backend.perform(lambda: self._upload(self._lanes.only(), feeds))

    def _upload(self, lane: Lane, feeds: Mapping[str, Array]) -> None:
        arrays = {
            name: as_float(feeds[name]) if store.dtype is DType.float32 else feeds[name]
            for name, store in lane.inputs.items()
        }
        for name in self._small:
            check_small(name, feeds[name])
        for name in self._narrowed:
            arrays[name] = narrowed(f"input {name!r}", arrays[name])
        lane.upload(arrays)

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        self.backend.perform(lambda: self._lanes.only().perform())

    def download(self) -> dict[str, Array]:
        """The outputs, waiting for them."""
        return self.backend.perform(
            lambda: self._asked(self._lanes.latest, self.outputs, {}).results()
        )

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """The graph's outputs for `feeds`: one upload, every step, one readback.

        feeds: each input's name and its array of the plan's shape. outputs: the names of those
        that are wanted, None for all; no others are read back. out: arrays that some of these are
        to be written to, each of its output's shape and dtype. Weights that were assigned since
        the last run are uploaded before. Where no outputs are wanted, nothing is waited for.
        """
        names = None if outputs is None else tuple(outputs)
        return self.backend.perform(lambda: self.inside(feeds, names, out))

    def inside(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """The same as `run`, for callers that are inside `Backend.perform`."""
        with self._lock:
            if outputs == () and self.backend.device is not None:
                self.begin(feeds, outputs, out)  # and wait for nothing
                return {}
            return self._begun(feeds, outputs, out).results()

    def begin(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None = None,
    ) -> Begun:
        """Have the device begin with a run, for callers that are inside `Backend.perform`.

        Where as many are under way as the plan has room for, the first of them is waited for.
        """
        run = self._begun(feeds, outputs, out)
        run.fence = self.backend.fence()
        self._lanes.add(run)
        return run

    def _begun(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None,
    ) -> Begun:
        check_read(outputs or (), self.outline.carried)
        if out:
            self._check(out)
        self._weights.refresh()
        lane = self._lanes.free()
        self._upload(lane, apart(feeds, out) if out else feeds)
        lane.perform()
        return self._asked(lane, self.outputs if outputs is None else outputs, out or {})

    def _check(self, out: Mapping[str, Array]) -> None:
        """Raise ShapeError unless the arrays `out` can take the outputs of these names."""
        tensors = self.outline.schedule.tensors
        for value in self.graph.outputs:
            if value.name in out:
                fixed = self._fixed.get(value.name)
                shape = tensors[value.name].shape if fixed is None else fixed.type.shape
                check_out(value.name, out[value.name], shape, value.type.dtype)

    def _asked(self, lane: Lane, names: Sequence[str], out: Mapping[str, Array]) -> Begun:
        """The run that was begun in `lane`, whose outputs `names` are on their way."""
        computed = [name for name in names if name not in self._fixed]
        return Begun(lane, names, computed, lambda name: self._found(lane, name, out.get(name)))

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new array of its type; float32 where
        it is float16 on the way, and neither input nor output.

        Raises ModelError where the plan has no such tensor: it may have been fused away, its
        memory may serve others by now (`keep` prevents that), or it is a state.
        """
        tensors, arena = self.outline.schedule.tensors, self.outline.arena
        if name in self._fixed:
            return self._value(name)
        check_read((name,), self.outline.carried)
        if name not in tensors:
            raise ModelError(f"the plan of {self.graph.name} keeps no tensor {name!r}")
        if tensors[name].memory in arena.overwritten:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        return self.backend.perform(lambda: self._value(name))

    def _value(self, name: str) -> Array:
        return self._asked(self._lanes.latest, (name,), {}).results()[name]

    def _found(self, lane: Lane, name: str, out: Array | None) -> Array:
        """The tensor called `name` as a run in `lane` left it, in `out` or in a new array."""
        if name in self._fixed:
            value = self._fixed[name]
            fixed = constant(self.outline.graph, value, {})
            found = np.array(evaluated(fixed, value.type.dtype))  # else who changes it changes that
            to = None
        else:
            shape = self.outline.schedule.tensors[name].shape
            store, plain = lane.stores[name], name not in self._rounded
            to = out.reshape(store.shape) if out is not None and plain else None
            found = store.fetch(to).reshape(shape)
        if name in self._rounded:
            found = to_float16(found)
        elif name in self._of_int64:
            found = found.astype(np.int64, copy=False)
        if out is None:
            return found
        if to is None or not np.may_share_memory(to, out):  # to reshape it was to copy it
            out[...] = found
        return out


def _turns(backend: Backend, states: States | None) -> AbstractContextManager[None]:
    """What a run holds: the cpu backend has several threads run at once, those of a device run one
    by one.
    """
    if backend.device is not None:
        return nullcontext()
    return ProcessLock() if states is None else states.lock


def _values(graph: Graph) -> Iterable[Value]:
    """What is given and computed."""
    return (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
