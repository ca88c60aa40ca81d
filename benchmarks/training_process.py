"""The networks that the processes of `benchmarks.training` train, and the timing of their steps.

Each process times one library, so that none disturbs another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import training_zoo
from benchmarks.training_zoo import CLASSES, DIGIT, IMAGE, TOKENS
from glnn.errors import GlnnError
from glnn.model import Model
from glnn.profiling.timing import FIRST_SECONDS

Row = dict[str, Any]
Batch = tuple[NDArray[np.float32], NDArray[np.int32]]
RATE, MOMENTUM = 1e-3, 0.9
"""Learning rate and momentum of SGD, the same for every library."""
CHECKED = 3
"""Steps whose losses are compared before anything is timed."""
DISTINCT = 4
"""Batches that take turns."""
MIN_RUNS = 3


@dataclass(frozen=True)
class Work:
    """A network and the batches that it is trained with."""

    name: str
    """The name by which --only selects it."""
    model: Callable[[], Model]
    """Builds the network, with the same weights each time."""
    sample: tuple[int, ...]
    """The shape of one sample."""
    batches: tuple[int, ...]
    """The batches to time: samples a step."""


WORKS = {
    work.name: work
    for work in (
        Work("mlp_784_512_10", partial(training_zoo.mlp, DIGIT, 512, CLASSES), (DIGIT,),
             (64, 100, 512)),
        Work("mlp_784_1024_1024_10", partial(training_zoo.mlp, DIGIT, 1024, 1024, CLASSES),
             (DIGIT,), (100,)),
        Work("lenet_relu", training_zoo.lenet, IMAGE, (64, 100, 512)),
        Work("resnet18_32", training_zoo.resnet18, (3, 32, 32), (64,)),
        Work("transformer_6x384", training_zoo.transformer, TOKENS, (16,)),
        Work("mobilenet_v2_64", training_zoo.mobilenet_v2, (3, 64, 64), (32,)),
    )
}  # fmt: skip


@dataclass(frozen=True)
class TrainingRequest:
    """The networks that a process is to time, and options of the timing."""

    works: tuple[tuple[str, int], ...]
    """Names of WORKS, and samples a step."""
    backend: str
    """The backend of glnn."""
    seconds: float
    """Seconds of each measurement."""
    pinned: bool
    """Whether PyTorch's host arrays are page-locked."""
    profile: bool
    """Whether glnn times each step of its plans, too."""

    @classmethod
    def from_arguments(cls) -> TrainingRequest:
        """Parse the command line, as `argument` writes it."""
        fields = json.loads(sys.argv[1])
        works = tuple((str(name), int(batch)) for name, batch in fields.pop("works"))
        return cls(works=works, **fields)

    @property
    def argument(self) -> str:
        """The request as JSON, which `from_arguments` parses."""
        return json.dumps(asdict(self))

    def each(self) -> Iterator[tuple[Work, int]]:
        """Yield the works, each with its batch."""
        for name, batch in self.works:
            yield WORKS[name], batch


def batches(work: Work, batch: int) -> list[Batch]:
    """Return seeded samples in [0, 1) and labels for DISTINCT steps, the same for every library."""
    generator = np.random.default_rng(batch)
    return [
        (
            generator.random((batch, *work.sample), np.float32),
            generator.integers(0, CLASSES, batch, np.int32),
        )
        for _ in range(DISTINCT)
    ]


def time_steps(
    steps: list[Callable[[], object]], wait: Callable[[], object], seconds: float
) -> dict[str, float]:
    """Return milliseconds of a step of `steps`, which take turns, after a warm-up.

    `median_ms` and `least_ms` are of `runs` steps with a `wait` after each, `queued_ms` the mean of
    as many steps with one `wait` at the end.
    """
    turns = cycle(steps)
    for duration, least in ((FIRST_SECONDS, 1), (seconds, MIN_RUNS)):
        times: list[float] = []
        begin = perf_counter()
        while len(times) < least or perf_counter() - begin < duration:
            start = perf_counter()
            next(turns)()
            wait()
            times.append(1e3 * (perf_counter() - start))
    start = perf_counter()
    for _ in times:
        next(turns)()
    wait()
    queued = 1e3 * (perf_counter() - start) / len(times)
    return {
        "median_ms": median(times), "least_ms": min(times), "runs": len(times), "queued_ms": queued,
    }  # fmt: skip


def select_works(only: str | None, batch: int | None) -> tuple[tuple[str, int], ...]:
    """Return the works whose names begin with one of the prefixes in `only`, or all, with batches.

    batch: in place of the works' own batches. Raises GlnnError for a prefix of no name.
    """
    prefixes = [""] if only is None else [name.strip() for name in only.split(",")]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in WORKS):
            raise GlnnError(f"--only: no {prefix!r}, expected beginnings of {', '.join(WORKS)}")
    return tuple(
        (work.name, size)
        for work in WORKS.values()
        if work.name.startswith(tuple(prefixes))
        for size in (work.batches if batch is None else (batch,))
    )
