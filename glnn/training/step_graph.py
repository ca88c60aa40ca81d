"""The graph of a training step: forward, loss, gradients, clipping and updates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import reduce
from typing import TypeVar

import numpy as np

from glnn.compiler.states import States
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ModelError, ShapeError, shown
from glnn.graph.builder import Builder
from glnn.graph.compose.node_adder import PointwiseOperand
from glnn.graph.expression import Arg, call, formula
from glnn.graph.gradients.differentiation import differentiate
from glnn.graph.graph import Graph, Kind, Value, ordered
from glnn.graph.operators import ArgReduce
from glnn.graph.passes.inlining import expand_composites
from glnn.layers.arguments import index, integer, number
from glnn.layers.layer import Training
from glnn.model.model import Model
from glnn.training.losses import Loss, LossOutput
from glnn.training.operator_writer import OperatorWriter
from glnn.training.optimizers import LRScheduler, Optimizer, UpdateContext

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
"""Names of the target and of states that are no parameters: no value of a model may have them."""


@dataclass(frozen=True, eq=False)
class Forward:
    """A model's graph whose parameters and running statistics are inputs."""

    graph: Graph
    """The graph; its inputs are the model's, then the states."""
    inputs: tuple[Value, ...]
    """The inputs of the model."""
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

        inference: whether the layers compute as at inference. Raises ModelError where a name in
        `frozen` matches nothing, or the model has not exactly one output; ShapeError for an invalid
        batch or seed.
        """
        batch, seed = integer("batch", batch), index("seed", seed)
        if len(model.outputs) != 1:
            raise ModelError(f"{model.name} has {len(model.outputs)} outputs: one is trained")
        for info in model.inputs:
            if info.name in RESERVED:
                raise ModelError(f"{model.name}: no input may be called {info.name!r}")
        passes = Value(PASSES, TensorType((), DType.int32), Kind.INPUT)
        training = Training(_low_word(seed), passes)
        graph = model.batched(batch, None if inference else training)
        trainable, constants = set(model.trainable), frozen_parameters(model, frozen)
        variables = {
            value.name: value
            for node in graph.nodes
            for value in node.reads
            if value.kind is Kind.VARIABLE
        }
        states = {
            name: Value(name, variable.type, Kind.INPUT)
            for name, variable in variables.items()
            if name not in constants
        }
        state_of = {variables[name]: value for name, value in states.items()}
        initial = {name: variables[name].data.read() for name in states}  # type: ignore[union-attr]
        updates = {value.name: new for value, new in training.updates.items()}
        inputs = tuple(value for value in graph.inputs if value is not passes)
        if training.counting:
            states[PASSES] = passes
            initial[PASSES] = np.zeros((), np.int32)
        graph, updates = _substitute_states(graph, state_of, (*inputs, *states.values()), updates)
        trained = tuple(name for name in states if name in trainable)
        if not trained and not inference:
            raise ModelError(f"{model.name}: there is no parameter to train")
        return cls(graph, inputs, states, initial, trained, updates)

    @property
    def parameters_only(self) -> Forward:
        """The same with only the trained parameters as states, and an empty graph."""
        states = {name: self.states[name] for name in self.trained}
        graph = Graph((), tuple(states.values()), (), self.graph.name)
        initial = {name: self.initial[name] for name in states}
        return replace(self, graph=graph, inputs=(), states=states, initial=initial, updates={})


def frozen_parameters(model: Model, frozen: Sequence[str]) -> frozenset[str]:
    """Return the parameters of `model` that `frozen` names; see `training_step`.

    Raises ModelError where a pattern matches nothing.
    """
    is_list = isinstance(frozen, Sequence) and not isinstance(frozen, str)
    if not is_list or not all(isinstance(pattern, str) for pattern in frozen):
        raise ModelError(f"frozen must be a list of names, got {shown(frozen)}")
    result, names = set[str](), model.trainable if frozen else ()
    for pattern in frozen:
        matches = {
            name
            for name in names
            if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
        }
        if not matches:
            raise ModelError(f"frozen: no parameter or layer is called {pattern!r}")
        result |= matches
    return frozenset(result)


def _substitute_states(
    graph: Graph,
    states: Mapping[Value, Value],
    inputs: tuple[Value, ...],
    updates: Mapping[str, Value],
) -> tuple[Graph, dict[str, Value]]:
    """Return `graph` and `updates` with each variable in `states` replaced by its state, and values
    renamed whose names a state or an input has.
    """
    reserved = {value.name for value in inputs} | set(RESERVED)
    names = {value.name for node in graph.nodes for value in node.outputs}
    substitutes = dict(states)
    for value in graph.producers:
        if (name := value.name) in reserved:
            while name in reserved or name in names:
                name += "'"
            reserved.add(name)
            substitutes[value] = replace(value, name=name)
    nodes = tuple(node.with_values(substitutes) for node in graph.nodes)
    outputs = tuple(substitutes.get(value, value) for value in graph.outputs)
    return (
        Graph(nodes, inputs, outputs, graph.name),
        {name: substitutes.get(value, value) for name, value in updates.items()},
    )


def _low_word(seed: int) -> int:
    """Return the low 32 bits of a seed, as an int32."""
    return (seed & 0xFFFFFFFF) - ((seed & 0x80000000) << 1)


T = TypeVar("T")
STEP = "step"  # the state that counts updates
NORM_EPSILON = 1e-6  # PyTorch adds it to a norm before it divides by the norm


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A graph that is run repeatedly, and the states that stay on the device between runs."""

    graph: Graph
    """The graph; its inputs are those of the model, then `target`, then states, by their names."""
    states: Mapping[str, Array]
    """The initial content of each state, float32 or int32, by its name."""
    updates: Mapping[str, str]
    """The name of the output that is a state's next content, for each state that changes."""
    together: tuple[tuple[str, ...], ...] = ()
    """Groups of states that are updated alike and lie together in memory: trained parameters, each
    slot of an optimiser, running statistics."""

    def add_to(self, states: States) -> None:
        """Add the states that `states` does not have yet. Raises as `States.add`."""
        new = {name: array for name, array in self.states.items() if name not in states}
        for names in self.together:
            states.add_together({name: new.pop(name) for name in names if name in new})
        for name, array in new.items():
            states.add(name, array)


