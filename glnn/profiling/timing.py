"""Times of one op on a device: by its timer where that is reliable, else by the wall clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from glnn.backends import Backend
from glnn.gl import Timer

WARM_SECONDS = 0.1  # a GPU that idles lowers its clocks
FIRST_SECONDS = 1.0
"""Seconds in which the runs of a new process take longer, seen on an H200: the first 0.3 four to
five times as long, those up to 0.8 a third more."""
LEAST_SECONDS = 0.02  # of one measure: below, the clock and the queue weigh too much


@dataclass(frozen=True)
class Timing:
    """The median seconds of one run. by_timer: True where they are the GPU's own.

    runs: the seconds of one run in each repeated measurement, without disturbed ones.
    """

    seconds: float
    by_timer: bool
    runs: tuple[float, ...] = field(default=(), compare=False)


def warm_up(
    work: Callable[[], object],
    seconds: float | None = None,
    finish: Callable[[], object] = lambda: None,
    hopeless: float = float("inf"),
) -> float:
    """Keep the device busy with `work`, and return the seconds of a run by the clock.

    seconds: how long; by default FIRST_SECONDS. finish: waits for `work`, where that does not wait
    itself. hopeless: seconds; work that takes longer is run less often.
    """
    seconds = FIRST_SECONDS if seconds is None else seconds
    start, runs, chunk = perf_counter(), 0, 1
    while True:
        for _ in range(chunk):
            work()
        finish()
        runs += chunk
        spent = perf_counter() - start
        once = spent / runs
        if spent >= seconds or (spent >= LEAST_SECONDS and once > hopeless):
            return once
        chunk = min(2 * chunk, 1 + int((seconds - spent) / max(once, 1e-9)))


def time_work(
    backend: Backend,
    work: Callable[[], None],
    repeat: int = 7,
    warm: float = WARM_SECONDS,
    hopeless: float = float("inf"),
) -> Timing:
    """Measure `work`, GL commands that do not wait, after `warm` seconds of them.

    hopeless: seconds; work that takes longer in its first run is not repeated.
    """
    return backend.perform(lambda: _time_work(backend, work, repeat, warm, hopeless))


def _time_work(
    backend: Backend, work: Callable[[], None], repeat: int, warm: float, hopeless: float
) -> Timing:
    once = _wall(work, backend.finish)  # the driver may still compile
    if once <= max(hopeless, LEAST_SECONDS):
        once = warm_up(work, warm, backend.finish, hopeless)
    if once > hopeless or backend.device is None:
        return Timing(once, False, (once,))
    count = max(1, int(LEAST_SECONDS / once))

    def many() -> None:
        for _ in range(count):
            work()

    timer = Timer(backend.device)
    if timer.prove(many) is None and (sample := timer.measure(many, repeat)) is not None:
        return Timing(sample.gpu / count, True, tuple(gpu / count for gpu in sample.runs))
    walls = [_wall(many, backend.finish) / count for _ in range(repeat)]
    return Timing(median(walls), False, tuple(walls))


def _wall(work: Callable[[], None], finish: Callable[[], None]) -> float:
    finish()
    start = perf_counter()
    work()
    finish()
    return perf_counter() - start
