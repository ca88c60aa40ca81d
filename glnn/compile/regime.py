"""A plan's outline for all sizes within bounds: made once, and bound to the sizes of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace

from glnn.backends import Backend
from glnn.compile.outline import Outline
from glnn.compile.step import Step
from glnn.compile.task import Entry
from glnn.compile.weights import Weights
from glnn.errors import GlnnError
from glnn.graph.graph import Graph, Value
from glnn.graph.passes import Pass
from glnn.graph.passes.index_bounds import index_bounds
from glnn.kernels.kernel import Kernel
from glnn.symint import Substitution, Trace, hint
from glnn.types import UNKNOWN, DType, Shape

LOG = logging.getLogger(__name__)
FACTOR = 4  # a regime's sizes differ by less: from 2, 8, 32, 128, ... on


class UnboundError(GlnnError):
    """A regime does not hold for the sizes of a run, though its guards do."""


def _name(value: Value, axis: int, dim: str) -> str:
    """The symbol of an open dimension: each that a model gives no name is another one."""
    return f"{value.name}.{axis}" if dim == UNKNOWN else dim


def open_shape(value: Value, dims: Mapping[str, int]) -> Shape:
    """The shape of an input whose open dimensions are `dims`, by their symbols."""
    pairs = enumerate(value.type.dims)
    return tuple(dims[_name(value, i, d)] if isinstance(d, str) else d for i, d in pairs)


def symbols(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, int] | None:
    """The sizes of the open dimensions of the inputs of `graph` for inputs of `shapes`, by symbol.

    None where a symbol stands for two sizes, or nothing is gained: where all are 0 or 1, and where
    only the batch is open, of which a program has few and wants the fastest kernels for each.
    """
    found: dict[str, int] = {}
    batch = True
    for value in graph.inputs:
        if len(value.type.dims) != len(shapes[value.name]):  # only a run tells its rank
            return None
        for axis, (dim, size) in enumerate(zip(value.type.dims, shapes[value.name], strict=True)):
            if not isinstance(dim, str):
                continue
            if found.setdefault(_name(value, axis, dim), size) != size or not size:
                return None
            batch = batch and axis == 0
    return None if batch or all(size == 1 for size in found.values()) else found


def bounds_of(size: int) -> tuple[int, int]:
    """The least and the greatest size of the regime that `size` is in."""
    low = 2
    while size >= FACTOR * low:
        low *= FACTOR
    return (1, 1) if size == 1 else (low, FACTOR * low - 1)


class Regime:
    """The outline of `graph`, whose inputs' sizes have symbols of `trace`, for whatever those hold.

    graph: with composites taken apart. trace: has the guards that were made until now.
    """

    def __init__(
        self, graph: Graph, outline: Outline, trace: Trace, below: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.graph, self.trace = graph, trace
        self._outline, self._below = outline, below

    @classmethod
    def of(
        cls,
        graph: Graph,
        backend: Backend,
        trace: Trace,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str],
        *,
        weights: Weights,
        precision: DType,
        samples: int,
        without: frozenset[Pass],
    ) -> Regime | None:
        """The regime of inputs of `shapes`, which have symbols of `trace`; None where it has none.

        The other arguments are those of Plan.
        """
        outline = Outline.of(
            graph,
            backend,
            shapes,
            kernels,
            without=without,
            weights=weights,
            precision=precision,
            samples=samples,
        )
        fixed = [value.type for value in outline.graph.outputs if value.name not in outline.outputs]
        if outline.bodies or any(Substitution(hint)(type) is not type for type in fixed):
            return None
        made = cls(graph, outline, trace, index_bounds(graph, shapes))
        LOG.debug("%s: a regime of %s, %d guards", graph.name, trace.bounds, len(trace.guards))
        return made

    def below(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The sizes of the tables that inputs have indices for; see `index_bounds`."""
        return Substitution.of(sizes)(dict(self._below))

    def bind(self, sizes: Mapping[str, int]) -> Outline:
        """The outline for these sizes of the symbols. Raises UnboundError."""
        change = Substitution.of(sizes)
        old = self._outline.schedule
        schedule = copy(old)
        schedule.tensors = {name: change(tensor) for name, tensor in old.tensors.items()}
        try:
            schedule.entries = [_bound(schedule.backend, one, change) for one in old.entries]
        except GlnnError as error:
            raise UnboundError(str(error)) from None
        arena = self._outline.arena.resized(schedule)
        steps = Step.all_of(schedule, arena)
        blocks = tuple(4 * size for size in arena.sizes)
        return replace(
            self._outline, schedule=schedule, arena=arena, steps=steps, blocks=blocks, held=0
        )


@dataclass(frozen=True)
class SizedRegime:
    """A regime, and the sizes of its symbols."""

    regime: Regime
    sizes: Mapping[str, int]

    def outline(self, available: int | None) -> Outline:
        """Its outline for these sizes. Raises UnboundError where it needs more than is free."""
        found = self.regime.bind(self.sizes)
        if available is not None and found.need > available:
            raise UnboundError("too little memory is free")
        return found

    def below(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the tables that inputs have indices for; see `index_bounds`."""
        return self.regime.below(self.sizes)


def _bound(backend: Backend, entry: Entry, change: Substitution) -> Entry:
    """`entry` for the sizes of `change`. Raises GlnnError where it is not computed as planned.

    What was planned for other sizes is held against all that a choice for these would ask.
    """
    problem = entry.problem.substituted(change)
    task = change(entry.task)
    if problem is entry.problem and task is entry.task:
        return entry
    before = entry.task.parameters
    changed = {
        k: replace(w, passing=True) for k, w in task.parameters.items() if w is not before[k]
    }
    task = replace(task, parameters={**task.parameters, **changed})
    if problem.results != change(entry.problem.results):
        raise UnboundError(f"{task.name!r} has other results")
    choice = entry.choice
    if not entry.host and isinstance(choice, Kernel):
        if choice.generate:
            choice = backend.choose(problem, choice.name)
        elif not backend.takes(choice, problem):
            raise UnboundError(f"{task.name!r} cannot be computed by {choice.name}")
        if backend.layouts(choice, problem) != entry.layouts:
            raise UnboundError(f"{task.name!r} has other layouts")
    return replace(entry, task=task, choice=choice, problem=problem)
