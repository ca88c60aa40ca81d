"""The protocol of the processes that `benchmarks.networks_page` starts: request and answers.

Each process runs one network by one library, so that none disturbs another and one that hangs loses
only its own rows. It takes its request from the command line, loads the network, prints
`{"loaded": ...}`, waits for a line on standard input, and then prints a line of JSON for each row.
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
"""Libraries and modes that run networks: the names of rows."""
REFERENCE = "reference"
"""The name of the row whose result the others are compared with."""
MIN_RUNS = 3
Row = dict[str, Any]
MeasureRows = Callable[[int, tuple[str, ...]], Iterator[Row]]
"""A function of a batch and names that yields a row for each name, or why it `failed`."""


@dataclass(frozen=True)
class NetworkRequest:
    """The network, library and rows that a process is to measure."""

    name: str
    """The network's name in the zoo."""
    path: str
    """The .onnx file."""
    engine: str
    """The backend of glnn, or the execution provider of ONNX Runtime."""
    warm_up: float
    """Seconds of runs before anything is timed."""
    seconds: float
    """Seconds of each measurement."""
    results: str
    """The folder that results are written to."""
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    """The names of rows of each batch."""

    @classmethod
    def from_arguments(cls) -> NetworkRequest:
        """Parse the command line, as `argument` writes it."""
        fields = json.loads(sys.argv[1])
        rows = tuple((int(batch), tuple(names)) for batch, names in fields.pop("rows"))
        return cls(rows=rows, **fields)

    @property
    def argument(self) -> str:
        """The request as JSON, which `from_arguments` parses."""
        return json.dumps(asdict(self))

    @property
    def network(self) -> Network:
        """The network of that name."""
        return NETWORKS[self.name]

    def save_result(self, batch: int, name: str, result: NDArray[Any]) -> Row:
        """Write `result` to a file, and return a row with its path."""
        path = Path(self.results) / f"{self.name}-{batch}-{name.replace(' ', '_')}.npy"
        np.save(path, result)
        return {"name": name, "result": str(path)}

    def time_work(self, work: Callable[[], object], *, warm: bool = False) -> Row:
        """Return median and least milliseconds of `work`, which waits for its own end.

        warm: whether an earlier measurement has warmed up the process already.
        """
        for seconds, least in ((0.0 if warm else self.warm_up, 1), (self.seconds, MIN_RUNS)):
            times: list[float] = []
            begin = time.perf_counter()
            while len(times) < least or time.perf_counter() - begin < seconds:
                start = time.perf_counter()
                work()
                times.append(1e3 * (time.perf_counter() - start))
        return {"median_ms": median(times), "least_ms": min(times), "runs": len(times)}


def serve(load: Callable[[NetworkRequest], MeasureRows]) -> None:
    """Load the network that the command line names, wait for a line, and print its rows."""
    request = NetworkRequest.from_arguments()
    measure_rows = load(request)
    answer({"loaded": request.name})
    sys.stdin.readline()
    for batch, names in request.rows:
        for row in measure_rows(batch, names):
            answer({"batch": batch, **row, "host_mib": peak_mib()})


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def answer(message: Row) -> None:
    """Print `message` as a line of JSON for the process that started this one."""
    print(json.dumps(message), flush=True)
