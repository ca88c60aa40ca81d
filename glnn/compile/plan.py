"""A graph made ready for a backend and input shapes: launches in order, and their tensors."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import numpy as np

from glnn.backends import Backend, Launch
from glnn.compile.hosted import Hosted
from glnn.compile.lane import Lane, room, ways
from glnn.compile.outline import Outline
from glnn.compile.run import Begun, apart, check_out
from glnn.compile.step import Step
from glnn.compile.weights import Weights
from glnn.errors import ModelError
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph, Value
from glnn.graph.passes import Pass
from glnn.graph.passes.small import check_small, named_small
from glnn.process import ProcessLock
from glnn.settings import Settings
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
    ) -> None:
        self.graph, self.backend = graph, backend
        # The cpu backend has several threads run at once; those of a device run one by one.
        self._lock: AbstractContextManager[None] = (
            ProcessLock() if backend.device is None else nullcontext()
        )
        self._weights = Weights(backend) if weights is None else weights

        made = Spans()

        def make() -> tuple[Outline, Lane]:
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
                        available=(available := backend.available()),
                    )
                outline.check(available)
                with made.of("examine"):
                    again = outline.examine()
                if not again:
                    with made.of("prepare"):
                        return outline, Lane(outline, self._weights)

        with made.of("plan"):
            self.outline, lane = backend.perform(make)
        self.made: tuple[Span, ...] = tuple(made)
        """When it was planned, the last of them as a whole: outlined, its kernels examined, then
        its memory and programs prepared."""
        self._log(shapes)
        self._lanes = [lane]
        self._latest = lane  # that of the last run
        self._runs: deque[Begun] = deque()
        changing = self.outline.outputs
        self._fixed = {v.name: v for v in self.outline.graph.outputs if v not in changing}
        ends = (*graph.inputs, *graph.outputs)
        self._rounded = {v.name for v in ends if v.type.dtype is DType.float16}
        # Whatever stands for them in the plan.
        self._of_int64 = {v.name for v in _values(graph) if v.type.dtype is DType.int64}
        given = self._of_int64 & lane.inputs.keys()
        self._narrowed = {name for name in given if lane.inputs[name].dtype is DType.int32}
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
    def outputs(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return tuple(value.name for value in self.graph.outputs)

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
        self.backend.perform(lambda: self._upload(self._only(), feeds))

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
        self.backend.perform(lambda: self._only().perform())

    def download(self) -> dict[str, Array]:
        """The outputs, waiting for them."""
        return self.backend.perform(lambda: self._asked(self._latest, self.outputs, {}).results())

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
        the last run are uploaded before.
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
        self._runs.append(run)
        return run

    def _begun(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None,
    ) -> Begun:
        if out:
            self._check(out)
        self._weights.refresh()
        self._latest = lane = self._free()
        self._upload(lane, apart(feeds, out) if out else feeds)
        lane.perform()
        return self._asked(lane, outputs or self.outputs, out or {})

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

    def _free(self) -> Lane:
        """Room for a run: where none is left, that of the first that is under way."""
        while self._runs and self._runs[0].over:
            self._runs.popleft()
        taken = [run.lane for run in self._runs]
        for lane in self._lanes:
            if lane not in taken:
                return lane
        if len(self._lanes) < self._most_lanes():
            self._lanes.append(Lane(self.outline, self._weights, self._lanes[0]))
            return self._lanes[-1]
        first = self._runs.popleft()
        with suppress(Exception):  # who asked for it gets that
            first.results()
        return first.lane

    def _only(self) -> Lane:
        """The lane of the last run, once no run that was begun needs its outputs any more."""
        while self._runs:
            self._runs.popleft().results()
        return self._latest

    def _most_lanes(self) -> int:
        """How many runs may be under way: a second one needs inputs and outputs of its own."""
        if not ways(self.outline) or (free := self.backend.available()) is None:
            return 1
        used = self.nbytes if Settings.from_environment().memory is not None else 0
        return 2 if used + room(self.outline) <= free else 1

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new array of its type; float32 where
        it is float16 on the way, and neither input nor output.

        Raises ModelError where the plan has no such tensor: it may have been fused away, or its
        memory may serve others by now (`keep` prevents that).
        """
        tensors, arena = self.outline.schedule.tensors, self.outline.arena
        if name in self._fixed:
            return self._value(name)
        if name not in tensors:
            raise ModelError(f"the plan of {self.graph.name} keeps no tensor {name!r}")
        if tensors[name].memory in arena.overwritten:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        return self.backend.perform(lambda: self._value(name))

    def _value(self, name: str) -> Array:
        return self._asked(self._latest, (name,), {}).results()[name]

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


def _values(graph: Graph) -> Iterable[Value]:
    """What is given and computed."""
    return (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
