"""A graph made ready for a backend and input shapes: launches in order, and their tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from glnn.backends import Backend, Launch
from glnn.compile.carried import Held, check_read
from glnn.compile.hosted import Hosted
from glnn.compile.lane import PlannedLane, most
from glnn.compile.outline import Outline
from glnn.compile.prepared import wanted
from glnn.compile.regime import SizedRegime, UnboundError
from glnn.compile.shortage import check, check_host
from glnn.compile.states import States
from glnn.compile.step import Step
from glnn.compile.weights import Weights
from glnn.errors import ModelError
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph
from glnn.graph.passes import Pass
from glnn.graph.passes.index_bounds import index_bounds
from glnn.graph.passes.small import named_small
from glnn.progress_bar import report_work
from glnn.running.ends import Ends, Input, Output
from glnn.running.lanes import Lanes
from glnn.running.runner import Runner
from glnn.running.store import Store
from glnn.span import Span, Spans, duration
from glnn.types import Array, DType, Shape, widened

LOG = logging.getLogger(__name__)


class Plan(Runner[PlannedLane]):
    """A graph on one backend for one set of input shapes.

    graph: what to compute. backend: where. shapes: each input's shape, by its name.
    kernels: the kernel to take for an op, by the op's name; others are chosen.
    without: the passes that are left out.
    keep: whether every tensor keeps its memory, so that `value` can be asked for any.
    weights: those that several plans share; None has its own. precision: as what the weights of
    contractions and tables that are looked up are stored, float32, float16 or int8. samples: of
    the batch; None where `graph` says by symbols of its inputs.
    states: what stays on the device from run to run. An input called as one of them is not given
    in a run: it is that state. updates: by a state's name the name of the output that is its
    content from the next run on; whatever a run computes, it computes of the content before. Such
    an output is not read back: the state is.
    own: the inputs whose indices a run checks, with what errors call them; None for all. Where
    `graph` is a part of another one, or a body, these have the numbers of the model's inputs, and
    the others are computed.

    regime: what it was planned as before; UnboundError is raised where that does not hold.

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
        samples: int | None = None,
        states: States | None = None,
        updates: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
        regime: SizedRegime | None = None,
    ) -> None:
        self.graph, self.backend = graph, backend
        self.bound = regime is not None
        """Whether it is a regime's, whose kernels may have been chosen for other sizes."""
        self._weights = Weights(backend) if weights is None else weights
        held = Held.of(states, updates or {}, graph, backend)
        shapes = {**shapes, **held.shapes(graph)}
        made = Spans()

        def outlined(available: int | None) -> Outline:
            if regime is not None:
                return regime.outline(available)
            return Outline.of(
                graph,
                backend,
                shapes,
                kernels,
                without=without,
                keep=keep,
                weights=self._weights,
                precision=precision,
                samples=samples,
                available=available,
                states=held,
            )

        with made.of("plan"), report_work("planning", f"{graph.name} on {backend.name}"):
            self.outline, lanes = backend.perform(lambda: self._make(outlined, states, made))
        self.made: tuple[Span, ...] = tuple(made)
        """When it was planned, the last of them as a whole: outlined, its kernels examined, then
        its memory and programs prepared."""
        bounds = index_bounds(graph, shapes) if regime is None else regime.below()
        if own is not None:
            bounds = {name: sizes for name, sizes in bounds.items() if name in own}
        ends = _ends(graph, self.outline, lanes[0].inputs, held, bounds, own or {})
        super().__init__(backend, lanes, ends, None if states is None else states.lock)
        planned = {value.name: value for value in self.outline.graph.outputs}
        self._constants = {name: planned[name] for name in ends.fixed()}
        self._types = _seen(graph)
        self._log(shapes)

    def _make(
        self, outlined: Callable[[int | None], Outline], states: States | None, made: Spans
    ) -> tuple[Outline, Lanes[PlannedLane]]:
        """Make the outline for the bytes that are free, and room for its runs.

        It is asked again where some kernels are wrong here. Raises what Plan raises.
        """
        while True:
            available = (states or self.backend).available()
            with made.of("outline"):
                outline = outlined(available)
            check(outline, available)
            if self.backend.device is None:
                check_host(outline, self._weights)
            with self._weights.ahead(wanted(outline)):
                with made.of("examine"):
                    again = outline.examine()
                if again and self.bound:
                    raise UnboundError("a kernel is wrong here")
                if not again:
                    with made.of("prepare"):
                        lane = partial(PlannedLane, outline, self._weights, states)
                        return outline, Lanes(lane, partial(most, outline, states))

    def _log(self, shapes: Mapping[str, Shape]) -> None:
        given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        where = f"{self.graph.name} for {given} on {self.backend.name}"
        took = duration(self.made[-1].seconds)
        LOG.info("planned %s: %d steps, %d bytes, %s", where, len(self.steps), self.nbytes, took)

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
    def lane(self) -> PlannedLane:
        """That of its runs which was there first."""
        return self._lanes[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and packed parameters."""
        return self.outline.nbytes

    def refresh(self) -> None:
        """Upload the weights that were assigned since the last run."""
        self.backend.perform(self._weights.refresh)

    def _before(self, names: Sequence[str]) -> None:
        check_read(names, self.outline.carried)
        self._weights.refresh()

    def fixed(self, name: str) -> Array:
        """See `Runner`; of weights as they are now."""
        value = self._constants[name]
        return np.array(evaluated(constant(self.outline.graph, value, {}), value.type.dtype))

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new array of its type; float32 where
        it is float16 on the way, and neither input nor output.

        Raises ModelError where the plan has no such tensor: it may have been fused away, its
        memory may serve others by now (`keep` prevents that), or it is a state.
        """
        if name in self._constants:
            return self.fixed(name)
        check_read((name,), self.outline.carried)
        tensor = self.outline.schedule.tensors.get(self.outline.outputs.get(name, name))
        if tensor is not None and tensor.memory in self.outline.arena.overwritten:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        _ = self._inner(name)
        found = self.backend.perform(lambda: self._asked(self._lanes.latest, (name,), {}).results())
        return found[name]

    def _inner(self, name: str) -> Output:
        tensor = self.outline.schedule.tensors.get(name)
        if tensor is None:
            raise ModelError(f"the plan of {self.graph.name} keeps no tensor {name!r}")
        return Output(name, self._types.get(name, widened(tensor.type).dtype), tensor.shape)


def _ends(
    graph: Graph,
    outline: Outline,
    inputs: Mapping[str, Store],
    states: Held,
    below: Mapping[str, tuple[int, ...]],
    called: Mapping[str, str],
) -> Ends:
    """The inputs and outputs of the plan of `graph`.

    inputs: the stores that take them. below: see `index_bounds`. called: see Input.
    """
    given = {value.name: value for value in graph.inputs}
    small = named_small(graph)
    tensors = outline.schedule.tensors
    takes = tuple(
        Input(
            name,
            given[name].type.dtype,
            tensors[name].shape,
            store.dtype,
            name in small,
            below.get(name, ()),
            called.get(name, ""),
        )
        for name, store in inputs.items()
    )
    planned = {value.name: value for value in outline.graph.outputs}
    gives = []
    for value in graph.outputs:
        if value.name not in states.updates.values():
            here = planned[value.name]
            fixed = here.name not in outline.outputs
            shape = here.type.shape if fixed else tensors[value.name].shape
            gives.append(Output(value.name, value.type.dtype, shape, fixed))
    return Ends(takes, tuple(gives))


def _seen(graph: Graph) -> dict[str, DType]:
    """The dtypes of tensors that may have another one on the device."""
    ends = (*graph.inputs, *graph.outputs)
    found = {v.name: v.type.dtype for v in ends if v.type.dtype is DType.float16}
    # Whatever stands for them in the plan.
    computed = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    return found | {v.name: DType.int64 for v in computed if v.type.dtype is DType.int64}
