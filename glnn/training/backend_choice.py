"""The backend that trains a model the fastest here: timed at the first batch, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from glnn.backends import Backend
from glnn.backends.answers import Answers
from glnn.backends.gl import GlBackend
from glnn.compiler.fastest import Clock, shape_class, time_backends, timing_order
from glnn.graph.fingerprint import fingerprint
from glnn.runtime.options import BackendChoice
from glnn.training.steps import Batch, BatchKey, Recipe, Steps


def fastest_backend(
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
        GlnnError: The error of the first step, as `Steps.perform` raises it.
    """
    gl = next(one for one in candidates.values() if isinstance(one, GlBackend))
    device = gl.device.capabilities
    shapes = shape_class({name: array.shape for name, array in batch.items()})
    what = f"training {fingerprint(recipe.training(key).graph)} in {key.parts} parts"
    answer_key = Answers.key(f"{what} on {','.join(sorted(candidates))}", shapes)
    known = gl.answers.find(answer_key)
    if known is not None and known.backend in candidates:
        return known

    def prepared(name: str) -> Callable[[], object]:
        steps = Steps(recipe, candidates[name], {})

        def run() -> None:
            steps.perform(key, batch)
            steps.states.read(("loss",))  # waits for the device

        return run

    names = [name for name in timing_order(device) if name in candidates]
    timings = time_backends(names, prepared, device, clock)
    if not timings.seconds:  # each was lost in a later step
        return BackendChoice(next(iter(candidates)), why=timings.why)
    choice = timings.choice
    if timings.is_lasting:
        gl.answers.keep(answer_key, choice, f"training of {recipe.model.name}", shapes)
    return choice
