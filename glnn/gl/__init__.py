"""The GPU through OpenGL: contexts, buffers, programs, textures, timers. Knows no networks."""

from glnn.gl.buffer import Buffer, MappedMemory, SharedMemory, StagedMemory
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
    "Capabilities",
    "DataTexture",
    "Device",
    "Fence",
    "Gpu",
    "MappedMemory",
    "NoDeviceError",
    "Program",
    "SharedMemory",
    "Source",
    "StagedMemory",
    "Timer",
    "Timestamps",
    "confuses_values",
    "gpus",
]
