"""Arrays as textures: every element arrives where a shader looks for it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glnn.core.glsl import shaders_folder
from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.errors import DeviceError, LimitError
from glnn.gl import Buffer, Capabilities, DataTexture, Device, Program, Source
from glnn.gl.texture import BUFFER, INT, LAYERS, PLANE, TEXELS

MakeSource = Callable[[Device, str, str], Source]
MakeFetch = Callable[[Device, str, str], Program]
LAYER = 2048 * 2048


@pytest.fixture(params=TEXELS)
def texel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[BUFFER, PLANE, LAYERS])
def sampler(request: pytest.FixtureRequest, device: Device) -> str:
    if request.param == BUFFER and not device.capabilities.max_texture_buffer_size:
        pytest.skip("no texture buffers")
    return str(request.param)


@pytest.fixture
def fetch_one(source: MakeSource) -> MakeFetch:
    """Makes the program that captures texel `first` + i, by the kernels' own addressing."""
    common = Path(shaders_folder() / "common" / "texel.glsl").read_text("utf-8")

    def make(device: Device, texel: str, sampler: str) -> Program:
        form = TEXELS[texel]
        kinds = ("int", "ivec4") if form.prefix else ("float", "vec4")
        kind = kinds[form.components == 4]
        body = (
            f"{common}\nuniform highp {form.prefix}{sampler} data;\nuniform int first;\n"
            f"flat out highp {kind} result;\n"
            f"void main() {{ result = {kind}(texel(data, first + gl_VertexID)); }}\n"
        )
        return Program.feedback(device, source(device, "feedback", body), ("result",))

    return make


def pack(values: np.ndarray, texel: str) -> np.ndarray:
    """`values` as words of memory."""
    number = np.dtype(TEXELS[texel].number)
    if number != np.float16:
        return values.astype(number)
    return np.pad(values.astype(np.float16), (0, values.size % 2)).view(np.float32)


@pytest.mark.parametrize("texels", [1, 2, 3, 5, 127, 2047, 2048, 2049, 4095, 4096, 6151])
def test_every_element_arrives(device, fetch_one, texel, sampler, texels) -> None:
    program = fetch_one(device, texel, sampler)
    count = texels * TEXELS[texel].components
    most = 2048 if TEXELS[texel].kind != INT else 2**31  # more than a float holds
    values = np.random.default_rng(texels).integers(-most, most, count)
    values[0] = 3  # as a float, these bits would be a denormal one
    packed = pack(values, texel)
    texture = DataTexture(device, packed.size, texel, sampler)
    data = Buffer(packed.shape, parse("R"), dtype=DType.from_array(packed))
    data.set(packed)
    texture.copy_from(data.push(device))
    texture.bind(3)
    out = Buffer((count,), parse("R"), dtype=DType.int32 if "i" in texel else DType.float32)
    program.set({"data": 3, "first": 0})
    program.capture(program.vertex_array(), texels, 1, out.push(device))
    out.mark_written()
    np.testing.assert_array_equal(out.pull(), values)


@pytest.mark.parametrize("texel", ["r32f", "rgba32f"])
@pytest.mark.parametrize("first", [0, LAYER - 3, LAYER + 2045, 2 * LAYER - 2])
def test_layers_follow_one_another(device, fetch_one, texel, first) -> None:
    width = TEXELS[texel].components
    floats = (2 * LAYER + 2051) * width
    data = Buffer((floats,), parse("R"))
    values = np.zeros(floats, np.float32)
    ends = slice(first * width, (first + 2050) * width)
    values[ends] = np.random.default_rng(first).random(values[ends].size)
    data.set(values)
    program = fetch_one(device, texel, LAYERS)
    texture = DataTexture(device, floats, texel, LAYERS)
    texture.copy_from(data.push(device))
    texture.bind(0)
    out = Buffer((2050 * width,), parse("R"))
    program.set({"data": 0, "first": first})
    program.capture(program.vertex_array(), 2050, 1, out.push(device))
    out.mark_written()
    np.testing.assert_array_equal(out.pull(), values[ends])


@pytest.mark.parametrize("start", [64, 4096 + 128])
@pytest.mark.parametrize("texels", [1, 127, 2049])
def test_a_part_of_a_buffer(device, fetch_one, texel, sampler, texels, start) -> None:
    program, form = fetch_one(device, texel, sampler), TEXELS[texel]
    values = np.random.default_rng(texels).integers(-2048, 2048, texels * form.components)
    packed = pack(values, texel)
    whole = np.full(start + packed.size + 3, 77, packed.dtype)
    whole[start : start + packed.size] = packed
    data = Buffer(whole.shape, parse("R"), dtype=DType.from_array(whole))
    data.set(whole)
    texture = DataTexture(device, packed.size, texel, sampler)
    out = Buffer(values.shape, parse("R"), dtype=DType.int32 if "i" in texel else DType.float32)
    program.set({"data": 0, "first": 0})
    for at in (0, start):  # the latter is what stays
        texture.copy_from(data.push(device), 4 * at)
    texture.bind(0)
    program.capture(program.vertex_array(), texels, 1, out.push(device))
    out.mark_written()
    np.testing.assert_array_equal(out.pull(), values)
    with pytest.raises(DeviceError, match="do not fit a buffer"):
        texture.copy_from(data.push(device), 4 * whole.size + 64)


