"""The CPU backend: the ops' NumPy references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.backends.backend import Backend, Choice, Memory, Performer, Store
from glnn.errors import UnsupportedOpError
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Contraction, Shapes
from glnn.kernels.problem import Problem
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
        self,
        op: Contraction,
        shapes: Shapes,
        layouts: Mapping[str, str],
        kernel: str | None = None,
        epilogue: Epilogue | None = None,
    ) -> NumpyKernel:
        Problem.of(op, shapes, layouts, epilogue)  # raises where they do not fit
        if kernel not in (None, "numpy"):
            raise UnsupportedOpError(f"cpu has no kernel {kernel!r} for {op.name}; it has numpy")
        return NumpyKernel()

    def layouts(
        self,
        choice: Choice,
        op: Contraction,
        shapes: Shapes,
        layouts: Mapping[str, str],
        epilogue: Epilogue | None = None,
    ) -> Mapping[str, Layout]:
        return dict.fromkeys((*shapes, "out"), parse("R"))

    def view_layouts(self, op: Contraction, given: str) -> tuple[str, str]:
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
        op: Contraction,
        choice: Choice,
        operands: Mapping[str, Store],
        shapes: Shapes,
        out: Store,
        epilogue: Epilogue | None = None,
    ) -> Performer:
        problem = Problem.of(op, shapes, {}, epilogue)

        def perform() -> None:
            out.set(problem.compute({k: s.pull().reshape(shapes[k]) for k, s in operands.items()}))

        return perform
