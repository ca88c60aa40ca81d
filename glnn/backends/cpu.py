"""The CPU backend: the ops' NumPy references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.backends.backend import Backend, Choice, Memory, Performer, Store
from glnn.errors import UnsupportedOpError
from glnn.graph.operator import Operands, Operator, Shapes, typed
from glnn.layout import Layout, parse
from glnn.types import DType, Shape


@dataclass(frozen=True)
class NumpyKernel:
    """The one kernel of every op here: its reference."""

    name: str = "numpy"


class HostStore:
    """A tensor in the host's memory."""

    def __init__(self, shape: Shape, dtype: DType = DType.float32) -> None:
        self.shape, self.dtype = shape, dtype
        self.array: NDArray[Any] = np.zeros(shape, dtype.numpy)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def set(self, array: NDArray[Any]) -> None:
        self.array = array

    def pull(self) -> NDArray[Any]:
        return self.array


class Cpu(Backend):
    """NumPy, and the BLAS that NumPy brings."""

    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        self.device = None

    def choose(
        self, op: Operator, shapes: Operands, layouts: Mapping[str, str], kernel: str | None = None
    ) -> NumpyKernel:
        op.check_operands(shapes)
        op.results(typed(shapes))
        if kernel not in (None, "numpy"):
            raise UnsupportedOpError(f"cpu has no kernel {kernel!r} for {op.name}; it has numpy")
        return NumpyKernel()

    def layouts(
        self, choice: Choice, op: Operator, shapes: Operands, layouts: Mapping[str, str]
    ) -> Mapping[str, Layout]:
        return dict.fromkeys((*shapes, "out"), parse("R"))

    def view_layouts(self, op: Operator, given: str) -> tuple[str, str]:
        return "R", "R"

    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
    ) -> HostStore:
        return HostStore(shape, dtype)

    def prepare(
        self,
        op: Operator,
        choice: Choice,
        operands: Mapping[str, Store],
        shapes: Shapes,
        out: Store,
    ) -> Performer:
        def perform() -> None:
            out.set(op.compute({k: s.pull().reshape(shapes[k]) for k, s in operands.items()}))

        return perform
