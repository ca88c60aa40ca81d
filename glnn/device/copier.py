"""Copies between buffers by a shader.

NVIDIA's driver (580) keeps a buffer in the host's memory once its own commands copy from it to such
memory, or once the host wrote it several times: on an H200 a convolution that wrote 1.9 MB to such
a buffer took 980 us, not 50. What only shaders touch stays in the GPU's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glnn.device.device import Device
from glnn.device.program import Program, Source
from glnn.glsl import lines, shaders_folder

if TYPE_CHECKING:
    import moderngl

FILE = ("common", "copy.glsl")
INVOCATIONS, MOST_GROUPS = 64, 4096


def copy_words(
    device: Device, source: moderngl.Buffer, target: moderngl.Buffer, first: int, last: int
) -> None:
    """Have the words of `target` from `first` up to `last` be those of `source`.

    The first word is at a multiple of 64. What shaders wrote to `source` must be visible; the copy
    is, to all that follows.
    """
    quads = -(-(last - first) // 4)
    if not quads:
        return  # GL has no empty ranges
    program = _program(device)
    for binding, buffer in enumerate((source, target)):
        buffer.bind_to_storage_buffer(binding, 4 * first, 16 * quads)
    program.set({"count": quads})
    program.dispatch((min(-(-quads // INVOCATIONS), MOST_GROUPS), 1, 1))
    device.barrier()


def _program(device: Device) -> Program:
    programs: dict[Any, Program] = device.programs
    if FILE not in programs:
        name = "/".join(FILE)
        own = lines(shaders_folder().joinpath(*FILE), name)
        header = device.capabilities.header("compute")
        origin = [(name, 0)] * len(header.splitlines()) + [(file, at) for _, file, at in own]
        text = header + "\n".join(line for line, _, _ in own) + "\n"
        programs[FILE] = Program.compute(device, Source(name, text, tuple(origin)))
    return programs[FILE]
