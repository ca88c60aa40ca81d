"""What the processes of the page of networks have in common: what they are asked, and answer.

Each runs one network by one library, so that none disturbs another and one that hangs costs no
other's rows. It loads the network, says so, waits for a line, and answers with a line for each row.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo import NETWORKS, Network

GLNN, EAGER, GRAPH = "glnn", "PyTorch eager", "PyTorch CUDA graph"
HALF, COMPILED = "PyTorch CUDA graph FP16", "torch.compile"
WEBGPU, CPU = "ONNX Runtime WebGPU", "ONNX Runtime CPU"
NAMES = (GLNN, EAGER, GRAPH, HALF, COMPILED, WEBGPU, CPU)
"""Who runs networks, which are rows' names."""
REFERENCE = "reference"
"""In the place of a row's name: what others' results are compared with."""
LEAST = 3  # runs
Found = dict[str, Any]
Rows = Callable[[int, tuple[str, ...]], Iterator[Found]]
"""Gives a batch's rows so called, each with its `name`; `failed` says why there is no time."""


@dataclass(frozen=True)
class Asked:
    """What a process is to do."""

    name: str
    """The network's."""
    path: str
    """The .onnx file."""
    how: str
    """The backend or provider."""
    warm_up: float
    """Seconds of runs before anything is timed."""
    seconds: float
    """Of each measure."""
    results: str
    """The folder that results are written to."""
    wanted: tuple[tuple[int, tuple[str, ...]], ...]
    """Batches, and the names of their rows."""

    @classmethod
    def from_arguments(cls) -> Asked:
        """That of the command line."""
        given = json.loads(sys.argv[1])
        wanted = tuple((int(batch), tuple(names)) for batch, names in given.pop("wanted"))
        return cls(wanted=wanted, **given)

    @property
    def argument(self) -> str:
        """What `from_arguments` reads."""
        return json.dumps(asdict(self))

    @property
    def network(self) -> Network:
        """What it is called by name."""
        return NETWORKS[self.name]

    def saved(self, batch: int, name: str, result: NDArray[Any]) -> Found:
        """Write `result` for the process that asked, and return the row that says where it is."""
        path = Path(self.results) / f"{self.name}-{batch}-{name.replace(' ', '_')}.npy"
        np.save(path, result)
        return {"name": name, "result": str(path)}

    def timed(self, work: Callable[[], object], *, warm: bool = False) -> Found:
        """Median and least milliseconds of `work`, which waits.

        warm: whether the process has been warmed up already, as by another measure.
        """
        for seconds, least in ((0.0 if warm else self.warm_up, 1), (self.seconds, LEAST)):
            times: list[float] = []
            begun = time.perf_counter()
            while len(times) < least or time.perf_counter() - begun < seconds:
                before = time.perf_counter()
                work()
                times.append(1e3 * (time.perf_counter() - before))
        return {"median_ms": median(times), "least_ms": min(times), "runs": len(times)}


def serve(load: Callable[[Asked], Rows]) -> None:
    """Load the network that the command line asks for, wait for a line, and print its rows."""
    asked = Asked.from_arguments()
    rows = load(asked)
    answer({"loaded": asked.name})
    sys.stdin.readline()
    for batch, names in asked.wanted:
        for row in rows(batch, names):
            answer({"batch": batch, **row, "host_mib": peak_mib()})


def peak_mib() -> float:
    """MiB of the host's memory that this process has had at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def answer(found: Found) -> None:
    """Print `found` for the process that asked."""
    print(json.dumps(found), flush=True)
