"""Measurements of a device: launches, transfers, products, first use of shaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import perf_counter, thread_time, time_ns
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from glnn import data
from glnn.backends import open_backend
from glnn.backends.backend import Transfer
from glnn.backends.gl import GlBackend
from glnn.compiler import Executor, prepare
from glnn.core.disk_cache import DiskCache
from glnn.core.layout import parse
from glnn.core.process import processors
from glnn.core.settings import Settings
from glnn.core.trace_spans import duration
from glnn.core.types import TensorType
from glnn.doctor.checks import Checks, NoVerdict
from glnn.doctor.scratch_program import PIECE, Words, count_from
from glnn.errors import DeviceError, GlnnError, LimitError, UnsupportedOpError, first_line
from glnn.gl import Buffer, BufferBlock, Device, Source
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Matmul, Pointwise
from glnn.kernels.op_spec import OpSpec
from glnn.layers import Conv2d as ConvLayer
from glnn.layers import Layer, Linear
from glnn.model import Model, load
from glnn.profiling import time_work
from glnn.validation.examination import examine_choices

GPU_BACKENDS = ("compute", "feedback")
MATMUL, CONV, LENET = "matmul", "conv2d", "lenet"
CHANNELS = 64
"""The channels of the convolution's image and of its result."""


@dataclass(frozen=True)
class LaunchTimes:
    """The time of a launch on one backend: the least work, 64 numbers, by the wall clock."""

    backend: str
    """The backend's name."""
    alone: float
    """Seconds from asking for one launch to its end, waited for: the median."""
    chained: float
    """Seconds of a launch in a chain of `length`, each of which needs the one before it."""
    length: int
    """The number of launches in the chain."""


@dataclass(frozen=True)
class TransferTimes:
    """The times of moving `nbytes`: medians by the wall clock, each waited for."""

    nbytes: int
    """The number of bytes."""
    up: float
    """Seconds to the device."""
    down: float
    """Seconds to the host, of what the device wrote."""
    copy: float
    """Seconds within the device's memory."""

    def rate(self, way: str) -> float:
        """Return the bytes a second; `way` is up, down or copy."""
        seconds: float = getattr(self, way)
        return self.nbytes / max(seconds, 1e-9)


@dataclass(frozen=True)
class BackendComparison:
    """The same work on each backend."""

    what: str
    """`matmul`, `conv2d` or `lenet`."""
    size: int
    """n of a product of n x n, the side of the image of a convolution, the images of LeNet."""
    flops: int
    """Operations of plain loops that compute it; 0 where unknown."""
    on_device: Mapping[str, float]
    """Seconds with all operands in place, by backend; `numpy` is NumPy in this process."""
    in_all: Mapping[str, float]
    """Seconds of a run, from arrays in the host to arrays there; `cpu` is NumPy, too."""
    left_out: tuple[str, ...] = ()
    """Backends whose runs would have taken too long."""

    def rate(self, backend: str) -> float | None:
        """Return the operations a second with all operands in place; None where that was not
        measured.
        """
        seconds = self.on_device.get(backend)
        return self.flops / seconds if seconds and self.flops else None

    @property
    def gain(self) -> float | None:
        """The speed-up of the faster GPU backend over the CPU, transfers included; None where
        unknown.
        """
        times = [self.in_all[name] for name in GPU_BACKENDS if name in self.in_all]
        on_cpu = self.in_all.get("cpu")
        return on_cpu / min(times) if on_cpu is not None and times else None


@dataclass(frozen=True)
class CompileTimes:
    """The time of the first use of a new shader on one backend."""

    backend: str
    """The backend's name."""
    compiled: float
    """Seconds of compiling and linking it, none of it from a cache."""
    first: float
    """Seconds of its first run, in which some drivers do the rest."""


@dataclass(frozen=True)
class MemoryCheck:
    """The result of writing to the device's free memory."""

    told: int | None
    """Bytes that are free, as the system tells; None where nobody knows."""
    tried: int
    """Bytes that were asked for, all at once."""
    confirmed: int
    """Bytes of them that kept what was written to them."""
    fault: str | None = None
    """The fault of the rest; None where there is none."""


