"""The base class of layers: an operator together with its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError, shown
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators.windows import MOST
from glnn.layers.arguments import index
from glnn.layers.parameter import read_only
from glnn.layers.read_only import Fixed, ReadOnly
from glnn.layers.scope import Scope
from glnn.registry import module_for
from glnn.types import DType, Shape, TensorType, as_one_of, of_tensor

Array = NDArray[Any]


@dataclass(frozen=True)
class Weight:
    """The parameter of `layer` that is called `name`, as graphs know it (see `graph.Variable`)."""

    layer: Layer
    name: str

    @property
    def type(self) -> TensorType:
        """The type: float32, of the parameter's shape."""
        return TensorType(self.layer.shapes[self.name])

    @property
    def revision(self) -> int:
        """Counts the assignments."""
        return self.layer.revisions[self.name]

    def read(self) -> Array:
        """The parameter as it is now."""
        array: Array = getattr(self.layer, self.name)
        return array


ANY = (
    *(DType.float32, DType.int32, DType.uint8, DType.int8, DType.bool),
    *(DType.int64, DType.float64),
)
"""Dtypes that layers take which only move numbers."""


class Layer(ReadOnly, ABC):
    """A layer of a model. Subclasses give their operator and the shapes of their parameters.

    op: what the layer computes. shapes: the shape of each parameter that the layer has.
    fan_in: inputs that reach one output; initial parameters are uniform within 1/sqrt(fan_in), as
    PyTorch's are, and 0 where it is 0. seed: of the initial parameters; layers of one shape and
    one seed begin alike.
    revisions: counts the assignments to each parameter, so that sessions notice them.
    takes: what its inputs' numbers may be. more: what its further results are called. running: the
    parameters that no gradient changes, as training keeps statistics in them. dotted: what PyTorch
    calls a parameter where that is a module's within the layer.

    A layer stays as it was made: only parameters can be assigned, ReadOnlyError says so of others.
    """

    takes: ClassVar[tuple[DType, ...]] = (DType.float32,)
    more: ClassVar[tuple[str, ...]] = ()
    running: ClassVar[tuple[str, ...]] = ()
    dotted: ClassVar[Mapping[str, str]] = Fixed({})

    def __init__(
        self,
        op: Operator,
        shapes: Mapping[str, Shape] | None = None,
        *,
        fan_in: int = 0,
        seed: int = 0,
    ) -> None:
        self.op = op
        self.shapes: Mapping[str, Shape] = Fixed(shapes or {})
        for name, shape in self.shapes.items():
            if prod(shape) > MOST:
                what = f"{type(self).__name__} {name} of shape {shape}"
                raise ShapeError(f"{what} would hold more than {MOST} numbers")
        self._revisions = dict.fromkeys(self.shapes, 0)
        what, bounds = f"{type(self).__name__} seed", " of at least 0"
        self._fan_in, self._seed = fan_in, index(what, seed, bounds)
        if self._seed < 0:
            raise ShapeError(f"{what} must be an integer{bounds}, got {shown(seed)}")

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The constructor's arguments by name, such as JSON can hold."""

    @property
    def revisions(self) -> Mapping[str, int]:
        """The number of assignments to each parameter."""
        return MappingProxyType(self._revisions)

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters by name, float32; those that the layer was made without are left out."""
        return {name: getattr(self, name) for name in self.shapes}

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return 1

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of inputs that it takes: `inputs`, and others where some can be left out."""
        return (self.inputs,)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        """The layer's result for `inputs`: what computes it is added to the graph of `scope`."""
        return scope.result(self.op, *inputs, *(self.variable(scope, name) for name in self.shapes))

    def results(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        """Put the layer into the graph and return all results: that of `express`, and those that
        `more` names.
        """
        return (self.express(scope, *inputs),)

    def variable(self, scope: Scope, name: str) -> Value:
        """The value of the parameter called `name`."""
        return scope.weight(Weight(self, name), name)

    def initial(self, name: str) -> Array:
        """The values that the parameter called `name` has until it is assigned."""
        shape = self.shapes[name]
        if not self._fan_in:
            return np.zeros(shape, np.float32)
        bound = np.float32(1 / sqrt(self._fan_in))
        generator = np.random.default_rng([self._seed, list(self.shapes).index(name)])
        values: Array = (2 * generator.random(shape, np.float32) - 1) * bound
        return values

    def begin(self, seed: int) -> None:
        """Assign every parameter the initial values of a layer that was made with `seed`."""
        vars(self)["_seed"] = seed
        for name in self.shapes:
            setattr(self, name, self.initial(name))

    def infer(self, *shapes: Shape) -> Shape:
        """The first result's shape for inputs of `shapes`. Raises ShapeError where they do not
        fit.
        """
        types = {f"x{i}": TensorType(shape, self.takes[0]) for i, shape in enumerate(shapes)}
        return self._graph(**types).outputs[0].type.shape

    def __call__(self, *inputs: Array, backend: str = "auto") -> Array:
        """The layer's result for its inputs, arrays of what it takes, computed by `backend`.

        Tensors of PyTorch's are taken, too; results are NumPy arrays, without gradients.
        Raises ShapeError where they do not fit, DeviceError where the backend does not open.
        """
        return self._compute(inputs, backend)[0]

    def _compute(self, inputs: Sequence[Array], backend: str) -> tuple[Array, ...]:
        """Compute all results: see `__call__`."""
        if len(inputs) not in self.counts:
            kind, counts = type(self).__name__, " or ".join(map(str, self.counts))
            raise ShapeError(f"{kind} takes {counts} inputs, got {len(inputs)}")
        names = ["x"] if len(inputs) == 1 else [f"x{i}" for i in range(len(inputs))]
        given = {
            name: as_one_of(name, of_tensor(name, x), self.takes)
            for name, x in zip(names, inputs, strict=True)
        }
        graph = self._graph(**{name: TensorType.of(x) for name, x in given.items()})
        results = module_for("run graphs").run(graph, given, backend)
        return tuple(results[value.name] for value in graph.outputs)

    def _graph(self, **types: TensorType) -> Graph:
        """The layer by itself, for inputs of such names and types."""
        builder, kind = Builder(type(self).__name__), type(self).__name__
        inputs = [builder.input(name, type) for name, type in types.items()]
        return builder.graph(self.results(Scope(builder, kind, "out"), *inputs))

    def __setstate__(self, state: Any) -> None:
        """Become a copy, or what was pickled: parameters that cannot be written to, and a count of
        its own of their assignments.
        """
        content, slots = state if isinstance(state, tuple) else (state, None)
        for name, value in (slots or {}).items():
            object.__setattr__(self, name, value)
        vars(self).update(content)
        vars(self)["_revisions"] = dict(self._revisions)
        for name in self.shapes:
            if name in vars(self):
                vars(self)[name] = read_only(vars(self)[name])

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.config().items())
        return f"{type(self).__name__}({arguments})"
