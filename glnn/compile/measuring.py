"""Seconds of a warm run, from few runs: a backend that is far behind another is not run again."""

from __future__ import annotations

from collections.abc import Callable

FAR = 3.0
"""How many times as long as the fastest so far is too far behind to look again."""
LONG = 0.3
"""Seconds of runs after which no further one is timed."""
LONGEST = 30.0
"""Seconds of a first run from which on it is not repeated, and is judged by itself."""
RUNS, ENOUGH, LEAST = 20, 0.1, 3
"""Runs at the most; the seconds that are enough of them; and runs at the least, where short."""

Clock = Callable[[], float]


def warm_seconds(
    run: Callable[[], object], first: float, best: float | None, clock: Clock
) -> tuple[float, str]:
    """Return the least seconds of a run after the first, and why it was not run longer, if so.

    The driver compiles in the first run, which may take a thousand times as long as the next: it
    decides nothing, unless it took LONGEST.

    Args:
        run: Runs the model once.
        first: Seconds of the run before, the backend's first.
        best: Seconds of the fastest other backend, None where there is none.
        clock: Returns seconds.
    """
    if first > LONGEST:
        return first, f"its first run took {first:.0f} s and was not repeated"
    times: list[float] = []
    while len(times) < RUNS and (len(times) < LEAST or sum(times) < ENOUGH):
        start = clock()
        run()
        times.append(max(clock() - start, 1e-9))
        settled = len(times) > 1 or times[-1] > LONG
        if settled and best is not None and min(times) > FAR * best:
            return min(times), "far behind"
        if sum(times) > LONG:
            break
    return min(times), ""
