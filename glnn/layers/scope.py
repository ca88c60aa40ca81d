"""The part of a graph that a layer adds its nodes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Value, Variable
from glnn.graph.operator import Operator
from glnn.graph.operators import Identity, Reshape


@dataclass(frozen=True)
class Training:
    """The state of training, for layers that behave otherwise then."""

    seed: int
    """The seed of random numbers."""
    passes: Value
    """The number of batches before this one, int32 of shape ()."""
    updates: dict[Value, Value] = field(default_factory=dict)
    """New values of weights that no gradient changes, as running statistics, for the next batch."""
    counting: list[str] = field(default_factory=list)
    """The layers that ask for `passes`."""


@dataclass(frozen=True)
class Scope:
    """A layer's place in a graph that is being built.

    builder: of the graph. name: the layer's. output: the name of its result. training: None at
    inference.
    """

    builder: Builder
    name: str
    output: str
    training: Training | None = None

    def add(self, operator: Operator, *inputs: Value) -> Value:
        """Add `operator` on the way to the result, and return its value."""
        called = self.builder.fresh(f"{self.output}: {operator.name}")
        (value,) = self.builder.add(operator, *inputs, name=self.name, outputs=(called,))
        return value

    def result(self, operator: Operator, *inputs: Value) -> Value:
        """The layer's result, which `operator` makes."""
        (value,) = self.builder.add(operator, *inputs, name=self.name, outputs=(self.output,))
        return value

    def all(self, operator: Operator, *inputs: Value) -> tuple[Value, ...]:
        """The results of `operator`, the first of them the layer's."""
        count = len(operator.infer([value.type for value in inputs]))
        more = (self.builder.fresh(f"{self.output}: {operator.name} {i}") for i in range(1, count))
        names = (self.output, *more)
        return self.builder.add(operator, *inputs, name=self.name, outputs=names)

    def expand(self, operator: Composite, *inputs: Value) -> tuple[Value, ...]:
        """Add a composite on the way to the result, and return all its results.

        Where all sizes are known, as in training, its parts are added, which may have gradients.
        """
        if any(value.type.symbols for value in inputs):
            return self._add_all(operator, inputs, len(operator.unknown([v.type for v in inputs])))
        graph, here = operator.expand(inputs), dict[Value, Value]()
        for node in graph.nodes:
            given = tuple(here.get(v, v) if v else None for v in node.inputs)
            found = self._add_all(node.operator, given, len(node.outputs))
            here |= zip(node.outputs, found, strict=True)
        return tuple(here.get(value, value) for value in graph.outputs)

    def _add_all(
        self, operator: Operator, inputs: Sequence[Value | None], count: int
    ) -> tuple[Value, ...]:
        """The `count` results of `operator`."""
        names = [self.builder.fresh(f"{self.output}: {operator.name}")]
        names += [self.builder.fresh(f"{names[0]} {i}") for i in range(1, count)]
        return self.builder.add(operator, *inputs, name=self.name, outputs=names)

    def further(self, name: str, value: Value) -> Value:
        """Make `value` the layer's result `name` of its `more`."""
        called = f"{self.output}.{name}"
        return self.builder.add(Identity(), value, name=self.name, outputs=(called,))[0]

    def named(self, value: Value) -> Value:
        """Make `value` the layer's result."""
        return self.result(Identity(), value)

    def weight(self, variable: Variable, name: str) -> Value:
        """The weight of the layer that is called `name`."""
        return self.builder.variable(variable, f"{self.name}.{name}")

    def channels(self, value: Value, x: Value) -> Value:
        """Return `value` of shape (c,) shaped to broadcast over axis 1 of x.

        Raises ShapeError where x has other than c channels.
        """
        dims, (count,) = x.type.dims, value.type.dims
        if len(dims) < 2 or dims[1] != count:
            raise ShapeError(f"x must have shape (n, {count}, ...), got {dims}")
        return self.add(Reshape((-1, *(1,) * (len(dims) - 2))), value) if len(dims) > 2 else value
