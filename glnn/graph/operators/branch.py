"""The branch operator: a condition selects one of two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from glnn.errors import ModelError, ShapeError
from glnn.graph.graph import Graph
from glnn.graph.operator import Constants, Cost, Types
from glnn.graph.operators.control import Control, InputTypes, Run, cost, results
from glnn.types import ANYTHING, UNKNOWN, UNRANKED, Array, DType, TensorType


@dataclass(frozen=True)
class If(Control):
    """The results of `then` where the condition is true, else those of `otherwise`.

    condition: one bool. x0, x1, ...: the inputs of `then`, then those of `otherwise`. Results have
    the same dtype in both; a size or rank in which they differ is not known before a run.
    ONNX: If.
    """

    then: Graph
    """Graph that is computed where the condition is true."""
    otherwise: Graph
    """Graph that is computed where the condition is false."""

    name: ClassVar[str] = "if"
    host: ClassVar[tuple[str, ...]] = ("condition",)

    def __post_init__(self) -> None:
        then, otherwise = (len(body.outputs) for body in self.bodies)
        if then != otherwise or not then:
            raise ModelError(f"if: branches have as many outputs, got {then} and {otherwise}")

    @property
    def operands(self) -> tuple[str, ...]:
        return "condition", "x"

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return self.then, self.otherwise

    @property
    def count(self) -> int:
        return len(self.then.outputs)

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        return (1, 0), (1 + len(self.then.inputs), 0)

    def with_bodies(self, bodies: Sequence[Graph]) -> If:
        return If(*bodies)

    def body_types(self, types: Types) -> tuple[InputTypes, ...]:
        count = 1 + len(self.then.inputs)
        return self._input_types(self.then, types[1:count]), self._input_types(
            self.otherwise, types[count:]
        )

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        self._single("condition", self.named(types)["condition"], DType.bool)
        each = zip(self.bodies, self.body_types(types), self.body_constants(constants), strict=True)
        both = [results(body, given, numbers) for body, given, numbers in each]
        found = [self._either(i, a, b) for i, (a, b) in enumerate(zip(*both, strict=True))]
        condition = constants[0] if constants else None
        return tuple(found) if condition is None else both[0 if condition.item() else 1]

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        pairs = zip(self.then.outputs, self.otherwise.outputs, strict=True)
        both = ((one.type, other.type) for one, other in pairs)
        return tuple((then if then != ANYTHING else other).unranked for then, other in both)

    def _either(self, number: int, then: TensorType, otherwise: TensorType) -> TensorType:
        if ANYTHING in (then, otherwise):
            return (then if then != ANYTHING else otherwise).unranked
        if then.dtype is not otherwise.dtype:
            raise ShapeError(
                f"if: result {number} must have one dtype in both branches, "
                f"got {then} and {otherwise}"
            )
        if len(then.dims) != len(otherwise.dims):
            return TensorType((UNRANKED,), then.dtype)
        sizes = zip(then.dims, otherwise.dims, strict=True)
        dims = tuple(a if a == b else UNKNOWN for a, b in sizes)
        return TensorType(dims, then.dtype, max(then.holds, otherwise.holds, key=len))

    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        condition, *given = (array for array in arrays if array is not None)
        count = len(self.then.inputs)
        return tuple(run(0, given[:count]) if condition.item() else run(1, given[count:]))

    def cost(self, types: Types) -> Cost:
        """Return the cost of the more expensive branch."""
        pairs = zip(self.bodies, self.body_types(types), strict=True)
        return max((cost(body, given) for body, given in pairs), key=lambda c: (c.flops, c.bytes))
