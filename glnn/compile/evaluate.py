"""One operator computed by itself, without a graph around it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend, Choice, Performer, Store, open_backend
from glnn.compile.memory import Arena
from glnn.compile.prepared import Prepared
from glnn.compile.schedule import Schedule, Task
from glnn.compile.weights import Weight, Weights
from glnn.errors import LimitError, UnsupportedOpError, shown
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Contraction
from glnn.graph.operators.repack import Repack
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.layout import Layout, parse

_WORTH_A_KERNEL = 1 << 16  # elements: below, the CPU has packed them before a kernel begins


def evaluate(
    op: Contraction,
    operands: Mapping[str, NDArray[Any]],
    backend: str | Backend = "auto",
    kernel: str | None = None,
    epilogue: Epilogue | None = None,
) -> NDArray[Any]:
    """The result of `op` on `operands`, float32 in and out, by one kernel of a backend.

    epilogue: what is done to the result; its operands are among `operands`. Raises ShapeError where
    the operands do not fit, UnsupportedOpError or LimitError where the backend cannot compute it.
    """
    if not isinstance(kernel, (str, type(None))):
        raise UnsupportedOpError(f"a kernel must be a name, got {shown(kernel)}")
    shapes = {name: array.shape for name, array in operands.items()}
    problem = Problem.of(op, shapes, {}, epilogue)
    if 0 in problem.output:
        return np.empty(problem.output, np.float32)
    if op.view:
        return np.array(problem.compute(operands))
    chosen = backend if isinstance(backend, Backend) else open_backend(backend)

    def work() -> NDArray[Any]:
        perform, out = prepare(op, operands, chosen, kernel, epilogue=epilogue)
        perform()
        return out.pull()

    return chosen.perform(work)


def prepare(
    op: Contraction,
    operands: Mapping[str, NDArray[Any]],
    backend: Backend,
    kernel: str | None = None,
    layouts: Mapping[str, str] | None = None,
    epilogue: Epilogue | None = None,
) -> tuple[Performer, Store]:
    """`op` made ready to run on `operands`, which are uploaded, and the store of its result.

    layouts: how the inputs lie that a kernel of stages is given, row major unless said; any other
    kernel is given them as it takes them. epilogue: what is done to the result. Only inside
    `backend.perform`, or in the thread that opened the device. Raises what `evaluate` raises.
    """
    shapes = {name: array.shape for name, array in operands.items()}
    backend.activate()
    problem = Problem.of(op, shapes, {}, epilogue)
    choice = _chosen(problem, backend, kernel)
    if isinstance(choice, Kernel) and choice.stages:
        schedule = _schedule(problem, operands, backend, choice.name, layouts or {})
        if schedule.examine():
            return prepare(op, operands, backend, kernel, layouts, epilogue)
        return _prepare_stages(schedule, operands)
    taken = backend.layouts(choice, op, shapes, {}, epilogue)
    stores = {name: _place(backend, array, taken[name]) for name, array in operands.items()}
    out = backend.allocate(problem.output, taken["out"])
    return backend.prepare(op, choice, stores, shapes, out, epilogue), out


def _chosen(problem: Problem, backend: Backend, kernel: str | None = None) -> Choice:
    """The kernel for `problem`, or that of stages, seen to be right here."""
    while True:
        choice = backend.choose(problem.op, problem.shapes, {}, kernel, problem.epilogue)
        if isinstance(choice, Kernel) and choice.stages:
            return choice
        if not backend.examine([(choice, problem)]):
            return choice


def _schedule(
    problem: Problem,
    operands: Mapping[str, NDArray[Any]],
    backend: Backend,
    kernel: str,
    layouts: Mapping[str, str],
) -> Schedule:
    """The stages of `kernel`, which computes `problem`."""
    schedule, op = Schedule(backend), problem.op
    inputs = {name: name for name in operands if name in op.inputs}
    for name in inputs:
        schedule.add_input(name, operands[name].shape, layouts.get(name, "R"))
    fixed = {name: Weight.of(operands[name]) for name in operands if name not in inputs}
    task = Task(op.name, op, inputs, fixed, "result", op.name, kernel, epilogue=problem.epilogue)
    schedule.add(task)
    return schedule


def _prepare_stages(
    schedule: Schedule, operands: Mapping[str, NDArray[Any]]
) -> tuple[Performer, Store]:
    """What `prepare` gives where the kernel is made of stages."""
    backend, prepared = (
        schedule.backend,
        Prepared(schedule, Arena.of(schedule, ["result"]), Weights(schedule.backend)),
    )
    for name in set(operands) & set(schedule.tensors):
        prepared.stores[name].set(operands[name])
        backend.upload(prepared.stores[name])

    def perform() -> None:
        for performer in prepared.performers:
            performer()
        prepared.result("result")

    return perform, prepared.stores["result"]


def _place(backend: Backend, array: NDArray[Any], layout: Layout) -> Store:
    """`array` on the device in `layout`.

    A matrix goes there as it lies on the host, if it can be repacked there: a transposed one is
    not moved about by the CPU.
    """
    lies = "C" if array.flags.f_contiguous and not array.flags.c_contiguous else "R"
    store = backend.allocate(array.shape, layout)
    repack = Repack(lies, layout.name)
    shapes = {"x": array.shape}
    choice: Choice | None = None
    if backend.device and lies != layout.name and array.ndim == 2 and array.size >= _WORTH_A_KERNEL:
        with suppress(UnsupportedOpError, LimitError):
            choice = _chosen(Problem.of(repack, shapes, {}), backend)
    if choice is None:
        store.set(array)
        backend.upload(store)
        return store
    source = backend.allocate(array.shape, parse(lies))
    source.set(array)
    backend.upload(source)
    backend.prepare(repack, choice, {"x": source}, shapes, store)()
    return store
