"""The rows of the page of networks: each network is run by each library in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import network_process
from benchmarks.network_process import Asked
from benchmarks.zoo import Network
from glnn.validation.comparison import relative_error

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
GLNN, EAGER, GRAPH = "glnn", "PyTorch eager", "PyTorch CUDA graph"
WEBGPU, CPU = "ONNX Runtime WebGPU", "ONNX Runtime CPU"
NAMES = (GLNN, EAGER, GRAPH, WEBGPU, CPU)
PROVIDERS = {WEBGPU: "WebGpuExecutionProvider", CPU: "CPUExecutionProvider"}
START = ("import_s", "load_s", "first_s")
SAID = 300  # characters that are kept of what a process that failed said
ONLY_START = -1.0


@dataclass(frozen=True)
class Roof:
    """What a device can do at the most."""

    gflops: float
    gb_s: float

    def milliseconds(self, costs: list[tuple[int, int]]) -> float:
        """Of steps one after the other, each of so many operations and bytes."""
        times = (max(f / self.gflops, b / self.gb_s) for f, b in costs)
        return sum(times) / 1e6


@dataclass(frozen=True)
class Bench:
    """How networks are measured."""

    folder: Path
    """That of the .onnx files."""
    work: Path
    """A folder for results and caches."""
    backend: str
    """That glnn runs on."""
    names: tuple[str, ...]
    """Who runs the networks; those that are not installed are left out."""
    seconds: float
    """Of each measure."""
    limit: float
    """Seconds that a process may take."""
    seed: int
    """Of the weights."""
    cold: bool
    """Whether glnn also starts with empty caches, its own and the driver's."""
    webgpu: Path | None
    """The folder that onnxruntime-webgpu is installed in, if it has its own."""
    roof: Roof | None
    """The device's, if it has one."""

    @property
    def present(self) -> tuple[str, ...]:
        """Those of `names` that can be asked."""
        there = {GLNN: True, EAGER: _installed("torch"), CPU: _installed("onnxruntime")}
        there |= {GRAPH: there[EAGER], WEBGPU: self.webgpu is not None or _has_webgpu()}
        return tuple(name for name in self.names if there[name])

    def rows(self, network: Network, batch: int, wanted: tuple[str, ...]) -> Iterator[Row]:
        """A row for each of `wanted`; what failed says so in `failed`.

        Errors are against ONNX Runtime on the CPU, or glnn there where that is not installed.
        """
        asked = Asked(
            network.name,
            path=str(self.folder / f"{network.name}.onnx"),
            batch=batch,
            how=PROVIDERS[CPU],
            seconds=self.seconds if CPU in wanted else ONLY_START,
            result=str(self.work / "reference.npy"),
            seed=self.seed,
            since=0,
        )
        first = {"network": network.name, "batch": batch}
        if _installed("onnxruntime"):
            found, module = self._ask("network_onnx", asked), CPU
        else:
            unmeasured = replace(asked, how="cpu", seconds=ONLY_START)
            found, module = self._ask("network_glnn", unmeasured), ""
        reference = None if "failed" in found else np.load(asked.result).astype(np.float64)
        if module in wanted:
            yield {**first, "name": CPU, **self._judged(found, reference, asked.result)}
        asked = replace(asked, seconds=self.seconds, result=str(self.work / "result.npy"))
        for name in wanted:
            for also, row in self._found(name, asked, wanted):
                result = asked.result + (network_process.GRAPH if also == GRAPH else "")
                yield {**first, "name": also, **self._judged(row, reference, result)}

    def _found(self, name: str, asked: Asked, wanted: tuple[str, ...]) -> Iterator[tuple[str, Row]]:
        """What `name` gives; PyTorch's two ways come together."""
        if name == GLNN:
            yield GLNN, self._glnn(replace(asked, how=self.backend))
        elif name == WEBGPU:
            path = (self.webgpu, os.environ.get("PYTHONPATH"))
            paths = {"PYTHONPATH": os.pathsep.join(str(part) for part in path if part)}
            asked = replace(asked, how=PROVIDERS[WEBGPU])
            yield WEBGPU, self._ask("network_onnx", asked, paths)
        elif name == EAGER or (name == GRAPH and EAGER not in wanted):
            found = self._ask("network_torch", asked)
            graph = found.pop("graph", found)  # the same reason where all failed
            for one, row in ((EAGER, found), (GRAPH, graph)):
                if one in wanted and row is not None:
                    yield one, row

    def _glnn(self, asked: Asked) -> Row:
        """glnn's row, with `cold`: how it starts where nothing was compiled before."""
        if not self.cold:
            return self._ask("network_glnn", asked)
        cache = str(self.work / f"cache_{asked.name}_{asked.batch}_{time.time_ns()}")
        names = ("GLNN_CACHE", "XDG_CACHE_HOME", "__GL_SHADER_DISK_CACHE_PATH")
        caches = dict.fromkeys((*names, "MESA_SHADER_CACHE_DIR"), cache)
        os.mkdir(cache)
        cold = self._ask("network_glnn", replace(asked, seconds=ONLY_START), caches)
        if "failed" in cold:
            return cold
        warm = self._ask("network_glnn", asked, caches)
        return {**warm, "cold": {key: cold[key] for key in START}}

    def _judged(self, found: Row, reference: NDArray[Any] | None, result: str) -> Row:
        """`found` with the error of what was written to `result`, and its share of the roof."""
        if "failed" in found:
            return found
        costs = found.pop("costs", None)
        row = {**found, "error": None}
        if reference is not None:
            got = np.load(result)
            if got.shape != reference.shape:
                return {"failed": f"gave {got.shape}, expected {reference.shape}"}
            row["error"] = relative_error(got, reference)
        if costs is not None:
            row["gflop"] = sum(flops for flops, _ in costs) / 1e9
            row["moved_mb"] = sum(nbytes for _, nbytes in costs) / 1e6
            row["roof_ms"] = self.roof.milliseconds(costs) if self.roof else None
            row["share"] = row["roof_ms"] / row["median_ms"] if self.roof else None
        return row

    def _ask(self, module: str, asked: Asked, more: Mapping[str, str] | None = None) -> Row:
        """What `module` answers in a process with `more` in its environment; `failed` if none."""
        asked = replace(asked, since=time.time())
        return answered(module, asked.argument, limit=self.limit, more=more)


def answered(
    module: str, *arguments: str, limit: float, more: Mapping[str, str] | None = None
) -> Row:
    """What `benchmarks.<module>` answers within `limit` seconds; `failed` says why it does not."""
    environment = {**os.environ, **(more or {})}
    paths = [environment.get("PYTHONPATH"), str(ROOT)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {limit:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = re.sub(r"^[\w.]+\.(\w+:)", r"\1", lines[-1]) if lines else ""
        return {"failed": said[:SAID] or f"ended with {done.returncode}"}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def _installed(module: str) -> bool:
    return find_spec(module) is not None


def _has_webgpu() -> bool:
    """Whether the onnxruntime of this environment is the one with WebGPU."""
    try:
        metadata.version("onnxruntime-webgpu")
    except metadata.PackageNotFoundError:
        return False
    return True
