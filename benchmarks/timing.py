"""The time of one kernel on one problem: its result is checked first, then its runs are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Launch
from glnn.backends.gl import GlBackend
from glnn.compiler import prepare
from glnn.core.cached_property import cached_property
from glnn.core.types import TensorType
from glnn.errors import GlnnError
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import allowed
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

Array = NDArray[Any]
TOLERANCE = 1e-5
CHECKED = 1 << 31  # multiply-adds: above, checking on the CPU takes too long


@dataclass(frozen=True)
class KernelTime:
    """Median seconds of one run, whether they are the GPU's own, and the result's error.

    nbytes: of the operands and of the result, each once. deviation: the standard error of the runs'
    mean, as a share of it.
    """

    kernel: str
    seconds: float
    by_timer: bool
    error: float | None
    nbytes: int
    deviation: float


@dataclass(frozen=True)
class CheckedSample:
    """A sample whose part of an operator's result is checked: the one at `index` of `count`."""

    op: Operator
    """The operator of this sample alone."""
    operands: Mapping[str, Array]
    """Its operands."""
    index: int = 0
    count: int = 1

    @cached_property
    def spec(self) -> OpSpec:
        """The operator and its operands' types."""
        types = {name: TensorType.from_array(array) for name, array in self.operands.items()}
        return OpSpec.create(self.op, types, {})

    @cached_property
    def expected(self) -> Array:
        """The result of this sample, computed in float64."""
        return self.spec.compute({name: exact(array) for name, array in self.operands.items()})

    def error(self, result: Array) -> float:
        """Return the relative error of this sample in the `result` of all."""
        part = result.reshape(self.count, -1)[self.index]
        return relative_error(part, self.expected.reshape(-1))


def kernel_time(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, Array],
    kernel: str | Kernel | None,
    repeat: int = 7,
    epilogue: Epilogue | None = None,
    sets: int = 1,
    layouts: Mapping[str, str] | None = None,
    samples: Sequence[CheckedSample] = (),
) -> KernelTime:
    """Time `kernel` on `operands`. Raises GlnnError where its result is wrong or it cannot run.

    sets: sets of buffers, which take turns, so that none is in a cache when its turn comes.
    layouts: of the operands of a kernel made of stages, row major by default. samples: the samples
    to check, where not all are.
    """
    types = {name: TensorType.from_array(array) for name, array in operands.items()}
    spec = OpSpec.create(op, types, {}, epilogue)
    choice = kernel if isinstance(kernel, Kernel) else backend.choose(spec, kernel)
    chosen = choice.name
    error = None
    flops = max(one.spec.cost.flops for one in samples) if samples else spec.cost.flops
    if flops <= 2 * CHECKED:
        work, out = prepare(op, operands, backend, kernel, layouts, epilogue)
        work()
        if samples:
            result = out.pull()
            error = float(np.max([one.error(result) for one in samples]))  # NaN if one is
        else:
            expected = spec.compute({k: exact(v) for k, v in operands.items()})
            error = relative_error(out.pull(), expected)
        if not error <= max(TOLERANCE, allowed(choice, spec)):
            raise GlnnError(f"{chosen}: the result is off by {error:.1e}, no time is given")

    # Prepared anew: drivers may keep a result that was read back on the host.
    def prepared() -> Launch:
        return prepare(op, operands, backend, kernel, layouts, epilogue)[0]

    works = [prepared() for _ in range(sets)]

    def run_all() -> None:
        for launch in works:
            launch()

    timing = time_work(backend, works[0] if sets == 1 else run_all, repeat)
    nbytes = sum(array.nbytes for array in operands.values()) + 4 * prod(spec.result_shape)
    return KernelTime(
        chosen, timing.seconds / sets, timing.by_timer, error, nbytes, _deviation(timing.runs)
    )


def _deviation(runs: tuple[float, ...]) -> float:
    return stdev(runs) / fmean(runs) / sqrt(len(runs)) if len(runs) > 1 else 0.0


def exact(array: Array) -> Array:
    """`array` in double precision; integers as they are."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array
