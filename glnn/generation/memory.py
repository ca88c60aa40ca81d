"""Prediction of a language model's memory, from the outlines of its runs; nothing is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from glnn.backends import Backend
from glnn.compiler.executor import PLANS_KEPT
from glnn.compiler.memory_budget import Outline
from glnn.compiler.range_plans import OpenSizes, bounds_of
from glnn.compiler.state_binding import StateSpecs
from glnn.compiler.step import WeightKey, parameter_bytes
from glnn.core.symint import SymInt
from glnn.core.types import DType, Shape, TensorType
from glnn.generation.architectures import Decoder
from glnn.generation.engine import (
    CHUNK,
    MOST_FOLLOWERS,
    FollowerKind,
    check_sequences,
    follower_kinds,
)
from glnn.graph.graph import Graph
from glnn.graph.operators import QuantizedMatmul
from glnn.graph.operators.sample import RULES
from glnn.runtime.buffer_set import with_slack


@dataclass(frozen=True)
class RunMemory:
    """Bytes of the results of one kind of run, which stay allocated after its first run.

    tokens: how many are computed together. logits: for how many of them a next token is chosen.
    exact: True for a plan of these sizes alone, False for one of a range of sizes of which these
    are the largest. follower: its kind, for a run that reads the last tokens on the device.
    """

    tokens: int
    logits: int
    nbytes: int
    exact: bool = False
    follower: FollowerKind | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a language model takes on a backend.

    weights: in the layouts that kernels read. matrices: the part of `weights` that each run reads
    in full. caches: of all sequences. runs: one for each plan.
    """

    weights: int
    matrices: int
    caches: int
    runs: tuple[RunMemory, ...]

    @property
    def activations(self) -> int:
        """Bytes of the results of all runs, after each kind was run once."""
        return sum(run.nbytes for run in self.runs)

    @property
    def peak(self) -> int:
        """Bytes of all."""
        return self.weights + self.caches + self.activations


def plan_memory(decoder: Decoder, backend: Backend, context: int, sequences: int) -> MemoryPlan:
    """Return the memory of `decoder`, which was built for these `sequences` and this `context`.

    Raises LimitError where the device cannot compute so many sequences together.
    """
    check_sequences(backend, decoder, sequences)
    return backend.perform(lambda: _Planner(decoder, backend).plan(context, sequences))


class _Planner:
    """Outlines the runs of a decoder, and collects the weights and caches that they share."""

    def __init__(self, decoder: Decoder, backend: Backend) -> None:
        self._decoder, self._backend = decoder, backend
        self._caches = {name: TensorType(shape) for name, shape in decoder.caches.items()}
        self._weights: dict[WeightKey, int] = {}
        self._matrices: set[WeightKey] = set()
        self._cache_bytes = 0

    def plan(self, context: int, sequences: int) -> MemoryPlan:
        runs = [
            self._run(tokens, logits)
            for tokens in _largest_of_ranges(min(CHUNK, context * sequences))
            for logits in _largest_of_ranges(sequences)
            if logits <= tokens
        ]
        for count in range(max(sequences - PLANS_KEPT + 1, 2), sequences + 1):
            runs.append(self._run(count, count, exact=True))
        kinds = follower_kinds(self._decoder, self._backend, context, sequences)
        runs += [self._follower_run(kind) for kind in islice(kinds, MOST_FOLLOWERS)]
        matrices = sum(self._weights[key] for key in self._matrices)
        weights = sum(self._weights.values())
        return MemoryPlan(weights, matrices, self._cache_bytes, tuple(runs))

    def _run(self, tokens: int, logits: int, exact: bool = False) -> RunMemory:
        graph = self._decoder.graph
        specs = StateSpecs(self._caches, (), self._decoder.updates)
        shapes: Mapping[str, Shape] = {
            "tokens": (tokens,), "places": (tokens,), "logit_rows": (logits,),
            **specs.shapes(graph),
        }  # fmt: skip
        sizes = None if exact else OpenSizes.create(graph, shapes, {})
        nbytes = self._activations(graph, sizes.shapes if sizes else shapes, specs)
        return RunMemory(tokens, logits, nbytes, exact)

    def _follower_run(self, kind: FollowerKind) -> RunMemory:
        graph, count = self._decoder.following(*kind, self._backend), kind.sequences
        types = {**self._caches, "tokens": TensorType((count,), DType.int32)}
        updates = {**self._decoder.updates, "tokens": "next"}
        specs = StateSpecs(types, (), updates, readable=("tokens",))
        rules = {"rules": (count, len(RULES)), "random": (count,)} if kind.sampled else {}
        shapes = {"places": (count,), **rules, **specs.shapes(graph)}
        return RunMemory(count, count, self._activations(graph, shapes, specs), True, kind)

    def _activations(self, graph: Graph, shapes: Mapping[str, Shape], specs: StateSpecs) -> int:
        """Return the bytes of a run's results. Adds its weights, and sets the bytes of the caches.

        shapes: of the inputs; SymInts in a plan for a range of sizes.
        """
        backend = self._backend
        outline = Outline.create(
            graph, backend, shapes, states=specs, available=backend.available()
        )
        schedule = outline.schedule.hinted
        self._weights |= parameter_bytes(schedule)
        for entry in schedule.entries:
            if isinstance(entry.lowered.op, QuantizedMatmul):
                weights = entry.lowered.parameters.values()
                self._matrices |= {key for key in self._weights if key[0] in weights}
        if backend.device is None:  # `tensors` has the caches before and after the run, too
            self._cache_bytes = sum(type.nbytes for type in self._caches.values())
            return outline.tensors
        caches = {
            block
            for state in outline.states
            if state.name in self._caches
            for block in state.blocks(outline.schedule, outline.arena)
        }
        self._cache_bytes = sum(outline.blocks[block] for block in caches)
        arena, tensors = outline.arena, outline.schedule.tensors.values()
        open_blocks = {
            arena.block.get(tensor.memory)
            for tensor in tensors
            if any(isinstance(size, SymInt) for size in tensor.shape)
        }
        results = (
            4 * with_slack(nbytes // 4, backend.device) if block in open_blocks else nbytes
            for block, nbytes in enumerate(outline.blocks)
            if block not in caches
        )
        return sum(results) + outline.copies


def _largest_of_ranges(most: int) -> Iterator[int]:
    """Yield the largest size of each range that has a plan, up to `most`."""
    size = 1
    while size < most:
        yield size
        size = min(bounds_of(size + 1)[1], most)
    yield most