@dataclass(frozen=True)
class Speed:
    """The measurements of a device."""

    software: str | None
    """The renderer on the CPU; None for a GPU."""
    own_memory: bool
    """Whether the GPU is known to have memory of its own."""
    processors: int
    """The number of processors that this process may use."""
    launches: tuple[LaunchTimes, ...]
    """The launch times of each backend."""
    transfers: tuple[TransferTimes, ...]
    """The transfer times by size, the least first."""
    contests: tuple[BackendComparison, ...]
    """The comparisons by work and size."""
    compiling: tuple[CompileTimes, ...]
    """The compile times of each backend."""
    room: MemoryCheck | None
    """The check of memory; None where it was not tested."""
    seconds: float
    """The time that the measurements took."""
    waiting: float = 1.0
    """Seconds that a thread which only computes needs for each of its own: above 1, others run."""
    keeps: bool = True
    """Whether programs are kept on disk."""
    failed: tuple[NoVerdict, ...] = ()
    """The measurements that an exception ended."""

    def comparisons(self, what: str) -> tuple[BackendComparison, ...]:
        """Return the comparisons of that work, the smallest first."""
        matching = (one for one in self.contests if one.what == what)
        return tuple(sorted(matching, key=lambda one: one.size))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the measurements as text, a line each."""
        text = [
            f"{one.backend}: a launch {duration(one.alone)} waited for, "
            f"{duration(one.chained)} in a chain of {one.length}"
            for one in self.launches
        ]
        text += [
            f"{size(one.nbytes)}: up {rate(one.rate('up'))}, down {rate(one.rate('down'))}, "
            f"copied {rate(one.rate('copy'))}"
            for one in self.transfers
        ]
        measured = (one for one in self.contests if one.on_device or one.in_all)
        text += [self._contest(one) for one in measured]
        text += [
            f"{one.backend}: a new shader {duration(one.compiled)} to compile, "
            f"{duration(one.first)} its first run"
            for one in self.compiling
        ]
        if self.room is not None:
            told = "an unknown amount" if self.room.told is None else size(self.room.told)
            text.append(
                f"memory: {told} free as the system tells, {size(self.room.confirmed)} of "
                f"{size(self.room.tried)} used and right"
            )
        return [*text, f"measured in {duration(self.seconds)} on {self.processors} processors"]

    @staticmethod
    def _contest(one: BackendComparison) -> str:
        inside = ", ".join(
            f"{name} {duration(seconds)}"
            + (f" ({flops / 1e9:.3g} GFLOP/s)" if (flops := one.rate(name)) else "")
            for name, seconds in one.on_device.items()
        )
        whole = ", ".join(f"{name} {duration(seconds)}" for name, seconds in one.in_all.items())
        left = f"; not run, as too slow: {', '.join(one.left_out)}" if one.left_out else ""
        placed = f"operands in place {inside}; " if inside else ""
        return f"{one.what} {one.size}: {placed}in all {whole}{left}"


def rate(bytes_a_second: float) -> str:
    """Format a rate in GB/s, with three digits."""
    return f"{bytes_a_second / 1e9:.3g} GB/s"


def size(nbytes: int) -> str:
    """Format bytes for people."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << bits:
            return f"{nbytes / 2**bits:.4g} {unit}"
    return f"{nbytes} B"


Array = NDArray[Any]
ENOUGH, MOST_RUNS, LEAST_RUNS = 0.1, 50, 3
"""Seconds after which a measurement ends; its most runs, and its least."""
SIDES, IMAGE, IMAGES = (256, 512, 1024), 56, (1, 100)
"""The sides of products, of a convolution's image; the numbers of images for LeNet."""
LONG, TOO_LONG = 0.3, 0.6
"""Seconds above which a run is not repeated; predicted seconds above which it is left out."""
SCOUT = 64
"""The side of the first product, whose rate predicts which runs take too long."""
LENET_FLOPS = 833_040
"""Operations of one image by LeNet: its convolutions and products."""


