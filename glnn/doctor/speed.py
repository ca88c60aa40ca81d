"""What is slow on a device, measured: launches, ways to and from it, products, first uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter, thread_time, time_ns
from typing import TypeVar

import numpy as np

from glnn.backends import open_backend
from glnn.backends.backend import Way
from glnn.backends.gl import GlBackend
from glnn.device import Buffer, Device, SharedMemory, Source
from glnn.disk import Disk
from glnn.doctor.checks import Checks
from glnn.doctor.contests import SIDES, contests, timed
from glnn.doctor.ground import PIECE, Words, count_from
from glnn.doctor.measured import GPU_BACKENDS, Compiling, Launching, Room, Speed, Transfer
from glnn.errors import DeviceError, GlnnError, first_line
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.kernels.problem import Problem
from glnn.layout import parse
from glnn.process import processors
from glnn.settings import Settings

T = TypeVar("T")
CHAIN, FEW = 100, 64
"""Launches of a chain, and the numbers of each."""
SIZES = tuple(1 << bits for bits in (12, 16, 20, 24, 26))
"""Bytes that are moved: 4 KiB to 64 MiB."""
ROOM, MOST_ROOM = 256 << 20, 8 << 30
"""Bytes that are asked for, to see that they are there; the most where all is asked for."""


def measure_speed(
    device: Device,
    full: bool = False,
    progress: Callable[[str], None] = lambda what: None,
    sides: Sequence[int] = SIDES,
    sizes: Sequence[int] = SIZES,
) -> Speed:
    """Measure what is slow on `device`: medians by the clock, by its timer where that is believed.

    full: also try most of the memory that is free. progress: called with what is measured next.
    sides: of the products. sizes: bytes that are moved. What a backend cannot do is left out, and
    so is what raises an exception, which is noted.
    """
    start, checks, opened = perf_counter(), Checks(), list[GlBackend]()
    for name in GPU_BACKENDS:
        backend = checks.run(f"speed: opening {name}", partial(_opened, name, device), None)
        opened += [] if backend is None else [backend]
    checks.run("speed: waiting for the device", device.finish, None)
    others = waiting()
    progress("launches")
    launches = _measured(checks, device, "launches", _launching, opened)
    moved = []
    for nbytes in sizes if opened else ():
        progress(f"moving {nbytes} bytes")
        move = partial(device.perform, partial(_transfer, opened[0], nbytes))
        one = checks.run(f"speed: moving {nbytes} bytes", move, None)
        moved += [] if one is None else [one]
    held = contests(device, opened, sides, progress, checks)
    progress("compiling")
    compiling = _measured(checks, device, "compiling", _compiling, opened)
    progress("memory")
    use = partial(device.perform, partial(_room, device, full))
    room = checks.run("speed: memory", use, None)
    offers = device.capabilities
    return Speed(
        software=offers.software,
        own_memory=offers.own_memory,
        processors=processors(),
        launches=launches,
        transfers=tuple(moved),
        contests=held,
        compiling=compiling,
        room=room,
        seconds=perf_counter() - start,
        waiting=others,
        keeps=Disk.of(Settings.from_environment()).keeps,
        failed=tuple(checks.failed),
    )


def _opened(name: str, device: Device) -> GlBackend | None:
    """Return the backend `name` on `device`; None where it does not open there."""
    with suppress(DeviceError):
        backend = open_backend(name, device)
        assert isinstance(backend, GlBackend)
        return backend
    return None


def _measured(
    checks: Checks,
    device: Device,
    what: str,
    measure: Callable[[GlBackend], T],
    opened: Sequence[GlBackend],
) -> tuple[T, ...]:
    """Return what `measure` gives of each backend, but of those where it raises."""
    found: list[T] = []
    for one in opened:
        step = f"speed: {what} on {one.name}"
        measured = checks.run(step, partial(device.perform, partial(measure, one)), None)
        found += [] if measured is None else [measured]
    return tuple(found)


def waiting(least: float = 0.1) -> float:
    """Seconds of the clock for each that this thread computes; it does so for `least` at least."""
    start, begun = perf_counter(), thread_time()
    while (computed := thread_time() - begun) < least:
        pass
    return max((perf_counter() - start) / computed, 1.0)


def _launching(backend: GlBackend) -> Launching:
    """The least launch, by itself and in a chain."""
    problem = Problem.of(Pointwise(call("relu", Arg(0))), {"x0": (FEW,)}, {})
    choice = backend.choose(problem)
    while backend.examine([(choice, problem)]):
        choice = backend.choose(problem)
    layouts = backend.layouts(choice, problem)
    ends = [backend.allocate((FEW,), layouts[name]) for name in ("x0", "out")]
    there, back = (
        backend.prepare(choice, problem, {"x0": one}, other)
        for one, other in (ends, reversed(ends))
    )

    def waited(count: int) -> float:
        work = backend.together([(there, back)[i % 2] for i in range(count)])

        def run() -> None:
            work()
            backend.finish()

        return timed(run, warm=2)

    return Launching(backend.name, waited(1), waited(CHAIN) / CHAIN, CHAIN)


def _transfer(backend: GlBackend, nbytes: int) -> Transfer:
    """What moving `nbytes` takes by the ways that sessions use."""
    words, layout, device = nbytes // 4, parse("R"), backend.device
    content = np.random.default_rng(2026).random(words, dtype=np.float32)
    inner = Buffer((words,), layout)
    inner.push(device)
    given, taken = (
        Buffer((words,), layout, memory=backend.memory(words, way))
        for way in (Way.TO_DEVICE, Way.TO_HOST)
    )

    def up() -> None:
        given.put(content)
        device.wait()

    def copied() -> None:
        inner.copy_from(given, device)
        device.wait()

    def down() -> None:
        taken.wrote()
        taken.fetch(found)

    found = np.empty(words, np.float32)
    seconds_up, seconds_copied = timed(up), timed(copied)
    taken.copy_from(inner, device)
    device.wait()
    seconds = Transfer(nbytes, seconds_up, timed(down), seconds_copied)
    if not np.array_equal(found, content):
        raise DeviceError(f"{nbytes} bytes came back otherwise than they went to the device")
    return seconds


def _compiling(backend: GlBackend) -> Compiling:
    """A shader that no cache has: a product's, with a comment of its own."""
    device = backend.device
    body = NEW[backend.name] % time_ns()
    text = device.capabilities.header(backend.name) + body
    source = Source("new", text, tuple(("new", i) for i, _ in enumerate(text.splitlines(), 1)))
    backend.finish()
    start = perf_counter()
    program = backend.compile(source)
    compiled, out = perf_counter(), SharedMemory(4 * FEW, device)
    begin = perf_counter()
    if backend.name == "compute":
        out.copy.bind_to_storage_buffer(0)
        program.dispatch((1, 1, 1))
    else:
        program.capture(program.vertices(), FEW, 1, out.copy)
    backend.finish()
    return Compiling(backend.name, compiled - start, perf_counter() - begin)


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


def _room(device: Device, full: bool) -> Room:
    """Whether memory that is free keeps what is written to it, all of it held at once."""
    told = device.memory_available()
    asked = ROOM if told is None else min(MOST_ROOM, told // 2) if full else min(ROOM, told // 4)
    held: list[SharedMemory] = []
    pieces, fault = asked // (4 * PIECE), None
    try:
        for number in range(pieces):
            held.append(SharedMemory(PIECE, device))
            held[-1].copy.write(_numbered(number))
        device.wait()
        device.check_always("use memory")
    except GlnnError as error:
        if device.lost is not None:
            raise
        fault, held = first_line(error), held[:-1]
    right = 0
    found = np.empty(PIECE, np.uint32)
    for number, memory in enumerate(held):
        memory.copy.read_into(found)
        if np.array_equal(found, _numbered(number)):
            right += 1
        elif fault is None:
            fault = f"what was written to piece {number + 1} of 16 MiB came back otherwise"
    return Room(told, 4 * PIECE * pieces, 4 * PIECE * right, fault)


def _numbered(number: int) -> Words:
    """What the piece of that number holds."""
    return count_from(number * PIECE, PIECE)
