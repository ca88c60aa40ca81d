"""Cost model: rough predictions of kernels' run times, to choose between algorithms.

A prediction is the operations and bytes of each launch over the architecture's rates. Predictions
are compared with one another, never with a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from glnn.core.types import TensorType, widened
from glnn.graph.compose.decompositions import Stage
from glnn.graph.operator import Cost, Operator
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

Types = dict[str, TensorType]
MAX_MEMORY_BOUND = 1e6  # percent, for an op without operations
ChooseKernel = Callable[[OpSpec, str | None], Kernel]
"""Function that chooses the kernel for a spec, or returns the one of the given name."""


@dataclass(frozen=True)
class DeviceRates:
    """Rates that glnn's kernels reach on devices of an architecture.

    products: operations a second of matrix products and convolutions, a multiply-add counting two.
    others: operations a second of all other operators, beside their memory traffic.
    bytes: bytes a second of memory traffic.
    launch: seconds of an empty launch.
    rows, columns: tile of a product's result; partial tiles cost as much as whole ones.
    step: seconds of each term of a product's or convolution's sums, however few the results.
    feedback: least ratio of a network's time by transform feedback to that by compute shaders.
    workgroup_share: fraction of `bytes` that a single workgroup reaches.
    readback_latency: seconds to read a tensor back in the middle of a plan, beside `bus`.
    upload_latency: seconds to upload a tensor there, beside `bus`.
    bus: bytes a second of either transfer.
    balance: operations per byte at the peak rates of large launches; 0 for the quotient of
        `products` and `bytes`.
    """

    products: float
    others: float
    bytes: float
    launch: float
    rows: int
    columns: int
    step: float = 0.0
    feedback: float = 0.5
    workgroup_share: float = 0.25
    readback_latency: float = 1e-4
    upload_latency: float = 2e-5
    bus: float = 2e9
    balance: float = 0.0

    def memory_bound(self, cost: Cost) -> int:
        """Return the time of the bytes of `cost` in percent of the time of its operations.

        It is 100 or more where memory traffic is the bottleneck.
        """
        balance = self.balance or self.products / self.bytes
        return int(min(100 * balance * cost.bytes / max(cost.flops, 1), MAX_MEMORY_BOUND))

    def seconds(self, op: Operator, operands: Mapping[str, TensorType]) -> float:
        """Return the predicted seconds of `op` on operands of these types."""
        if op.view:
            return 0.0
        shapes = {name: one.shape for name, one in operands.items()}
        cost, size = op.cost_of(operands), op.product(shapes)
        flops, rate, steps = float(cost.flops), self.others, 0
        if size is not None:
            rate, steps = self.products, op.depth(shapes)
            for count, unit in zip(size, (self.rows, self.columns), strict=True):
                flops *= -(-count // unit) * unit / max(count, 1)
        return self.launch + self.step * steps + flops / rate + cost.bytes / self.bytes


RATES = {
    "llvmpipe": DeviceRates(23e9, 7e9, 8e9, 4e-5, 8, 64, feedback=0.05, workgroup_share=0.5),
    "NVIDIA": DeviceRates(
        2e13, 5e12, 2.5e12, 1e-5, 32, 64, 2e-9, 20.0, 0.016, 2e-5, 1e-5, 3e9, 21.6
    ),
    "Midgard": DeviceRates(10e9, 4e9, 4e9, 1e-4, 4, 32),
    "Bifrost": DeviceRates(12e9, 6e9, 4e9, 1e-4, 6, 32),
    "Valhall": DeviceRates(100e9, 40e9, 12e9, 1e-4, 6, 32),
    "V3D": DeviceRates(8e9, 4e9, 3e9, 1e-4, 4, 64),
    "Adreno": DeviceRates(150e9, 60e9, 20e9, 1e-4, 8, 64),
}
"""Rates by architecture: llvmpipe's measured on two cores, NVIDIA's on an H200 (launch and step by
products and convolutions of one image, k from 96 to 4608; the latencies by benchmarks.host_steps);
boards' by their peaks and buses. NVIDIA's balance is of 63 TFLOP/s and 2.92 TB/s by
benchmarks.roofline."""
DEFAULT_RATES = DeviceRates(50e9, 20e9, 10e9, 1e-4, 8, 64)
"""Rates assumed for an unknown architecture."""
HOST = DeviceRates(1e9, 1e9, 2e9, 2e-5, 1, 1)
"""NumPy's rates on one thread; a launch is a call of a NumPy function with glnn's overhead."""


@dataclass(frozen=True)
class Prediction:
    """The predicted time and memory of a kernel on a spec.

    seconds: time of one run. weights: bytes of the constant operands. stages: for each stage (a
    kernel without stages counts as one), the bytes of the live results, and the operands that this
    stage or a later one reads.
    """

    seconds: float
    weights: int
    stages: tuple[tuple[int, frozenset[str]], ...]

    def level(self, operands: Mapping[str, int]) -> int:
        """Return the peak of live bytes. operands: bytes of each operand freed after its use."""
        return max(
            results + sum(nbytes for name, nbytes in operands.items() if name in live_operands)
            for results, live_operands in self.stages
        )


def device_rates(architecture: str | None) -> DeviceRates:
    """Return the rates of an architecture."""
    return RATES.get(architecture or "", DEFAULT_RATES)


def host_seconds(spec: OpSpec) -> float:
    """Return the predicted seconds of `spec` by NumPy, rather over- than underestimated."""
    cost, functions = spec.cost, 0
    if isinstance(spec.op, Pointwise):
        functions += spec.op.expr.calls
    if spec.epilogue is not None:
        functions += sum(expr.calls for expr in spec.epilogue.exprs)
    calls = HOST.launch * (1 + functions)
    return calls + cost.flops / HOST.others + cost.bytes / HOST.bytes


def seconds_whole(spec: OpSpec, rates: DeviceRates) -> float:
    """Return the predicted seconds of a kernel that computes `spec` without stages."""
    return rates.seconds(spec.op, {name: spec.types[name] for name in spec.op_shapes})


def seconds(spec: OpSpec, kernel: Kernel, rates: DeviceRates) -> float:
    """Return the predicted seconds of `spec` by `kernel`, summed over its stages if any."""
    if not kernel.stages:
        return seconds_whole(spec, rates)
    return sum(rates.seconds(stage.op, operands) for stage, operands, _ in stages_of(spec, kernel))


def predicted(spec: OpSpec, kernel: Kernel, rates: DeviceRates) -> Prediction:
    """Return the predicted time and memory of `spec` by `kernel`."""
    fixed = [name for name in spec.op.parameters if name in spec.types]
    if not kernel.stages:
        layouts = spec.chosen_layouts(kernel)
        words = sum(layouts[name].words(spec.types[name]) for name in fixed)
        only_stage = _bytes(spec.results[0]), frozenset(spec.shapes)
        return Prediction(seconds_whole(spec, rates), 4 * words, (only_stage,))
    lowered, stages = spec.lowered(kernel), list(stages_of(spec, kernel))
    derived = [one for one in lowered.derived.values() if one.source in fixed]
    read = {name for stage in lowered.stages for name in stage.operands.values()}
    weights = sum(_bytes(TensorType(d.shape, spec.types[d.source].dtype)) for d in derived)
    weights += sum(_bytes(spec.types[name]) for name in fixed if name in read)
    time = sum(rates.seconds(stage.op, operands) for stage, operands, _ in stages)
    return Prediction(time, weights, _live_ranges(spec, stages))


def stages_of(spec: OpSpec, kernel: Kernel) -> Iterator[tuple[Stage, Types, TensorType]]:
    """Yield each stage of `kernel` with the types of its operands and of its result."""
    if not kernel.stages:
        return
    lowered, types = spec.lowered(kernel), dict(spec.types)
    for name, derived in lowered.derived.items():
        types[name] = TensorType(derived.shape, types[derived.source].dtype)
    for stage in lowered.stages:
        operands = {operand: types[name] for operand, name in stage.operands.items()}
        types[stage.name] = widened(stage.op.results(operands)[0])
        yield stage, operands, types[stage.name]


def _live_ranges(
    spec: OpSpec, stages: Sequence[tuple[Stage, Types, TensorType]]
) -> tuple[tuple[int, frozenset[str]], ...]:
    """Return the live bytes and operands during each stage: see `Prediction.stages`."""
    buffers: dict[str, str] = {}  # the tensor that owns the memory of each result
    sizes: dict[str, int] = {}
    first_use: dict[str, int] = {}
    last_use: dict[str, int] = {}
    for i, (stage, _, result) in enumerate(stages):
        aliased = stage.operands.get("x" if stage.op.view else stage.op.updates or "")
        buffers[stage.name] = owner = buffers.get(aliased, aliased) if aliased else stage.name
        if owner not in spec.shapes:
            sizes[owner] = max(sizes.get(owner, 0), _bytes(result))
        reads = (*stage.operands.values(), *(spec.extents if stage.finishes else ()))
        for name in (*reads, stage.name):
            first_use.setdefault(buffers.get(name, name), i)
            last_use[buffers.get(name, name)] = i
    last_use[buffers[stages[-1][0].name]] = len(stages)
    return tuple(
        (
            sum(sizes[name] for name in sizes if first_use[name] <= i <= last_use[name]),
            frozenset(name for name in spec.shapes if i <= last_use.get(name, -1)),
        )
        for i in range(len(stages))
    )


def _bytes(type: TensorType) -> int:
    """Return the bytes of a tensor whose rows are padded to multiples of four numbers."""
    *rows, row = (1, *type.shape)
    return 4 * type.dtype.words(prod(rows) * (-(-row // 4) * 4))
