"""Where a layer puts the nodes that compute it."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.graph.builder import Builder
from glnn.graph.graph import Value, Variable
from glnn.graph.operator import Operator
from glnn.graph.operators import Reshape


@dataclass(frozen=True)
class Scope:
    """A layer's place in a graph that is being built.

    builder: of the graph. name: the layer's. output: the name of its result.
    """

    builder: Builder
    name: str
    output: str

    def add(self, operator: Operator, *inputs: Value) -> Value:
        """What `operator` makes on the way to the result."""
        called = self.builder.fresh(f"{self.output}: {operator.name}")
        (value,) = self.builder.add(operator, *inputs, name=self.name, outputs=(called,))
        return value

    def result(self, operator: Operator, *inputs: Value) -> Value:
        """The layer's result, which `operator` makes."""
        (value,) = self.builder.add(operator, *inputs, name=self.name, outputs=(self.output,))
        return value

    def weight(self, variable: Variable, name: str) -> Value:
        """The weight of the layer that is called `name`."""
        return self.builder.variable(variable, f"{self.name}.{name}")

    def channels(self, value: Value, rank: int) -> Value:
        """`value` of shape (c,) as it spreads over axis 1 of a tensor of that rank."""
        return self.add(Reshape((-1, *(1,) * (rank - 2))), value) if rank > 2 else value
