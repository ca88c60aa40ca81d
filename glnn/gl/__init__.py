"""The GPU through OpenGL: contexts, buffers, programs, textures, timers. Knows no networks."""

from glnn.gl.buffer import Buffer, BufferBlock, MappedBlock, StagedBlock
from glnn.gl.context import Attempt, NoDeviceError
from glnn.gl.device import Device, Fence
from glnn.gl.device_info import Capabilities
from glnn.gl.device_selection import Gpu, gpus
from glnn.gl.probe import confuses_values
from glnn.gl.program import Program, Source
from glnn.gl.texture import DataTexture
from glnn.gl.timer import Timer, Timestamps

__all__ = [
    "Attempt",
    "Buffer",
    "BufferBlock",
    "Capabilities",
    "DataTexture",
    "Device",
    "Fence",
    "Gpu",
    "MappedBlock",
    "NoDeviceError",
    "Program",
    "Source",
    "StagedBlock",
    "Timer",
    "Timestamps",
    "confuses_values",
    "gpus",
]