def training_step(
    model: Model,
    loss: Loss,
    optimizer: Optimizer,
    batch: int,
    *,
    frozen: Sequence[str] = (),
    schedule: LRScheduler | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    seed: int = 0,
    target: DType | None = None,
    totals: bool = True,
    counting: bool = True,
) -> StepGraph:
    """Build the graph of one update of `model` by the gradients of `loss` over a batch.

    batch: the number of samples. frozen: parameters that are not trained, by the names of layers
    (`c1`), their own (`c1.weight`) or patterns of these (`c*.bias`). schedule: the learning rate's
    schedule; None for a constant one. clip_value: each number of a gradient is clipped to this
    magnitude, as by `torch.nn.utils.clip_grad_value_`; then clip_norm: gradients are scaled so that
    the norm of all together is at most this, as by `clip_grad_norm_`. seed: of Dropout. target: the
    type of the target's numbers, where the loss takes several. totals: whether `total_loss`, `seen`
    and, for targets of classes, `correct` are accumulated, which takes some launches. counting:
    whether there is a state `step` also where nothing in the graph reads it, which takes one
    launch.

    States are trained parameters and running statistics, by their names; the optimiser's slots, as
    `c1.weight/momentum_buffer`; `step`, int32, the number of updates; `loss`, that of the last
    batch; `seen`, the number of samples in the totals; `total_loss`, the sum of their losses, or,
    where labels determine the divisor of the mean, the sum of the loss's terms, with that of the
    divisors in `counted`; `correct`, the number of samples whose greatest score is at the label;
    `passes`, the number of batches, where layers as Dropout need it.

    Raises UnsupportedOpError where an operator has no gradient, ShapeError where the target or
    another argument does not fit, ModelError where there is nothing to train.
    """
    step = _Step(Forward.build(model, batch, frozen, seed), loss)
    output = step.apply_loss(target, loss.reduced)
    step.update(optimizer, step.gradients(output), schedule, Clipping(clip_norm, clip_value))
    step.set_next("loss", output.value)
    if totals:
        step.accumulate_totals(output)
    return step.graph(counting)