def median_seconds(work: Callable[[], object], warm: int = 1) -> float:
    """Return the median seconds of `work`, which waits for its own end, by the wall clock."""
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
) -> tuple[BackendComparison, ...]:
    """Compare products, a convolution and LeNet on each backend and on the CPU.

    checks: run each measure, so that what raises an exception is left out.
    """
    contest, generator = BackendContest(device, opened, checks), np.random.default_rng(2026)
    progress(f"products of {SCOUT}")
    contest.compare(MATMUL, SCOUT, *_product(generator, SCOUT), in_all=False)
    comparisons: list[BackendComparison] = []
    for n in sides:
        progress(f"products of {n}")
        comparisons.append(contest.compare(MATMUL, n, *_product(generator, n)))
    progress("a convolution")
    x = generator.standard_normal((1, CHANNELS, IMAGE, IMAGE), dtype=np.float32)
    w = generator.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    layers: list[Layer] = [ConvLayer(CHANNELS, CHANNELS, 3, padding=1, bias=False)]
    op, model = Conv2d(padding=(1, 1, 1, 1)), Model.sequential(layers, x.shape[1:])
    comparisons.append(contest.compare(CONV, IMAGE, op, {"x": x, "weight": w}, model))
    images = data.digits()[0].astype(np.float32).reshape(-1, 1, 28, 28) / 255
    for count in IMAGES:
        progress(f"LeNet, {count}")
        model = load(data.model("lenet"))
        comparisons.append(contest.compare(LENET, count, None, {"x": images[:count]}, model))
    return tuple(comparisons)


