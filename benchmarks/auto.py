"""Whether `backend="auto"` takes the fastest backend: each one's time, and what auto took.

Wall times from host array to host array, medians of runs by each backend in turn. Auto has to find
its answer anew: nothing is read from the user's cache. Its first run has the planning and the
measuring in it. It is right where its backend takes at most a tenth longer than the fastest.

    python -m benchmarks.auto
    python -m benchmarks.auto --only lenet-1,vgg16-1 --seconds 5 --json
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time

import numpy as np
import rich_click as click

from benchmarks.command import run
from benchmarks.record import machine
from glnn.backends import NAMES, open_backend
from glnn.cli.screen import Column, Screen, Table, figures, number
from glnn.core.types import Array
from glnn.errors import DeviceError, GlnnError
from glnn.layers import Linear, ReLU
from glnn.model import Model
from glnn.model.load import lenet, vgg16
from glnn.session import InferenceSession

RIGHT = 1.1
"""How many times as long as the fastest auto's backend may take."""


@dataclass
class Row:
    """What was seen of a model."""

    name: str
    """The case."""
    chosen: str
    """What auto took."""
    first: float
    """Seconds of auto's first run, with planning and measuring."""
    seen: Mapping[str, float]
    """Seconds of a run by each backend, as auto saw them."""
    why: Mapping[str, str]
    """Why it did not look at others, or no longer."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Those of each backend once it is warm."""
    processors: dict[str, float] = field(default_factory=dict)
    """Seconds of the host's processors that such a run takes, in all threads."""

    @property
    def right(self) -> bool:
        """Whether auto's is the fastest within RIGHT."""
        return self.seconds[self.chosen] <= RIGHT * min(self.seconds.values())


def perceptron() -> Model:
    """784-4096-4096-10, whose weights are seeded."""
    sizes = (784, 4096, 4096, 10)
    layers = [layer for n, m in pairwise(sizes) for layer in (Linear(n, m), ReLU())]
    model = Model.sequential(layers[:-1], (784,), name="mlp")
    model.begin(1)
    return model


CASES: dict[str, tuple[Callable[[], Model], tuple[int, ...]]] = {
    "lenet-1": (lenet, (1, 1, 28, 28)),
    "lenet-100": (lenet, (100, 1, 28, 28)),
    "mlp-64": (perceptron, (64, 784)),
    "mlp-1024": (perceptron, (1024, 784)),
    "vgg16-1": (vgg16, (1, 3, 224, 224)),
}
"""By name how the model is made, and the shape of its input."""


def measured(name: str, seconds: float, say: Callable[[str], None]) -> Row:
    """The case called `name`, its backends timed for about so many seconds in all."""
    made, shape = CASES[name]
    model = made()
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    feeds: dict[str, Array] = {model.inputs[0].name: x}
    auto = InferenceSession(model)
    start = perf_counter()
    auto.run(None, feeds)
    first = perf_counter() - start
    choice = auto.choice
    chosen = auto.backend.name
    row = Row(name, chosen, first, choice.seconds if choice else {}, choice.why if choice else {})
    say(f"{name}: auto takes {choice or chosen}, after {first:.2f} s")
    del auto
    sessions: dict[str, InferenceSession] = {}
    for backend in NAMES:
        try:
            sessions[backend] = InferenceSession(model, backend)
            sessions[backend].run(None, feeds)
        except (DeviceError, GlnnError) as error:
            sessions.pop(backend, None)
            say(f"{name}: {backend} does not run it: {error}")
    _time(row, sessions, feeds, seconds)
    for backend, taken in row.seconds.items():
        say(
            f"{name}: {backend} {1e3 * taken:.4g} ms, {1e3 * row.processors[backend]:.4g} ms of CPU"
        )
    return row


def _time(
    row: Row, sessions: Mapping[str, InferenceSession], feeds: Mapping[str, Array], seconds: float
) -> None:
    """Have `row` say how long each of `sessions` takes: rounds of one run by each, one at least."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
    begun = perf_counter()
    while perf_counter() - begun < seconds or not times[row.chosen]:
        for name, session in sessions.items():
            busy, start = process_time(), perf_counter()
            session.run(None, feeds)
            times[name].append((perf_counter() - start, process_time() - busy))
    for name, found in times.items():
        row.seconds[name] = median(wall for wall, _ in found)
        row.processors[name] = sum(busy for _, busy in found) / len(found)


def _names(only: str | None) -> list[str]:
    names = [part.strip() for part in only.split(",")] if only else list(CASES)
    for name in names:
        if name not in CASES:
            raise GlnnError(f"--only: no {name!r}, expected some of {', '.join(CASES)}")
    return names


def _show(rows: list[Row]) -> None:
    numbers = (figures(f"{name} ms") for name in NAMES)
    shown = Table((Column("model"), *numbers, Column("auto takes"), Column("right"), figures("s")))
    for row in rows:
        times = (number(1e3 * row.seconds[n]) if n in row.seconds else "-" for n in NAMES)
        right = "yes" if row.right else "no"
        shown.add(row.name, *times, row.chosen, right, number(row.first))
    Screen().show(shown, "medians; s: auto's first run, with planning and measuring")


@click.command(help=__doc__)
@click.option("--only", help=f"Some of {', '.join(CASES)}, by commas.")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=3.0,
    show_default=True,
    help="Of runs of each model, by all backends together.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(only: str | None, seconds: float, as_json: bool) -> None:
    names = _names(only)
    os.environ.pop("GLNN_BACKEND", None)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GLNN_CACHE"] = cache
        about = machine(open_backend("auto").device)

        def say(text: str) -> None:
            click.echo(text, err=as_json)

        rows = [measured(name, seconds, say) for name in names]
    if as_json:
        found = [{**asdict(row), "right": row.right} for row in rows]
        print(json.dumps({**about, "rows": found}, indent=2))
        return
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    _show(rows)


if __name__ == "__main__":
    run(main)
