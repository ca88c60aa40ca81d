"""Drivers that run a program with the uniforms of an earlier dispatch: docs/driver-faults.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn import ops
from glnn.backends.compute import Compute
from glnn.gl import Device, Program, confuses_values
from tests import oracle
from tests.backends.harness import TOLERANCE

Values = Mapping[str, int | float]
Rng = Callable[[tuple[int, ...]], NDArray[np.float32]]
PAGE = Path(__file__).parents[2] / "docs" / "driver-faults.md"
SMALL, LARGE = (1, 7, 3), (2, 31, 33)
# The size, and whether c is added, which makes it another program: see the page for the order.
ORDER = ((SMALL, 0), (SMALL, 1), (SMALL, 0), (LARGE, 0), (SMALL, 1), (LARGE, 0))


class Confusion:
    """The fault: a program that comes back with the values it had last is run with wrong ones.

    That is, with those that it had when that first happened.
    """

    def __init__(self, really_set: Callable[[Program, Values], None]) -> None:
        self._really_set = really_set
        self._running: Program | None = None
        self._last: dict[Program, Values] = {}
        self._taken: dict[Program, Values] = {}

    def set(self, program: Program, values: Values) -> None:
        seen = values
        if self._running is not program and self._last.get(program) == values:
            seen = self._taken.setdefault(program, dict(values))
        self._running, self._last[program] = program, dict(values)
        self._really_set(program, dict(seen))


@pytest.fixture
def own_device(device: Device) -> Iterator[Device]:
    """A device that nothing was asked of before."""
    if reason := device.capabilities.why_no_compute():
        pytest.skip(reason)
    with Device() as opened:
        yield opened


@pytest.fixture
def confused(own_device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device with that fault, whatever the driver."""
    confusion = Confusion(Program.set)
    monkeypatch.setattr(Program, "set", lambda program, values: confusion.set(program, values))
    return own_device


def largest_error(device: Device, kernel: str | None, rng: Rng) -> float:
    """Of products in that order, whose two programs are run by turns."""
    backend, errors = Compute(device), []
    for (m, n, k), beta in ORDER:
        a, b, c = rng((m, k)), rng((k, n)), rng((m, n)) if beta else None
        got = ops.matmul(a, b, c, 1.0, beta, backend=backend, kernel=kernel)
        expected = oracle.matmul(a, np.ascontiguousarray(b.T), None, c, 1.0, beta)
        errors.append(oracle.error(got, expected))
    return max(errors)


@pytest.mark.parametrize("kernel", [None, "scalar_nt", "gemm_tiled", "blocked_rm_cm"])
def test_results_do_not_depend_on_what_ran_before(own_device, rng, kernel) -> None:
    assert largest_error(own_device, kernel, rng) <= TOLERANCE


@pytest.mark.parametrize("kernel", [None, "scalar_nt", "gemm_tiled", "blocked_rm_cm"])
def test_results_are_right_on_a_device_that_confuses_values(confused, rng, kernel) -> None:
    assert largest_error(confused, kernel, rng) <= TOLERANCE


def test_the_probe_finds_the_fault(confused) -> None:
    assert confuses_values(confused)


def test_programs_are_shared_where_the_driver_is_right(own_device, rng) -> None:
    counts = []
    for confuses in (False, True):
        own_device.programs.clear()
        own_device.probe_results["confuses_values"] = confuses
        largest_error(own_device, "scalar_nt", rng)
        counts.append(len(own_device.programs))
    shared, apart = counts
    assert shared < apart


def test_the_page_shows_what_the_probe_says(own_device, capsys) -> None:
    (script,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(script, {})
    assert ("wrong" in capsys.readouterr().out) == confuses_values(own_device)
