"""Lowered operators, their kernels, and the tensors that they read and make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from glnn.backends.backend import Backend, Choice
from glnn.compiler.weights import Weight
from glnn.core.layout import Layout
from glnn.core.layout.layout import RowMajor
from glnn.core.types import DType, Shape, TensorType, widened
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.op_spec import OpSpec


@dataclass(frozen=True)
class Tensor:
    """A tensor in the memory called `memory`, which views of it share.

    offset: the word of the memory at which it begins where it is a part of that, else None.
    """

    type: TensorType
    layout: Layout
    memory: str
    offset: int | None = None

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.type.shape

    @property
    def unpacked(self) -> Tensor:
        """Return the tensor with each number in a word of its own, as kernels compute with it."""
        if self.layout == self.layout.unpacked:
            return self
        return replace(self, type=widened(self.type), layout=self.layout.unpacked)


def unpacked(op: Operator, operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return `operands` as kernels of `op` read them: only pointwise ones read packed tensors."""
    rows = all(tensor.layout.in_rows for tensor in operands.values())
    if isinstance(op, Pointwise) and rows:
        return operands
    return {name: tensor.unpacked for name, tensor in operands.items()}


def reorder(type: TensorType, source: Layout, target: Layout) -> OpSpec:
    """Return the spec of moving a tensor from one layout to another."""
    return OpSpec.create(Reorder(source.name, target.name), {"x": type}, {"x": source.name})


def can_reorder(backend: Backend, type: TensorType, source: Layout, target: Layout) -> bool:
    """Return True where launches can reorder a tensor from `source` to `target`.

    Moves can, between rows and for all types but float32; float32 has kernels for some layouts.
    """
    if source == target or (isinstance(source, RowMajor) and isinstance(target, RowMajor)):
        return True
    if type.dtype is not DType.float32:
        return True
    return backend.why_not(reorder(type, source, target)) is None


@dataclass(frozen=True)
class LoweredOp:
    """An operator on named tensors."""

    name: str
    """The name of the step, for people."""
    op: Operator
    """The operator to compute."""
    operands: Mapping[str, str]
    """The tensor of each operand that is computed, those of the epilogue included."""
    parameters: Mapping[str, Weight]
    """The operands that no run changes."""
    output: str
    """The tensor of its first result."""
    layer: str
    """The layer it belongs to."""
    kernel: str | None = None
    """The kernel to take; None leaves the choice open."""
    stage_of: str | None = None
    """The kernel of which this is a stage; None where it is none."""
    epilogue: Epilogue | None = None
    """The epilogue of the first result."""
    other_outputs: tuple[str, ...] = ()
    """The tensors of the results after the first: those that the epilogue stores, in its order, or
    those of an operator that only the host computes."""
    spec: OpSpec | None = None
    """The spec of control flow, whose result types do not follow from its operands' types."""
    joins: tuple[str, ...] = ()
    """The tensors that it makes at once, one behind the other in its result; empty for one."""
    unfused: Callable[[], Iterable[LoweredOp]] | None = None
    """Returns the operators that were fused into it, for the case that no kernel computes it."""

    @property
    def results(self) -> tuple[str, ...]:
        """The tensors that it makes."""
        return self.output, *self.other_outputs


@dataclass(frozen=True)
class ScheduledOp:
    """A lowered operator with the kernel chosen for it."""

    lowered: LoweredOp
    choice: Choice
    spec: OpSpec
    """The spec for the kernel to compute."""
    layouts: Mapping[str, Layout]
    """The layout of each operand and of `out`."""
    host: bool = False
    """True where the host computes it itself, without a kernel of the backend."""
    moved_to_host: bool = False
    """True where the host computes it though there is a kernel (see `cpu_fallback.py`)."""

    @property
    def tensors(self) -> Iterable[str]:
        """The tensors that it reads and writes."""
        return (*self.lowered.operands.values(), *self.lowered.results)

    @property
    def shapes(self) -> Shapes:
        """The shape of each operand."""
        return self.spec.shapes


@dataclass(frozen=True)
class KernelChoice:
    """A kernel that was chosen for an operator; the choice was open."""

    lowered: LoweredOp
    spec: OpSpec
    """The spec for the kernel to compute."""
    choice: Choice
    entries: range
    """The numbers of its entries in the schedule, with the reorders before them."""
