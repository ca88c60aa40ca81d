"""Base class of operators that run graphs, their bodies: branches and loops.

A body reads no value that the graph around it is given or computes: what it takes from there is an
operand of the node, and an input of the body, so that passes, memory and placement see all that a
node needs. Constants and variables it reads as any graph does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import ClassVar

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.graph import Graph
from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.types import ANYTHING, Array, DType, TensorType

FLAG = TensorType((), DType.bool)
"""Type of the flag by which a loop tells its body that it goes on."""
InputTypes = Mapping[str, TensorType]
Run = Callable[[int, Sequence[Array]], Sequence[Array]]
"""Function that runs the body of a number on arrays of its inputs, and returns its outputs."""


class Control(Operator):
    """An operator that runs graphs. Results are those of the bodies, in order."""

    control: ClassVar[bool] = True
    variadic: ClassVar[bool] = True

    @property
    @abstractmethod
    def bodies(self) -> tuple[Graph, ...]:
        """The graphs that it runs."""

    @property
    @abstractmethod
    def captures(self) -> tuple[tuple[int, int], ...]:
        """For each body the first operand that is an input of it as it is, and which input that is.

        All further inputs of that body are the operands behind that one.
        """

    @abstractmethod
    def with_bodies(self, bodies: Sequence[Graph]) -> Control:
        """The same with other bodies."""

    @abstractmethod
    def body_types(self, types: Types) -> tuple[InputTypes, ...]:
        """The types of each body's inputs, by name, for operands of `types`."""

    def body_constants(self, constants: Constants) -> tuple[Mapping[str, Array], ...]:
        """Return the known arrays of each body's inputs, by name, given those of the operands."""
        found = []
        for body, (operand, first) in zip(self.bodies, self.captures, strict=True):
            pairs = zip(body.inputs[first:], constants[operand:], strict=False)
            found.append({value.name: array for value, array in pairs if array is not None})
        return tuple(found)

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of results."""

    @abstractmethod
    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        """The results' types where operands do not fit, or too little is known of them: dtypes
        without sizes.
        """

    def infer_open_sizes(
        self, types: Types, constants: Constants, *, strict: bool
    ) -> tuple[tuple[TensorType, ...], Constants]:
        try:
            return self.infer(types, constants), self.propagate_constants(types, constants)
        except (ShapeError, UnsupportedOpError):
            if strict:
                raise
            return self.unknown(types), (None,) * self.count

    def propagate_constants(
        self, types: Types, constants: Constants = (), results: Sequence[TensorType] | None = None
    ) -> tuple[Array | None, ...]:
        return (None,) * self.count

    @abstractmethod
    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        """The results for arrays of the operands, of whatever sizes come of them by `run`."""

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return self.perform(lambda body, given: self.bodies[body].reference(*given), *arrays)

    def _input_types(self, body: Graph, types: Types) -> InputTypes:
        """The type of each input of `body` by its name. Raises ShapeError where some do not fit."""
        if len(types) != len(body.inputs):
            raise ShapeError(
                f"{self.name}: {body.name!r} takes {len(body.inputs)} values, got {len(types)}"
            )
        found: dict[str, TensorType] = {}
        for value, type in zip(body.inputs, types, strict=True):
            loose = ANYTHING in (type, value.type)
            if type is None or (type.dtype is not value.type.dtype and not loose):
                raise ShapeError(
                    f"{self.name}: {value.name!r} of {body.name!r} must be "
                    f"{value.type.dtype.value}, got {type or 'nothing'}"
                )
            found[value.name] = type
        return found

    def _single(self, operand: str, type: TensorType, *dtypes: DType) -> None:
        """Raise ShapeError unless `type` is one number of one of `dtypes`."""
        if type.dtype not in dtypes or (not type.symbols and prod(type.shape) != 1):
            names = " or ".join(dtype.value for dtype in dtypes)
            raise ShapeError(f"{self.name}: {operand} must be one {names}, got {type}")


def results(body: Graph, types: InputTypes, numbers: Mapping[str, Array]) -> tuple[TensorType, ...]:
    """The types of the outputs of `body` for inputs of such types, and of such numbers, by name."""
    found, _ = body.propagate_constants(types, numbers)
    return tuple(found.get(value, value.type) for value in body.outputs)


def cost(body: Graph, input_types: InputTypes) -> Cost:
    """Return the cost of the nodes of `body` that are computed in each run."""
    types, flops, nbytes = body.bind(input_types), 0, 0
    for node in body.nodes:
        if node.outputs[0] not in body.fixed:
            one = node.operator.cost([None if v is None else types[v] for v in node.inputs])
            flops, nbytes = flops + one.flops, nbytes + one.bytes
    return Cost(flops, nbytes)
