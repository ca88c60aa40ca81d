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
from glnn.compile.schedule import Parameter, Schedule, Task
from glnn.errors import LimitError, UnsupportedOpError, shown
from glnn.graph.operator import Operands, Operator
from glnn.graph.operators.repack import Repack
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.layout import Layout, parse
from glnn.types import DType, TensorType

_WORTH_A_KERNEL = 1 << 16  # elements: below, the CPU has packed them before a kernel begins


def evaluate(
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    backend: str | Backend = "auto",
    kernel: str | None = None,
) -> NDArray[Any]:
    """The result of `op` on `operands`, float32 in and out, by one kernel of a backend.

    Raises ShapeError where the operands do not fit, UnsupportedOpError or LimitError where the
    backend cannot compute it.
    """
    if not isinstance(kernel, (str, type(None))):
        raise UnsupportedOpError(f"a kernel must be a name, got {shown(kernel)}")
    types = {name: TensorType.of(array) for name, array in operands.items()}
    op.check_operands(types)
    (found,) = op.results(types)
    if 0 in found.shape:
        return np.empty(found.shape, found.dtype.numpy)
    if op.view:
        return np.array(op.compute(operands))
    chosen = backend if isinstance(backend, Backend) else open_backend(backend)

    def work() -> NDArray[Any]:
        perform, out = prepare(op, operands, chosen, kernel)
        perform()
        return out.pull()

    return chosen.perform(work)


def prepare(
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    backend: Backend,
    kernel: str | None = None,
    layouts: Mapping[str, str] | None = None,
) -> tuple[Performer, Store]:
    """`op` made ready to run on `operands`, which are uploaded, and the store of its result.

    layouts: how the inputs lie that a kernel of stages is given, row major unless said; any other
    kernel is given them as it takes them. Only inside `backend.perform`, or in the thread that
    opened the device. Raises what `evaluate` raises.
    """
    shapes = {name: array.shape for name, array in operands.items()}
    types = {name: TensorType.of(array) for name, array in operands.items()}
    backend.activate()
    choice = _chosen(op, types, backend, kernel)
    if isinstance(choice, Kernel) and choice.stages:
        schedule = _schedule(op, operands, backend, choice.name, layouts or {})
        if schedule.examine():
            return prepare(op, operands, backend, kernel, layouts)
        return _prepare_stages(schedule, operands)
    taken = backend.layouts(choice, op, types, {})
    stores = {name: _place(backend, array, taken[name]) for name, array in operands.items()}
    (made,) = op.results(types)
    out = backend.allocate(made.shape, taken["out"], dtype=made.dtype)
    return backend.prepare(op, choice, stores, shapes, out), out


def _chosen(op: Operator, shapes: Operands, backend: Backend, kernel: str | None = None) -> Choice:
    """The kernel for `op`, or that of stages, seen to be right here."""
    while True:
        choice = backend.choose(op, shapes, {}, kernel)
        if isinstance(choice, Kernel) and choice.stages:
            return choice
        if not backend.examine([(choice, Problem.of(op, shapes, {}))]):
            return choice


def _schedule(
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    backend: Backend,
    kernel: str,
    layouts: Mapping[str, str],
) -> Schedule:
    """The stages of `kernel`, which computes `op`."""
    schedule = Schedule(backend)
    inputs = {name: name for name in operands if name not in op.parameters}
    for name in inputs:
        schedule.add_input(name, operands[name].shape, layouts.get(name, "R"))
    fixed = {name: Parameter.of(operands[name]) for name in operands if name not in inputs}
    schedule.add(Task(op.name, op, inputs, fixed, "result", op.name, kernel))
    return schedule


def _prepare_stages(
    schedule: Schedule, operands: Mapping[str, NDArray[Any]]
) -> tuple[Performer, Store]:
    """What `prepare` gives where the kernel is made of stages."""
    backend, prepared = schedule.backend, Prepared(schedule, Arena.of(schedule, ["result"]))
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
    store = backend.allocate(array.shape, layout, dtype=DType.of(array))
    repack = Repack(lies, layout.name)
    shapes = {"x": array.shape}
    choice: Choice | None = None
    plain = array.dtype == np.float32 and array.ndim == 2 and array.size >= _WORTH_A_KERNEL
    if backend.device and lies != layout.name and plain:
        with suppress(UnsupportedOpError, LimitError):
            choice = _chosen(repack, shapes, backend)
    if choice is None:
        store.set(array)
        backend.upload(store)
        return store
    source = backend.allocate(array.shape, parse(lies))
    source.set(array)
    backend.upload(source)
    backend.prepare(repack, choice, {"x": source}, shapes, store)()
    return store
