"""Time of one kernel on one problem: its result is checked first, then it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Performer, Store, prepare
from glnn.backends.gl import GlBackend
from glnn.device import Timer
from glnn.errors import GlnnError
from glnn.ops.op import Op
from glnn.profiling.verify import relative_error

Array = NDArray[np.float32]
TOLERANCE = 1e-5
WARM_SECONDS = 0.1  # a GPU that idles lowers its clocks
CHECKED = 1 << 31  # multiply-adds: above, checking on the CPU takes too long


@dataclass(frozen=True)
class Timing:
    """Median seconds of one run, by the GPU's timer where it is believed, else by the clock."""

    seconds: float
    by_timer: bool
    error: float | None


def kernel_time(
    backend: GlBackend, op: Op, operands: Mapping[str, Array], kernel: str | None, repeat: int = 7
) -> Timing:
    """Time `kernel` on `operands`. Raises GlnnError where its result is wrong or it cannot run."""
    error = None
    if op.flops({name: array.shape for name, array in operands.items()}) <= 2 * CHECKED:
        error = _check(op, operands, *prepare(op, operands, backend, kernel))
    # Prepared anew: drivers may keep a result that was read back on the host.
    work, _ = prepare(op, operands, backend, kernel)
    once = _warm(work, backend.finish)
    count = max(1, int(0.02 / once))

    def many() -> None:
        for _ in range(count):
            work()

    timer = Timer(backend.device)
    believed = timer.prove(many) is None
    times = [
        timer.measure(many) if believed else _wall(many, backend.finish) for _ in range(repeat)
    ]
    kept = [t for t in times if t is not None]
    if believed and len(kept) <= repeat // 2:
        believed, kept = False, [_wall(many, backend.finish) for _ in range(repeat)]
    return Timing(median(kept) / count, believed, error)


def _check(
    op: Op,
    operands: Mapping[str, Array],
    work: Performer,
    out: Store,
) -> float:
    work()
    expected = op.reference({k: v.astype(np.float64) for k, v in operands.items()})
    error = relative_error(out.pull(), expected)
    if not error <= TOLERANCE:
        raise GlnnError(f"{op.name}: the result is off by {error:.1e}, no time is given")
    return error


def _warm(work: Callable[[], None], finish: Callable[[], None]) -> float:
    """Keep the device busy for a while; seconds of one run by the clock."""
    start, runs = perf_counter(), 0
    while perf_counter() - start < WARM_SECONDS:
        work()
        finish()
        runs += 1
    return (perf_counter() - start) / runs


def _wall(work: Callable[[], None], finish: Callable[[], None]) -> float:
    finish()
    start = perf_counter()
    work()
    finish()
    return perf_counter() - start
