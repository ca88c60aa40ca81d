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
MOST_RUNNERS = 8  # cached functions that compute batches, one for each BatchKey
TOTAL_LOSS, COUNTED, CORRECT, SEEN = "total_loss", "counted", "correct", "seen"
TOTALS = {
    TOTAL_LOSS: TensorType(()),
    COUNTED: TensorType(()),
    **dict.fromkeys((CORRECT, SEEN), TensorType((), DType.int32)),
}
"""The states that an epoch's progress shows, and their types."""
ACCUMULATED = "accumulated"  # the state with the divisor of the accumulated gradients
ANY = 2  # samples of a batch whose graph is only built to find the states of training
Batch = Mapping[str, Array]
BatchRunner = Callable[[Batch], object]
"""Computes a batch; nothing is read back."""


@dataclass(frozen=True)
class Evaluation:
    """The loss and accuracy of a model on some samples."""

    loss: float
    """The mean of the loss over them; NaN where there are none."""
    accuracy: float | None
    """The fraction of them that are classified correctly; None where the loss has no classes."""
    count: int
    """The number of samples."""


class StepRunner:
    """Plans of the training steps, and their states.

    recipe: the model, its optimiser and options. kernels: kernels to use, by op.
    """

    def __init__(self, recipe: Recipe, backend: Backend, kernels: Mapping[str, str]) -> None:
        self._recipe, self.backend, self._kernels = recipe, backend, dict(kernels)
        self.states = States(backend)
        self._weights = Weights(backend, recipe.model.graph)
        self._runners: OrderedDict[BatchKey, BatchRunner] = OrderedDict()
        self._latest: tuple[BatchKey, BatchRunner] | None = None  # of the last batch
        self._training_states: tuple[str, ...] = ()  # names of all states but those in TOTALS
        self._parameters = frozenset(recipe.model.parameters())
        self.count = 0
        """Updates of the parameters so far."""
        self.kernels: dict[str, tuple[str, ...]] = {}
        """The kernels of each plan's steps, by the kind of plan and the size of a batch."""
        self.recorded: Mapping[str, tuple[str, ...]] = {}
        """The kernels of a checkpoint; a warning is logged where others are chosen now."""

    def moved_to(self, backend: Backend, loss: Loss) -> StepRunner:
        """Return a StepRunner on another backend, with copies of the current states."""
        moved = StepRunner(self._recipe, backend, self._kernels)
        if self._training_states:
            moved.restore(loss, self.saved(loss), {})
        return moved

    def perform(self, key: BatchKey, batch: Batch) -> None:
        """Compute `batch`, in `key.parts` parts, or more where memory is short.

        Raises LimitError where memory is too short for a single sample, UnsupportedOpError where an
        operator has no gradient.
        """
        if self._latest is None or self._latest[0] is not key:
            self._latest = key, self._cached(key)
        self._latest[1](batch)
        self.count += key.trains

    def _cached(self, key: BatchKey) -> BatchRunner:
        """Return the function that computes batches of this key, from the cache or compiled."""
        runner = self._runners.get(key) or self._compile(key)
        self._runners[key] = runner
        self._runners.move_to_end(key)
        if len(self._runners) > MOST_RUNNERS:
            self._runners.popitem(last=False)
        return runner

    def evaluate(self, samples: Samples, size: int) -> Evaluation:
        """Evaluate the model on `samples`, in batches of at most `size`.

        The totals of the current epoch are saved before and restored afterwards.
        """
        totals = self.states.read(self._totals)
        self.clear()
        keys: dict[int, BatchKey] = {}
        for _, batch in samples.batches(size, None):
            if (count := len(batch[TARGET])) not in keys:
                keys[count] = BatchKey.for_samples(samples, count, trains=False)
            self.perform(keys[count], batch)
        result = self.read_evaluation(samples)
        self.clear()
        self.states.write(totals)
        return result

    def read_evaluation(self, samples: Samples) -> Evaluation:
        """Return the evaluation of the samples computed since `clear`; waits for the device."""
        totals = self.states.read(self._totals)
        count = int(totals.get(SEEN, 0))
        by_labels = samples.loss.divides_by_labels(TensorType((), samples.target))
        divisor = float(totals.get(COUNTED, 0)) if by_labels else count
        loss = float(totals[TOTAL_LOSS]) / divisor if divisor else float("nan")
        accuracy = float(totals[CORRECT]) / count if count and samples.classified else None
        return Evaluation(loss, accuracy, count)

    def clear(self) -> None:
        """Set the totals of an epoch's progress to zero."""
        self.states.write({name: np.zeros((), TOTALS[name].dtype.numpy) for name in self._totals})

    @property
    def _totals(self) -> tuple[str, ...]:
        return tuple(name for name in TOTALS if name in self.states)

    def weights(self) -> dict[str, Array]:
        """Return copies of parameters and running statistics that are states; waits for the
        device.
        """
        return self.states.read(name for name in self.states.names if name in self._parameters)

    def saved(self, loss: Loss) -> dict[str, Array]:
        """Return copies of all states that training needs to continue, and the number of updates;
        waits for the device.
        """
        self.begin(loss)
        result = self.states.read((*self._training_states, *self._totals))
        return {STEP: np.array(self.count, np.int32), **result}

    def restore(
        self, loss: Loss, states: Mapping[str, Array], kernels: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Continue with `states`, which `saved` returned, and the `kernels` of that time.

        Raises ModelError where states are missing, unknown or of another type.
        """
        self.begin(loss)
        types = {STEP: TensorType((), DType.int32)}
        types |= {name: self.states[name].type for name in self._training_states}
        types |= {name: TOTALS[name] for name in states if name in TOTALS}
        expected = {name: np.empty(t.shape, t.dtype.numpy) for name, t in types.items()}
        if faults := differences(expected, states):
            raise ModelError(f"does not fit {self._recipe.model.name}: {', '.join(faults)}")
        self.clear()
        self.count = int(states[STEP])
        on_device = dict(states)
        if STEP not in self._training_states:  # only the host counts updates
            del on_device[STEP]
        for name in on_device.keys() - set(self.states.names):  # totals
            self.states.add(name, on_device[name])
        self.states.write(on_device)
        self.recorded = kernels
        for name, chosen in self.kernels.items():
            self._compare(name, chosen)

    def begin(self, loss: Loss) -> None:
        """Add the states that training needs, unless they are there."""
        if not self._training_states:  # nothing was trained yet
            self._training(BatchKey(ANY, loss, None, totals=False)).add_to(self.states)

    def _training(self, key: BatchKey) -> StepGraph:
        """Build the graph of a training step, and note its states."""
        step = self._recipe.training(key)
        self._training_states = tuple(name for name in step.states if name not in TOTALS)
        return step

    def _compile(self, key: BatchKey) -> BatchRunner:
        """Compile a function that computes batches of this key, in parts where memory is short."""
        size = -(-key.count // min(key.parts, key.count))
        while True:
            try:
                return self._compile_parts(key, size)
            except LimitError as error:
                if self._runners:  # free the memory of other plans first
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
        """Compile a function that computes batches of this key in parts of `size` samples."""
        if key.trains and size == key.count:
            return self._plan(f"training {size}", self._training(key))
        starts = range(0, key.count, size)
        sizes = dict.fromkeys(min(size, key.count - start) for start in starts)
        build = self._recipe.accumulating if key.trains else self._recipe.evaluating
        kind = "accumulating" if key.trains else "evaluating"
        plans = {count: self._plan(f"{kind} {count}", build(key, count)) for count in sizes}
        apply = None
        if key.trains:
            apply = self._plan("applying", self._recipe.applying(key))

        def perform(batch: Batch) -> None:
            for start in starts:
                part = {name: array[start : start + size] for name, array in batch.items()}
                plans[len(part[TARGET])](part)
            if apply is not None:
                apply({})

        return perform if apply is None else self._reset_on_error(perform)

    def _reset_on_error(self, runner: BatchRunner) -> BatchRunner:
        """Wrap `runner` so that a failure discards the gradients accumulated so far."""

        def perform(batch: Batch) -> None:
            try:
                runner(batch)
            except BaseException:
                with suppress(GlnnError):  # the device may be lost
                    self.states.write({ACCUMULATED: np.zeros((), np.float32)})
                raise

        return perform

    def _plan(self, name: str, step: StepGraph) -> BatchRunner:
        """Return a function that runs `step`, called `name` in logs and checkpoints."""
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
        self._record_kernels(name, plan)
        return partial(plan.run, outputs=())

    def _record_kernels(self, name: str, plan: Plan) -> None:
        """Record the kernels that were chosen for `plan`, called `name`."""
        entries = plan.outline.schedule.entries
        chosen = tuple(
            f"{entry.lowered.name}: {entry.choice.name}{_parameters(entry.choice)}"
            for entry in entries
        )
        self.kernels[name] = chosen
        self._compare(name, chosen)

    def _compare(self, name: str, kernels: tuple[str, ...]) -> None:
        """Warn where the checkpoint has other kernels for the plan called `name`."""
        if kernels != (recorded := self.recorded.get(name, kernels)):
            pairs = [f"{new}, then {old}" for new, old in zip(kernels, recorded) if new != old]
            difference = pairs[0] if pairs else f"{len(kernels)} steps, then {len(recorded)}"
            LOG.warning(
                "%s has other kernels than at the checkpoint (%s): results may differ in rounding",
                name,
                difference,
            )


def _parameters(choice: object) -> str:
    """Return the parameters of a kernel as text."""
    values = choice.defaults if isinstance(choice, Kernel) else {}
    return "".join(f" {name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class BatchKey:
    """The key of the plans that compute a batch."""

    count: int
    """Samples of the batch."""
    loss: Loss
    """The loss, as it suits the targets."""
    target: DType | None
    """The type of the target's numbers; None: the loss's default."""
    trains: bool = True
    """Whether the parameters are updated, or the model is only evaluated."""
    parts: int = 1
    """Least number of parts that the batch is computed in."""
    totals: bool = True
    """Whether the totals that an epoch's progress shows are added up."""

    @classmethod
    def for_samples(cls, samples: Samples, count: int, **fields: Any) -> BatchKey:
        """Return the key of `count` of the samples, with further `fields`."""
        return cls(count, samples.loss, samples.target, **fields)

    def matches(self, batch: Samples) -> bool:
        """Return True where a batch has as many samples, and the same kind of targets."""
        is_like = self.count == batch.count and self.target is batch.target
        return is_like and (self.loss is batch.loss or self.loss == batch.loss)


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
        options["counting"] = False  # the host counts updates
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

    Each trains copies of the parameters, which are dropped afterwards. The choice is cached for the
    device, as the choices of sessions are, by a fingerprint of the step's graph and the batch's
    shapes.

    Args:
        recipe: The model, its optimiser and options.
        candidates: Two backends or more, by name, one of them of a GPU.
        key: The key of the batch.
        batch: The arrays of one batch by name, the inputs' and `target`.
        clock: Returns seconds.

    Raises:
        GlnnError: The error of the first step, as `StepRunner.perform` raises it.
    """
    gl = next(backend for backend in candidates.values() if isinstance(backend, GlBackend))
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
