"""A model's graph for batches of one size, with its parameters as states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from glnn.errors import ModelError, shown
from glnn.graph.graph import Graph, Kind, Value
from glnn.layers.arguments import index, integer
from glnn.layers.scope import Training
from glnn.model.model import Model
from glnn.types import Array, DType, TensorType

PASSES = "passes"
TARGET = "target"
RESERVED = (
    TARGET,
    PASSES,
    "step",
    "loss",
    "total_loss",
    "correct",
    "seen",
    "accumulated",
    "bias_correction1",
    "bias_correction2",
)
"""Names of states that are not a parameter's, and of the target: no value of a model's has them."""


@dataclass(frozen=True, eq=False)
class Forward:
    """A model's graph in which inputs stand for its parameters."""

    graph: Graph
    """The graph; its inputs are the model's, then the states."""
    inputs: tuple[Value, ...]
    """The model's own."""
    states: Mapping[str, Value]
    """The inputs that are states, by name: parameters, running statistics and `passes`."""
    initial: Mapping[str, Array]
    """The initial content of the states."""
    trained: tuple[str, ...]
    """The states that gradients change."""
    updates: Mapping[str, Value]
    """The next content of the other states."""

    @classmethod
    def build(
        cls, model: Model, batch: int, frozen: Sequence[str], seed: int, *, inference: bool = False
    ) -> Forward:
        """Build the forward pass of `model`; see `training_step`.

        inference: whether the layers do as at inference. Raises ModelError where `frozen` names
        nothing, or there is not one output; ShapeError where batch or seed are none.
        """
        batch, seed = integer("batch", batch), index("seed", seed)
        if len(model.outputs) != 1:
            raise ModelError(f"{model.name} has {len(model.outputs)} outputs: one is trained")
        for info in model.inputs:
            if info.name in RESERVED:
                raise ModelError(f"{model.name}: no input may be called {info.name!r}")
        passes = Value(PASSES, TensorType((), DType.int32), Kind.INPUT)
        training = Training(_word(seed), passes)
        graph = model.batched(batch, None if inference else training)
        trainable, kept = set(model.trainable), frozen_parameters(model, frozen)
        variables = {
            value.name: value
            for node in graph.nodes
            for value in node.reads
            if value.kind is Kind.VARIABLE
        }
        states = {n: Value(n, v.type, Kind.INPUT) for n, v in variables.items() if n not in kept}
        here = {variables[name]: value for name, value in states.items()}
        initial = {name: variables[name].data.read() for name in states}  # type: ignore[union-attr]
        updates = {value.name: new for value, new in training.updates.items()}
        inputs = tuple(value for value in graph.inputs if value is not passes)
        if training.counting:
            states[PASSES] = passes
            initial[PASSES] = np.zeros((), np.int32)
        graph, updates = _put(graph, here, (*inputs, *states.values()), updates)
        trained = tuple(name for name in states if name in trainable)
        if not trained and not inference:
            raise ModelError(f"{model.name}: there is no parameter to train")
        return cls(graph, inputs, states, initial, trained, updates)

    @property
    def alone(self) -> Forward:
        """The parameters that are trained without a graph that reads them."""
        states = {name: self.states[name] for name in self.trained}
        graph = Graph((), tuple(states.values()), (), self.graph.name)
        initial = {name: self.initial[name] for name in states}
        return replace(self, graph=graph, inputs=(), states=states, initial=initial, updates={})


def frozen_parameters(model: Model, frozen: Sequence[str]) -> frozenset[str]:
    """Return the parameters of `model` that `frozen` names; see `training_step`.

    Raises ModelError where one of it names nothing.
    """
    listed = isinstance(frozen, Sequence) and not isinstance(frozen, str)
    if not listed or not all(isinstance(one, str) for one in frozen):
        raise ModelError(f"frozen must be a list of names, got {shown(frozen)}")
    found, names = set[str](), model.trainable if frozen else ()
    for pattern in frozen:
        fits = {
            name
            for name in names
            if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
        }
        if not fits:
            raise ModelError(f"frozen: no parameter or layer is called {pattern!r}")
        found |= fits
    return frozenset(found)


def _put(
    graph: Graph,
    states: Mapping[Value, Value],
    inputs: tuple[Value, ...],
    updates: Mapping[str, Value],
) -> tuple[Graph, dict[str, Value]]:
    """`graph` and `updates` with the values that are called as states renamed, and states for
    variables.
    """
    taken = {value.name for value in inputs} | set(RESERVED)
    names = {value.name for node in graph.nodes for value in node.outputs}
    here = dict(states)
    for value in graph.producers:
        if (name := value.name) in taken:
            while name in taken or name in names:
                name += "'"
            taken.add(name)
            here[value] = replace(value, name=name)
    nodes = tuple(node.with_values(here) for node in graph.nodes)
    outputs = tuple(here.get(value, value) for value in graph.outputs)
    return (
        Graph(nodes, inputs, outputs, graph.name),
        {name: here.get(value, value) for name, value in updates.items()},
    )


def _word(seed: int) -> int:
    """Return the low 32 bits of a seed, as an int32."""
    return (seed & 0xFFFFFFFF) - ((seed & 0x80000000) << 1)
