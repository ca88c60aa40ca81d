"""What the host computes of a plan for a GPU, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glnn.backends import Backend
from glnn.graph.operator import Operator
from glnn.graph.operators.host import HostOperator
from glnn.types import DType, TensorType

LATE = "sizes that only a run tells"
"""Why the host computes what is planned in parts."""
LEFT = "between steps of the host's: to the device and back takes longer"
"""Why the host computes what a kernel could."""

LARGE = "made of constants alone, and much larger than these: no plan keeps it"
"""Why the host computes what no run changes, in each run."""


@dataclass(frozen=True)
class Hosted:
    """A step that the host computes."""

    layer: str
    """The layer or node that it belongs to."""
    operator: str
    """What people call its operator."""
    reason: str
    """Why no GPU does."""

    @property
    def left(self) -> bool:
        """Whether a GPU could, and would be done later."""
        return self.reason == LEFT

    def __str__(self) -> str:
        return f"{self.operator} ({self.reason})"


def why(operator: Operator, types: Iterable[TensorType], backend: Backend) -> str:
    """Why no kernel of `backend` computes `operator`. types: of its operands and results."""
    if isinstance(operator, HostOperator):
        return operator.reason
    types = tuple(types)
    others = dict.fromkeys(t.dtype for t in types if not backend.holds(t.dtype))
    if DType.int64 in others:
        return "int64 numbers that are not known to be int32's"
    if others:
        return f"{' and '.join(dtype.value for dtype in others)} is the host's"
    given = ", ".join(dict.fromkeys(t.dtype.value for t in types))
    return f"{backend.name} has no kernel for it of {given}"
