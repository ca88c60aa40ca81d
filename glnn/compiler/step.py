"""Description of a step of a plan for people: what one launch does, and its memory."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from glnn.backends import Backend
from glnn.compiler.cpu_fallback import LARGE, LEFT, why
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp
from glnn.compiler.weights import Weight, Weights
from glnn.core.layout import Layout, without_strip
from glnn.core.types import DType, Shape, TensorType
from glnn.graph.operator import Cost, Operator, Shapes
from glnn.kernels.op_spec import OpSpec

WeightKey = tuple[Weight, Layout, bool]
"""The key of a parameter in `Weights`."""


@dataclass(frozen=True)
class Step:
    """Description of a launch of a plan.

    name: the step's name, for people.
    layer: the layer that it belongs to.
    op: the operator.
    kernel: the kernel that computes it.
    via: the kernel of several stages that this is a stage of; None for a whole operator.
    inputs, output: names of the tensors that it reads and makes.
    shapes: of the operands, by the operands' names.
    shape: of the result.
    layouts: names of the layouts of each operand and of `out`.
    reads: the kind of binding through which the kernel reads each operand (see `Backend.reads`).
    memory: the number of the block of the result; None for memory of the host.
    nbytes: bytes of the result, of the parameters, and of copies of operands in textures; without
        parameters and copies that an earlier step of the plan has already.
    upload_peak: the most bytes beside the textures while parameters are copied into these.
    cost: least work and memory traffic.
    host: True where the host computes it, or runs its bodies: operands are read back and results
        uploaded.
    why: why the host computes it though there is a GPU; else empty.
    fp16, int8: the parameters that are stored as float16, and as int8, four in a word.
    saved: bytes saved by storing these so, instead of as float32.
    joins: the tensors that it makes at once, one behind the other in its result; empty for one.
    fixed_copies: bytes of the copies of parameters, which are part of `nbytes`.
    """

    name: str
    layer: str
    op: Operator
    kernel: str
    via: str | None
    inputs: tuple[str, ...]
    output: str
    shapes: Shapes
    shape: Shape
    layouts: Mapping[str, str]
    reads: Mapping[str, str]
    memory: int | None
    nbytes: tuple[int, int, int]
    upload_peak: int
    cost: Cost
    host: bool
    why: str
    fp16: tuple[str, ...]
    int8: tuple[str, ...]
    saved: int
    joins: tuple[str, ...] = ()
    fixed_copies: int = 0

    @classmethod
    def all_of(cls, schedule: Schedule, arena: Arena) -> tuple[Step, ...]:
        """Return the steps of all entries of `schedule`."""
        earlier: set[WeightKey] = set()
        return tuple(cls.describe(schedule, arena, entry, earlier) for entry in schedule.entries)

    @classmethod
    def describe(
        cls, schedule: Schedule, arena: Arena, entry: ScheduledOp, earlier: set[WeightKey]
    ) -> Step:
        """Return the step of `entry`, and add its parameters to `earlier`."""
        lowered = entry.lowered
        out = schedule.tensors[lowered.output]
        backend = schedule.backend
        copies = {} if entry.host else backend.copies(entry.choice, entry.spec)
        stored = {
            name: _stored_type(backend, weight.type)
            for name, weight in lowered.parameters.items()
            if not entry.host or (lowered.op.control and name not in lowered.op.host)
        }
        keys = _keys(entry, copies)
        shared = {name for name in stored if name in keys and keys[name] in earlier}
        earlier |= set(keys.values())
        stored = {name: one for name, one in stored.items() if name not in shared}
        copies = {name: nbytes for name, nbytes in copies.items() if name not in shared}
        packed = {name: _bytes(backend, entry.layouts[name], one) for name, one in stored.items()}
        as_fp16 = {name: one for name, one in stored.items() if one.dtype is DType.float16}
        small = {name: stored[name] for name in entry.spec.int8_operands if name in stored}
        return cls(
            name=lowered.name,
            layer=lowered.layer,
            op=lowered.op,
            kernel=entry.choice.name,
            via=lowered.stage_of,
            inputs=tuple(lowered.operands.values()),
            output=lowered.output,
            shapes=entry.shapes,
            shape=out.shape,
            layouts={name: layout.name for name, layout in entry.layouts.items()},
            reads={} if entry.host else backend.reads(entry.choice, entry.spec),
            memory=arena.block.get(out.memory),
            nbytes=(
                4 * without_strip(out.layout).words(out.type) if out.memory in arena.block else 0,
                sum(nbytes for name, nbytes in packed.items() if name not in copies),
                sum(copies.values()),
            ),
            upload_peak=_upload_peak(packed, copies),
            cost=entry.spec.cost,
            host=entry.host,
            why=_why(entry, backend),
            fp16=tuple(as_fp16),
            int8=tuple(small),
            saved=_float32_bytes(backend, entry, as_fp16 | small)
            - sum(copies.get(n, packed[n]) for n in as_fp16 | small),
            joins=lowered.joins,
            fixed_copies=sum(n for name, n in copies.items() if name in lowered.parameters),
        )


def _why(entry: ScheduledOp, backend: Backend) -> str:
    """Return why the host computes `entry`; empty where it does not, or where there is no GPU."""
    if not entry.host or entry.lowered.op.control or backend.device is None:
        return ""
    if entry.moved_to_host:
        return LEFT
    if entry.lowered.parameters and not entry.lowered.operands:
        return LARGE
    types = (type for _, type in entry.spec.operands)
    return why(entry.lowered.op, (*types, *entry.spec.results), backend)


def _keys(entry: ScheduledOp, copies: Container[str]) -> dict[str, WeightKey]:
    """Return the key in Weights of each parameter of `entry`. copies: those in textures."""
    return {
        name: (weight, entry.layouts[name], name in copies)
        for name, weight in entry.lowered.parameters.items()
        if not entry.host
    }


def _stored_type(backend: Backend, type: TensorType) -> TensorType:
    """Return the type as which `backend` stores a parameter."""
    return TensorType(type.dims, backend.stored(type.dtype))


def _bytes(backend: Backend, layout: Layout, type: TensorType) -> int:
    """Return the bytes of a parameter's buffer."""
    return 4 * backend.capacity(layout.words(type))


