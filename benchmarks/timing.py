"""Time of one kernel on one problem: its result is checked first, then it is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glnn.backends.gl import GlBackend
from glnn.compile import prepare
from glnn.errors import GlnnError
from glnn.graph.epilogue import Epilogue
from glnn.graph.error import relative_error
from glnn.graph.operator import Operator
from glnn.kernels import kernels_for
from glnn.kernels.problem import Problem
from glnn.profiling import time_work

Array = NDArray[np.float32]
TOLERANCE, HALF_TOLERANCE = 1e-5, 2e-3
CHECKED = 1 << 31  # multiply-adds: above, checking on the CPU takes too long


@dataclass(frozen=True)
class KernelTime:
    """Median seconds of one run, whether they are the GPU's own, and the result's error."""

    kernel: str
    seconds: float
    by_timer: bool
    error: float | None


def kernel_time(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, Array],
    kernel: str | None,
    repeat: int = 7,
    epilogue: Epilogue | None = None,
) -> KernelTime:
    """Time `kernel` on `operands`. Raises GlnnError where its result is wrong or it cannot run."""
    shapes = {name: array.shape for name, array in operands.items()}
    problem = Problem.of(op, shapes, {}, epilogue)
    chosen = backend.choose(problem, kernel).name
    error = None
    if op.flops(shapes) <= 2 * CHECKED:
        work, out = prepare(op, operands, backend, kernel, epilogue=epilogue)
        work()
        expected = problem.compute({k: v.astype(np.float64) for k, v in operands.items()})
        error = relative_error(out.pull(), expected)
        halves = any(k.halves for k in kernels_for(op.name, backend.name) if k.name == chosen)
        if not error <= (HALF_TOLERANCE if halves else TOLERANCE):
            raise GlnnError(f"{chosen}: the result is off by {error:.1e}, no time is given")
    # Prepared anew: drivers may keep a result that was read back on the host.
    work, _ = prepare(op, operands, backend, kernel, epilogue=epilogue)
    timing = time_work(backend, work, repeat)
    return KernelTime(chosen, timing.seconds, timing.by_timer, error)
