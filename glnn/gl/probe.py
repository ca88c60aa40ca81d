"""Probes for faults of drivers, by small computations and never by a driver's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import numpy as np

from glnn.errors import DeviceError
from glnn.gl.device import Device
from glnn.gl.program import Program, Source, feedback_program
from glnn.gl.transfer import map_buffer

if TYPE_CHECKING:
    import moderngl

BODY = """layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer Out {{ float result[]; }};
uniform int count;
void main() {{
    float sum = {start}.0;
    for (int i = 0; i < count; ++i) sum += result[1];
    result[0] = sum;
}}
"""
CAPTURED = "flat out highp int result;\nvoid main() { result = gl_VertexID + 7; }\n"
VERTICES = WORDS = 4
STARTS = (100, 200)  # the constants of the two programs
DISPATCHES = ((0, 1), (1, 1), (0, 1), (0, 2), (1, 1), (0, 2))  # program, count


def asked_once(probe: Callable[[Device], bool]) -> Callable[[Device], bool]:
    """Decorate `probe` so that it runs once for each device; its name is the result's key."""

    @wraps(probe)
    def ask(device: Device) -> bool:
        if probe.__name__ not in device.probe_results:
            device.probe_results[probe.__name__] = probe(device)
        return device.probe_results[probe.__name__]

    return ask


@asked_once
def confuses_values(device: Device) -> bool:
    """Return True where a program may run with the uniform values of an earlier dispatch.

    zink over a CPU's Vulkan (Mesa 25.0.7) compiles the values of loop bounds into a program's code.
    It takes the wrong code from its cache where another program ran since, and the program runs
    with its last values again, for a second set of values. Raises DeviceError where the device has
    no compute shaders.
    """
    device.activate()
    out = device.context.buffer(np.ones(4, np.float32))
    programs = [_program(device, start) for start in STARTS]
    answers = [_run(device, programs[which], out, count) for which, count in DISPATCHES]
    return answers != [STARTS[which] + count for which, count in DISPATCHES]


def _program(device: Device, start: int) -> Program:
    text = device.capabilities.header("compute") + BODY.format(start=start)
    origin = tuple(("probe", line) for line, _ in enumerate(text.splitlines(), 1))
    return Program.compute(device, Source("probe", text, origin))


def _run(device: Device, program: Program, out: moderngl.Buffer, count: int) -> float:
    """Run `program` with its uniform `count` and return the first float of `out`."""
    out.bind_to_storage_buffer(0)
    program.set({"count": count})
    program.dispatch((1, 1, 1))
    device.barrier()
    return float(np.frombuffer(out.read(4), np.float32)[0])


@asked_once
def refuses_mapped_captures(device: Device) -> bool:
    """Return True where transform feedback fails into a buffer that stays mapped.

    EXT_buffer_storage allows it. ANGLE (2.1) applies OpenGL ES 3.0's older rule to all maps and
    raises GL_INVALID_OPERATION. Raises DeviceError where the device is lost.
    """
    device.activate()
    text = device.capabilities.header("feedback") + CAPTURED
    origin = tuple(("probe", line) for line, _ in enumerate(text.splitlines(), 1))
    linked = feedback_program(device, Source("probe", text, origin), ("result",))
    program = Program(device, "probe", linked, ("result",))
    out, words = map_buffer(device, 4 * VERTICES)
    try:
        program.capture(program.vertex_array(), VERTICES, 1, out)
    except DeviceError:
        if device.lost is not None:
            raise
        return True
    device.finish()
    return not np.array_equal(words, np.arange(7, 7 + VERTICES))


@asked_once
def moves_mapped_buffers(device: Device) -> bool:
    """Return True where a copy into a mapped buffer that is in use is lost to the host.

    EXT_buffer_storage keeps such a buffer at its address. ANGLE (2.1) gives it other memory where
    the device still uses it, and the map shows the old memory. Raises DeviceError where the device
    is lost.
    """
    device.activate()
    target, words = map_buffer(device, 4 * WORDS)
    sources = [device.context.buffer(np.full(WORDS, number, np.uint32)) for number in range(1, 5)]
    for source in sources:  # each copy finds the one before it unfinished, not even submitted
        device.copy_buffer(target, source, 4 * WORDS)
    device.wait()
    return bool((words != len(sources)).any())
