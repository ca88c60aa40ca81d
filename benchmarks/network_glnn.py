"""One network by glnn, in a process of its own (see `benchmarks.network_process`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

import glnn
from benchmarks.network_process import Asked, Found, answer, peak_mib


def main(asked: Asked) -> Found:
    """How it starts, runs, and what its plan has: operations and bytes of each step in `costs`."""
    sessions: list[glnn.InferenceSession] = []
    x = asked.input

    def load() -> Callable[[], NDArray[Any]]:
        session = glnn.InferenceSession(asked.path, asked.how)
        sessions.append(session)
        feeds = {session.get_inputs()[0].name: x}

        def run() -> NDArray[Any]:
            result: NDArray[Any] = session.run(None, feeds)[0]
            return result

        return run

    found, run = asked.start(load)
    if asked.seconds < 0:
        return found
    (session,) = sessions
    plan = session.plan({session.get_inputs()[0].name: x.shape})

    def resident() -> None:
        plan.launch()
        plan.backend.finish()

    steps = list(plan.outline.every)
    return {
        **found,
        **asked.timed(run),
        "resident_ms": asked.timed(resident)["median_ms"],
        "version": glnn.__version__,
        "steps": len(steps),
        "host_steps": sum(step.host for step in steps),
        "costs": [(step.cost.flops, step.cost.bytes) for step in steps],
        "plan_mib": plan.nbytes / 2**20,
        "host_mib": peak_mib(),
    }


if __name__ == "__main__":
    answer(main(Asked.from_arguments()))
