"""One network by glnn, in a process of its own (see `benchmarks.network_process`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

import glnn
from benchmarks.network_process import GLNN, MeasureRows, NetworkRequest, Row, serve
from glnn.errors import GlnnError


def load(request: NetworkRequest) -> MeasureRows:
    """Open a session. Its rows also describe its plan; `costs`: FLOPs and bytes of each step."""
    session = glnn.InferenceSession(request.path, request.engine)
    (input_name,) = (one.name for one in session.get_inputs())

    def measure(batch: int) -> Row:
        x = request.network.input(batch)
        start = time.perf_counter()
        plan = session.plan({input_name: x.shape})  # for exact sizes; the runs below use this plan
        plan_seconds = time.perf_counter() - start

        def run() -> NDArray[Any]:
            result: NDArray[Any] = session.run(None, {input_name: x})[0]
            return result

        def resident() -> None:
            plan.launch()
            plan.backend.finish()

        row = request.save_result(batch, GLNN, run())
        steps = list(plan.outline.all_steps)
        return {
            **row,
            **request.time_work(run),
            "resident_ms": request.time_work(resident, warm=True)["median_ms"],
            "version": glnn.__version__,
            "plan_s": plan_seconds,
            "steps": len(steps),
            "host_steps": sum(step.host for step in steps),
            "costs": [(step.cost.flops, step.cost.bytes) for step in steps],
            "plan_mib": plan.nbytes / 2**20,
        }

    def rows(batch: int, names: tuple[str, ...]) -> Iterator[Row]:
        for name in names:
            try:
                yield measure(batch)
            except GlnnError as error:
                yield {"name": name, "failed": f"{type(error).__name__}: {error}"}

    return rows


if __name__ == "__main__":
    serve(load)
