"""The same work on each backend and by NumPy: products, a convolution, LeNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn import data
from glnn.backends.gl import GlBackend
from glnn.compile import prepare
from glnn.device import Device
from glnn.doctor.checks import Checks
from glnn.doctor.measured import CHANNELS, CONV, LENET, MATMUL, Contest
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels.problem import Problem
from glnn.layers import Conv2d as ConvLayer
from glnn.layers import Layer, Linear
from glnn.model import Model, load
from glnn.profiling import time_work
from glnn.session import InferenceSession
from glnn.types import TensorType

Array = NDArray[Any]
ENOUGH, MOST_RUNS, LEAST_RUNS = 0.1, 50, 3
"""Seconds of a measure that are enough; its runs at the most; and at the least."""
SIDES, IMAGE, IMAGES = (256, 512, 1024), 56, (1, 100)
"""Of products, of a convolution's image; and how many images LeNet is given at once."""
LONG, TOO_LONG = 0.3, 0.6
"""Seconds of a run that is not repeated, and of one that is left out."""
SCOUT = 64
"""The side of products by which it is seen what takes too long."""
LENET_FLOPS = 833_040
"""Operations of one image by LeNet: its convolutions and products."""


def timed(work: Callable[[], object], warm: int = 1) -> float:
    """Median seconds of `work`, which waits for its own end, by the clock on the wall."""
    for _ in range(warm):
        work()
    times: list[float] = []
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and sum(times) < ENOUGH):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
        if sum(times) > LONG:
            break
    return median(times)


def contests(
    device: Device,
    opened: Sequence[GlBackend],
    sides: Sequence[int],
    progress: Callable[[str], None],
    checks: Checks,
) -> tuple[Contest, ...]:
    """Products, a convolution and LeNet, on each backend and on the CPU.

    checks: run each measure, so that what raises an exception is left out.
    """
    ring, generator = _Ring(device, opened, checks), np.random.default_rng(2026)
    progress(f"products of {SCOUT}")
    ring.hold(MATMUL, SCOUT, *_product(generator, SCOUT), in_all=False)
    found: list[Contest] = []
    for n in sides:
        progress(f"products of {n}")
        found.append(ring.hold(MATMUL, n, *_product(generator, n)))
    progress("a convolution")
    x = generator.standard_normal((1, CHANNELS, IMAGE, IMAGE), dtype=np.float32)
    w = generator.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    layers: list[Layer] = [ConvLayer(CHANNELS, CHANNELS, 3, padding=1, bias=False)]
    op, model = Conv2d(padding=(1, 1, 1, 1)), Model.sequential(layers, x.shape[1:])
    found.append(ring.hold(CONV, IMAGE, op, {"x": x, "weight": w}, model))
    images = data.digits()[0].astype(np.float32).reshape(-1, 1, 28, 28) / 255
    for count in IMAGES:
        progress(f"LeNet, {count}")
        model = load(data.model("lenet"))
        found.append(ring.hold(LENET, count, None, {"x": images[:count]}, model))
    return tuple(found)


def _product(generator: np.random.Generator, n: int) -> tuple[Operator, dict[str, Array], Model]:
    """A product of n x n: the operator, its operands, and a model of it."""
    a, b = (generator.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    layers: list[Layer] = [Linear(n, n, bias=False)]
    return Matmul(), {"x": a, "weight": b}, Model.sequential(layers, (n,))


class _Ring:
    """Holds contests on each backend, but on those that would take too long by what they did."""

    def __init__(self, device: Device, opened: Sequence[GlBackend], checks: Checks) -> None:
        self._device, self._opened, self._checks = device, opened, checks
        self._paces: dict[str, float] = {}  # operations a second

    def hold(
        self,
        what: str,
        size: int,
        op: Operator | None,
        operands: Mapping[str, Array],
        model: Model,
        in_all: bool = True,
    ) -> Contest:
        """The times of `op` with all in place, where there is one, and of a run of `model`."""
        flops = size * LENET_FLOPS
        if op is not None:
            types = {name: TensorType.of(array) for name, array in operands.items()}
            flops = op.cost_of(types).flops
        fast = [one for one in self._opened if self._suits(one.name, flops)]
        inside: dict[str, float] = {}
        if op is not None:
            placed = {
                one.name: partial(one.perform, partial(_placed, one, op, operands)) for one in fast
            }
            inside = self._times(f"{what} {size}, operands in place", placed)
            self._paces |= {name: flops / seconds for name, seconds in inside.items()}
            by_numpy = {"numpy": partial(timed, partial(_by_numpy, op, operands))}
            inside |= self._times(f"{what} {size}", by_numpy)
        names = [one.name for one in fast if self._suits(one.name, flops)] if in_all else []
        whole: dict[str, float] = {}
        if in_all:
            runs = {
                name: partial(_in_all, self._device, name, model, operands["x"])
                for name in (*names, "cpu")
            }
            whole = self._times(f"{what} {size}, in all", runs)
        left = (one.name for one in self._opened if in_all and one.name not in names)
        return Contest(what, size, flops, inside, whole, tuple(left))

    def _times(
        self, what: str, works: Mapping[str, Callable[[], float | None]]
    ) -> dict[str, float]:
        """Return the seconds that each of `works` gives, by backend, but of those that raise."""
        found: dict[str, float] = {}
        for name, work in works.items():
            seconds = self._checks.run(f"speed: {what} on {name}", work, None)
            found |= {} if seconds is None else {name: seconds}
        return found

    def _suits(self, name: str, flops: int) -> bool:
        """Whether so much does not take that backend too long."""
        pace = self._paces.get(name)
        return pace is None or flops / pace <= TOO_LONG


def _by_numpy(op: Operator, operands: Mapping[str, Array]) -> None:
    Problem.of(op, {name: array.shape for name, array in operands.items()}, {}).compute(operands)


def _placed(backend: GlBackend, op: Operator, operands: Mapping[str, Array]) -> float | None:
    """Seconds of `op` on one backend, once it has run; None where it cannot."""
    with suppress(UnsupportedOpError, LimitError):
        work, _ = prepare(op, operands, backend)
        work()
        return time_work(backend, work, repeat=3, warm=0.05, hopeless=LONG).seconds
    return None


def _in_all(device: Device, name: str, model: Any, x: Array) -> float | None:
    """Seconds of a session's run with `x` on the backend `name`; None where it cannot run."""
    with suppress(UnsupportedOpError, LimitError):
        session = InferenceSession(model, backend=name, device=None if name == "cpu" else device)
        feeds = {session.get_inputs()[0].name: x}
        session.run(None, feeds)  # plans, compiles
        return timed(partial(session.run, None, feeds), 0)
    return None
