"""How long a run takes, seen in few runs: what is far behind another is not run again."""

from __future__ import annotations

from collections.abc import Callable

FAR = 3.0
"""How many times as long as the fastest so far is too far behind to look again."""
LONG, LONGEST = 0.3, 3.0
"""Seconds of a first run, which drivers compile in, from which on it is repeated once, or not."""
RUNS, ENOUGH, LEAST = 20, 0.1, 3
"""Runs at the most; the seconds that are enough of them; and runs at the least, where short."""

Clock = Callable[[], float]


def steady(
    run: Callable[[], object], first: float, best: float | None, clock: Clock
) -> tuple[float, str]:
    """Seconds of a run, the least that was seen, and why it was not looked at longer, if so.

    first: seconds of the run before. best: those of the fastest other, None where there is none.
    """
    if first > LONGEST:
        return first, "one run took seconds"
    if best is not None and first > max(LONG, FAR * best):
        return first, "far behind after its first run"
    times: list[float] = []
    while len(times) < RUNS and (len(times) < LEAST or sum(times) < ENOUGH):
        start = clock()
        run()
        times.append(max(clock() - start, 1e-9))
        if best is not None and times[-1] > FAR * best and (first > LONG or len(times) == LEAST):
            return min(times), "far behind"
        if sum(times) > LONG:
            break
    return min(times), ""
