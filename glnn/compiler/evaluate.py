"""Evaluation of a single operator, without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend, Choice, Launch, opened
from glnn.backends.gl import GlBackend
from glnn.compiler.emit import emit_schedule
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.compiler.weights import Weight, Weights
from glnn.core.layout import Layout, parse
from glnn.core.layout.layout import RowMajor
from glnn.core.types import TensorType
from glnn.errors import LimitError, UnsupportedOpError, shown
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.runtime.buffer_set import BufferSet, Resources
from glnn.runtime.store import Store
from glnn.validation.examination import examine_choices

_WORTH_A_KERNEL = 1 << 16  # elements: below, the CPU has packed them before a kernel begins


def evaluate(
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    backend: str | Backend = "auto",
    kernel: str | None = None,
    epilogue: Epilogue | None = None,
) -> NDArray[Any]:
    """The first result of `op` on `operands`, by one kernel of a backend.

    epilogue: what is done to the result, whose operands are among `operands`. Raises ShapeError
    where the operands do not fit, UnsupportedOpError or LimitError where the backend cannot
    compute it.
    """
    if not isinstance(kernel, (str, type(None))):
        raise UnsupportedOpError(f"a kernel must be a name, got {shown(kernel)}")
    spec = _op_spec(op, operands, epilogue)
    if 0 in spec.result_shape:
        return np.empty(spec.result_shape, spec.results[0].dtype.numpy)
    if op.view:
        return np.array(spec.compute(operands))
    chosen = opened(backend)

    def work() -> NDArray[Any]:
        launch, out = prepare(op, operands, chosen, kernel, epilogue=epilogue)
        launch()
        return np.asarray(out.pull(), order="C")

    return chosen.perform(work)


def prepare(
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    backend: Backend,
    kernel: str | Kernel | None = None,
    layouts: Mapping[str, str] | None = None,
    epilogue: Epilogue | None = None,
) -> tuple[Launch, Store]:
    """`op` made ready to run on `operands`, which are uploaded, and the store of its result.

    kernel: its name, or one with parameters of its own, at whose results nobody looks before.
    layouts: how the inputs lie that a kernel of stages is given, row major unless said; any other
    kernel is given them as it takes them. epilogue: what is done to the result. Only inside
    `backend.perform`, or in the thread that opened the device. Raises what `evaluate` raises.
    """
    backend.activate()
    spec = _op_spec(op, operands, epilogue)
    choice = kernel if isinstance(kernel, Kernel) else _chosen(spec, backend, kernel)
    if isinstance(choice, Kernel) and choice.stages:
        schedule = _schedule(spec, operands, backend, choice, layouts or {})
        if schedule.examine():
            return prepare(op, operands, backend, kernel, layouts, epilogue)
        return _prepare_stages(schedule, operands)
    taken = backend.layouts(choice, spec)
    stores = {name: _uploaded(backend, array, taken[name]) for name, array in operands.items()}
    out = backend.allocate(spec.result_shape, taken["out"], dtype=spec.results[0].dtype)
    return backend.prepare(choice, spec, stores, out), out


def _op_spec(
    op: Operator, operands: Mapping[str, NDArray[Any]], epilogue: Epilogue | None
) -> OpSpec:
    types = {name: TensorType.from_array(array) for name, array in operands.items()}
    return OpSpec.create(op, types, {}, epilogue)


def _chosen(spec: OpSpec, backend: Backend, kernel: str | None = None) -> Choice:
    """The kernel for `spec`, or that of stages, seen to be right here."""
    while True:
        choice = backend.choose(spec, kernel)
        if isinstance(choice, Kernel) and choice.stages:
            return choice
        if not (isinstance(backend, GlBackend) and examine_choices(backend, [(choice, spec)])):
            return choice


def _schedule(
    spec: OpSpec,
    operands: Mapping[str, NDArray[Any]],
    backend: Backend,
    kernel: Kernel,
    layouts: Mapping[str, str],
) -> Schedule:
    """The stages of `kernel`, which computes `spec`. What is row major lies as it takes it."""
    schedule, op = Schedule(backend, overrides={"result": kernel}), spec.op
    inputs = {n: n for n in operands if n not in op.parameters and n not in spec.extents}
    taken = spec.chosen_layouts(kernel)
    for name in inputs:
        rows = taken[name].name if isinstance(taken[name], RowMajor) else "R"
        schedule.add_input(name, spec.types[name], layouts.get(name, rows))
    fixed = {name: Weight.from_array(operands[name]) for name in operands if name not in inputs}
    name, epilogue = kernel.name, spec.epilogue
    schedule.add(LoweredOp(op.name, op, inputs, fixed, "result", op.name, name, epilogue=epilogue))
    schedule.finish(["result"])
    return schedule


def _prepare_stages(
    schedule: Schedule, operands: Mapping[str, NDArray[Any]]
) -> tuple[Launch, Store]:
    """Return what `prepare` does, for a kernel that is made of stages."""
    backend = schedule.backend
    made = emit_schedule(schedule, Arena.plan(schedule, ["result"]), Weights(backend))
    resources = Resources(backend.device, made.programs, made.weights, backend.available)
    buffers = BufferSet(made.executable, resources)
    buffers.bind()
    for name in set(operands) & set(schedule.tensors):
        buffers.store(name).set(operands[name])
        backend.upload(buffers.store(name))

    def launch() -> None:
        buffers.launch()
        buffers.computed("result")

    return launch, buffers.store("result")


def _uploaded(backend: Backend, array: NDArray[Any], layout: Layout) -> Store:
    """`array` on the device in `layout`.

    A matrix goes there as it lies on the host, if it can be reordered there: a transposed one is
    not moved about by the CPU.
    """
    layout_here = "C" if array.flags.f_contiguous and not array.flags.c_contiguous else "R"
    type = TensorType.from_array(array)
    store = backend.allocate(array.shape, layout, dtype=type.dtype)
    reorder = OpSpec.create(
        Reorder(layout_here, layout.name), {"x": array.shape}, {"x": layout_here}
    )
    choice: Choice | None = None
    plain = array.dtype == np.float32 and array.ndim == 2 and array.size >= _WORTH_A_KERNEL
    packs = layout_here == "R" and isinstance(
        layout, RowMajor
    )  # the host adds no more than padding
    if backend.device and layout_here != layout.name and plain and not packs:
        with suppress(UnsupportedOpError, LimitError):
            choice = _chosen(reorder, backend)
    if choice is None:
        store.set(array)
        backend.upload(store)
        return store
    source = backend.allocate(array.shape, parse(layout_here))
    source.set(array)
    backend.upload(source)
    backend.prepare(choice, reorder, {"x": source}, store)()
    return store
