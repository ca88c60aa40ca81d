"""Textures of arrays, for shaders that fetch: on many boards vertex shaders have no buffers."""

from __future__ import annotations

import weakref
from ctypes import byref, c_int, c_ssize_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from glnn.core.symint import greatest, hint
from glnn.errors import DeviceError, LimitError
from glnn.gl.context import GlCall
from glnn.gl.device import Device
from glnn.gl.device_info import Capabilities

if TYPE_CHECKING:
    import moderngl

NEAREST = 0x2600
TEXTURE0, PIXEL_UNPACK_BUFFER = 0x84C0, 0x88EC
FLOAT, HALF_FLOAT, INT = 0x1406, 0x140B, 0x1404


@dataclass(frozen=True)
class Texel:
    """A texel's format."""

    components: int
    """The numbers in a texel."""
    kind: int
    """GL's type of these numbers."""
    internal: int
    """GL's internal format."""
    pixel: int
    """GL's pixel format."""

    @property
    def number(self) -> str:
        """The type of its numbers in moderngl's notation: kind and bytes."""
        return {FLOAT: "f4", HALF_FLOAT: "f2", INT: "i4"}[self.kind]

    @property
    def nbytes(self) -> int:
        return self.components * int(self.number[1])

    @property
    def prefix(self) -> str:
        """Return the prefix of GLSL's sampler types: "i" for integer textures."""
        return "i" if self.kind == INT else ""


TEXELS = {
    "r32f": Texel(1, FLOAT, 0x822E, 0x1903),
    "rgba32f": Texel(4, FLOAT, 0x8814, 0x1908),
    "r16f": Texel(1, HALF_FLOAT, 0x822D, 0x1903),
    "rgba16f": Texel(4, HALF_FLOAT, 0x881A, 0x1908),
    "r32i": Texel(1, INT, 0x8235, 0x8D94),
    "rgba32i": Texel(4, INT, 0x8D82, 0x8D99),
}
BUFFER, PLANE, LAYERS = "samplerBuffer", "sampler2D", "sampler2DArray"
TARGETS = {BUFFER: 0x8C2A, PLANE: 0x0DE1, LAYERS: 0x8C1A}


