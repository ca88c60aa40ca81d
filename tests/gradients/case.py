"""Operators whose gradients are looked at, and graphs of many of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.types import TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call, formula
from glnn.graph.gradients.differentiation import differentiate
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise, Reduce

Array = NDArray[Any]
Operand = tuple[int, ...] | Array | None
"""A shape of random float32 numbers, an array, or None for one that is left out."""
Torch = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Case:
    """An operator of operands, whose gradients by all float32 operands are wanted.

    The numbers of operands that are shapes follow from the name.
    """

    name: str
    """What it is called, no two alike."""
    operator: Operator
    """What is differentiated."""
    operands: tuple[Operand, ...]
    """Its operands, in order."""
    fixed: tuple[int, ...] = ()
    """The numbers of those operands that are constants of the graph: no gradient is by them."""
    torch: Torch | None = None
    """The same in PyTorch: called with a tensor for each operand that is there."""
    large: bool = False
    """Whether it is only looked at with GLNN_EXHAUSTIVE=1, and not by central differences."""

    @cached_property
    def random(self) -> np.random.Generator:
        """Where its numbers come from."""
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    @cached_property
    def arrays(self) -> tuple[Array | None, ...]:
        """The operands."""
        return tuple(
            self.random.standard_normal(one, np.float32) if isinstance(one, tuple) else one
            for one in self.operands
        )

    @cached_property
    def weights(self) -> tuple[Array, ...]:
        """The random numbers that each float32 result is multiplied by before it is added up."""
        types = [None if a is None else TensorType.from_array(a) for a in self.arrays]
        known = [a if i in self.fixed else None for i, a in enumerate(self.arrays)]
        results = self.operator.infer(types, known)
        return tuple(self.random.standard_normal(one.shape, np.float32) for one in results)

    @property
    def by(self) -> dict[str, Array]:
        """The operands that gradients are by, by the names of the graph's inputs."""
        return {n: a for n, a in self.inputs.items() if a.dtype == np.float32}

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """The operands that are inputs of the graph, by name."""
        there = enumerate(self.arrays)
        return {f"{self.name}/{i}": a for i, a in there if a is not None and i not in self.fixed}

    @cached_property
    def feeds(self) -> dict[str, Array]:
        """All that a graph of it is given, by name."""
        weights = {f"{self.name}/weights {i}": w for i, w in enumerate(self.weights)}
        return self.inputs | weights

    def put(self, builder: Builder) -> Value:
        """The sum of its results times their weights, in a graph."""
        given: list[Value | None] = []
        for i, array in enumerate(self.arrays):
            if array is None:
                given.append(None)
            elif i in self.fixed:
                given.append(constant(array))
            else:
                given.append(builder.input(f"{self.name}/{i}", TensorType.from_array(array)))
        results = builder.add(self.operator, *given, name=self.name)
        totals = []
        for i, result in enumerate(results):
            name = f"{self.name}/weights {i}"
            weights = builder.input(name, TensorType.from_array(self.weights[i]))
            axes = tuple(range(len(result.type.dims)))
            total = Reduce("sum", axes, False, formula("a * b"))
            totals += builder.add(total, result, weights, name=f"{name}: sum")
        return added(builder, totals)


@dataclass(frozen=True, eq=False)
class Together:
    """One graph of several cases, and one of the gradients by all their operands."""

    cases: tuple[Case, ...]

    @property
    def feeds(self) -> dict[str, Array]:
        """All that the graphs are given."""
        return {name: array for case in self.cases for name, array in case.feeds.items()}

    @cached_property
    def forward(self) -> Graph:
        """A sum for all of them."""
        builder = Builder("forward")
        return builder.graph([added(builder, [case.put(builder) for case in self.cases])])

    @cached_property
    def backward(self) -> Graph:
        """A gradient for each operand, in the order of `by`."""
        graph = self.forward
        values = {value.name: value for value in graph.inputs}
        by = [values[name] for name in self.by]
        made, found = differentiate(graph, graph.outputs[0], by)
        return Graph(made.nodes, made.inputs, tuple(dict.fromkeys(found)), "backward")

    @cached_property
    def by(self) -> tuple[str, ...]:
        """The operands that gradients are by."""
        return tuple(name for case in self.cases for name in case.by)

    def expected(self) -> dict[str, Array]:
        """The gradients by NumPy in float64, by operand."""
        return dict(zip(self.by, self.backward.reference(*wide(self.feeds.values())), strict=True))


def added(builder: Builder, values: Sequence[Value]) -> Value:
    """Their sum."""
    total, *others = values
    for value in others:
        add = Pointwise(call("add", Arg(0), Arg(1)))
        (total,) = builder.add(add, total, value, name="total")
    return total


def wide(arrays: Mapping[str, Array] | Any) -> list[Array]:
    """float32 as float64."""
    return [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]


def central(case: Case, step: float = 1e-5) -> Iterator[tuple[str, Array]]:
    """The gradient by each operand by central differences of the forward reference."""
    graph = Together((case,)).forward
    given = wide(case.feeds.values())
    for place, name in enumerate(case.feeds):
        if name not in case.by:
            continue
        x = given[place]
        found = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            number = x[at]
            x[at] = number + step
            (above,) = graph.reference(*given)
            x[at] = number - step
            (below,) = graph.reference(*given)
            x[at] = number
            found[at] = (above - below) / (2 * step)
        yield name, found
