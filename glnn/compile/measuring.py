"""Timing of backends against one another by few warm runs, within a bound on the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glnn.choice import TIE, Choice
from glnn.device import Capabilities
from glnn.errors import GlnnError, LimitError, ShaderError, UnsupportedOpError, first_line
from glnn.kernels.architecture import architecture
from glnn.kernels.predict import pace
from glnn.progress_bar import report_work

FAR = 3.0
"""How many times as long as the fastest so far is too far behind to look again."""
LONG = 0.3
"""Seconds of runs after which no further one is timed."""
RUNS, ENOUGH, LEAST = 20, 0.1, 3
"""Runs at the most; the seconds that are enough of them; and runs at the least, where short."""

BOUND = 20.0
"""Seconds of measuring, planning included, after which no further run is begun with."""
SOFTWARE_LAST = ("cpu", "feedback", "compute")
GPU_FIRST = ("compute", "cpu", "feedback")
"""The order in which backends are timed: the slowest last, so that the bound leaves that out."""
REFUSALS = (LimitError, UnsupportedOpError, ShaderError)
"""What a backend raises that cannot compute a model, on this device at all."""

Clock = Callable[[], float]


@dataclass
class Timings:
    """Seconds of a warm run by each backend, and why others have none."""

    seconds: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    """The errors of those that failed."""

    @property
    def choice(self) -> Choice:
        """The fastest; there must be one."""
        return Choice.of(self.seconds, self.why)

    @property
    def is_lasting(self) -> bool:
        """True where the same would be seen again: no device was lost, no memory was short."""
        return all(isinstance(one, REFUSALS) for one in self.failures)


def timing_order(device: Capabilities) -> tuple[str, ...]:
    """Return the backends' names in the order in which they are timed beside `device`."""
    return SOFTWARE_LAST if device.software else GPU_FIRST


def time_backends(
    names: Sequence[str],
    prepare: Callable[[str], Callable[[], object]],
    device: Capabilities,
    clock: Clock,
) -> Timings:
    """Time each backend of `names`, as far as that is worth it.

    Args:
        names: The backends in their order.
        prepare: Gives, for a backend's name, a function that runs the work once on it.
        device: The device that all but the cpu are for.
        clock: Returns seconds.

    Raises:
        GlnnError, MemoryError: The error of the first run, unless a backend refuses the work; the
            first refusal where all refuse it.
    """
    found, answered = Timings(), None
    run: Callable[[], object] | None = None
    for name in names:
        if answered is not None and (reason := _reason_to_skip(name, found, device)):
            found.why[name] = reason
            continue
        if answered is not None and (spent := clock() - answered) > BOUND:
            found.why[name] = f"measuring had taken {spent:.0f} s by then"
            continue
        best = min(found.seconds.values(), default=None)
        run = None  # with the memory that it holds, before the next backend takes some
        try:
            with report_work("timing", name):
                run = prepare(name)
                start = clock()
                run()
                first = clock() - start
                answered = clock() if answered is None else answered
                left = BOUND - (clock() - answered)
                found.seconds[name], short = warm_seconds(run, first, best, clock, left)
        except (GlnnError, MemoryError) as error:
            if answered is None and not isinstance(error, REFUSALS):
                raise  # a wrong input, or the device was reset: nothing was seen
            found.failures.append(error)
            short = first_line(error)
        if short:
            found.why[name] = short
    if answered is None:
        raise found.failures[0]
    return found


def _reason_to_skip(name: str, found: Timings, device: Capabilities) -> str:
    """Return why `name` cannot be the fastest, by the GPU's architecture; empty where it may be."""
    slower = pace(architecture(device)).feedback > TIE
    if name == "feedback" and "compute" in found.seconds and slower:
        return "transform feedback is slower than compute shaders on such a GPU"
    return ""


def warm_seconds(
    run: Callable[[], object], first: float, best: float | None, clock: Clock, left: float = BOUND
) -> tuple[float, str]:
    """Return the least seconds of a run after the first, and why it was not run longer, if so.

    The driver compiles in the first run, which may take a thousand times as long as the next: it
    decides nothing, unless it took longer than what is left.

    Args:
        run: Runs the model once.
        first: Seconds of the run before, the backend's first.
        best: Seconds of the fastest other backend, None where there is none.
        clock: Returns seconds.
        left: Seconds that a further run may take.
    """
    if first > left:
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
