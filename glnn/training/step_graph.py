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
    def parameters_only(self) -> Forward:
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
    result, names = set[str](), model.trainable if frozen else ()
    for pattern in frozen:
        fits = {
            name
            for name in names
            if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
        }
        if not fits:
            raise ModelError(f"frozen: no parameter or layer is called {pattern!r}")
        result |= fits
    return frozenset(result)


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


T = TypeVar("T")
STEP = "step"  # the state that counts updates
NORM_EPSILON = 1e-6  # what PyTorch adds to a norm before it divides by it


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A graph that is run again and again, and what stays on the device between."""

    graph: Graph
    """The graph; its inputs are those of the model, then `target`, then states, by their names."""
    states: Mapping[str, Array]
    """The initial content of each state, float32 or int32, by its name."""
    updates: Mapping[str, str]
    """The name of the output that is a state's next content, for each state that changes."""
    together: tuple[tuple[str, ...], ...] = ()
    """States that are updated alike: the parameters that are trained, what is kept of each of
    these, and running statistics."""

    def add_to(self, states: States) -> None:
        """Give `states` what it has not yet; see `States.add`, which raises the same."""
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

    batch: how many samples. frozen: parameters that stay, by the names of layers (`c1`), their own
    (`c1.weight`) or patterns of these (`c*.bias`). schedule: what becomes of the optimiser's
    learning rate. clip_value: each number of a gradient is clipped to this size, as
    `torch.nn.utils.clip_grad_value_` does; then clip_norm: the norm of all gradients together is
    made no more than this, as `clip_grad_norm_` does. seed: of what Dropout drops. target: the
    type of the target's numbers, where the loss takes several. totals: whether `total_loss`, `seen`
    and, for targets of classes, `correct` add up, which takes some launches. counting: whether
    there is a state `step` also where nothing in the graph reads it, which takes one launch.

    States are the parameters that are trained and running statistics, by their names; the
    optimiser's slots, `c1.weight/momentum_buffer`; `step`, int32, how many updates there were;
    `loss`, that of the last batch; `total_loss`, the sum of the losses of all that was `seen`, or
    the sum of their terms, which a mean divides by `counted`, where labels say by what; `correct`,
    how many of these had the greatest score where the label is; `passes`, where layers ask for it,
    as Dropout does, how many batches there were.

    Raises UnsupportedOpError where an operator has no gradient, ShapeError where the target or
    another argument does not fit, ModelError where there is nothing to train.
    """
    step = _Step(Forward.build(model, batch, frozen, seed), loss)
    lost = step.apply_loss(target, loss.reduced)
    step.update(optimizer, step.gradients(lost), schedule, Clipping(clip_norm, clip_value))
    step.set_next("loss", lost.value)
    if totals:
        step.totals(lost)
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

    The arguments, the states and the errors are those of `training_step`. The gradients of the sum
    of the loss's terms add up in states, `c1.weight/gradient`, and in `accumulated` what their mean
    is divided by. `applying` takes them from there: parts of any sizes are as one batch.
    """
    step = _Step(Forward.build(model, batch, frozen, seed), loss)
    lost, count = step.loss_terms(target)
    before = step.state("accumulated", np.zeros((), np.float32))
    for name, gradient in step.gradients(lost).items():
        add, kept = step.writer(f"{name}: accumulating"), f"{name}/gradient"
        sum = step.state(kept, np.zeros(gradient.type.shape, np.float32))
        text = "where(before > 0.0, sum + g, g)"
        step.set_next(kept, add.formula(text, before=before, g=gradient, sum=sum))
    add = step.writer("accumulated")
    step.set_next("accumulated", add.pointwise("a + b", before, count))
    value = lost.value if loss.reduction == "sum" else add.pointwise("a / b", lost.value, count)
    step.set_next("loss", value)
    if totals:
        counted = isinstance(count, Value) and loss.reduction != "sum"
        step.totals(LossOutput(value, lost.gradient, *((lost.value, count) if counted else ())))
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
    step.totals(step.apply_loss(target, loss.reduced))
    return step.graph()


