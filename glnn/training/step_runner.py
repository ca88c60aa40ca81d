"""The steps of one model's training on a backend: graphs, a plan for each batch size, states."""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from glnn.backends import Backend
from glnn.backends.backend_choice_cache import BackendChoiceCache
from glnn.backends.gl import GlBackend
from glnn.compiler.backend_autotune import Clock, shape_class, time_backends, timing_order
from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.compiler.weights import Weights
from glnn.core.types import Array, DType, TensorType
from glnn.errors import GlnnError, LimitError, ModelError, first_line
from glnn.graph.fingerprint import fingerprint
from glnn.kernels.kernel import Kernel
from glnn.model import Model
from glnn.runtime.options import BackendChoice
from glnn.training.checkpoint import differences
from glnn.training.losses import Loss
from glnn.training.optimizers import Optimizer
from glnn.training.samples import Samples
from glnn.training.step_graph import (
    STEP,
    TARGET,
    StepGraph,
    accumulating,
    applying,
    evaluating,
    training_step,
)

LOG = logging.getLogger(__name__)
KEPT = 8  # ways to compute a batch
LOST, COUNTED, CORRECT, SEEN = "total_loss", "counted", "correct", "seen"
TOTALS = {
    LOST: TensorType(()),
    COUNTED: TensorType(()),
    **dict.fromkeys((CORRECT, SEEN), TensorType((), DType.int32)),
}
"""The states that an epoch's progress shows, and their types."""
ACCUMULATED = "accumulated"  # the state that says what gradients add up to
ANY = 2  # samples of a batch that is only made to see which states it has
Batch = Mapping[str, Array]
BatchRunner = Callable[[Batch], object]
"""Computes a batch; nothing is read back."""


@dataclass(frozen=True)
class Evaluation:
    """The loss and accuracy of a model on some samples."""

    loss: float
    """The mean of the loss over them; NaN where there are none."""
    accuracy: float | None
    """The part of them that are classified right; None where the loss has no classes."""
    count: int
    """The number of samples."""


