"""A schedule made ready: its tensors in memory, its parameters packed, its launches in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from math import prod

import numpy as np

from glnn.backends.backend import Launch, Memory, Store, Way
from glnn.backends.cpu import HostStore
from glnn.compile.control import Body, Called, launch
from glnn.compile.memory import Arena
from glnn.compile.outline import Outline
from glnn.compile.schedule import Schedule
from glnn.compile.task import Entry
from glnn.compile.weights import Weight, Weights
from glnn.errors import ShapeError
from glnn.layout import parse
from glnn.types import Array


class Prepared:
    """Everything that is allocated for `schedule`, whose tensors share memory as `arena` says.

    weights: the session's. bodies: those of its steps (see `Outline`). stores: by tensor. launches:
    one for each entry.
    """

    def __init__(
        self,
        schedule: Schedule,
        arena: Arena,
        weights: Weights,
        bodies: Mapping[str, tuple[Outline, ...]] | None = None,
        ways: Mapping[int, Way] | None = None,
        beside: Prepared | None = None,
    ) -> None:
        """ways: of the blocks whose content comes from the host in each run, or goes there.
        beside: what was prepared before; what has nothing to do with such blocks is shared with it.
        """
        self.schedule, self.backend, self._weights = schedule, schedule.backend, weights
        self._bodies = bodies or {}
        self._blocks = self._memory(arena, ways or {}, beside)
        self.stores = self._allocate(arena)
        own = {
            name
            for name, t in schedule.tensors.items()
            if arena.block.get(t.memory) in (ways or {})
        }
        self.launches: tuple[Launch, ...] = tuple(
            self._prepare(entry)
            if beside is None or own.intersection(entry.tensors)
            else beside.launches[i]
            for i, entry in enumerate(schedule.entries)
        )

    @cached_property
    def together(self) -> Launch:
        """All launches."""
        return self.backend.together(self.launches)

    @classmethod
    def of(
        cls,
        outline: Outline,
        weights: Weights,
        ways: Mapping[int, Way] | None = None,
        beside: Prepared | None = None,
    ) -> Prepared:
        """What `outline` says."""
        return cls(outline.schedule, outline.arena, weights, outline.bodies, ways, beside)

    def _memory(
        self, arena: Arena, ways: Mapping[int, Way], beside: Prepared | None
    ) -> list[Memory | None]:
        """The blocks of `arena`."""
        return [
            self.backend.memory(size, ways.get(i))
            if beside is None or i in ways
            else beside._blocks[i]
            for i, size in enumerate(arena.sizes)
        ]

    def _allocate(self, arena: Arena) -> dict[str, Store]:
        """A store for each tensor, in the block that its memory has."""
        stores: dict[str, Store] = {}
        owners: dict[str, Store] = {}  # where there are no blocks, views share their store
        for name, tensor in self.schedule.tensors.items():
            held = tensor.memory in arena.block
            block = self._blocks[arena.block[tensor.memory]] if held else None
            if block is None and tensor.memory in owners:
                stores[name] = owners[tensor.memory]
            else:
                stores[name] = (
                    self.backend.allocate(tensor.shape, tensor.layout, block, tensor.type.dtype)
                    if held
                    else HostStore(tensor.shape, tensor.type.dtype)
                )
                owners.setdefault(tensor.memory, stores[name])
        return stores

    def _prepare(self, entry: Entry) -> Launch:
        if entry.task.op.control:
            return self._control(entry)
        if entry.host:
            return self._host(entry)
        task = entry.task
        stores = {operand: self.stores[name] for operand, name in task.operands.items()}
        copies = self.backend.copies(entry.choice, entry.problem) if task.parameters else {}
        for name, weight in task.parameters.items():
            stores[name] = self._weights.store(weight, entry.layouts[name], name in copies)
        out = self.stores[task.output]
        return self.backend.prepare(entry.choice, entry.problem, stores, out)

    def _control(self, entry: Entry) -> Launch:
        """What runs bodies, of which the host decides between them."""
        task = entry.task
        numbers: dict[str, Callable[[], Array]] = {}
        given: list[Callable[[], Store]] = []
        for name in entry.problem.shapes:
            weight = task.parameters.get(name)
            if name in task.op.host:
                numbers[name] = weight.read if weight else partial(self._read, task.operands[name])
            elif weight:
                given.append(self._fixed(weight))
            else:
                given.append(partial(self.result, task.operands[name]))
        outs = tuple(self.stores[name] for name in (task.output, *task.more))
        bodies = tuple(map(self._body, self._bodies[task.output]))
        return launch(Called(self.backend, task.op, numbers, tuple(given), bodies, outs))

    def _body(self, outline: Outline) -> Body:
        made = Prepared.of(outline, self._weights)
        results: list[Callable[[], Store]] = []
        for value in outline.graph.outputs:
            if value in outline.outputs:
                results.append(partial(made.result, outline.outputs[value]))
            else:
                results.append(self._fixed(outline.constants[value]))
        inputs = tuple(made.stores[value.name] for value in outline.graph.inputs)
        return Body(inputs, lambda: made.together(), tuple(results))

    def _fixed(self, weight: Weight) -> Callable[[], Store]:
        """Gives the store of `weight` in row major."""
        dtype = weight.type.dtype
        if self.backend.holds(dtype):
            store = self._weights.store(weight, parse("R"), False)
        else:
            store = HostStore(weight.shape, dtype)
            store.set(weight.read())
        return lambda: store

    def _read(self, name: str) -> Array:
        return self.result(name).pull()

    def _host(self, entry: Entry) -> Launch:
        """What reads the operands back, computes by NumPy, and uploads the results."""
        task, problem = entry.task, entry.problem
        outs = [self.stores[name] for name in (task.output, *task.more)]

        def perform() -> None:
            arrays = {k: self.result(v).pull() for k, v in task.operands.items()}
            arrays |= {k: weight.read() for k, weight in task.parameters.items()}
            arrays = {k: array.reshape(problem.shapes[k]) for k, array in arrays.items()}
            for store, type, found in zip(
                outs, problem.results, problem.compute_all(arrays), strict=True
            ):
                array = np.ascontiguousarray(found, type.dtype.numpy)
                if array.size != prod(type.shape):  # of an operator that inferred it wrongly
                    raise ShapeError(f"{task.op} gave {array.shape} in place of {type}")
                store.set(array.reshape(type.shape))
                self.backend.upload(store)

        return perform

    def result(self, name: str) -> Store:
        """The store of the tensor called `name`, which some launch has written."""
        store = self.stores[name]
        self.backend.wrote(store)
        return store