def test_a_copy_follows_the_buffer(device, fetch_one, sampler) -> None:
    program = fetch_one(device, "rgba32f", sampler)
    texture = DataTexture(device, 8, "rgba32f", sampler)
    a, b = Buffer((8,), parse("R")), Buffer((8,), parse("R"))
    a.set(np.arange(8, dtype=np.float32))
    program.set({"data": 0, "first": 0})
    for _ in range(3):  # captured, copied, fetched, captured
        texture.copy_from(a.push(device))
        texture.bind(0)
        program.capture(program.vertex_array(), 2, 1, b.push(device))
        b.mark_written()
        a, b = b, a
    np.testing.assert_array_equal(a.pull(), np.arange(8))
    a.set(np.full(8, 9, np.float32))
    texture.copy_from(a.push(device))
    texture.bind(0)
    program.capture(program.vertex_array(), 2, 1, b.push(device))
    b.mark_written()
    np.testing.assert_array_equal(b.pull(), np.full(8, 9))


def offering(side: int, layers: int, buffer: int) -> Capabilities:
    plain = Capabilities("es", (3, 2), "Maker", "Board", "", "", "")
    return replace(
        plain,
        max_texture_size=side,
        max_array_texture_layers=layers,
        max_texture_buffer_size=buffer,
    )


@pytest.mark.parametrize(
    ("texels", "side", "layers", "buffer", "expected"),
    [
        (10, 2048, 256, 10, BUFFER),
        (11, 2048, 256, 10, PLANE),
        (LAYER, 2048, 256, 0, PLANE),
        (LAYER + 1, 2048, 256, 0, LAYERS),
        (LAYER + 1, 4096, 256, 0, PLANE),
        (256 * LAYER, 2048, 256, 0, LAYERS),
    ],
)
def test_the_sampler_that_is_picked(texels, side, layers, buffer, expected) -> None:
    offers = offering(side, layers, buffer)
    assert DataTexture.sampler_for(offers, 4 * texels, "rgba32f") == expected
    without = PLANE if expected == BUFFER else expected
    assert DataTexture.sampler_for(offers, 4 * texels, "rgba32f", buffers=False) == without


def test_no_sampler_is_large_enough() -> None:
    says = "take a texture of 2048 x 2048 x 257, the device allows 2048 x 2048 x 256"
    with pytest.raises(LimitError, match=says):
        DataTexture.sampler_for(offering(2048, 256, 1 << 20), 256 * LAYER + 1, "r32f")


def test_a_texture_over_the_limit(minimum_device: Device) -> None:
    with pytest.raises(LimitError, match="2048 x 2049, the device allows 2048 x 2048"):
        DataTexture(minimum_device, LAYER + 1, "r32f")
    with pytest.raises(LimitError, match="4 texels, a buffer has 0"):
        DataTexture(minimum_device, 4, "r32f", BUFFER)
    minimum_device.check_always("GL was not asked")


def test_a_buffer_that_is_too_short(device: Device, sampler: str) -> None:
    texture = DataTexture(device, 2052, "rgba32f", sampler)
    short = Buffer((2048,), parse("R")).push(device)
    with pytest.raises(DeviceError, match="513 texels of 16 bytes do not fit a buffer of 8192"):
        texture.copy_from(short)
    device.check_always("GL was not asked")


def test_an_error_of_a_copy_is_raised(device: Device, sampler: str) -> None:
    texture = DataTexture(device, 8, "rgba32f", sampler)
    data = Buffer((8,), parse("R")).push(device)
    device.load("glEnable", None, ctypes.c_uint)(0x1234)
    with pytest.raises(DeviceError, match="copy a buffer to a texture: GL_INVALID_ENUM"):
        texture.copy_from(data)


@pytest.mark.parametrize("sampler", [PLANE, LAYERS])
def test_an_error_of_an_allocation_is_raised(device: Device, sampler: str) -> None:
    device.load("glEnable", None, ctypes.c_uint)(0x1234)
    with pytest.raises(DeviceError, match=r"allocate a texture of 2 x 1.*GL_INVALID_ENUM"):
        DataTexture(device, 8, "rgba32f", sampler)


def test_memory_that_a_texture_takes(texel: str) -> None:
    each = TEXELS[texel].nbytes
    assert DataTexture.bytes_for(4 * 2049, texel, BUFFER) == 0
    rows = -(-16 * 2049 // (2048 * each))
    assert DataTexture.bytes_for(4 * 2049, texel, PLANE) == 2048 * rows * each
    assert DataTexture.bytes_for(each * LAYER // 4 + 4, texel, LAYERS) == 2 * LAYER * each


def test_dropped_textures_are_deleted_by_the_next_use(device: Device) -> None:
    if not device.capabilities.max_texture_buffer_size:
        pytest.skip("no texture buffers")
    texture = DataTexture(device, 8, "rgba32f", BUFFER)
    texture.copy_from(Buffer((8,), parse("R")).push(device))
    name = texture._texture.name
    exists = device.load("glIsTexture", ctypes.c_ubyte, ctypes.c_uint)
    assert exists(name)
    del texture
    gc.collect()
    assert exists(name)
    device.activate()
    assert not exists(name)


def test_other_formats_are_refused(device: Device) -> None:
    with pytest.raises(ValueError, match="texel must be one of"):
        DataTexture(device, 12, "rgb32f")