class _Step:
    """A step's graph as it grows."""

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
        """Return a writer of operators called `name` at the end of the graph."""
        return OperatorWriter(self._builder, label)

    def state(self, name: str, array: Array) -> Value:
        """Return the state of that name, whose initial content is `array`."""
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

    def gradients(self, lost: LossOutput) -> dict[str, Value]:
        """Return the gradient by each parameter that is trained."""
        kept = (*self._next.values(), lost.value, lost.gradient)
        by = [self._states[name] for name in self._forward.trained]
        graph = self._builder.graph(kept)
        graph, result = differentiate(graph, self.output, by, lost.gradient)
        self._builder = Builder.from_graph(graph)
        return dict(zip(self._forward.trained, result, strict=True))

    def update(
        self,
        optimizer: Optimizer,
        gradients: Mapping[str, Value],
        schedule: LRScheduler | None,
        clipping: Clipping,
    ) -> None:
        """Set parameters, slots and `step` of the next step."""
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
            result, more = optimizer.update(update_context)
            self.set_next(name, result)
            for slot, value in more.items():
                self.set_next(f"{name}/{slot}", value)

    def totals(self, lost: LossOutput) -> None:
        """Add the loss, how many samples there were, and how many are right, to what there was."""
        assert self._target is not None
        add, output = self.writer("totals"), self.output
        samples = self._loss.samples(output.type)
        total = self.state("total_loss", np.zeros((), np.float32))
        if lost.terms is not None and lost.count is not None:
            self.set_next("total_loss", add.pointwise("a + b", total, lost.terms))
            counted = self.state("counted", np.zeros((), np.float32))
            self.set_next("counted", add.pointwise("a + b", counted, lost.count))
        else:
            factor = 1.0 if self._loss.reduction == "sum" else float(samples)
            self.set_next("total_loss", add.pointwise("a + b * c", total, lost.value, factor))
        seen = self.state("seen", np.zeros((), np.int32))
        self.set_next("seen", add.pointwise("a + b", seen, samples))
        if self._loss.counts(self._target.type):
            right = call("cast_int32", call("equal", Arg(0), Arg(1)))
            result = add.total(right, add(ArgReduce("max", 1), output), self._target)
            correct = self.state("correct", np.zeros((), np.int32))
            self.set_next("correct", add.pointwise("a + b", correct, result))

    def graph(self, counting: bool = True) -> StepGraph:
        """Return the whole graph. counting: whether `step` counts where nothing reads it."""
        if not counting and not self._reads(self._states[STEP]):
            for kept in (self._next, self._states, self._initial):
                kept.pop(STEP)
        outputs = tuple(dict.fromkeys(self._next.values()))
        whole = self._builder.graph(outputs)
        nodes = ordered(outputs, whole.producers)
        batch = (*self._forward.inputs, self._target) if self._target else ()
        inputs = (*batch, *self._states.values())
        updates = {name: value.name for name, value in self._next.items()}
        graph = expand_composites(
            Graph(nodes, inputs, outputs, whole.name), {value.name: value.type for value in inputs}
        )
        running = (name for name in self._forward.states if name not in self._forward.trained)
        beside = group_states(self._initial, self.trained_shapes, running)
        return StepGraph(graph, self._initial, updates, tuple(beside))

    def _reads(self, count: Value) -> bool:
        """Return True where a result of the step depends on `count`, apart from its own next
        content.
        """
        outputs = [value for name, value in self._next.items() if name != STEP]
        whole = self._builder.graph(outputs)
        return any(count in node.reads for node in ordered(outputs, whole.producers))


def group_states(
    states: Collection[str], parameters: Mapping[str, Shape], running: Iterable[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the names of states of each kind: parameters, each optimiser slot, running statistics.

    In each group states are adjacent that are likely to be computed alike: of the same rank, with
    the same name in their layers, and of layers whose parameters have the same ranks, as gradients
    by biases come from products, from convolutions or from normalisations. Those of products are at
    the ends: their gradients' kernels may update them, and the others are adjacent then, too.
    parameters: the shapes of the parameters.
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
        whole = reduce(lambda one, other: add.pointwise("a + b", one, other), squares)
        most = float(self.norm)
        factor = add.pointwise("minimum(a / (sqrt(b) + c), 1.0)", most, whole, NORM_EPSILON)
        return {name: add.pointwise("a * b", g, factor) for name, g in result.items()}
