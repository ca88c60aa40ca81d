"""Facts that every benchmark writes beside its numbers, and wall times of functions."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import glnn
from glnn.gl import Device


def machine(device: Device | None = None) -> dict[str, str]:
    """Describe the machine, the device and the versions."""
    capabilities = device.capabilities if device else None
    return {
        "glnn": glnn.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": capabilities.renderer if capabilities else "none",
        "version": capabilities.version_text if capabilities else "none",
    }


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line; its other lines are left out."""
    lines = path.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def milliseconds(work: Callable[[], Any], repeat: int, warm_up: int = 10) -> dict[str, float]:
    """Return median and least wall time of `work`, which must wait for its own result."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeat):
        start = perf_counter()
        work()
        times.append(1e3 * (perf_counter() - start))
    return {"median_ms": median(times), "least_ms": min(times)}


def synchronized_seconds(work: Callable[[], Any], finish: Callable[[], None]) -> float:
    """Return the wall time of `work` in seconds; `finish` waits for the device."""
    finish()
    start = perf_counter()
    work()
    finish()
    return perf_counter() - start
