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
    Asked,
)
from benchmarks.zoo import Network
from glnn.profiling.timing import FIRST_SECONDS
from glnn.validation.comparison import relative_error

Row = dict[str, Any]
Wanted = Mapping[int, tuple[str, ...]]
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
"""Modules whose processes give rows, and whose rows each process gives."""
SAID = 300  # characters that are kept of what a process that failed said
SPARE = 4  # cores from which on a process loads its network while another one is measured


@dataclass(frozen=True)
class Roof:
    """What a device can do at the most."""

    gflops: float
    gb_s: float

    def milliseconds(self, costs: list[tuple[int, int]]) -> float:
        """Of steps one after the other, each of so many operations and bytes."""
        times = (max(f / self.gflops, b / self.gb_s) for f, b in costs)
        return sum(times) / 1e6


class Process:
    """A process of `benchmarks.<module>`, which is asked by its command line."""

    def __init__(self, module: str, *arguments: str, site: Path | None = None) -> None:
        """site: a folder of packages that it takes before others."""
        paths = (site, os.environ.get("PYTHONPATH"), ROOT)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p)}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115, `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it, unless it ended, and close what it was given."""
        self._process.kill()
        with suppress(BrokenPipeError):  # it ended before it was told to go on
            self._process.communicate()
        self._said.close()

    def go_on(self) -> None:
        """Let it do what it waits for, if it is still there."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def answers(self, limit: float) -> Iterator[Row]:
        """Yield what it prints, line by line, each within `limit` seconds.

        Where it is late or ends by an error the last one has `failed`, which says so.
        """
        assert self._process.stdout is not None
        while True:
            late = Timer(limit, self._process.kill)
            late.start()
            line = self._process.stdout.readline()
            in_time = late.is_alive()
            late.cancel()
            if not line:
                break
            with suppress(ValueError):  # a library may print, too
                yield json.loads(line)
        if not in_time:
            yield {"failed": f"took more than {limit:g} s"}
        elif code := self._process.wait():
            self._said.seek(0)
            lines = self._said.read().strip().splitlines()
            said = re.sub(r"^[\w.]+\.(\w+:)", r"\1", lines[-1]) if lines else ""
            yield {"failed": said[:SAID] or f"ended with {code}"}


def answered(module: str, *arguments: str, limit: float) -> Row:
    """What `benchmarks.<module>` answers at last within `limit` seconds; `failed` says why not."""
    found: Row = {"failed": "gave no answer"}
    with Process(module, *arguments) as process:
        for found in process.answers(limit):  # noqa: B007
            pass
    return found


@dataclass(frozen=True)
class Job:
    """What one process is asked."""

    module: str
    asked: Asked
    site: Path | None
    """A folder of packages that it takes before others."""

    def start(self) -> Process:
        """Start the process, which loads the network."""
        return Process(self.module, self.asked.argument, site=self.site)


@dataclass(frozen=True)
class Bench:
    """How networks are measured."""

    folder: Path
    """That of the .onnx files."""
    work: Path
    """A folder for results."""
    backend: str
    """That glnn runs on."""
    names: tuple[str, ...]
    """Who runs the networks; those that are not installed are left out."""
    seconds: float
    """Of each measure."""
    limit: float
    """Seconds that a row may take."""
    webgpu: Path | None
    """The folder that onnxruntime-webgpu is installed in, if it has its own."""
    roof: Roof | None
    """The device's, if it has one."""

    @property
    def present(self) -> tuple[str, ...]:
        """Those of `names` that can be asked."""
        there = dict.fromkeys(TORCH, _installed("torch"))
        there |= {GLNN: True, CPU: _installed("onnxruntime")}
        there |= {WEBGPU: self.webgpu is not None or _has_webgpu()}
        return tuple(name for name in self.names if there[name])

    def jobs(self, network: Network, wanted: Wanted) -> list[Job]:
        """The processes that give the rows of `wanted`, the one that has the reference first."""
        found: list[Job] = []
        for module, names in LIBRARIES:
            first = (REFERENCE,) if names == self._reference else ()
            rows = {
                batch: (*first, *(name for name in names if name in asked))
                for batch, asked in wanted.items()
                if asked
            }
            asked = Asked(
                network.name,
                path=str(self.folder / f"{network.name}.onnx"),
                how=PROVIDERS.get(names[0], self.backend),
                warm_up=FIRST_SECONDS,
                seconds=self.seconds,
                results=str(self.work),
                wanted=tuple((batch, one) for batch, one in rows.items() if one),
            )
            if asked.wanted:
                found.append(Job(module, asked, self.webgpu if names == (WEBGPU,) else None))
        return found

    @property
    def _reference(self) -> tuple[str, ...] | None:
        """The library whose results others' are compared with: PyTorch, which computes it in
        float64, where it runs networks at all, else ONNX Runtime on the CPU, if it is there.
        """
        if any(name in self.present for name in TORCH):
            return TORCH
        return (CPU,) if _installed("onnxruntime") else None

    def rows(self, jobs: Sequence[Job]) -> Generator[Row, None, None]:
        """A row for each that `jobs` are asked for; what failed says so in `failed`.

        The next job's process loads its network meanwhile, where there are cores to spare.
        """
        ahead = (os.cpu_count() or 1) >= SPARE
        references: dict[int, NDArray[np.float64]] = {}
        following: Process | None = None
        try:
            for i, job in enumerate(jobs):
                process = following or job.start()
                following = jobs[i + 1].start() if ahead and i + 1 < len(jobs) else None
                with process:
                    yield from self._rows(job, process, references)
        finally:
            if following is not None:
                following.end()

    def _rows(
        self, job: Job, process: Process, references: dict[int, NDArray[np.float64]]
    ) -> Iterator[Row]:
        """The rows of one job; `references`, by batch, has the network's and gets new ones."""
        network = job.asked.name
        missing = [(batch, name) for batch, names in job.asked.wanted for name in names]
        for answer in process.answers(self.limit):
            if "loaded" in answer:
                process.go_on()
            elif "batch" in answer:
                batch, name = answer["batch"], answer["name"]
                missing.remove((batch, name))
                result = _taken(answer)
                if name == REFERENCE:
                    references.pop(batch, None)
                    if result is not None:
                        references[batch] = result.astype(np.float64)
                else:
                    judged = self._judged(answer, result, references.get(batch))
                    yield {"network": network, **judged}
            else:
                for batch, name in missing:
                    if name == REFERENCE:
                        references.pop(batch, None)
                    else:
                        yield {"network": network, "batch": batch, "name": name, **answer}

    def _judged(
        self, found: Row, result: NDArray[Any] | None, reference: NDArray[np.float64] | None
    ) -> Row:
        """`found` with the error of its result, and its share of the roof."""
        costs = found.pop("costs", None)
        if result is None:
            return found
        row = {**found, "error": None}
        if reference is not None:
            if result.shape != reference.shape:
                said = f"gave {result.shape}, expected {reference.shape}"
                return {"batch": found["batch"], "name": found["name"], "failed": said}
            row["error"] = relative_error(result, reference)
        if costs is not None:
            row["gflop"] = sum(flops for flops, _ in costs) / 1e9
            row["moved_mb"] = sum(nbytes for _, nbytes in costs) / 1e6
            row["roof_ms"] = self.roof.milliseconds(costs) if self.roof else None
            row["share"] = row["roof_ms"] / row["median_ms"] if self.roof else None
        return row


def _taken(answer: Row) -> NDArray[Any] | None:
    """The result that `answer` says the file of, which is deleted; None where it failed."""
    if "failed" in answer:
        answer["failed"] = " ".join(answer["failed"].split())[:SAID]
        return None
    path = Path(answer.pop("result"))
    result: NDArray[Any] = np.load(path)
    path.unlink()
    return result


def _installed(module: str) -> bool:
    return find_spec(module) is not None


def _has_webgpu() -> bool:
    """Whether the onnxruntime of this environment is the one with WebGPU."""
    try:
        metadata.version("onnxruntime-webgpu")
    except metadata.PackageNotFoundError:
        return False
    return True
