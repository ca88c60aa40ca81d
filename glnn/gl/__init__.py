"""The GPU through OpenGL: contexts, buffers, programs, textures, timers. Knows no networks."""

from glnn.gl.buffer import Buffer
from glnn.gl.capabilities import Capabilities
from glnn.gl.context import Attempt, NoDeviceError
from glnn.gl.device import Device
from glnn.gl.memory import MappedMemory, SharedMemory, StagedMemory
from glnn.gl.opening import Gpu, gpus
from glnn.gl.probe import confuses_values
from glnn.gl.program import Program
from glnn.gl.source import Source
from glnn.gl.texture import DataTexture
from glnn.gl.timeline import Fence
from glnn.gl.timer import Timer
from glnn.gl.timestamps import Timestamps

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
