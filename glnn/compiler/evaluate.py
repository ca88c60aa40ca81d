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

_WORTH_A_KERNEL = 1 << 16  # elements: fewer are packed by the CPU before a kernel begins


def evaluate(
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    backend: str | Backend = "auto",
    kernel: str | None = None,
    epilogue: Epilogue | None = None,
) -> NDArray[Any]:
    """Return the first result of `op` on `operands`, computed by one kernel of a backend.

    epilogue: of the result; its operands are among `operands`. Raises ShapeError where the operands
    do not fit, UnsupportedOpError or LimitError where the backend cannot compute it.
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
    """Upload `operands`; return the launch of `op` on them, and the store of its result.

    kernel: its name, or a Kernel, which is not examined. layouts: of the inputs of a kernel of
    stages, row major by default; inputs of other kernels have the kernel's layouts. epilogue: of
    the result. Only inside `backend.perform`, or in the thread that opened the device. Raises what
    `evaluate` raises.
    """
    backend.activate()
    spec = _op_spec(op, operands, epilogue)
    choice = kernel if isinstance(kernel, Kernel) else _chosen(spec, backend, kernel)
    if isinstance(choice, Kernel) and choice.stages:
        schedule = _schedule(spec, operands, backend, choice, layouts or {})
        if schedule.examine():
            return prepare(op, operands, backend, kernel, layouts, epilogue)
        return _prepare_stages(schedule, operands)
    wanted = backend.layouts(choice, spec)
    stores = {name: _upload(backend, array, wanted[name]) for name, array in operands.items()}
    out = backend.allocate(spec.result_shape, wanted["out"], dtype=spec.results[0].dtype)
    return backend.prepare(choice, spec, stores, out), out


def _op_spec(
    op: Operator, operands: Mapping[str, NDArray[Any]], epilogue: Epilogue | None
) -> OpSpec:
    types = {name: TensorType.from_array(array) for name, array in operands.items()}
    return OpSpec.create(op, types, {}, epilogue)


def _chosen(spec: OpSpec, backend: Backend, kernel: str | None = None) -> Choice:
    """Return the kernel for `spec`, examined unless it has stages."""
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
    """Return the schedule of the stages of `kernel`, which computes `spec`.

    Row-major inputs have the padding that the kernel wants.
    """
    schedule, op = Schedule(backend, overrides={"result": kernel}), spec.op
    inputs = {n: n for n in operands if n not in op.parameters and n not in spec.extents}
    wanted = spec.chosen_layouts(kernel)
    for name in inputs:
        rows = wanted[name].name if isinstance(wanted[name], RowMajor) else "R"
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
    emitted = emit_schedule(schedule, Arena.plan(schedule, ["result"]), Weights(backend))
    resources = Resources(backend.device, emitted.programs, emitted.weights, backend.available)
    buffers = BufferSet(emitted.executable, resources)
    buffers.bind()
    for name in set(operands) & set(schedule.tensors):
        buffers.store(name).set(operands[name])
        backend.upload(buffers.store(name))

    def launch() -> None:
        buffers.launch()
        buffers.computed("result")

    return launch, buffers.store("result")


def _upload(backend: Backend, array: NDArray[Any], layout: Layout) -> Store:
    """Upload `array` to the device in `layout`, and return its store.

    A matrix is uploaded in the host's layout where the device can reorder it: the CPU does not
    transpose it.
    """
    host_layout = "C" if array.flags.f_contiguous and not array.flags.c_contiguous else "R"
    type = TensorType.from_array(array)
    store = backend.allocate(array.shape, layout, dtype=type.dtype)
    reorder = OpSpec.create(
        Reorder(host_layout, layout.name), {"x": array.shape}, {"x": host_layout}
    )
    choice: Choice | None = None
    is_large = array.dtype == np.float32 and array.ndim == 2 and array.size >= _WORTH_A_KERNEL
    only_pads = host_layout == "R" and isinstance(layout, RowMajor)
    if backend.device and host_layout != layout.name and is_large and not only_pads:
        with suppress(UnsupportedOpError, LimitError):
            choice = _chosen(reorder, backend)
    if choice is None:
        store.set(array)
        backend.upload(store)
        return store
    source = backend.allocate(array.shape, parse(host_layout))
    source.set(array)
    backend.upload(source)
    backend.prepare(choice, reorder, {"x": source}, store)()
    return store
