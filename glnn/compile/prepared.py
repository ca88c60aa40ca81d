"""A schedule made ready: its tensors in memory, its parameters packed, its launches in order."""

from __future__ import annotations

import numpy as np

from glnn.backends.backend import Launch, Store
from glnn.backends.cpu import HostStore
from glnn.compile.memory import Arena
from glnn.compile.schedule import Entry, Schedule
from glnn.compile.weights import Weights


class Prepared:
    """Everything that is allocated for `schedule`, whose tensors share memory as `arena` says.

    weights: the session's. stores: by tensor. launches: one for each entry.
    """

    def __init__(self, schedule: Schedule, arena: Arena, weights: Weights) -> None:
        self.schedule, self.backend, self._weights = schedule, schedule.backend, weights
        self.stores = self._allocate(arena)
        self.launches: tuple[Launch, ...] = tuple(map(self._prepare, schedule.entries))

    def _allocate(self, arena: Arena) -> dict[str, Store]:
        """A store for each tensor, in the block that its memory has."""
        blocks = [self.backend.memory(size) for size in arena.sizes]
        stores: dict[str, Store] = {}
        owners: dict[str, Store] = {}  # where there are no blocks, views share their store
        for name, tensor in self.schedule.tensors.items():
            held = tensor.memory in arena.block
            block = blocks[arena.block[tensor.memory]] if held else None
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
        if entry.host:
            return self._host(entry)
        task = entry.task
        stores = {operand: self.stores[name] for operand, name in task.operands.items()}
        copies = self.backend.copies(entry.choice, entry.problem) if task.parameters else {}
        for name, weight in task.parameters.items():
            stores[name] = self._weights.store(weight, entry.layouts[name], name in copies)
        out = self.stores[task.output]
        return self.backend.prepare(entry.choice, entry.problem, stores, out)

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
                store.set(np.ascontiguousarray(found, type.dtype.numpy).reshape(type.shape))
                self.backend.upload(store)

        return perform

    def result(self, name: str) -> Store:
        """The store of the tensor called `name`, which some launch has written."""
        store = self.stores[name]
        self.backend.wrote(store)
        return store