def _product(generator: np.random.Generator, n: int) -> tuple[Operator, dict[str, Array], Model]:
    """Make a product of n x n: the operator, its operands, and a model of it."""
    a, b = (generator.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    layers: list[Layer] = [Linear(n, n, bias=False)]
    return Matmul(), {"x": a, "weight": b}, Model.sequential(layers, (n,))


class BackendContest:
    """Compares the backends, without those that would take too long by earlier measurements."""

    def __init__(self, device: Device, opened: Sequence[GlBackend], checks: Checks) -> None:
        self._device, self._opened, self._checks = device, opened, checks
        self._rates: dict[str, float] = {}  # operations a second by backend

    def compare(
        self,
        what: str,
        size: int,
        op: Operator | None,
        operands: Mapping[str, Array],
        model: Model,
        in_all: bool = True,
    ) -> BackendComparison:
        """Measure `op` with all operands in place, where there is one, and a run of `model`."""
        flops = size * LENET_FLOPS
        if op is not None:
            types = {name: TensorType.from_array(array) for name, array in operands.items()}
            flops = op.cost_of(types).flops
        feasible = [one for one in self._opened if self._is_feasible(one.name, flops)]
        on_device: dict[str, float] = {}
        if op is not None:
            works = {
                one.name: partial(one.perform, partial(_on_device_seconds, one, op, operands))
                for one in feasible
            }
            on_device = self._times(f"{what} {size}, operands in place", works)
            self._rates |= {name: flops / seconds for name, seconds in on_device.items()}
            by_numpy = {"numpy": partial(median_seconds, partial(_by_numpy, op, operands))}
            on_device |= self._times(f"{what} {size}", by_numpy)
        names = (
            [one.name for one in feasible if self._is_feasible(one.name, flops)] if in_all else []
        )
        in_all_seconds: dict[str, float] = {}
        if in_all:
            runs = {
                name: partial(_run_seconds, self._device, name, model, operands["x"])
                for name in (*names, "cpu")
            }
            in_all_seconds = self._times(f"{what} {size}, in all", runs)
        left_out = (one.name for one in self._opened if in_all and one.name not in names)
        return BackendComparison(what, size, flops, on_device, in_all_seconds, tuple(left_out))

    def _times(
        self, what: str, works: Mapping[str, Callable[[], float | None]]
    ) -> dict[str, float]:
        """Return the seconds that each of `works` returns, by backend, without those that raise."""
        result: dict[str, float] = {}
        for name, work in works.items():
            seconds = self._checks.run(f"speed: {what} on {name}", work, None)
            result |= {} if seconds is None else {name: seconds}
        return result

    def _is_feasible(self, name: str, flops: int) -> bool:
        """Return True where so many operations do not take that backend too long."""
        predicted = self._rates.get(name)
        return predicted is None or flops / predicted <= TOO_LONG


def _by_numpy(op: Operator, operands: Mapping[str, Array]) -> None:
    OpSpec.create(op, {name: array.shape for name, array in operands.items()}, {}).compute(operands)


def _on_device_seconds(
    backend: GlBackend, op: Operator, operands: Mapping[str, Array]
) -> float | None:
    """Return the seconds of `op` on one backend after a first run; None where it cannot run."""
    with suppress(UnsupportedOpError, LimitError):
        work, _ = prepare(op, operands, backend)
        work()
        return time_work(backend, work, repeat=3, warm=0.05, hopeless=LONG).seconds
    return None


def _run_seconds(device: Device, name: str, model: Model, x: Array) -> float | None:
    """Return the seconds of a run from host arrays to host arrays; None where it cannot run."""
    with suppress(UnsupportedOpError, LimitError):
        executor = Executor(model.graph, name, device=None if name == "cpu" else device)
        feeds = {model.graph.inputs[0].name: x}
        executor.run(feeds)  # plans, compiles
        return median_seconds(partial(executor.run, feeds), 0)
    return None


T = TypeVar("T")
CHAIN, FEW = 100, 64
"""Launches of a chain, and the elements of each."""
SIZES = tuple(1 << bits for bits in (12, 16, 20, 24, 26))
"""Bytes that are moved: 4 KiB to 64 MiB."""
ROOM, MOST_ROOM = 256 << 20, 8 << 30
"""Bytes of memory that are tested; with `full`, the most."""


def measure_speed(
    device: Device,
    full: bool = False,
    progress: Callable[[str], None] = lambda what: None,
    sides: Sequence[int] = SIDES,
    sizes: Sequence[int] = SIZES,
) -> Speed:
    """Measure the speed of `device`: medians by the wall clock, or by a reliable timer of its own.

    full: also test most of the free memory. progress: called with what is measured next. sides: of
    the products. sizes: bytes that are moved. Work that a backend cannot do is left out;
    measurements that raise an exception are listed in `failed`.
    """
    start, checks, opened = perf_counter(), Checks(), list[GlBackend]()
    for name in GPU_BACKENDS:
        backend = checks.run(f"speed: opening {name}", partial(_open_backend, name, device), None)
        opened += [] if backend is None else [backend]
    checks.run("speed: waiting for the device", device.finish, None)
    others = waiting()
    progress("launches")
    launches = _measure_backends(checks, device, "launches", _launching, opened)
    moved = []
    for nbytes in sizes if opened else ():
        progress(f"moving {nbytes} bytes")
        move = partial(device.perform, partial(_transfer, opened[0], nbytes))
        one = checks.run(f"speed: moving {nbytes} bytes", move, None)
        moved += [] if one is None else [one]
    comparisons = contests(device, opened, sides, progress, checks)
    progress("compiling")
    compiling = _measure_backends(checks, device, "compiling", _compiling, opened)
    progress("memory")
    check = partial(device.perform, partial(_room, device, full))
    room = checks.run("speed: memory", check, None)
    offers = device.capabilities
    return Speed(
        software=offers.software,
        own_memory=offers.dedicated_memory,
        processors=processors(),
        launches=launches,
        transfers=tuple(moved),
        contests=comparisons,
        compiling=compiling,
        room=room,
        seconds=perf_counter() - start,
        waiting=others,
        keeps=DiskCache.from_settings(Settings.from_environment()).keeps,
        failed=tuple(checks.failed),
    )


def _open_backend(name: str, device: Device) -> GlBackend | None:
    """Return the backend `name` on `device`; None where it does not open there."""
    with suppress(DeviceError):
        backend = open_backend(name, device)
        assert isinstance(backend, GlBackend)
        return backend
    return None


def _measure_backends(
    checks: Checks,
    device: Device,
    what: str,
    measure: Callable[[GlBackend], T],
    opened: Sequence[GlBackend],
) -> tuple[T, ...]:
    """Return the results of `measure` for each backend, without those where it raises."""
    results: list[T] = []
    for one in opened:
        step = f"speed: {what} on {one.name}"
        measured = checks.run(step, partial(device.perform, partial(measure, one)), None)
        results += [] if measured is None else [measured]
    return tuple(results)


def waiting(least: float = 0.1) -> float:
    """Return wall seconds for each second that this thread computes, over at least `least`
    seconds.
    """
    start, thread_start = perf_counter(), thread_time()
    while (computed := thread_time() - thread_start) < least:
        pass
    return max((perf_counter() - start) / computed, 1.0)


def _launching(backend: GlBackend) -> LaunchTimes:
    """Measure the smallest launch, alone and in a chain."""
    spec = OpSpec.create(Pointwise(call("relu", Arg(0))), {"x0": (FEW,)}, {})
    choice = backend.choose(spec)
    while examine_choices(backend, [(choice, spec)]):
        choice = backend.choose(spec)
    layouts = backend.layouts(choice, spec)
    ends = [backend.allocate((FEW,), layouts[name]) for name in ("x0", "out")]
    forward, backward = (
        backend.prepare(choice, spec, {"x0": one}, other) for one, other in (ends, reversed(ends))
    )

    def launch_seconds(count: int) -> float:
        work = backend.combine([(forward, backward)[i % 2] for i in range(count)])

        def run() -> None:
            work()
            backend.finish()

        return median_seconds(run, warm=2)

    return LaunchTimes(backend.name, launch_seconds(1), launch_seconds(CHAIN) / CHAIN, CHAIN)


def _transfer(backend: GlBackend, nbytes: int) -> TransferTimes:
    """Measure moving `nbytes` by the transfers that sessions use."""
    words, layout, device = nbytes // 4, parse("R"), backend.device
    content = np.random.default_rng(2026).random(words, dtype=np.float32)
    inner = Buffer((words,), layout)
    inner.push(device)
    source, target = (
        Buffer((words,), layout, memory=backend.memory(words, way))
        for way in (Transfer.TO_DEVICE, Transfer.TO_HOST)
    )

    def up() -> None:
        source.put(content)
        device.wait()

    def copied() -> None:
        inner.copy_from(source, device)
        device.wait()

    def down() -> None:
        target.mark_written()
        target.fetch(returned)

    returned = np.empty(words, np.float32)
    seconds_up, seconds_copied = median_seconds(up), median_seconds(copied)
    target.copy_from(inner, device)
    device.wait()
    seconds = TransferTimes(nbytes, seconds_up, median_seconds(down), seconds_copied)
    if not np.array_equal(returned, content):
        raise DeviceError(f"{nbytes} bytes came back otherwise than they went to the device")
    return seconds


def _compiling(backend: GlBackend) -> CompileTimes:
    """Measure a shader that no cache has: a product's, with a unique comment."""
    device = backend.device
    body = NEW[backend.name] % time_ns()
    text = device.capabilities.header(backend.name) + body
    source = Source("new", text, tuple(("new", i) for i, _ in enumerate(text.splitlines(), 1)))
    backend.finish()
    start = perf_counter()
    program = backend.compile(source)
    compiled, out = perf_counter(), BufferBlock(4 * FEW, device)
    begin = perf_counter()
    if backend.name == "compute":
        out.copy.bind_to_storage_buffer(0)
        program.dispatch((1, 1, 1))
    else:
        program.capture(program.vertex_array(), FEW, 1, out.copy)
    backend.finish()
    return CompileTimes(backend.name, compiled - start, perf_counter() - begin)


WORK = """
    // %d
    vec4 sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = vec4(float(at + i));
    for (int k = 0; k < 64; ++k)
        for (int i = 0; i < 4; ++i) sum[i] = sum[i] * sum[(i + k) & 3] + exp(-abs(sum[i].wzyx));
"""
NEW = {
    "compute": "layout(local_size_x = 64) in;\n"
    "layout(std430, binding = 0) buffer Out { vec4 result[]; };\n"
    "void main() {\n    int at = int(gl_LocalInvocationIndex);"
    + WORK
    + "    result[at] = sum[0] + sum[1] + sum[2] + sum[3];\n}\n",
    "feedback": "out highp vec4 result;\nvoid main() {\n    int at = gl_VertexID;"
    + WORK
    + "    result = sum[0] + sum[1] + sum[2] + sum[3];\n}\n",
}
"""Shaders as large as a small kernel's, by backend."""


def _room(device: Device, full: bool) -> MemoryCheck:
    """Write to free memory, all of it allocated at once, and test that it keeps its content."""
    told = device.memory_available()
    requested = (
        ROOM if told is None else min(MOST_ROOM, told // 2) if full else min(ROOM, told // 4)
    )
    blocks: list[BufferBlock] = []
    pieces, fault = requested // (4 * PIECE), None
    try:
        for number in range(pieces):
            blocks.append(BufferBlock(PIECE, device))
            device.write_buffer(blocks[-1].copy, _piece_content(number))
        device.wait()
        device.check_always("use memory")
    except GlnnError as error:
        if device.lost is not None:
            raise
        fault, blocks = first_line(error), blocks[:-1]
    right = 0
    content = np.empty(PIECE, np.uint32)
    for number, block in enumerate(blocks):
        block.copy.read_into(content)
        if np.array_equal(content, _piece_content(number)):
            right += 1
        elif fault is None:
            fault = f"what was written to piece {number + 1} of 16 MiB came back otherwise"
    return MemoryCheck(told, 4 * PIECE * pieces, 4 * PIECE * right, fault)


def _piece_content(number: int) -> Words:
    """Return the content of the piece of memory with that number."""
    return count_from(number * PIECE, PIECE)
