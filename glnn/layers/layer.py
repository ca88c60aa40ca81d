"""The base class of layers, their parameters, and the scope in which a layer builds its graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from math import prod, sqrt
from types import MappingProxyType, MemberDescriptorType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, overload

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType, as_one_of, of_tensor, to_float32
from glnn.errors import ReadOnlyError, ShapeError, shown
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import ASSIGNMENTS, Graph, Value, Variable
from glnn.graph.operator import Operator
from glnn.graph.operators import Identity, Reshape
from glnn.graph.operators.windows import MOST
from glnn.layers.arguments import index
from glnn.registry import module_for

V = TypeVar("V")


class Fixed(Mapping[str, V]):
    """An immutable mapping that can be copied and pickled."""

    __slots__ = ("_content",)

    def __init__(self, content: Mapping[str, V]) -> None:
        self._content = dict(content)

    def __getitem__(self, name: str) -> V:
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return repr(self._content)


class ReadOnly:
    """Base of objects that are immutable after construction, except for their parameters.

    Once the constructor of the object's own class has returned, only `Parameter`s and properties
    with a setter can be assigned; subclasses may set attributes before and after they call the base
    class's constructor. Raises ReadOnlyError, an AttributeError, where any other attribute is
    assigned or deleted. shapes: the shapes of the parameters, by name.
    """

    shapes: Mapping[str, Shape]
    _made = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if constructor := vars(cls).get("__init__"):
            type.__setattr__(cls, "__init__", _freezing(constructor))

    def __setattr__(self, name: str, value: object) -> None:
        if self._made and not _is_setter(getattr(type(self), name, None)):
            raise self._read_only_error(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._made:
            kind = type(self).__name__
            raise ReadOnlyError(f"{kind} {name} cannot be deleted: a layer stays as it was made")
        super().__delattr__(name)

    def _read_only_error(self, name: str) -> ReadOnlyError:
        kind, known = type(self).__name__, [*self.shapes, *dir(self)]
        known = [one for one in known if not one.startswith("_")]
        if name in dir(self):
            fault = f"{kind} {name} is read-only: a layer stays as it was made, so make another"
        else:
            close = get_close_matches(name, known, 1)
            fault = f"{kind} has no attribute {name!r}"
            fault += f": did you mean {close[0]!r}?" if close else ""
        assigned = f" ({', '.join(self.shapes)} can be assigned)" if self.shapes else ""
        return ReadOnlyError(fault + assigned)


def _freezing(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wrap `constructor` to make objects read-only after the constructor of their own class."""

    @wraps(constructor)
    def construct(self: ReadOnly, *arguments: Any, **named: Any) -> None:
        is_outermost = getattr(type(self), "__init__", None) is construct
        try:
            constructor(self, *arguments, **named)
        except TypeError as error:
            unknown = _unknown_argument_error(type(self), named) if is_outermost else None
            raise unknown or error from None
        if is_outermost:
            vars(self)["_made"] = True

    return construct


def _unknown_argument_error(kind: type, named: Mapping[str, object]) -> TypeError | None:
    """Return a TypeError for the first of `named` that is no argument of `kind`; None without."""
    known = signature(kind).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return None
    for name in named:
        if name not in known:
            close = get_close_matches(name, known, 1)
            other = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            return TypeError(f"{kind.__name__} has no argument {name!r}: {other}")
    return None


def _is_setter(attribute: object) -> bool:
    """Return True where an attribute of a class, other than a slot, handles assignment."""
    if isinstance(attribute, MemberDescriptorType):
        return False
    if isinstance(attribute, property):
        return attribute.fset is not None
    return hasattr(attribute, "__set__")


T = TypeVar("T")


class Parametrised(Protocol):
    """An object with parameters.

    shapes: the shapes of its parameters, by name. _revisions: the number of assignments to each.
    """

    shapes: Mapping[str, Shape]
    _revisions: dict[str, int]

    def initial(self, name: str) -> Array: ...


