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
    """A tensor: several share the memory called `memory` where an operator is only a view.

    offset: the word of that memory that it begins at, where others lie beside it; None else.
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
    """The tensors that `operands` must be for kernels of `op`: packed ones some cannot take."""
    rows = all(tensor.layout.in_rows for tensor in operands.values())
    if isinstance(op, Pointwise) and rows:
        return operands
    return {name: tensor.unpacked for name, tensor in operands.items()}


def reorder(type: TensorType, source: Layout, target: Layout) -> OpSpec:
    """The spec of moving a tensor from one layout to another."""
    return OpSpec.create(Reorder(source.name, target.name), {"x": type}, {"x": source.name})


def can_reorder(backend: Backend, type: TensorType, source: Layout, target: Layout) -> bool:
    """Return True where launches can reorder a tensor from `source` to `target`: always other than
    float32, by moves.
    """
    if source == target or (isinstance(source, RowMajor) and isinstance(target, RowMajor)):
        return True
    if type.dtype is not DType.float32:
        return True  # by moves
    return backend.why_not(reorder(type, source, target)) is None


@dataclass(frozen=True)
class LoweredOp:
    """An operator on named tensors."""

    name: str
    """The name of the step, for people."""
    op: Operator
    """The operator to compute."""
    operands: Mapping[str, str]
    """The tensor of each operand that is computed; those of the epilogue too."""
    parameters: Mapping[str, Weight]
    """The operands that no run changes."""
    output: str
    """The tensor of its first result."""
    layer: str
    """The layer it belongs to."""
    kernel: str | None = None
    """The kernel to take; None leaves the choice open."""
    via: str | None = None
    """The kernel whose stage it is."""
    epilogue: Epilogue | None = None
    """The epilogue of the first result."""
    more: tuple[str, ...] = ()
    """The tensors of its other results: of an operator only the host makes them, else they are the
    operands that the epilogue updates, in its order."""
    spec: OpSpec | None = None
    """What control flow computes: the types of its operands do not tell those of its results."""
    joins: tuple[str, ...] = ()
    """The tensors that it makes at once, as they lie one behind the other."""
    unfused: Callable[[], Iterable[LoweredOp]] | None = None
    """Gives lowered operators that compute the same, where no kernel does all of it."""

    @property
    def results(self) -> tuple[str, ...]:
        """The tensors that it makes."""
        return self.output, *self.more


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
    """True where the host computes it, though the backend's tensors are elsewhere."""
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
    """A kernel that was chosen for an operator, where another might have been."""

    lowered: LoweredOp
    spec: OpSpec
    """The spec for the kernel to compute."""
    choice: Choice
    entries: range
    """The entries of the schedule that it became, with the reorders before them."""
