"""The CPU backend: the ops' NumPy references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.backends.backend import Backend, Choice, Launch, Memory, Operand
from glnn.core.layout import Layout, parse
from glnn.core.types import DType, Shape, as_float
from glnn.errors import UnsupportedOpError
from glnn.gl.command_encoder import BlockPart
from glnn.graph.operator import Operator
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.reference import Preparation
from glnn.runtime.store import HostStore, Store


@dataclass(frozen=True)
class NumpyKernel:
    """The only kernel of every op on the CPU: its NumPy reference."""

    name: str = "numpy"


class NumpyStep:
    """An op prepared to run on stores.

    compute: returns the result for the arrays of the operands. operands: their stores. shapes:
    their shapes, None where the arrays always have them. out: the store of the result.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[NDArray[Any]]], NDArray[Any]],
        operands: tuple[Store, ...],
        shapes: tuple[Shape | None, ...],
        out: Store,
    ) -> None:
        self._function, self._out = compute, out
        self._operands = tuple(zip(operands, shapes, strict=True))

    def __call__(self) -> None:
        with np.errstate(all="ignore"):  # overflows and undefined results are inf or NaN
            self.compute()

    def compute(self) -> None:
        """Compute the step, within `np.errstate`."""
        arrays = []
        for store, shape in self._operands:
            array = store.pull()
            fits = shape is None or array.shape == shape
            arrays.append(array if fits else array.reshape(shape))
        self._out.set(self._function(arrays))


class Cpu(Backend):
    """NumPy, and the BLAS that NumPy is built with."""

    name: ClassVar[str] = "cpu"
    shares: ClassVar[bool] = True

    def __init__(self) -> None:
        self.device = None

    def choose(self, spec: OpSpec, kernel: str | None = None) -> NumpyKernel:
        if kernel not in (None, "numpy"):
            raise UnsupportedOpError(
                f"cpu has no kernel {kernel!r} for {spec.op.name}; it has numpy"
            )
        return NumpyKernel()

    def layouts(self, choice: Choice, spec: OpSpec) -> Mapping[str, Layout]:
        return dict.fromkeys((*spec.shapes, "out"), parse("R"))

    def view_layouts(self, op: Operator, layout: str) -> tuple[str, str]:
        return "R", "R"

    def stored(self, dtype: DType) -> DType:
        # Float32: to widen float16 in each run takes longer than the multiplication.
        return DType.float32 if dtype is DType.float16 else dtype

    def keep(self, array: NDArray[Any], layout: Layout, words: NDArray[Any] | None = None) -> Store:
        return super().keep(as_float(array), layout)

    def renew(self, store: Store, array: NDArray[Any]) -> None:
        super().renew(store, as_float(array))

    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
        offset: int | None = None,
    ) -> HostStore:
        return HostStore(shape, dtype)

    def prepare(
        self,
        choice: Choice,
        spec: OpSpec,
        operands: Mapping[str, Operand],
        out: Operand,
        fixed_uniforms: bool = False,
    ) -> Launch:
        types = dict(spec.operands)
        operand_types = {name: types[name] for name in operands}
        make = Preparation(spec.op, operand_types, spec.results[0], spec.epilogue)
        compute = make(spec.op, make.types, spec.epilogue)
        shapes = tuple(one.shape for one in operand_types.values())
        stores = tuple(one for one in operands.values() if not isinstance(one, BlockPart))
        assert not isinstance(out, BlockPart)  # there are no blocks
        return NumpyStep(compute, stores, shapes, out)

    def combine(self, launches: Sequence[Launch]) -> Launch:
        steps = [one.compute if isinstance(one, NumpyStep) else one for one in launches]

        def launch() -> None:
            with np.errstate(all="ignore"):
                for step in steps:
                    step()

        return launch
