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
from glnn.doctor.measured import CHANNELS, CONV, LENET, MATMUL, Contest
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels.problem import Problem
from glnn.layers import Conv2d as ConvLayer
from glnn.layers import Layer, Linear
from glnn.model import Model
from glnn.profiling import time_work
from glnn.session import InferenceSession

Array = NDArray[Any]
ENOUGH, MOST_RUNS, LEAST_RUNS = 0.1, 50, 3
"""Seconds of a measure that are enough; its runs at the most; and at the least."""
SIDES, IMAGE, IMAGES = (256, 512, 1024), 56, (1, 100)
"""Of products, of a convolution's image; and how many images LeNet is given at once."""
LONG, TOO_LONG = 0.3, 1.5
"""Seconds of a run that is not repeated, and of one that is left out."""


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
) -> tuple[Contest, ...]:
    """Products, a convolution and LeNet, on each backend and on the CPU."""
    found: list[Contest] = []
    generator = np.random.default_rng(2026)
    names, late = [*(one.name for one in opened), "cpu"], set[str]()
    for n in sides:
        progress(f"products of {n}")
        a, b = (generator.standard_normal((n, n), dtype=np.float32) for _ in range(2))
        layers: list[Layer] = [Linear(n, n, bias=False)]
        model = Model.sequential(layers, (n,))
        kept = [one for one in opened if one.name not in late]
        inside = _on_device(kept, Matmul(), {"x": a, "weight": b})
        inside["numpy"] = timed(partial(np.matmul, a, b))
        late |= {name for name, seconds in inside.items() if seconds > LONG}
        whole = _in_all(device, [k for k in names if k not in late], model, a)
        found.append(Contest(MATMUL, n, 2 * n**3, inside, whole, tuple(sorted(late))))
        # Eight times as much follows, and transfers, which are no more than that.
        late |= {k for k in (*inside, *whole) if 8 * inside.get(k, whole.get(k, 0)) > TOO_LONG}
    progress("a convolution")
    x = generator.standard_normal((1, CHANNELS, IMAGE, IMAGE), dtype=np.float32)
    w = generator.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    op, flops = Conv2d(padding=(1, 1, 1, 1)), 2 * CHANNELS**2 * 9 * IMAGE**2
    inside = _on_device(opened, op, {"x": x, "weight": w})
    problem = Problem.of(op, {"x": x.shape, "weight": w.shape}, {})
    inside["numpy"] = timed(lambda: problem.compute({"x": x, "weight": w}))
    layers = [ConvLayer(CHANNELS, CHANNELS, 3, padding=1, bias=False)]
    whole = _in_all(device, names, Model.sequential(layers, x.shape[1:]), x)
    found.append(Contest(CONV, IMAGE, flops, inside, whole))
    images = data.digits()[0].astype(np.float32).reshape(-1, 1, 28, 28) / 255
    for count in IMAGES:
        progress(f"LeNet, {count}")
        whole = _in_all(device, names, data.model("lenet"), images[:count])
        found.append(Contest(LENET, count, 0, {}, whole))
    return tuple(found)


def _on_device(
    opened: Sequence[GlBackend], op: Operator, operands: Mapping[str, Array]
) -> dict[str, float]:
    """Seconds of `op` with all operands in place, by backend."""
    found: dict[str, float] = {}
    for backend in opened:
        with suppress(UnsupportedOpError, LimitError):
            found[backend.name] = backend.perform(partial(_placed, backend, op, operands))
    return found


def _placed(backend: GlBackend, op: Operator, operands: Mapping[str, Array]) -> float:
    """Seconds of `op` on one backend, once it has run."""
    work, _ = prepare(op, operands, backend)
    work()
    return time_work(backend, work, repeat=3, warm=0.05, hopeless=LONG).seconds


def _in_all(device: Device, names: Sequence[str], model: Any, x: Array) -> dict[str, float]:
    """Seconds of a session's run with `x`, by backend."""
    found: dict[str, float] = {}
    for name in names:
        on = None if name == "cpu" else device
        with suppress(UnsupportedOpError, LimitError):
            session = InferenceSession(model, backend=name, device=on)
            feeds = {session.get_inputs()[0].name: x}
            session.run(None, feeds)  # plans, compiles
            found[name] = timed(partial(session.run, None, feeds), 0)
    return found
