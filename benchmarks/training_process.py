"""What the processes of `benchmarks.training` have in common: what they train, and how it is timed.

Each times one library, so that none disturbs another.
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

Found = dict[str, Any]
Batch = tuple[NDArray[np.float32], NDArray[np.int32]]
RATE, MOMENTUM = 1e-3, 0.9
"""Of SGD, the same everywhere."""
CHECKED = 3
"""Steps whose losses are compared before anything is timed."""
DISTINCT = 4
"""Batches that take turns."""
LEAST = 3
"""Runs."""


@dataclass(frozen=True)
class Work:
    """A network and the batches that it is trained with."""

    name: str
    """What it is called."""
    model: Callable[[], Model]
    """Makes it, with the same weights each time."""
    sample: tuple[int, ...]
    """One sample's shape."""
    batches: tuple[int, ...]
    """Samples a step."""


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
class Asked:
    """What a process is to time."""

    works: tuple[tuple[str, int], ...]
    """Names of WORKS, and samples a step."""
    backend: str
    """Of glnn."""
    seconds: float
    """Of each measure."""
    pinned: bool
    """Whether PyTorch's host arrays are page-locked."""
    profile: bool
    """Whether glnn times each step of its plans, too."""

    @classmethod
    def from_arguments(cls) -> Asked:
        """That of the command line."""
        given = json.loads(sys.argv[1])
        works = tuple((str(name), int(batch)) for name, batch in given.pop("works"))
        return cls(works=works, **given)

    @property
    def argument(self) -> str:
        """What `from_arguments` reads."""
        return json.dumps(asdict(self))

    def each(self) -> Iterator[tuple[Work, int]]:
        """The works and their batches."""
        for name, batch in self.works:
            yield WORKS[name], batch


def batches(work: Work, batch: int) -> list[Batch]:
    """Seeded samples from 0 to 1 and labels for DISTINCT steps, the same for every library."""
    generator = np.random.default_rng(batch)
    return [
        (
            generator.random((batch, *work.sample), np.float32),
            generator.integers(0, CLASSES, batch, np.int32),
        )
        for _ in range(DISTINCT)
    ]


def timed(
    steps: list[Callable[[], object]], wait: Callable[[], object], seconds: float
) -> dict[str, float]:
    """Milliseconds of a step of `steps`, which take turns, after FIRST_SECONDS of them.

    `median_ms` and `least_ms` of `runs` that are each waited for, and `queued_ms`, a step's share
    of as many that are waited for together.
    """
    turns = cycle(steps)
    for duration, least in ((FIRST_SECONDS, 1), (seconds, LEAST)):
        times: list[float] = []
        begun = perf_counter()
        while len(times) < least or perf_counter() - begun < duration:
            before = perf_counter()
            next(turns)()
            wait()
            times.append(1e3 * (perf_counter() - before))
    before = perf_counter()
    for _ in times:
        next(turns)()
    wait()
    queued = 1e3 * (perf_counter() - before) / len(times)
    return {
        "median_ms": median(times), "least_ms": min(times), "runs": len(times), "queued_ms": queued,
    }  # fmt: skip


def chosen(only: str | None, batch: int | None) -> tuple[tuple[str, int], ...]:
    """The works whose names begin with one of `only`, by commas, or all; with their own batches,
    or with `batch`. Raises GlnnError for a beginning that is none.
    """
    beginnings = [""] if only is None else [name.strip() for name in only.split(",")]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in WORKS):
            raise GlnnError(f"--only: no {beginning!r}, expected beginnings of {', '.join(WORKS)}")
    return tuple(
        (work.name, size)
        for work in WORKS.values()
        if work.name.startswith(tuple(beginnings))
        for size in (work.batches if batch is None else (batch,))
    )
