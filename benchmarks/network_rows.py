"""The rows of the page of networks: each network is run by each library in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.network_process import (
    COMPILED,
    CPU,
    EAGER,
    GLNN,
    GRAPH,
    HALF,
    REFERENCE,
    WEBGPU,
    NetworkRequest,
    Row,
)
from benchmarks.zoo import Network
from glnn.profiling.timing import FIRST_SECONDS
from glnn.validation.comparison import relative_error

RowNames = Mapping[int, tuple[str, ...]]
"""Names of rows, by batch."""
ROOT = Path(__file__).resolve().parents[1]
PROVIDERS = {WEBGPU: "WebGpuExecutionProvider", CPU: "CPUExecutionProvider"}
TORCH = (EAGER, GRAPH, HALF, COMPILED)
LIBRARIES = (
    ("network_torch", TORCH),
    ("network_onnx", (CPU,)),
    ("network_onnx", (WEBGPU,)),
    ("network_glnn", (GLNN,)),
)
"""The module that each process runs, and the names of the rows that it can measure."""
MAX_MESSAGE = 300  # characters of the message of a process that failed
SPARE_CORES = 4  # with so many, a process loads its network while another one is measured


@dataclass(frozen=True)
class Roof:
    """Peak rates of a device."""

    gflops: float
    gb_s: float

    def milliseconds(self, costs: list[tuple[int, int]]) -> float:
        """Return the least time of steps that run in turn. costs: FLOPs and bytes of each."""
        times = (max(f / self.gflops, b / self.gb_s) for f, b in costs)
        return sum(times) / 1e6


class Process:
    """A process that runs the module `benchmarks.<module>` and prints lines of JSON."""

    def __init__(self, module: str, *arguments: str, site: Path | None = None) -> None:
        """Start the process. site: a folder that it searches for packages before others."""
        paths = (site, os.environ.get("PYTHONPATH"), ROOT)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p)}
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115, `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill the process, unless it ended, and close its pipes and files."""
        self._process.kill()
        with suppress(BrokenPipeError):  # it ended before it read the line of `go_on`
            self._process.communicate()
        self._stderr.close()

    def go_on(self) -> None:
        """Write the line that the process waits for, if it still runs."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def answers(self, limit: float) -> Iterator[Row]:
        """Yield the lines of JSON that the process prints, each within `limit` seconds.

        Where it takes longer or ends with an error, the last answer is the reason, as `failed`.
        """
        assert self._process.stdout is not None
        while True:
            timer = Timer(limit, self._process.kill)
            timer.start()
            line = self._process.stdout.readline()
            in_time = timer.is_alive()
            timer.cancel()
            if not line:
                break
            with suppress(ValueError):  # a library may print, too
                yield json.loads(line)
        if not in_time:
            yield {"failed": f"took more than {limit:g} s"}
        elif code := self._process.wait():
            self._stderr.seek(0)
            lines = self._stderr.read().strip().splitlines()
            message = re.sub(r"^[\w.]+\.(\w+:)", r"\1", lines[-1]) if lines else ""
            yield {"failed": message[:MAX_MESSAGE] or f"ended with {code}"}


def last_answer(module: str, *arguments: str, limit: float) -> Row:
    """Run `benchmarks.<module>`, and return its last answer, each within `limit` seconds."""
    answer: Row = {"failed": "gave no answer"}
    with Process(module, *arguments) as process:
        for answer in process.answers(limit):  # noqa: B007
            pass
    return answer


@dataclass(frozen=True)
class Job:
    """A process to start: module, request and packages."""

    module: str
    request: NetworkRequest
    site: Path | None
    """A folder that the process searches for packages before others."""

    def start(self) -> Process:
        """Start the process, which loads the network."""
        return Process(self.module, self.request.argument, site=self.site)


@dataclass(frozen=True)
class Bench:
    """Options of the measurements, and the jobs that make them."""

    folder: Path
    """The folder of the .onnx files."""
    work: Path
    """A folder for results."""
    backend: str
    """The backend that glnn runs on."""
    names: tuple[str, ...]
    """The names of rows to measure; libraries that are not installed are left out."""
    seconds: float
    """Seconds of each measurement."""
    limit: float
    """Seconds that a row may take."""
    webgpu: Path | None
    """The folder that onnxruntime-webgpu is installed in, if it has its own."""
    roof: Roof | None
    """The peak rates of the device; None where they are unknown."""

    @property
    def available(self) -> tuple[str, ...]:
        """The `names` whose libraries are installed."""
        installed = dict.fromkeys(TORCH, _is_installed("torch"))
        installed |= {GLNN: True, CPU: _is_installed("onnxruntime")}
        installed |= {WEBGPU: self.webgpu is not None or _has_webgpu()}
        return tuple(name for name in self.names if installed[name])

    def jobs(self, network: Network, row_names: RowNames) -> list[Job]:
        """Return the jobs that measure the rows of `row_names`; the reference's is first."""
        jobs: list[Job] = []
        for module, names in LIBRARIES:
            first = (REFERENCE,) if names == self._reference else ()
            rows = {
                batch: (*first, *(name for name in names if name in missing))
                for batch, missing in row_names.items()
                if missing
            }
            request = NetworkRequest(
                network.name,
                path=str(self.folder / f"{network.name}.onnx"),
                engine=PROVIDERS.get(names[0], self.backend),
                warm_up=FIRST_SECONDS,
                seconds=self.seconds,
                results=str(self.work),
                rows=tuple((batch, one) for batch, one in rows.items() if one),
            )
            if request.rows:
                jobs.append(Job(module, request, self.webgpu if names == (WEBGPU,) else None))
        return jobs

    @property
    def _reference(self) -> tuple[str, ...] | None:
        """The row names of the library that computes the reference: PyTorch, in float64, where any
        of its rows is measured; else ONNX Runtime on the CPU, if it is installed.
        """
        if any(name in self.available for name in TORCH):
            return TORCH
        return (CPU,) if _is_installed("onnxruntime") else None

    def rows(self, jobs: Sequence[Job]) -> Generator[Row, None, None]:
        """Run `jobs` in turn, and yield each row that they request; `failed` is the reason of a
        failure.

        Meanwhile the next job's process loads its network, where there are cores to spare.
        """
        preload = (os.cpu_count() or 1) >= SPARE_CORES
        references: dict[int, NDArray[np.float64]] = {}
        following: Process | None = None
        try:
            for i, job in enumerate(jobs):
                process = following or job.start()
                following = jobs[i + 1].start() if preload and i + 1 < len(jobs) else None
                with process:
                    yield from self._rows(job, process, references)
        finally:
            if following is not None:
                following.end()

    def _rows(
        self, job: Job, process: Process, references: dict[int, NDArray[np.float64]]
    ) -> Iterator[Row]:
        """Yield the rows of one job. references: results by batch; the job's own are added."""
        network = job.request.name
        missing = [(batch, name) for batch, names in job.request.rows for name in names]
        for answer in process.answers(self.limit):
            if "loaded" in answer:
                process.go_on()
            elif "batch" in answer:
                batch, name = answer["batch"], answer["name"]
                missing.remove((batch, name))
                result = _take_result(answer)
                if name == REFERENCE:
                    references.pop(batch, None)
                    if result is not None:
                        references[batch] = result.astype(np.float64)
                else:
                    row = self._row(answer, result, references.get(batch))
                    yield {"network": network, **row}
            else:
                for batch, name in missing:
                    if name == REFERENCE:
                        references.pop(batch, None)
                    else:
                        yield {"network": network, "batch": batch, "name": name, **answer}

    def _row(
        self, answer: Row, result: NDArray[Any] | None, reference: NDArray[np.float64] | None
    ) -> Row:
        """Return `answer` with the error of its result, and its share of the roof."""
        costs = answer.pop("costs", None)
        if result is None:
            return answer
        row = {**answer, "error": None}
        if reference is not None:
            if result.shape != reference.shape:
                reason = f"gave {result.shape}, expected {reference.shape}"
                return {"batch": answer["batch"], "name": answer["name"], "failed": reason}
            row["error"] = relative_error(result, reference)
        if costs is not None:
            row["gflop"] = sum(flops for flops, _ in costs) / 1e9
            row["moved_mb"] = sum(nbytes for _, nbytes in costs) / 1e6
            row["roof_ms"] = self.roof.milliseconds(costs) if self.roof else None
            row["share"] = row["roof_ms"] / row["median_ms"] if self.roof else None
        return row


def _take_result(answer: Row) -> NDArray[Any] | None:
    """Read the result's file that `answer` names, and delete it; return None where it failed."""
    if "failed" in answer:
        answer["failed"] = " ".join(answer["failed"].split())[:MAX_MESSAGE]
        return None
    path = Path(answer.pop("result"))
    result: NDArray[Any] = np.load(path)
    path.unlink()
    return result


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


def _has_webgpu() -> bool:
    """Return True where the onnxruntime of this environment is the one with WebGPU."""
    try:
        metadata.version("onnxruntime-webgpu")
    except metadata.PackageNotFoundError:
        return False
    return True