class DataTexture:
    """An array that a shader fetches from with `texel` of shaders/common/texel.glsl.

    floats: the words of the array. texel: the format, a key of TEXELS. sampler: GLSL's sampler type
    (see `sampler_for`), with an i before it for integers. A `samplerBuffer` is the buffer itself;
    other textures are copies, with texel i at (i & 2047, i >> 11), or in layers of 2048 such rows.
    Raises LimitError where the device's textures are too small.
    """

    WIDTH: ClassVar[int] = 2048
    LAYER: ClassVar[int] = WIDTH * 2048  # texels: every device has textures of that size

    def __init__(self, device: Device, floats: int, texel: str, sampler: str = PLANE) -> None:
        if texel not in TEXELS:
            raise ValueError(f"texel must be one of {tuple(TEXELS)}, got {texel!r}")
        self.words = floats
        """Its capacity, in words of 32 bits."""
        self._format = TEXELS[texel]
        sampler = sampler.removeprefix(self._format.prefix)
        self._texels = _texels(floats, self._format)
        size = _size(self._texels, sampler)
        if wrong := _why_not(device.capabilities, self._texels, sampler):
            raise LimitError(f"{floats} floats take {wrong}")
        device.activate()
        device.collect_garbage()
        self._device, self._sampler = device, sampler
        self.attached: tuple[moderngl.Buffer, int] | None = None
        """The buffer and first byte of a buffer texture; None for a copy."""
        self._texture: Any
        if sampler == BUFFER:
            self._texture = _BufferTexture(device, self._format.internal)
        else:
            context = device.context
            make: Any = context.texture if sampler == PLANE else context.texture_array
            self._texture = make(size, self._format.components, dtype=self._format.number)
            self._texture.filter = (NEAREST, NEAREST)  # else such a texture is incomplete
            device.check_always(f"allocate a texture of {' x '.join(map(str, size))}")
            sizes = [c_int] * (5 if sampler == PLANE else 7)  # level, place, size
            name = "glTexSubImage2D" if sampler == PLANE else "glTexSubImage3D"
            self._write = device.load(name, None, c_uint, *sizes, c_uint, c_uint, c_void_p)
            self._bind = device.load("glBindBuffer", None, c_uint, c_uint)

    @staticmethod
    def sampler_for(device: Capabilities, floats: int, texel: str, buffers: bool = True) -> str:
        """Return the best sampler for `floats`: of the buffer itself if possible, else of a copy.

        buffers: True where a buffer texture may be used. Raises LimitError where all are too small.
        """
        samplers = (BUFFER, PLANE, LAYERS) if buffers else (PLANE, LAYERS)
        for most in (greatest(floats), floats):  # for all sizes, else for those that guards admit
            texels = _texels(most, TEXELS[texel])
            for sampler in samplers:
                if _why_not(device, texels, sampler) is None:
                    return TEXELS[texel].prefix + sampler
        raise LimitError(f"{floats} floats take {_why_not(device, texels, LAYERS)}")

    @staticmethod
    def most_words(device: Capabilities) -> int:
        """Return the words of the largest array that shaders can fetch from word by word."""
        side = device.max_texture_size
        if side < DataTexture.WIDTH:
            return max(device.max_texture_buffer_size, side)
        layers = DataTexture.LAYER * device.max_array_texture_layers
        return max(device.max_texture_buffer_size, DataTexture.WIDTH * side, layers)

    @staticmethod
    def buffer_for(device: Capabilities, floats: int, texel: str) -> str:
        """Return the sampler of a buffer texture. Raises LimitError where `floats` are too many."""
        if reason := _why_not(device, _texels(floats, TEXELS[texel]), BUFFER):
            raise LimitError(f"{floats} floats take {reason}")
        return TEXELS[texel].prefix + BUFFER

    @staticmethod
    def bytes_for(floats: int, texel: str, sampler: str) -> int:
        """Return the bytes of device memory that it takes beside the buffer."""
        sampler = sampler.removeprefix(TEXELS[texel].prefix)
        if sampler == BUFFER:
            return 0
        total = TEXELS[texel].nbytes
        for extent in _size(_texels(floats, TEXELS[texel]), sampler):
            total *= extent
        return total

    def copy_from(self, buffer: moderngl.Buffer, start: int = 0, words: int | None = None) -> None:
        """Copy the content of `buffer`; a buffer texture is attached to it instead.

        start: the first byte, a multiple of 256. words: how many are copied, None for the texture's
        capacity. Raises DeviceError where the buffer is too short.
        """
        if self.attached == (buffer, start):
            return
        texels = self._texels if words is None else _texels(words, self._format)
        if texels > self._texels or buffer.size < start + texels * self._format.nbytes:
            raise DeviceError(
                f"{texels} texels of {self._format.nbytes} bytes do not fit "
                f"a buffer of {buffer.size} bytes"
            )
        if self._sampler != BUFFER:
            self._copy(buffer.glo, start, texels)
        else:
            self._texture.attach(buffer.glo, start, self._texels * self._format.nbytes)
            self.attached = buffer, start
        self._device.check("copy a buffer to a texture")

    def _copy(self, buffer: int, start: int, texels: int) -> None:
        """Copy the whole rows of each layer, and then the partial row."""
        if self._device.capabilities.reorders_writes:  # a barrier does not order them
            self._device.finish()
        self._texture.use(0)
        self._bind(PIXEL_UNPACK_BUFFER, buffer)
        target, form, has_layers = TARGETS[self._sampler], self._format, self._sampler == LAYERS
        layer_texels = self.LAYER if has_layers else texels
        for first in range(0, texels, layer_texels):
            layer, depth = ((first // layer_texels,), (1,)) if has_layers else ((), ())
            rows, rest = divmod(min(layer_texels, texels - first), self.WIDTH)
            for row, width, height in ((0, self.WIDTH, rows), (rows, rest, 1)):
                if width and height:
                    position, size = (0, row, *layer), (width, height, *depth)
                    offset = start + (first + row * self.WIDTH) * form.nbytes
                    self._write(target, 0, *position, *size, form.pixel, form.kind, offset)
        self._bind(PIXEL_UNPACK_BUFFER, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that it takes beside the buffer."""
        return 0 if not self.copied else self._texels * self._format.nbytes

    @property
    def copied(self) -> bool:
        """Return True where the texture has memory of its own, to which a buffer is copied."""
        return self._sampler != BUFFER

    def bind(self, unit: int) -> None:
        """Bind it to texture unit `unit`."""
        bind, arguments = self.bind_call(unit)
        bind(*arguments)

    def bind_call(self, unit: int) -> GlCall:
        """Return the call that binds it to texture unit `unit`."""
        texture: Any = self._texture
        # moderngl's Python wraps `mglo`.
        bind = texture.use if self._sampler == BUFFER else texture.mglo.use
        return bind, (unit,)


class _BufferTexture:
    """A buffer texture, which moderngl does not have."""

    def __init__(self, device: Device, internal: int) -> None:
        name = c_uint()
        device.load("glGenTextures", None, c_int, c_void_p)(1, byref(name))
        self._internal, self.name = internal, name.value
        self._activate = device.functions.quick("glActiveTexture")
        self._bind = device.functions.quick("glBindTexture")
        self._buffer = device.load("glTexBuffer", None, c_uint, c_uint, c_uint)
        ends = c_ssize_t, c_ssize_t  # the first byte, and how many
        self._part = device.load("glTexBufferRange", None, c_uint, c_uint, c_uint, *ends)
        delete = device.load("glDeleteTextures", None, c_int, c_void_p)
        dropped = partial(delete, 1, byref(c_uint(self.name)))
        weakref.finalize(self, device.delete_later, dropped).atexit = False

    def attach(self, buffer: int, start: int, nbytes: int) -> None:
        """Attach `buffer`: all of it, or `nbytes` from `start` on where that is not 0."""
        self.use(0)
        if start:
            self._part(TARGETS[BUFFER], self._internal, buffer, start, nbytes)
        else:
            self._buffer(TARGETS[BUFFER], self._internal, buffer)

    def use(self, unit: int) -> None:
        self._activate(TEXTURE0 + unit)
        self._bind(TARGETS[BUFFER], self.name)


def _texels(floats: int, texel: Texel) -> int:
    return max(-(-4 * floats // texel.nbytes), 1)


def _size(texels: int, sampler: str) -> tuple[int, ...]:
    """Return the texture's texels along each side."""
    width, wide = DataTexture.WIDTH, min(texels, DataTexture.WIDTH)
    if sampler == BUFFER:
        return (texels,)
    if sampler == PLANE:
        return wide, -(-texels // width)
    rows = min(-(-texels // width), DataTexture.LAYER // width)
    return wide, rows, -(-texels // DataTexture.LAYER)


def _why_not(device: Capabilities, texels: int, sampler: str) -> str | None:
    """Return which limit of `device` is below `texels`; None where all suffice."""
    if sampler == BUFFER:
        most = device.max_texture_buffer_size
        return f"{hint(texels)} texels, a buffer has {most}" if texels > most else None
    side, layers, edge = device.max_texture_size, device.max_array_texture_layers, DataTexture.WIDTH
    rows, limit = (DataTexture.LAYER, layers) if sampler == LAYERS else (edge, side)
    if -(-texels // rows) > limit or (edge > side and texels > side):
        text = " x ".join(map(str, _size(hint(texels), sampler)))
        allowed = f"{edge} x {edge} x {layers}" if sampler == LAYERS else f"{side} x {side}"
        return f"a texture of {text}, the device allows {allowed}"
    return None
