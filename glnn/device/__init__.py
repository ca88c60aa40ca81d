"""The GPU through OpenGL: contexts, buffers, programs, textures, timers. Knows no networks."""

from glnn.device.buffer import Buffer, SharedMemory
from glnn.device.capabilities import Capabilities
from glnn.device.context import Attempt, NoDeviceError
from glnn.device.device import Device
from glnn.device.opening import Gpu, gpus
from glnn.device.probe import confuses_values
from glnn.device.program import Program, Source
from glnn.device.texture import DataTexture
from glnn.device.timer import Timer
from glnn.device.timestamps import Timestamps

__all__ = [
    "Attempt",
    "Buffer",
    "Capabilities",
    "DataTexture",
    "Device",
    "Gpu",
    "NoDeviceError",
    "Program",
    "SharedMemory",
    "Source",
    "Timer",
    "Timestamps",
    "confuses_values",
    "gpus",
]
