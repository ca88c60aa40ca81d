"""The GPU through OpenGL: contexts, buffers, programs, textures, timers. Knows no networks."""

from glnn.device.buffer import Buffer
from glnn.device.capabilities import Capabilities
from glnn.device.context import Attempt, NoDeviceError
from glnn.device.device import Device
from glnn.device.memory import MappedMemory, SharedMemory, StagedMemory
from glnn.device.opening import Gpu, gpus
from glnn.device.probe import confuses_values
from glnn.device.program import Program
from glnn.device.source import Source
from glnn.device.texture import DataTexture
from glnn.device.timeline import Fence
from glnn.device.timer import Timer
from glnn.device.timestamps import Timestamps

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
