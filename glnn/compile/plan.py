"""A graph made ready for a backend and input shapes: launches in order, and their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np

from glnn.backends import Backend, Launch
from glnn.compile.outline import Outline
from glnn.compile.prepared import Prepared
from glnn.compile.step import Step
from glnn.compile.weights import Weights
from glnn.errors import ModelError
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph, Value
from glnn.process import ProcessLock
from glnn.types import Array, DType, Shape, as_float, narrowed, to_float16


class Plan:
    """A graph on one backend for one set of input shapes.

    graph: what to compute. backend: where. shapes: each input's shape, by its name.
    kernels: the kernel to take for an op, by the op's name; others are chosen.
    fused: whether pointwise work goes into its producers' epilogues.
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
        fused: bool = True,
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

        def make() -> tuple[Outline, Prepared]:
            while True:
                outline = Outline.of(
                    graph,
                    backend,
                    shapes,
                    kernels,
                    fused=fused,
                    keep=keep,
                    weights=self._weights,
                    precision=precision,
                    available=(available := backend.available()),
                )
                outline.check(available)
                if not outline.examine():
                    return outline, Prepared.of(outline, self._weights)

        self.outline, self._prepared = backend.perform(make)
        self._fixed = self._constants()
        self._rounded = {v.name for v in graph.outputs if v.type.dtype is DType.float16}
        stores = self._prepared.stores
        self._inputs = {value.name: stores[value.name] for value in graph.inputs}
        # Whatever stands for them in the plan.
        self._of_int64 = {v.name for v in _values(graph) if v.type.dtype is DType.int64}
        given = self._of_int64 & self._inputs.keys()
        self._narrowed = {name for name in given if stores[name].dtype is DType.int32}

    def _constants(self) -> dict[str, Value]:
        """The outputs that no run changes, by name."""
        outline = self.outline
        return {v.name: v for v in outline.graph.outputs if v not in outline.outputs}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return tuple(value.name for value in self.graph.outputs)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is performed, in order; `launches` has what performs it."""
        return self.outline.steps

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What performs each step."""
        return self._prepared.launches

    @cached_property
    def _steps(self) -> Launch:
        """All of them."""
        return self.backend.together(self.launches)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and packed parameters."""
        return self.outline.nbytes

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs, arrays of the plan's shapes and of their own types, to the device.

        float16 goes there as float32.
        """
        self.backend.perform(lambda: self._upload(feeds))

    def _upload(self, feeds: Mapping[str, Array]) -> None:
        for name, store in self._inputs.items():
            array = as_float(feeds[name])
            store.put(narrowed(f"input {name!r}", array) if name in self._narrowed else array)

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        self.backend.perform(lambda: self._steps())

    def download(self) -> dict[str, Array]:
        """The outputs, waiting for them."""
        return {name: self.value(name) for name in self.outputs}

    def run(
        self, feeds: Mapping[str, Array], outputs: Iterable[str] | None = None
    ) -> dict[str, Array]:
        """The graph's outputs for `feeds`: one upload, every step, one readback.

        feeds: each input's name and its array of the plan's shape. outputs: the names of those
        that are wanted, None for all; no others are read back. Weights that were assigned since the
        last run are uploaded before.
        """
        names = None if outputs is None else tuple(outputs)
        return self.backend.perform(lambda: self.inside(feeds, names))

    def inside(
        self, feeds: Mapping[str, Array], outputs: tuple[str, ...] | None
    ) -> dict[str, Array]:
        """The same as `run`, for callers that are inside `Backend.perform`."""
        with self._lock:
            self._weights.refresh()
            self._upload(feeds)
            self._steps()
            return {name: self._value(name) for name in outputs or self.outputs}

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new array of its type; float32 where
        it is float16 on the way, and no output.

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
        if name in self._fixed:
            value = self._fixed[name]
            found = evaluated(constant(self.outline.graph, value, {}), value.type.dtype)
            return found if name not in self._rounded else to_float16(found)
        store = self._inputs.get(name) or self._prepared.result(name)
        found = store.fetch().reshape(self.outline.schedule.tensors[name].shape)
        if name in self._rounded:
            return to_float16(found)
        return found.astype(np.int64, copy=False) if name in self._of_int64 else found


def _values(graph: Graph) -> Iterable[Value]:
    """What is given and computed."""
    return (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
