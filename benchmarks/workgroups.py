"""Time of one kernel in each of its workgroups: the median and the best of some runs of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import CHECKED, TOLERANCE, exact
from glnn.backends.gl import GlBackend
from glnn.core.types import DType, TensorType
from glnn.errors import GlnnError
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator
from glnn.kernels import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

RUNS = 3  # of each workgroup
WARM_SECONDS = 0.03  # of each: the device is kept busy by those before


@dataclass(frozen=True)
class WorkgroupTimes:
    """Seconds of one launch in every run, whatever the workgroup, and the greatest error.

    workgroup: of the fastest run, invocations along x, y and z. error: None where the product is
    too large to be checked.
    """

    runs: tuple[float, ...]
    by_timer: bool
    workgroup: tuple[int, int, int]
    error: float | None

    @property
    def best(self) -> float:
        """Seconds of the fastest run."""
        return min(self.runs)

    @property
    def median(self) -> float:
        """Seconds of the median of all runs."""
        return median(self.runs)


def in_workgroups(kernel: Kernel) -> Iterator[Kernel]:
    """`kernel` in each of the workgroups that it declares with as many invocations as its own."""
    names = {name for quantity in kernel.launch.workgroup for name in quantity.names}
    tuned = {name: kernel.tune[name] for name in kernel.tune if name in names}
    size = prod(kernel.launch.local_size(kernel.defaults))
    for values in product(*tuned.values()):
        found = kernel.with_parameters(**dict(zip(tuned, values, strict=True)))
        if prod(found.launch.local_size(found.defaults)) == size:
            yield found


def workgroup_times(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    kernel: str,
    epilogue: Epilogue | None = None,
) -> WorkgroupTimes:
    """Time the kernel called `kernel` on `operands`, RUNS times in each workgroup.

    Raises GlnnError where it cannot run or a result is wrong.
    """
    types = {name: TensorType.of(array) for name, array in operands.items()}
    spec = OpSpec.create(op, types, {}, epilogue)
    declared = backend.choose(spec, kernel)
    layouts = backend.layouts(declared, spec)
    stores = {}
    for name, array in operands.items():
        stores[name] = backend.allocate(array.shape, layouts[name], dtype=DType.of(array))
        stores[name].set(np.ascontiguousarray(array))
        backend.upload(stores[name])
    expected = None
    if spec.cost.flops <= 2 * CHECKED:
        expected = spec.compute({name: exact(array) for name, array in operands.items()})
    runs: list[tuple[float, tuple[int, int, int]]] = []
    by_timer, worst = True, 0.0
    for one in in_workgroups(declared):
        if reason := why_not(one, spec, backend.device.capabilities):
            raise GlnnError(f"{kernel}: {reason}")
        if expected is not None:
            out = backend.allocate(spec.output, layouts["out"])
            backend.prepare(one, spec, stores, out)()
            worst = max(worst, relative_error(out.pull(), expected))
            if not worst <= TOLERANCE:
                raise GlnnError(f"{kernel}: the result is off by {worst:.1e}, no time is given")
        # A result that was read back may stay on the host: another is timed.
        out = backend.allocate(spec.output, layouts["out"])
        work = backend.prepare(one, spec, stores, out)
        timing = time_work(backend, work, RUNS, WARM_SECONDS)
        runs += [(seconds, one.launch.local_size(one.defaults)) for seconds in timing.runs]
        by_timer = by_timer and timing.by_timer
    error = None if expected is None else worst
    return WorkgroupTimes(tuple(seconds for seconds, _ in runs), by_timer, min(runs)[1], error)