def accumulating(
    model: Model,
    loss: Loss,
    batch: int,
    *,
    frozen: Sequence[str] = (),
    seed: int = 0,
    target: DType | None = None,
    totals: bool = True,
) -> StepGraph:
    """Build the graph that adds the gradients of a part of a batch to those of the parts before.

    The arguments, the states and the errors are those of `training_step`. States as
    `c1.weight/gradient` accumulate the gradients of the sum of the loss's terms, and `accumulated`
    the divisor of their mean. `applying` reads these: parts of any sizes give the same update as
    one batch.
    """
    step = _Step(Forward.build(model, batch, frozen, seed), loss)
    output, count = step.loss_terms(target)
    accumulated = step.state("accumulated", np.zeros((), np.float32))
    for name, gradient in step.gradients(output).items():
        add, state_name = step.writer(f"{name}: accumulating"), f"{name}/gradient"
        sum = step.state(state_name, np.zeros(gradient.type.shape, np.float32))
        text = "where(before > 0.0, sum + g, g)"
        step.set_next(state_name, add.formula(text, before=accumulated, g=gradient, sum=sum))
    add = step.writer("accumulated")
    step.set_next("accumulated", add.pointwise("a + b", accumulated, count))
    value = output.value if loss.reduction == "sum" else add.pointwise("a / b", output.value, count)
    step.set_next("loss", value)
    if totals:
        is_weighted = isinstance(count, Value) and loss.reduction != "sum"
        terms = (output.value, count) if is_weighted else ()
        step.accumulate_totals(LossOutput(value, output.gradient, *terms))
    return step.graph()


def applying(
    model: Model,
    loss: Loss,
    optimizer: Optimizer,
    *,
    frozen: Sequence[str] = (),
    schedule: LRScheduler | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    counting: bool = True,
) -> StepGraph:
    """Build the graph of one update by the gradients that `accumulating` added up since the last
    one.

    The arguments, the states and the errors are those of `training_step`; it reads no batch.
    """
    step = _Step(Forward.build(model, 1, frozen, 0, inference=True).parameters_only, loss)
    gradients: dict[str, Value] = {}
    count = step.state("accumulated", np.zeros((), np.float32))
    for name, shape in step.trained_shapes.items():
        gradients[name] = step.state(f"{name}/gradient", np.zeros(shape, np.float32))
        if loss.reduction != "sum":
            add = step.writer(f"{name}: applying")
            gradients[name] = add.pointwise(
                "where(abs(b) > 0.0, a / b, 0.0)", gradients[name], count
            )
    step.update(optimizer, gradients, schedule, Clipping(clip_norm, clip_value))
    step.set_next("accumulated", step.writer("accumulated").pointwise("a * 0.0", count))
    return step.graph(counting)


def evaluating(
    model: Model,
    loss: Loss,
    batch: int,
    *,
    frozen: Sequence[str] = (),
    target: DType | None = None,
) -> StepGraph:
    """Build the graph of `total_loss`, `seen` and `correct` of a batch, with layers as at
    inference.

    The arguments, the states and the errors are those of `training_step`.
    """
    step = _Step(Forward.build(model, batch, frozen, 0, inference=True), loss)
    step.accumulate_totals(step.apply_loss(target, loss.reduced))
    return step.graph()


