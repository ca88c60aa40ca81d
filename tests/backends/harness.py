"""Runs one kernel on one problem with poison around it.

The result's memory starts as NaN and has a guard zone behind it; so have the operands. The padding
of inputs is NaN too; that of parameters is 0, as they are packed. A kernel that reads or
writes where it should not is found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.backends.backend import Choice
from glnn.backends.compute import Compute
from glnn.backends.feedback import Feedback
from glnn.backends.gl import GlBackend
from glnn.compiler.emit import emit_schedule
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.compiler.weights import Weight, Weights
from glnn.core.layout import Layout, Strip
from glnn.core.layout.bytes import Narrow
from glnn.core.layout.layout import PACKED, RowMajor
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.gl import Buffer
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import fitted, why_not_spec
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.runtime.buffer_set import BufferSet, Resources
from glnn.validation.examination import examine_choices

Array = NDArray[Any]
BACKENDS: dict[str, type[GlBackend]] = {"compute": Compute, "feedback": Feedback}
NO_LAYOUTS: Mapping[str, str] = MappingProxyType({})
GUARD = 64  # floats
POISON = np.frombuffer(np.uint32(0x7FC0BEEF).tobytes(), np.float32)[0]  # a NaN of our own
TOLERANCE = 1e-5


def kernels(op: str) -> list[tuple[str, str]]:
    """(backend, kernel) for every kernel of `op`, for parametrisation."""
    return [(b, k.name) for b in BACKENDS for k in kernels_for(op, b)]


def allowed(op: str, kernel: str | None) -> float:
    """The relative error that results of `kernel` may have: some compute in FP16."""
    declared = (k.tolerance for b in BACKENDS for k in kernels_for(op, b) if k.name == kernel)
    return max(declared, default=TOLERANCE)


def of_halves(op: str) -> list[tuple[str, str, str]]:
    """(backend, kernel, operand) for every operand that a kernel of `op` takes as float16."""
    found = [
        (b, k.name, name) for b in BACKENDS for k in kernels_for(op, b) for name in k.fp16_operands
    ]
    return [one for one in found if one[2] != "out"]


def rounding(op: str) -> list[str]:
    """The compute kernels of `op` that store results as float16, those made of stages aside."""
    known = kernels_for(op, "compute")
    return [k.name for k in known if "out" in k.fp16_operands and not k.stages]


def taken(kernel: Kernel, spec: OpSpec) -> Kernel | None:
    """`kernel` as it computes `spec`; None where it cannot."""
    try:
        adapted = spec.adapted(kernel)
    except UnsupportedOpError:
        return None
    return adapted if why_not_spec(adapted, spec) is None else None


def run(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, Array],
    kernel: str | None,
    epilogue: Epilogue | None = None,
    layouts: Mapping[str, str] = NO_LAYOUTS,
    *,
    rounded: bool = False,
) -> Array:
    """The result of the kernel so called, checked as `run_kernel` does; skips where it cannot.

    layouts: how operands lie, for kernels that take several. rounded: whether it is stored as
    float16.
    """
    spec = problem_of(op, operands, epilogue, layouts, rounded=rounded)
    for declared in kernels_for(op.name, backend.name):
        if declared.name == kernel and fitted(declared, backend.device.capabilities) is None:
            pytest.skip(str(backend.why_not(spec, kernel)))
    choice = backend.choose(spec, kernel)
    return run_kernel(backend, op, operands, choice, epilogue, layouts, rounded=rounded)


def problem_of(
    op: Operator,
    operands: Mapping[str, Array],
    epilogue: Epilogue | None = None,
    layouts: Mapping[str, str] = NO_LAYOUTS,
    *,
    rounded: bool = False,
) -> OpSpec:
    """The problem of `op` on these arrays."""
    types = {name: TensorType.from_array(array) for name, array in operands.items()}
    return OpSpec.create(op, types, layouts, epilogue, rounded=rounded)


def run_kernel(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, Array],
    choice: Kernel,
    epilogue: Epilogue | None = None,
    layouts: Mapping[str, str] = NO_LAYOUTS,
    *,
    rounded: bool = False,
    updated: dict[str, Array] | None = None,
) -> Array:
    """The result of `choice`, checked for stray writes. Raises what the backend raises.

    updated: takes the new content of the operands that the epilogue updates.
    """
    if choice.stages:
        return _run_stages(backend, op, operands, choice, epilogue)
    spec = problem_of(op, operands, epilogue, layouts, rounded=rounded)
    _see(backend, [(choice, spec)])
    taken = backend.layouts(choice, spec)
    stores: dict[str, Buffer] = {}
    for name, array in operands.items():
        layout = taken[name]
        stores[name] = _poisoned(backend, _buffer(backend, spec.types[name], layout))
        memory = np.full(stores[name].size, POISON, np.float32)
        fixed = name in op.parameters and name not in layouts
        packed = layout.pack(array) if fixed else _with_poisoned_padding(layout, array)
        memory.view(packed.dtype)[: packed.size] = packed
        _write(backend, stores[name], memory)
    made = spec.results[0]
    shape, layout = made.shape, taken["out"]
    out = _poisoned(backend, _buffer(backend, made, layout))
    if op.updates in stores:  # whose memory the result takes
        operand = stores[op.updates].push(backend.device).read()
        _write(backend, out, np.frombuffer(operand, np.float32))
    launch = backend.prepare(choice, spec, stores, out)
    if "ANGLE" not in backend.device.capabilities.renderer:  # it reports what is never read, too
        unset = backend.unset_uniforms(launch)
        assert not unset, f"{choice.op}/{choice.name}: glnn sets no uniform {', '.join(unset)}"
    launch()
    backend.device.check_always(f"{op.name} by {choice.name}")
    for name in epilogue.updated if epilogue else ():
        assert updated is not None
        updated[name] = _new_content(backend, stores[name])
    used = layout.words(made)
    memory = np.frombuffer(out.push(backend.device).read(), np.float32)
    each = choice.launch.captures.evaluate(choice.defaults)  # the last vertex captures as many
    end = -(-used // each) * each if choice.backend == "feedback" else used
    guard = memory[end:].view(np.uint32)
    assert (guard == np.uint32(0x7FC0BEEF)).all(), "the kernel wrote past its result"
    flat = memory[:used].view(layout.number(made.dtype))[: layout.size(shape)]
    if isinstance(layout, Strip):
        others = np.delete(
            flat.view(np.uint32).reshape(-1, layout.pixel_stride), _own(layout, shape), 1
        )
        assert (others == np.uint32(0x7FC0BEEF)).all(), "the kernel wrote beside its result"
    result = layout.unpack(flat, shape)
    if layout.name == "nChw4c":  # lanes past the last channel: conv2d multiplies them by 0
        np.testing.assert_array_equal(flat, layout.pack(result))
    return result.astype(made.dtype.numpy, copy=False)


def _new_content(backend: GlBackend, buffer: Buffer) -> Array:
    """What a kernel stored in an operand, checked for stray writes."""
    memory, size = buffer.push(backend.device).read(), buffer.layout.size(buffer.shape)
    guard = np.frombuffer(memory, np.uint32)[size:]
    assert (guard == np.uint32(0x7FC0BEEF)).all(), "the kernel wrote past an operand"
    return buffer.layout.unpack(np.frombuffer(memory, np.float32)[:size], buffer.shape)


def _run_stages(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, Array],
    choice: Kernel,
    epilogue: Epilogue | None,
) -> Array:
    """The result of a kernel made of stages, which share poisoned memory."""
    schedule = Schedule(backend, overrides={"result": choice})
    inputs = {n: n for n in operands if n not in op.parameters and n not in fixed_extents(epilogue)}
    for name in inputs:
        type = TensorType.from_array(operands[name])
        # No kernel moves halves: the host packs their rows.
        schedule.add_input(name, type, "R4" if type.dtype is DType.float16 else "R")
    fixed = {name: Weight.from_array(operands[name]) for name in operands if name not in inputs}
    lowered = LoweredOp(
        "whole", op, inputs, fixed, "result", "whole", choice.name, epilogue=epilogue
    )
    schedule.add(lowered)
    _see(backend, [(entry.choice, entry.spec) for entry in schedule.entries])
    arena = Arena.plan(schedule, ["result"])
    room = replace(arena, sizes=tuple(n + GUARD for n in arena.sizes))
    made = emit_schedule(schedule, room, Weights(backend))
    resources = Resources(backend.device, made.programs, made.weights, backend.available)
    buffers = BufferSet(made.executable, resources)
    buffers.bind()
    copies = {}
    for name, tensor in schedule.tensors.items():
        copy = buffers.store(name).push(backend.device)
        copies[arena.block[tensor.memory]] = copy
        backend.device.write_buffer(copy, np.full(copy.size // 4, POISON, np.float32))
    for name in inputs:
        packed = _with_poisoned_padding(buffers.store(name).layout, operands[name])
        _write(backend, buffers.store(name), packed)
    buffers.launch()
    backend.device.check_always(f"{op.name} by {choice.name}")
    for block, copy in copies.items():
        guard = np.frombuffer(copy.read(), np.uint32)[arena.sizes[block] :]
        assert (guard == np.uint32(0x7FC0BEEF)).all(), "a stage wrote past its result"
    return buffers.computed("result").pull()


def fixed_extents(epilogue: Epilogue | None) -> tuple[str, ...]:
    """The operands of an epilogue that do not lie as the result: they are weights."""
    extents = epilogue.named_extents if epilogue else {}
    return tuple(name for name, extent in extents.items() if extent != "full")


def _see(backend: GlBackend, asked: list[tuple[Choice, OpSpec]]) -> None:
    """With GLNN_TRUST=0, skip what the driver gets wrong, and learn what it does in parts."""
    if examine_choices(backend, asked):
        pytest.skip("; ".join(filter(None, (seen.notable for seen in backend.verdicts.seen()))))


def _with_poisoned_padding(layout: Layout, array: Array) -> Array:
    """`array` as `layout` packs it, the padding of its rows, or of its pixels' channels, NaN.

    That of groups of channels is no zero, but finite: activations leave their value at 0 there.
    """
    if layout == PACKED or isinstance(layout, Narrow):
        padding = np.full(layout.size(array.shape) * array.itemsize, 0xBE, np.uint8)
        padded = padding.view(array.dtype)
        layout.fill(padded, array)
        return padded
    array = array if array.dtype.kind == "f" else array.astype(np.int32).view(np.float32)
    poison = POISON if array.dtype == np.float32 else np.nan
    if isinstance(layout, Strip):
        memory = np.full(
            (layout.size(array.shape) // layout.pixel_stride, layout.pixel_stride), POISON
        )
        own = _with_poisoned_padding(layout.base, array)
        memory[:, _own(layout, array.shape)] = own.reshape(len(memory), -1)
        return memory.reshape(-1)
    if layout.name in ("nhwC4c", "nChw4c"):
        n, c, *size = array.shape
        padding = poison if layout.name == "nhwC4c" else 0.5
        whole = np.full((n, -(-c // 4) * 4, *size), padding, array.dtype)
        whole[:, :c] = array
        return layout.pack(whole)
    if layout.name == "C":
        return np.where(layout.pack(np.ones_like(array)) == 1, layout.pack(array), poison)
    if not isinstance(layout, RowMajor) or not array.size:
        return layout.pack(array)
    rows, row = layout.rows(array.shape), layout.row(array.shape)
    padded = np.full(layout.size(array.shape), poison, array.dtype)
    padded[: rows * row].reshape(rows, row)[:, : array.size // rows] = array.reshape(rows, -1)
    return padded


def _own(strip: Strip, shape: tuple[int, ...]) -> slice:
    """Which numbers of a pixel an array of `shape` takes, what pads its channels too."""
    return slice(strip.offset, strip.offset + -(-shape[1] // 4) * 4)


def _buffer(backend: GlBackend, of: TensorType, layout: Layout) -> Buffer:
    """One with a guard zone behind it."""
    room = backend.capacity(layout.words(of)) + GUARD
    return Buffer(of.shape, layout, capacity=room, dtype=of.dtype)


def _poisoned(backend: GlBackend, buffer: Buffer) -> Buffer:
    backend.device.activate()
    _write(backend, buffer, np.full(buffer.size, POISON, np.float32))
    return buffer


def _write(backend: GlBackend, buffer: Buffer, content: Array) -> None:
    """Write to the device's copy, after the copy that fills large new buffers with zeros."""
    backend.device.write_buffer(buffer.push(backend.device), content)
