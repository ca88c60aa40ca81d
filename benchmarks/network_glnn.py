"""One network by glnn, in a process of its own (see `benchmarks.network_process`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

import glnn
from benchmarks.network_process import GLNN, Asked, Found, Rows, serve
from glnn.errors import GlnnError


def load(asked: Asked) -> Rows:
    """Open a session, whose rows say what its plans have, too: `costs` are the operations and
    bytes of each step.
    """
    session = glnn.InferenceSession(asked.path, asked.how)
    (given,) = (one.name for one in session.get_inputs())

    def measured(batch: int) -> Found:
        x = asked.network.input(batch)
        before = time.perf_counter()
        plan = session.plan({given: x.shape})  # of just these sizes, which runs take from now on
        planned = time.perf_counter() - before

        def run() -> NDArray[Any]:
            result: NDArray[Any] = session.run(None, {given: x})[0]
            return result

        def resident() -> None:
            plan.launch()
            plan.backend.finish()

        found = asked.saved(batch, GLNN, run())
        steps = list(plan.outline.all_steps)
        return {
            **found,
            **asked.timed(run),
            "resident_ms": asked.timed(resident, warm=True)["median_ms"],
            "version": glnn.__version__,
            "plan_s": planned,
            "steps": len(steps),
            "host_steps": sum(step.host for step in steps),
            "costs": [(step.cost.flops, step.cost.bytes) for step in steps],
            "plan_mib": plan.nbytes / 2**20,
        }

    def rows(batch: int, names: tuple[str, ...]) -> Iterator[Found]:
        for name in names:
            try:
                yield measured(batch)
            except GlnnError as error:
                yield {"name": name, "failed": f"{type(error).__name__}: {error}"}

    return rows


if __name__ == "__main__":
    serve(load)