class _Step:
    """Builder of a step's graph, its states and their updates."""

    def __init__(self, forward: Forward, loss: Loss) -> None:
        self._forward, self._loss = forward, loss
        self._builder = Builder.from_graph(forward.graph)
        self._states, self._initial = dict(forward.states), dict(forward.initial)
        self._next = dict(forward.updates)
        self._target: Value | None = None
        if PASSES in self._states:
            passes = self.writer(PASSES).pointwise("a + 1", self._states[PASSES])
            self.set_next(PASSES, passes)

    @property
    def trained_shapes(self) -> dict[str, Shape]:
        """The shapes of the parameters that gradients change, by name."""
        return {name: self._states[name].type.shape for name in self._forward.trained}

    @property
    def output(self) -> Value:
        """The value that the loss is computed of."""
        return self._loss.scores(self._forward.graph)

    def writer(self, label: str) -> OperatorWriter:
        """Return a writer that appends operators called `label` to the graph."""
        return OperatorWriter(self._builder, label)

    def state(self, name: str, array: Array) -> Value:
        """Return the state called `name`; add it with the initial content `array` if needed."""
        if name not in self._states:
            self._states[name] = Value(name, TensorType.from_array(array), Kind.INPUT)
            self._builder.take(self._states[name])
            self._initial[name] = array
        return self._states[name]

    def set_next(self, name: str, value: Value) -> None:
        """Set the content of state `name` for the next run."""
        self.state(name, np.zeros(value.type.shape, value.type.dtype.numpy))
        self._next[name] = value

    def apply_loss(
        self, dtype: DType | None, express: Callable[[OperatorWriter, Value, Value], T]
    ) -> T:
        """Apply `express` to the output and the target, whose numbers have type `dtype`."""
        type = self._loss.target(self.output.type, dtype)
        self._target = self._builder.take(Value(TARGET, type, Kind.INPUT))
        return express(self.writer("loss"), self.output, self._target)

    def loss_terms(self, dtype: DType | None) -> tuple[LossOutput, PointwiseOperand]:
        """Return the sum of the loss's terms, and the divisor of their mean."""

        def express(
            add: OperatorWriter, output: Value, target: Value
        ) -> tuple[LossOutput, PointwiseOperand]:
            count = self._loss.count(add, output, target)
            return self._loss.express(add, output, target, 1.0), count

        return self.apply_loss(dtype, express)

    def gradients(self, loss: LossOutput) -> dict[str, Value]:
        """Return the gradient of the loss by each trained parameter, by the parameter's name."""
        outputs = (*self._next.values(), loss.value, loss.gradient)
        by = [self._states[name] for name in self._forward.trained]
        graph = self._builder.graph(outputs)
        graph, result = differentiate(graph, self.output, by, loss.gradient)
        self._builder = Builder.from_graph(graph)
        return dict(zip(self._forward.trained, result, strict=True))

    def update(
        self,
        optimizer: Optimizer,
        gradients: Mapping[str, Value],
        schedule: LRScheduler | None,
        clipping: Clipping,
    ) -> None:
        """Set the next content of parameters, slots and `step`."""
        count = self.state(STEP, np.zeros((), np.int32))
        self.set_next(STEP, self.writer(STEP).pointwise("a + 1", count))
        lr: PointwiseOperand = optimizer.lr
        if not isinstance(schedule, LRScheduler | None):
            raise ShapeError(f"schedule must be an LRScheduler or None, got {shown(schedule)}")
        if schedule is not None:
            lr = schedule.on_device(self.writer("learning rate"), count, optimizer.lr)
        zero = np.zeros((), np.float32)
        shared = {name: self.state(name, zero) for name in optimizer.shared}
        shared = dict(optimizer.share(self.writer(type(optimizer).__name__), shared))
        for name, value in shared.items():
            self.set_next(name, value)
        gradients = clipping.clip(self.writer("clipping"), gradients)
        for name, gradient in gradients.items():
            parameter = self._states[name]
            slots = {
                slot: self.state(f"{name}/{slot}", np.full(parameter.type.shape, first, np.float32))
                for slot, first in optimizer.slots.items()
            }
            add = self.writer(f"{name}: {type(optimizer).__name__}")
            update_context = UpdateContext(add, parameter, gradient, slots, lr, count, shared)
            new_parameter, new_slots = optimizer.update(update_context)
            self.set_next(name, new_parameter)
            for slot, value in new_slots.items():
                self.set_next(f"{name}/{slot}", value)

    def accumulate_totals(self, loss: LossOutput) -> None:
        """Add the loss and the numbers of samples and of correct ones to the states of totals."""
        assert self._target is not None
        add, output = self.writer("totals"), self.output
        samples = self._loss.samples(output.type)
        total = self.state("total_loss", np.zeros((), np.float32))
        if loss.terms is not None and loss.count is not None:
            self.set_next("total_loss", add.pointwise("a + b", total, loss.terms))
            counted = self.state("counted", np.zeros((), np.float32))
            self.set_next("counted", add.pointwise("a + b", counted, loss.count))
        else:
            factor = 1.0 if self._loss.reduction == "sum" else float(samples)
            self.set_next("total_loss", add.pointwise("a + b * c", total, loss.value, factor))
        seen = self.state("seen", np.zeros((), np.int32))
        self.set_next("seen", add.pointwise("a + b", seen, samples))
        if self._loss.counts(self._target.type):
            is_equal = call("cast_int32", call("equal", Arg(0), Arg(1)))
            count = add.total(is_equal, add(ArgReduce("max", 1), output), self._target)
            correct = self.state("correct", np.zeros((), np.int32))
            self.set_next("correct", add.pointwise("a + b", correct, count))

    def graph(self, counting: bool = True) -> StepGraph:
        """Return the finished step.

        counting: whether to have the state `step` also where nothing reads it.
        """
        if not counting and not self._is_step_read():
            for by_name in (self._next, self._states, self._initial):
                by_name.pop(STEP)
        outputs = tuple(dict.fromkeys(self._next.values()))
        built = self._builder.graph(outputs)
        nodes = ordered(outputs, built.producers)
        batch = (*self._forward.inputs, self._target) if self._target else ()
        inputs = (*batch, *self._states.values())
        updates = {name: value.name for name, value in self._next.items()}
        graph = expand_composites(
            Graph(nodes, inputs, outputs, built.name), {value.name: value.type for value in inputs}
        )
        running = (name for name in self._forward.states if name not in self._forward.trained)
        groups = group_states(self._initial, self.trained_shapes, running)
        return StepGraph(graph, self._initial, updates, tuple(groups))

    def _is_step_read(self) -> bool:
        """Return True where the next content of another state depends on the state `step`."""
        count = self._states[STEP]
        outputs = [value for name, value in self._next.items() if name != STEP]
        built = self._builder.graph(outputs)
        return any(count in node.reads for node in ordered(outputs, built.producers))