def _float32_bytes(backend: Backend, entry: ScheduledOp, small: Mapping[str, TensorType]) -> int:
    """Return the bytes that the parameters `small` would take as float32."""
    if not small:
        return 0
    spec, types = entry.spec, {name: TensorType(one.dims) for name, one in small.items()}
    operands = {**dict(spec.operands), **types}
    wide = OpSpec.create(spec.op, operands, spec.layouts, spec.epilogue)
    copies = backend.copies(entry.choice, wide)
    sizes = {name: _bytes(backend, entry.layouts[name], one) for name, one in types.items()}
    return sum(copies.get(name, nbytes) for name, nbytes in sizes.items())


def parameter_bytes(schedule: Schedule) -> dict[WeightKey, int]:
    """Return the bytes of each parameter of `schedule` on the device."""
    backend, sizes = schedule.backend, dict[WeightKey, int]()
    for entry in schedule.entries:
        copies = {} if entry.host else backend.copies(entry.choice, entry.spec)
        for name, key in _keys(entry, copies).items():
            size = _bytes(backend, key[1], _stored_type(backend, key[0].type))
            sizes[key] = copies.get(name, size)
    return sizes


def resident_bytes(schedule: Schedule, weights: Weights) -> int:
    """Return the bytes of parameters of `schedule` that are on the device already."""
    return sum(nbytes for key, nbytes in parameter_bytes(schedule).items() if key in weights)


def _upload_peak(packed: Mapping[str, int], copies: Mapping[str, int]) -> int:
    """Return the most bytes beside the textures `copies` while these are filled from buffers.

    packed: bytes of each parameter's buffer, which is freed once it was copied.
    """
    allocated = most = sum(nbytes for name, nbytes in packed.items() if name in copies)
    for name, nbytes in copies.items():
        allocated += nbytes
        most = max(most, allocated)
        allocated -= packed.get(name, 0)
    return most - sum(copies.values())
