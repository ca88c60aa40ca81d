"""Arrays as textures, for vertex shaders: those have no storage buffers on many boards."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from glnn.device.device import Device
from glnn.errors import LimitError

if TYPE_CHECKING:
    import moderngl

NEAREST = 0x2600


class DataTexture:
    """A float array that a shader fetches from: texel i is at (i & 2047, i >> 11).

    floats: how many there are. components: 1 (R32F) or 4 (RGBA32F) floats a texel. Raises
    LimitError where the device's textures are too small.
    """

    WIDTH: ClassVar[int] = 2048

    def __init__(self, device: Device, floats: int, components: int) -> None:
        if components not in (1, 4):
            raise ValueError(f"components must be 1 or 4, got {components}")
        size = self._texels(floats, components)
        most = device.capabilities.max_texture_size
        if max(size) > most:
            raise LimitError(
                f"{floats} floats take a texture of {size[0]} x {size[1]}, "
                f"the device allows {most} x {most}"
            )
        device.activate()
        self._device = device
        self._longer: moderngl.Buffer | None = None
        self.capacity = size[0] * size[1] * components
        """Floats that the texture holds: a buffer copied from must have as many."""
        self._texture = device.context.texture(size, components, dtype="f4")
        self._texture.filter = (NEAREST, NEAREST)  # else a float texture is incomplete
        device.check_always(f"allocate a texture of {size[0]} x {size[1]}")

    @classmethod
    def bytes_for(cls, floats: int, components: int, room: int) -> int:
        """Device memory for a texture of `floats` that is copied from a buffer of `room` floats."""
        width, height = cls._texels(floats, components)
        capacity = width * height * components
        return 4 * capacity * (1 if room >= capacity else 2)

    @classmethod
    def _texels(cls, floats: int, components: int) -> tuple[int, int]:
        texels = max(-(-floats // components), 1)
        return min(texels, cls.WIDTH), -(-texels // cls.WIDTH)

    def copy_from(self, buffer: moderngl.Buffer) -> None:
        """Copy the first floats of `buffer`, at most `capacity`, on the device.

        Whole rows are copied: a buffer shorter than `capacity` goes by way of a longer one.
        """
        if buffer.size < 4 * self.capacity:
            if self._longer is None:
                self._longer = self._device.context.buffer(reserve=4 * self.capacity)
            self._device.context.copy_buffer(self._longer, buffer, buffer.size)
            buffer = self._longer
        self._texture.write(buffer)
        self._device.check("copy a buffer to a texture")

    def bind(self, unit: int) -> None:
        """Make it the texture of `unit`, for samplers set to that number."""
        self._texture.use(unit)