def group_states(
    states: Collection[str], parameters: Mapping[str, Shape], running: Iterable[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the names of states of each kind: parameters, each optimiser slot, running statistics.

    In each group, states that are likely to be computed alike are adjacent: of the same rank, with
    the same name in their layers, and of layers whose parameters have the same ranks, since
    gradients by biases come from products, from convolutions or from normalisations. Parameters of
    products are at the ends: the kernels of their gradients may update them, and the others are
    then still adjacent. parameters: the shapes of the parameters.
    """
    ranks: dict[str, list[int]] = {}
    for name, shape in parameters.items():
        ranks.setdefault(name.rpartition(".")[0], []).append(len(shape))

    def sort_key(name: str) -> tuple[int, int, list[int], str]:
        layer, _, last = name.rpartition(".")
        rank, product = len(parameters[name]), 2 in ranks[layer]
        end = {1: 1, 2: -1}.get(rank, 0) if product else 0
        return end, -rank, sorted(ranks[layer]), last

    order = sorted(parameters, key=sort_key)
    yield tuple(order)
    first = f"{order[0]}/" if order else "/"
    for slot in (name[len(first) :] for name in states if name.startswith(first)):
        yield tuple(name for parameter in order if (name := f"{parameter}/{slot}") in states)
    kinds: dict[str, list[str]] = {}
    for name in running:
        kinds.setdefault(name.rpartition(".")[2], []).append(name)
    yield from map(tuple, kinds.values())


@dataclass(frozen=True)
class Clipping:
    """Bounds of gradients: first of each number, then of the norm of all together."""

    norm: float | None = None
    """The greatest norm of all gradients together; None for any."""
    value: float | None = None
    """The greatest magnitude of each number; None for any."""

    def __post_init__(self) -> None:
        for name in ("norm", "value"):
            value = getattr(self, name)
            if value is not None and number(f"clip_{name}", value, 0) == 0:
                raise ShapeError(f"clip_{name} must be greater than 0, got 0")

    def clip(self, add: OperatorWriter, gradients: Mapping[str, Value]) -> dict[str, Value]:
        """Return `gradients` within the bounds."""
        result = dict(gradients)
        if self.value is not None:
            most = float(self.value)
            result = {n: add.pointwise("clip(a, b, c)", g, -most, most) for n, g in result.items()}
        if self.norm is None:
            return result
        squares = [add.total(formula("square(a)"), g) for g in result.values()]
        total = reduce(lambda a, b: add.pointwise("a + b", a, b), squares)
        most = float(self.norm)
        factor = add.pointwise("minimum(a / (sqrt(b) + c), 1.0)", most, total, NORM_EPSILON)
        return {name: add.pointwise("a * b", g, factor) for name, g in result.items()}