class Parameter(Generic[T]):
    """A parameter of a layer: a float32 array, whose shape is checked when it is assigned.

    Arrays of other real numbers are converted to float32. It is None where the layer has no such
    parameter, and has its initial values until it is assigned. An assigned array is copied, and the
    array that is read is read-only: sessions notice an assignment, but not a write into an array.
    """

    @classmethod
    def with_name(cls, name: str) -> Parameter[T]:
        """Return the parameter `name`, for layers whose arguments decide which they have."""
        result = cls()
        result.name = name
        return result

    def __set_name__(self, owner: type[Parametrised], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type[Parametrised]) -> Parameter[T]: ...
    @overload
    def __get__(self, layer: Parametrised, owner: type[Parametrised]) -> T: ...
    def __get__(self, layer: Parametrised | None, owner: type[Parametrised]) -> Parameter[T] | T:
        if layer is None:
            return self
        if self.name not in layer.shapes:
            return cast(T, None)
        if self.name not in vars(layer):
            vars(layer)[self.name] = read_only(layer.initial(self.name))
        return cast(T, vars(layer)[self.name])

    def __set__(self, layer: Parametrised, value: T) -> None:
        what = f"{type(layer).__name__} {self.name}"
        shape = layer.shapes.get(self.name)
        if shape is None:
            if value is not None:
                raise ShapeError(f"{what}: this layer was made without one")
            return
        array = to_float32(what, value)
        if array.shape != shape:
            raise ShapeError(f"{what} must have shape {shape}, got {array.shape}")
        vars(layer)[self.name] = read_only(np.array(array))
        layer._revisions[self.name] += 1
        ASSIGNMENTS.add()


def read_only(array: Array) -> Array:
    """Return a view of `array`, of which there is no other reference, that stays read-only."""
    base: Array = np.ascontiguousarray(array)
    base.flags.writeable = False
    view: Array = base.view()
    return view


@dataclass(frozen=True)
class Training:
    """The state of training, for layers that behave differently in training."""

    seed: int
    """The seed of random numbers."""
    passes: Value
    """The number of batches before this one, int32 of shape ()."""
    updates: dict[Value, Value] = field(default_factory=dict)
    """The values after this batch of weights without a gradient, such as running statistics."""
    counting: list[str] = field(default_factory=list)
    """The names of the layers that use `passes`."""


@dataclass(frozen=True)
class Scope:
    """The graph that is being built, and the layer that adds its nodes to it.

    builder: the graph's builder. name: the layer's name. output: the name of the layer's result.
    training: None at inference.
    """

    builder: Builder
    name: str
    output: str
    training: Training | None = None

    def add(self, operator: Operator, *inputs: Value) -> Value:
        """Add a node of `operator` for an intermediate value, and return that."""
        name = self.builder.fresh(f"{self.output}: {operator.name}")
        (value,) = self.builder.add(operator, *inputs, name=self.name, outputs=(name,))
        return value

    def result(self, operator: Operator, *inputs: Value) -> Value:
        """Add the node of `operator` that computes the layer's result, and return that."""
        (value,) = self.builder.add(operator, *inputs, name=self.name, outputs=(self.output,))
        return value

    def all(self, operator: Operator, *inputs: Value) -> tuple[Value, ...]:
        """Add a node of `operator` and return its outputs, the first of which is the result."""
        count = len(operator.infer([value.type for value in inputs]))
        more = (self.builder.fresh(f"{self.output}: {operator.name} {i}") for i in range(1, count))
        names = (self.output, *more)
        return self.builder.add(operator, *inputs, name=self.name, outputs=names)

    def pieces(self, operator: Operator, x: Value) -> tuple[Value, ...]:
        """Add a node of `operator` with several outputs, intermediate values, and return these."""
        return self._add_all(operator, (x,), len(operator.infer([x.type])))

    def expand(self, operator: Composite, *inputs: Value) -> tuple[Value, ...]:
        """Add a composite operator for intermediate values, and return all its outputs.

        Where all sizes are known, as in training, it is expanded: its parts may have gradients.
        """
        if any(value.type.symbols for value in inputs):
            return self._add_all(operator, inputs, len(operator.unknown([v.type for v in inputs])))
        graph, copies = operator.expand(inputs), dict[Value, Value]()
        for node in graph.nodes:
            operands = tuple(copies.get(v, v) if v else None for v in node.inputs)
            values = self._add_all(node.operator, operands, len(node.outputs))
            copies |= zip(node.outputs, values, strict=True)
        return tuple(copies.get(value, value) for value in graph.outputs)

    def _add_all(
        self, operator: Operator, inputs: Sequence[Value | None], count: int
    ) -> tuple[Value, ...]:
        """Add a node of `operator` and return its `count` outputs."""
        names = [self.builder.fresh(f"{self.output}: {operator.name}")]
        names += [self.builder.fresh(f"{names[0]} {i}") for i in range(1, count)]
        return self.builder.add(operator, *inputs, name=self.name, outputs=names)

    def extra_result(self, name: str, value: Value) -> Value:
        """Make `value` the layer's further result `name`, one of `Layer.more`."""
        output = f"{self.output}.{name}"
        return self.builder.add(Identity(), value, name=self.name, outputs=(output,))[0]

    def named(self, value: Value) -> Value:
        """Make `value` the layer's result."""
        return self.result(Identity(), value)

    def weight(self, variable: Variable, name: str) -> Value:
        """Return the value of the layer's weight `name`."""
        return self.builder.variable(variable, f"{self.name}.{name}")

    def channels(self, value: Value, x: Value) -> Value:
        """Reshape `value` of shape (c,) to broadcast along axis 1 of x.

        Raises ShapeError where x does not have c channels.
        """
        dims, (count,) = x.type.dims, value.type.dims
        if len(dims) < 2 or dims[1] != count:
            raise ShapeError(f"x must have shape (n, {count}, ...), got {dims}")
        return self.add(Reshape((-1, *(1,) * (len(dims) - 2))), value) if len(dims) > 2 else value


