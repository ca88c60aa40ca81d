"""The nodes of a graph of an ONNX model, or of a body in it, seen to hang together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Value


@dataclass(frozen=True, eq=False)
class Step:
    """A node: an operator on values that have names."""

    name: str
    """The node's name in error messages."""
    operator: Composite | None
    """The node's operator; None where the result is the operand itself."""
    inputs: tuple[str, ...]
    """The name of each operand, empty where one is left out; what bodies take comes last."""
    outputs: tuple[str, ...]
    """The names of the results, empty where nobody reads one."""

    @property
    def reads_numbers_of(self) -> tuple[str, ...]:
        """The names of the operands on whose numbers the results depend."""
        type_only = self.operator.type_only if self.operator is not None else ()
        if self.operator is None or not type_only:
            return self.inputs
        pairs = zip(self.operator.names(len(self.inputs)), self.inputs, strict=True)
        return tuple(value for name, value in pairs if name not in type_only)


@dataclass(frozen=True, eq=False)
class Block:
    """Steps, each behind those whose results it reads."""

    name: str
    """The graph's."""
    inputs: tuple[str, ...]
    """The names of its inputs."""
    constants: Mapping[str, Value]
    """Constants by name, made once, so that plans share them."""
    steps: tuple[Step, ...]
    """The nodes, in an order in which they can run."""
    outputs: tuple[str, ...]
    """The names of its outputs."""

    @cached_property
    def free(self) -> tuple[str, ...]:
        """The names that it takes from the graph around it, in the order in which they are read."""
        made = {*self.inputs, *self.constants}
        found: dict[str, None] = {}
        for step in self.steps:
            found |= dict.fromkeys(name for name in step.inputs if name and name not in made)
            made.update(step.outputs)
        return tuple(found | dict.fromkeys(name for name in self.outputs if name not in made))

    @cached_property
    def size_names(self) -> frozenset[str]:
        """The names of inputs and free values whose numbers determine sizes inside the block."""
        found: set[str] = set()
        for step in reversed(self.steps):
            if found.intersection(step.outputs):
                found.update(step.reads_numbers_of)
            elif step.operator is not None:
                named = step.operator.named(step.inputs)
                found.update(
                    named[name] for name in step.operator.all_shape_inputs if name in named
                )
        return frozenset(found)

    @cached_property
    def reads_numbers_of(self) -> frozenset[str]:
        """The names on whose numbers the outputs depend."""
        found = set(self.outputs)
        for step in reversed(self.steps):
            if found.intersection(step.outputs):
                found.update(step.reads_numbers_of)
        return frozenset(found)

    def put(self, builder: Builder, values: Mapping[str, Value]) -> list[Value]:
        """Put all steps into `builder`. values: by name, those that it is given and that are free.

        Gives the outputs. Raises ShapeError, UnsupportedOpError that names the node.
        """
        here = {**values, **self.constants}
        for step in self.steps:
            operands: list[Value | None] = [here[name] if name else None for name in step.inputs]
            while operands and operands[-1] is None:
                operands.pop()
            names = [name for name in step.outputs if name]
            here |= zip(names, self._results(builder, step, operands, names), strict=True)
        return [here[name] for name in self.outputs]

    def _results(
        self, builder: Builder, step: Step, operands: Sequence[Value | None], names: Sequence[str]
    ) -> Sequence[Value]:
        if step.operator is None:
            return operands[:1]  # type: ignore[return-value]
        try:
            return builder.add(step.operator, *operands, name=step.name, outputs=names)
        except (ShapeError, UnsupportedOpError) as error:
            raise type(error)(f"node {step.name!r}: {error}") from None
