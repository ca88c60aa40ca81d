"""What the processes of the page of networks have in common: what they are asked, and answer.

Each runs one network by one library, so that none disturbs another and one that hangs costs a row.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo import NETWORKS, Network

LEAST = 3  # runs
GRAPH = ".graph.npy"  # behind the name of the file of a CUDA graph's output
Found = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a process is to do."""

    name: str
    """The network's."""
    path: str
    """The .onnx file."""
    batch: int
    how: str
    """The backend or provider."""
    seconds: float
    """Of each measure; below 0 only the start is measured."""
    result: str
    """The .npy file that the output is written to."""
    seed: int
    """Of the weights."""
    since: float
    """When the process was asked for, by `time.time`."""

    @classmethod
    def from_arguments(cls) -> Asked:
        """That of the command line."""
        return cls(**json.loads(sys.argv[1]))

    @property
    def argument(self) -> str:
        """What `from_arguments` reads."""
        return json.dumps(asdict(self))

    @property
    def network(self) -> Network:
        """What it is called by name."""
        return NETWORKS[self.name]

    @property
    def input(self) -> NDArray[Any]:
        """What every library is given."""
        return self.network.input(self.batch)

    def start(self, make: Callable[[], Callable[[], NDArray[Any]]]) -> tuple[Found, Any]:
        """How long it takes until the first output is there, which is saved; and what runs again.

        make: loads the network and gives what runs it, from host array to host array. To be called
        when all is imported. Seconds, each without those before: `import_s` from the process being
        asked for, `load_s`, `first_s`.
        """
        imported = time.time()
        run = make()
        loaded = time.time()
        result = run()
        done = time.time()
        np.save(self.result, result)
        spent = {"import_s": imported - self.since, "load_s": loaded - imported}
        return {**spent, "first_s": done - loaded}, run

    def timed(self, work: Callable[[], object]) -> Found:
        """Median and least milliseconds of `work`, which waits, after half as many seconds."""
        for share, least in ((0.5, 1), (1.0, LEAST)):
            times: list[float] = []
            begun = time.perf_counter()
            while len(times) < least or time.perf_counter() - begun < share * self.seconds:
                before = time.perf_counter()
                work()
                times.append(1e3 * (time.perf_counter() - before))
        return {"median_ms": median(times), "least_ms": min(times), "runs": len(times)}


def peak_mib() -> float:
    """MiB of the host's memory that this process has had at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def answer(found: Found) -> None:
    """Print `found` for the process that asked."""
    print(json.dumps(found))
