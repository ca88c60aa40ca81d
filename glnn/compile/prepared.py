"""A schedule made ready: its tensors in memory, its parameters packed, its launches in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from math import prod

import numpy as np

from glnn.backends.backend import Launch, Memory
from glnn.backends.cpu import HostStore
from glnn.compile.control import Body, Called, launch
from glnn.compile.memory import Arena
from glnn.compile.outline import Outline
from glnn.compile.schedule import Schedule
from glnn.compile.task import Entry
from glnn.compile.weights import Kept, Key, Weight, Weights
from glnn.device.recording import Recording
from glnn.errors import ShapeError
from glnn.layout import parse
from glnn.progress_bar import report_work
from glnn.running.store import Store
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
        given: Mapping[int, Memory | None] | None = None,
        beside: Prepared | None = None,
        apart: bool = False,
    ) -> None:
        """given: blocks that are there. beside: what was prepared before; all is shared with it
        that has nothing to do with blocks that are others there. apart: see `Backend.together`.
        """
        self.schedule, self.backend, self._weights = schedule, schedule.backend, weights
        self._bodies, self._apart = bodies or {}, apart
        self._held: list[Kept | Prepared] = []  # weights, and what holds others
        self._blocks = self._memory(arena, given or {}, beside)
        own = self._own(arena, beside)
        shared: dict[str, Store] = {} if beside is None else beside.stores
        self.stores: dict[str, Store] = {k: v for k, v in shared.items() if k not in own}
        self.stores |= self._allocate(arena)
        self.shown: Mapping[str, Store] = self.stores
        """The same, by the names of outputs those that the host takes them from."""
        entries, doing = (
            schedule.entries,
            "preparing" if self.backend.device is None else "compiling",
        )
        with report_work(doing, total=len(entries)) as work:
            self.launches: tuple[Launch, ...] = tuple(
                self._prepare(entry)
                if beside is None or own.intersection(entry.tensors)
                else beside.launches[i]
                for i, entry in enumerate(work.counted(entries))
            )

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The weights that it holds, those of bodies aside."""
        return tuple(one for one in self._held if isinstance(one, Kept))

    @property
    def ran(self) -> bool:
        """Whether `together` is a recording that ran without an error of GL."""
        together = vars(self).get("together")  # it is made when it is asked for
        return isinstance(together, Recording) and together.ran

    @property
    def blocks(self) -> tuple[Memory | None, ...]:
        """The memory of each block of the arena."""
        return tuple(self._blocks)

    @cached_property
    def together(self) -> Launch:
        """All launches."""
        return self.backend.together(self.launches, apart=self._apart)

    @classmethod
    def of(
        cls,
        outline: Outline,
        weights: Weights,
        given: Mapping[int, Memory | None] | None = None,
        beside: Prepared | None = None,
    ) -> Prepared:
        """What `outline` says."""
        apart = bool(outline.carried)  # many small launches, of which few wait for one another
        schedule, arena, bodies = outline.schedule, outline.arena, outline.bodies
        made = cls(schedule, arena, weights, bodies, given, beside, apart)
        made.shown = made.stores | {name: made.stores[one] for name, one in outline.outputs.items()}
        return made

    def _memory(
        self, arena: Arena, given: Mapping[int, Memory | None], beside: Prepared | None
    ) -> list[Memory | None]:
        """The blocks of `arena`."""
        found: list[Memory | None] = []
        for i, size in enumerate(arena.sizes):
            if i in given:
                found.append(given[i])
            else:
                found.append(self.backend.memory(size) if beside is None else beside._blocks[i])
        return found

    def _own(self, arena: Arena, beside: Prepared | None) -> set[str]:
        """The tensors that are not where those of `beside` are."""
        if beside is None:
            return set(self.schedule.tensors)
        pairs = zip(self._blocks, beside._blocks, strict=True)
        other = {i for i, (here, there) in enumerate(pairs) if here is not there}
        tensors = self.schedule.tensors
        return {name for name, t in tensors.items() if arena.block.get(t.memory) in other}

    def _allocate(self, arena: Arena) -> dict[str, Store]:
        """A store for each tensor that has none, in the block that its memory has."""
        stores: dict[str, Store] = {}
        owners: dict[str, Store] = {}  # where there are no blocks, views share their store
        for name, tensor in self.schedule.tensors.items():
            if name in self.stores:
                continue
            held = tensor.memory in arena.block
            block = self._blocks[arena.block[tensor.memory]] if held else None
            if block is None and tensor.memory in owners:
                stores[name] = owners[tensor.memory]
            else:
                stores[name] = (
                    self.backend.allocate(
                        tensor.shape, tensor.layout, block, tensor.type.dtype, tensor.offset
                    )
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
            kept = self._weights.keep(weight, entry.layouts[name], name in copies)
            self._held.append(kept)
            stores[name] = kept.store
        out = self.stores[task.output]
        return self.backend.prepare(entry.choice, entry.problem, stores, out, self._apart)

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
        self._held.append(made)
        results: list[Callable[[], Store]] = []
        for value in outline.graph.outputs:
            if value.name in outline.outputs:
                results.append(partial(made.result, outline.outputs[value.name]))
            else:
                results.append(self._fixed(outline.constants[value]))
        inputs = tuple(made.stores[value.name] for value in outline.graph.inputs)
        return Body(inputs, lambda: made.together(), tuple(results))

    def _fixed(self, weight: Weight) -> Callable[[], Store]:
        """Gives the store of `weight` in row major."""
        dtype = weight.type.dtype
        if self.backend.holds(dtype):
            kept = self._weights.keep(weight, parse("R"), False)
            self._held.append(kept)
            store = kept.store
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
        if name not in self._set_by_host:
            self.backend.wrote(store)
        return store

    @cached_property
    def _set_by_host(self) -> frozenset[str]:
        """The tensors whose stores have the content themselves: host steps set them, and no launch
        writes their memory. A view of one has a store of its own, which reads the device's memory.
        """
        set_here: set[str] = set()
        launched: set[str] = set()  # memories
        for entry in self.schedule.entries:
            outs = (entry.task.output, *entry.task.more)
            if entry.host and not entry.task.op.control:
                set_here.update(outs)
            else:
                launched.update(self.schedule.tensors[name].memory for name in outs)
        memories = self.schedule.tensors
        return frozenset(name for name in set_here if memories[name].memory not in launched)


def wanted(outline: Outline) -> Iterator[Key]:
    """The weights that its launches, and those of bodies, will have kept, in that order."""
    for _, part in outline.walk():
        for entry in part.schedule.entries:
            task = entry.task
            if task.op.control or entry.host or not task.parameters:
                continue
            copies = part.schedule.backend.copies(entry.choice, entry.problem)
            for name, weight in task.parameters.items():
                yield weight, entry.layouts[name], name in copies