@dataclass(frozen=True)
class LayerParameter:
    """The parameter `name` of `layer` as a `graph.Variable`."""

    layer: Layer
    name: str

    @property
    def type(self) -> TensorType:
        """The type: float32, of the parameter's shape."""
        return TensorType(self.layer.shapes[self.name])

    @property
    def revision(self) -> int:
        """The number of assignments to the parameter."""
        return self.layer.revisions[self.name]

    def read(self) -> Array:
        """Return the current array."""
        array: Array = getattr(self.layer, self.name)
        return array


ANY = (
    *(DType.float32, DType.int32, DType.uint8, DType.int8, DType.bool),
    *(DType.int64, DType.float64),
)
"""The dtypes of inputs that layers take which only move numbers."""


class Layer(ReadOnly, ABC):
    """A layer of a model. Subclasses pass their operator and the shapes of their parameters.

    op: the operator that the layer applies. shapes: the shape of each of its parameters.
    fan_in: the number of inputs that contribute to an output. Initial parameters are uniform within
    1/sqrt(fan_in), as PyTorch's, and 0 where fan_in is 0. seed: the seed of the initial parameters;
    layers with the same shapes and seed have the same ones.
    revisions: the number of assignments to each parameter, by which sessions notice them.
    takes: the dtypes that its inputs may have. more: the names of its further results. running: the
    parameters without a gradient, in which training keeps statistics. dotted: the names that
    PyTorch gives to parameters of a submodule, by their names here.

    Layers are immutable except for their parameters: assigning any other attribute raises
    ReadOnlyError.
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
        self._initial_revisions = dict(self._revisions)
        what, bounds = f"{type(self).__name__} seed", " of at least 0"
        self._fan_in, self._seed = fan_in, index(what, seed, bounds)
        if self._seed < 0:
            raise ShapeError(f"{what} must be an integer{bounds}, got {shown(seed)}")

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, as values that JSON can represent."""

    @property
    def revisions(self) -> Mapping[str, int]:
        """The number of assignments to each parameter."""
        return MappingProxyType(self._revisions)

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters by name, float32 arrays."""
        return {name: getattr(self, name) for name in self.shapes}

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return 1

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of inputs that it takes: several where some inputs are optional."""
        return (self.inputs,)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        """Add the layer's nodes to the graph of `scope`, and return its result for `inputs`."""
        return scope.result(self.op, *inputs, *(self.variable(scope, name) for name in self.shapes))

    def results(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        """Add the layer's nodes to the graph of `scope`, and return all its results: that of
        `express`, and those that `more` names.
        """
        return (self.express(scope, *inputs),)

    def variable(self, scope: Scope, name: str) -> Value:
        """Return the value of the parameter `name` in the graph of `scope`."""
        return scope.weight(LayerParameter(self, name), name)

    def initial(self, name: str) -> Array:
        """Return the initial values of the parameter `name`."""
        shape = self.shapes[name]
        if not self._fan_in:
            return np.zeros(shape, np.float32)
        bound = np.float32(1 / sqrt(self._fan_in))
        generator = np.random.default_rng([self._seed, list(self.shapes).index(name)])
        values: Array = (2 * generator.random(shape, np.float32) - 1) * bound
        return values

    def begin(self, seed: int) -> None:
        """Assign every parameter the initial values that a layer made with `seed` has."""
        vars(self)["_seed"] = seed
        for name in self.shapes:
            setattr(self, name, self.initial(name))
        self.mark_initial()

    def mark_initial(self) -> None:
        """Treat the current parameters as initial ones."""
        self._initial_revisions.update(self._revisions)

    @property
    def is_initial(self) -> bool:
        """True where it has parameters, and all of them have their initial values."""
        return bool(self.shapes) and self._initial_revisions == self._revisions

    def infer(self, *shapes: Shape) -> Shape:
        """Return the shape of the first result for inputs of `shapes`. Raises ShapeError where they
        do not fit.
        """
        types = {f"x{i}": TensorType(shape, self.takes[0]) for i, shape in enumerate(shapes)}
        return self._graph(**types).outputs[0].type.shape

    def __call__(self, *inputs: Array, backend: str = "auto") -> Array:
        """Return the layer's result for its inputs, computed by `backend`.

        Inputs are NumPy arrays or PyTorch tensors of the dtypes in `takes`; results are NumPy
        arrays, without gradients. Raises ShapeError where the inputs do not fit, DeviceError where
        the backend does not open.
        """
        return self._compute(inputs, backend)[0]

    def _compute(self, inputs: Sequence[Array], backend: str) -> tuple[Array, ...]:
        """Compute all results: see `__call__`."""
        if len(inputs) not in self.counts:
            kind, counts = type(self).__name__, " or ".join(map(str, self.counts))
            raise ShapeError(f"{kind} takes {counts} inputs, got {len(inputs)}")
        names = ["x"] if len(inputs) == 1 else [f"x{i}" for i in range(len(inputs))]
        feeds = {
            name: as_one_of(name, of_tensor(name, x), self.takes)
            for name, x in zip(names, inputs, strict=True)
        }
        graph = self._graph(**{name: TensorType.from_array(x) for name, x in feeds.items()})
        results = module_for("run graphs").run(graph, feeds, backend)
        return tuple(results[value.name] for value in graph.outputs)

    def _graph(self, **types: TensorType) -> Graph:
        """Return the graph of this layer alone, for inputs of these names and types."""
        builder, kind = Builder(type(self).__name__), type(self).__name__
        inputs = [builder.input(name, type) for name, type in types.items()]
        return builder.graph(self.results(Scope(builder, kind, "out"), *inputs))

    def __setstate__(self, state: Any) -> None:
        """Restore a copied or pickled layer: its parameters are read-only again, and it has counts
        of assignments of its own.
        """
        content, slots = state if isinstance(state, tuple) else (state, None)
        for name, value in (slots or {}).items():
            object.__setattr__(self, name, value)
        vars(self).update(content)
        vars(self)["_revisions"] = dict(self._revisions)
        vars(self)["_initial_revisions"] = dict(self._initial_revisions)
        for name in self.shapes:
            if name in vars(self):
                vars(self)[name] = read_only(vars(self)[name])

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.config().items())
        return f"{type(self).__name__}({arguments})"