class StepRunner:
    """Plans of the training steps, and their states.

    recipe: what is trained, and how. kernels: kernels to use, by op.
    """

    def __init__(self, recipe: Recipe, backend: Backend, kernels: Mapping[str, str]) -> None:
        self._recipe, self.backend, self._kernels = recipe, backend, dict(kernels)
        self.states = States(backend)
        self._weights = Weights(backend, recipe.model.graph)
        self._runners: OrderedDict[BatchKey, BatchRunner] = OrderedDict()
        self._latest: tuple[BatchKey, BatchRunner] | None = None  # of the last batch
        self._needed: tuple[str, ...] = ()  # states, but for those of an epoch's progress
        self._own = frozenset(recipe.model.parameters())
        self.count = 0
        """Updates of the parameters so far."""
        self.kernels: dict[str, tuple[str, ...]] = {}
        """Those of each plan's steps, by what it computes and the size of a batch."""
        self.recorded: Mapping[str, tuple[str, ...]] = {}
        """The same as a checkpoint has it: where others are chosen now, it is warned of."""

    def moved_to(self, backend: Backend, loss: Loss) -> StepRunner:
        """Return the same on another backend, with the states as they are now."""
        moved = StepRunner(self._recipe, backend, self._kernels)
        if self._needed:
            moved.restore(loss, self.saved(loss), {})
        return moved

    def perform(self, key: BatchKey, batch: Batch) -> None:
        """Compute `batch`, in so many parts as are asked for, or more where memory is short.

        Raises LimitError where a single sample is too much, UnsupportedOpError where an operator
        has no gradient.
        """
        if self._latest is None or self._latest[0] is not key:
            self._latest = key, self._cached(key)
        self._latest[1](batch)
        self.count += key.trains

    def _cached(self, key: BatchKey) -> BatchRunner:
        """Return the function that computes batches of this key, from the cache or made."""
        way = self._runners.get(key) or self._compile(key)
        self._runners[key] = way
        self._runners.move_to_end(key)
        if len(self._runners) > KEPT:
            self._runners.popitem(last=False)
        return way

    def evaluate(self, samples: Samples, size: int) -> Evaluation:
        """Evaluate the model on `samples`, in batches of at most `size`.

        The totals of the epoch under way are as before afterwards.
        """
        kept = self.states.read(self._totals)
        self.clear()
        asked: dict[int, BatchKey] = {}
        for _, batch in samples.batches(size, None):
            if (count := len(batch[TARGET])) not in asked:
                asked[count] = BatchKey.for_samples(samples, count, trains=False)
            self.perform(asked[count], batch)
        result = self.read_evaluation(samples)
        self.clear()
        self.states.write(kept)
        return result

    def read_evaluation(self, samples: Samples) -> Evaluation:
        """Return the evaluation of the samples computed since `clear`; waits for the device."""
        totals = self.states.read(self._totals)
        count = int(totals.get(SEEN, 0))
        by_labels = samples.loss.divides_by_labels(TensorType((), samples.target))
        divisor = float(totals.get(COUNTED, 0)) if by_labels else count
        loss = float(totals[LOST]) / divisor if divisor else float("nan")
        right = float(totals[CORRECT]) / count if count and samples.classified else None
        return Evaluation(loss, right, count)

    def clear(self) -> None:
        """Have what an epoch's progress shows begin anew."""
        self.states.write({name: np.zeros((), TOTALS[name].dtype.numpy) for name in self._totals})

    @property
    def _totals(self) -> tuple[str, ...]:
        return tuple(name for name in TOTALS if name in self.states)

    def weights(self) -> dict[str, Array]:
        """Return copies of parameters and running statistics that are states; waits for the
        device.
        """
        return self.states.read(name for name in self.states.names if name in self._own)

    def saved(self, loss: Loss) -> dict[str, Array]:
        """Copies of all states that training needs to go on, and how many updates there were;
        waits for the device.
        """
        self.begin(loss)
        result = self.states.read((*self._needed, *self._totals))
        return {STEP: np.array(self.count, np.int32), **result}

    def restore(
        self, loss: Loss, states: Mapping[str, Array], kernels: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Go on with `states`, which `saved` gave, and kernels that were chosen then.

        Raises ModelError where states are missing, unknown or of another type.
        """
        self.begin(loss)
        types = {STEP: TensorType((), DType.int32)}
        types |= {name: self.states[name].type for name in self._needed}
        types |= {name: TOTALS[name] for name in states if name in TOTALS}
        expected = {name: np.empty(t.shape, t.dtype.numpy) for name, t in types.items()}
        if faults := differences(expected, states):
            raise ModelError(f"does not fit {self._recipe.model.name}: {', '.join(faults)}")
        self.clear()
        self.count = int(states[STEP])
        held = {k: array for k, array in states.items() if k != STEP or STEP in self._needed}
        for name in held.keys() - set(self.states.names):  # what an epoch's progress shows
            self.states.add(name, held[name])
        self.states.write(held)
        self.recorded = kernels
        for name, result in self.kernels.items():
            self._compare(name, result)

    def begin(self, loss: Loss) -> None:
        """Have the states that training needs."""
        if not self._needed:  # nothing was trained yet
            self._training(BatchKey(ANY, loss, None, totals=False)).add_to(self.states)

    def _training(self, key: BatchKey) -> StepGraph:
        step = self._recipe.training(key)
        self._needed = tuple(name for name in step.states if name not in TOTALS)
        return step

    def _compile(self, key: BatchKey) -> BatchRunner:
        """Make the function that computes batches of this key, in parts where memory is short."""
        size = -(-key.count // min(key.parts, key.count))
        while True:
            try:
                return self._compile_parts(key, size)
            except LimitError as error:
                if self._runners:  # first what other plans take
                    self._runners.clear()
                    self._latest = None
                    gc.collect()
                    continue
                if size == 1:
                    raise
                size = -(-size // 2)
                LOG.info(
                    "batch of %d in parts of %d samples: %s", key.count, size, first_line(error)
                )

    def _compile_parts(self, key: BatchKey, size: int) -> BatchRunner:
        """Make the function that computes such batches in parts of `size` samples."""
        if key.trains and size == key.count:
            return self._plan(f"training {size}", self._training(key))
        starts = range(0, key.count, size)
        sizes = dict.fromkeys(min(size, key.count - start) for start in starts)
        make = self._recipe.accumulating if key.trains else self._recipe.evaluating
        kind = "accumulating" if key.trains else "evaluating"
        plans = {one: self._plan(f"{kind} {one}", make(key, one)) for one in sizes}
        last = None
        if key.trains:
            last = self._plan("applying", self._recipe.applying(key))

        def perform(batch: Batch) -> None:
            for start in starts:
                part = {name: array[start : start + size] for name, array in batch.items()}
                plans[len(part[TARGET])](part)
            if last is not None:
                last({})

        return perform if last is None else self._undone(perform)

    def _undone(self, way: BatchRunner) -> BatchRunner:
        """Wrap `way` so that a failure leaves no gradients of some parts."""

        def perform(batch: Batch) -> None:
            try:
                way(batch)
            except BaseException:
                with suppress(GlnnError):  # the device may be lost
                    self.states.write({ACCUMULATED: np.zeros((), np.float32)})
                raise

        return perform

    def _plan(self, name: str, step: StepGraph) -> BatchRunner:
        """Make a function that runs `step`, called `name` in logs and checkpoints."""
        step.add_to(self.states)
        shapes = {
            value.name: value.type.shape
            for value in step.graph.inputs
            if value.name not in self.states
        }
        plan = Plan(
            step.graph,
            self.backend,
            shapes,
            self._kernels,
            weights=self._weights,
            states=self.states,
            updates=step.updates,
        )
        self._note(name, plan)
        return partial(plan.run, outputs=())

    def _note(self, name: str, plan: Plan) -> None:
        """Record the kernels that were chosen."""
        entries = plan.outline.schedule.entries
        result = tuple(
            f"{entry.lowered.name}: {entry.choice.name}{_parameters(entry.choice)}"
            for entry in entries
        )
        self.kernels[name] = result
        self._compare(name, result)

    def _compare(self, name: str, kernels: tuple[str, ...]) -> None:
        """Warn where other kernels were chosen for a checkpoint."""
        if kernels != (before := self.recorded.get(name, kernels)):
            pairs = [f"{new}, then {old}" for new, old in zip(kernels, before) if new != old]
            what = pairs[0] if pairs else f"{len(kernels)} steps, then {len(before)}"
            LOG.warning(
                "%s has other kernels than at the checkpoint (%s): results may differ in rounding",
                name,
                what,
            )


def _parameters(choice: object) -> str:
    """Format the parameters of a kernel for people."""
    values = choice.defaults if isinstance(choice, Kernel) else {}
    return "".join(f" {name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class BatchKey:
    """The computation of a batch, by which plans are kept."""

    count: int
    """Samples of the batch."""
    loss: Loss
    """The loss, as it suits the targets."""
    target: DType | None
    """The type of the target's numbers; None: the usual one."""
    trains: bool = True
    """Whether the parameters are updated, or the model is only evaluated."""
    parts: int = 1
    """Parts of the batch that are computed by themselves, at least."""
    totals: bool = True
    """Whether the totals that an epoch's progress shows are added up."""

    @classmethod
    def for_samples(cls, samples: Samples, count: int, **more: Any) -> BatchKey:
        """Make the key of `count` of the samples; `more` are fields."""
        return cls(count, samples.loss, samples.target, **more)

    def matches(self, batch: Samples) -> bool:
        """Return True where a batch has as many samples, and the same kind of targets."""
        like = self.count == batch.count and self.target is batch.target
        return like and (self.loss is batch.loss or self.loss == batch.loss)


@dataclass(frozen=True, eq=False)
class Recipe:
    """The model, the optimiser and the options of a training."""

    model: Model
    """The model."""
    optimizer: Optimizer
    """The optimiser of its parameters."""
    options: Mapping[str, Any]
    """Further arguments of `training_step`: `frozen`, `schedule`, `clip_norm`, `clip_value` and
    `seed`."""

    def training(self, key: BatchKey) -> StepGraph:
        """Build the graph of one update by a whole batch."""
        options = {**self.options, "target": key.target, "totals": key.totals}
        options["counting"] = False  # the host does
        return training_step(self.model, key.loss, self.optimizer, key.count, **options)

    def accumulating(self, key: BatchKey, size: int) -> StepGraph:
        """Build the graph that adds the gradients of `size` samples to those of the parts
        before.
        """
        options = {name: self.options[name] for name in ("frozen", "seed")}
        options |= {"target": key.target, "totals": key.totals}
        return accumulating(self.model, key.loss, size, **options)

    def applying(self, key: BatchKey) -> StepGraph:
        """Build the graph of one update by the accumulated gradients."""
        options = {name: value for name, value in self.options.items() if name != "seed"}
        return applying(self.model, key.loss, self.optimizer, counting=False, **options)

    def evaluating(self, key: BatchKey, size: int) -> StepGraph:
        """Build the graph of the loss of `size` samples, and of how many are right."""
        frozen = self.options["frozen"]
        return evaluating(self.model, key.loss, size, frozen=frozen, target=key.target)


def choose_backend(
    recipe: Recipe,
    candidates: Mapping[str, Backend],
    key: BatchKey,
    batch: Batch,
    clock: Clock = perf_counter,
) -> BackendChoice:
    """Return the backend of `candidates` whose warm training steps take the least time.

    Each trains copies of the parameters, which are dropped afterwards. The answer is kept for the
    device as those of sessions are, by a fingerprint of the step's graph and the batch's shapes.

    Args:
        recipe: What is trained, and how.
        candidates: Two backends or more, by name, one of them of a GPU.
        key: What the batch is computed for.
        batch: The arrays of one batch by name, the inputs' and `target`.
        clock: Returns seconds.

    Raises:
        GlnnError: The error of the first step, as `StepRunner.perform` raises it.
    """
    gl = next(one for one in candidates.values() if isinstance(one, GlBackend))
    device = gl.device.capabilities
    shapes = shape_class({name: array.shape for name, array in batch.items()})
    what = f"training {fingerprint(recipe.training(key).graph)} in {key.parts} parts"
    choice_key = BackendChoiceCache.key(f"{what} on {','.join(sorted(candidates))}", shapes)
    stored = gl.choice_cache.find(choice_key)
    if stored is not None and stored.backend in candidates:
        return stored

    def make_run(name: str) -> Callable[[], object]:
        steps = StepRunner(recipe, candidates[name], {})

        def run() -> None:
            steps.perform(key, batch)
            steps.states.read(("loss",))  # waits for the device

        return run

    names = [name for name in timing_order(device) if name in candidates]
    timings = time_backends(names, make_run, device, clock)
    if not timings.seconds:  # each was lost in a later step
        return BackendChoice(next(iter(candidates)), why=timings.why)
    choice = timings.choice
    if timings.is_lasting:
        gl.choice_cache.keep(choice_key, choice, f"training of {recipe.model.name}", shapes)
    return choice
