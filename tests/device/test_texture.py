"""Arrays as textures: every element arrives where a shader looks for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.device import Buffer, DataTexture, Device, Program, Source
from glnn.errors import LimitError
from glnn.layout import parse

MakeSource = Callable[[Device, str, str], Source]

FETCH_ONE = """
uniform highp sampler2D data;
out highp {type} result;
void main() {{
    result = texelFetch(data, ivec2(gl_VertexID & 2047, gl_VertexID >> 11), 0){swizzle};
}}
"""


@pytest.fixture(params=[1, 4])
def components(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("texels", [1, 2, 3, 5, 127, 2047, 2048, 2049, 4095, 4096, 6151])
def test_every_element_arrives(
    device: Device, source: MakeSource, components: int, texels: int
) -> None:
    kind = {1: ("float", ".r"), 4: ("vec4", "")}[components]
    body = FETCH_ONE.format(type=kind[0], swizzle=kind[1])
    program = Program.feedback(device, source(device, "feedback", body), ("result",))
    floats = texels * components
    texture = DataTexture(device, floats, components)
    assert texture.capacity >= floats
    values = np.random.default_rng(texels).standard_normal(floats).astype(np.float32)
    data = Buffer((floats,), parse("R"), capacity=texture.capacity)
    data.set(values)
    texture.copy_from(data.push(device))
    texture.bind(3)
    out = Buffer((floats,), parse("R"))
    program.set({"data": 3})
    program.capture(texels, out.push(device))
    out.wrote()
    np.testing.assert_array_equal(out.pull(), values)


def test_a_copy_follows_the_buffer(device: Device, source: MakeSource) -> None:
    body = FETCH_ONE.format(type="vec4", swizzle="")
    program = Program.feedback(device, source(device, "feedback", body), ("result",))
    texture, a, b = DataTexture(device, 8, 4), Buffer((8,), parse("R")), Buffer((8,), parse("R"))
    a.set(np.arange(8, dtype=np.float32))
    for _ in range(3):  # captured, copied, fetched, captured
        texture.copy_from(a.push(device))
        texture.bind(0)
        program.set({"data": 0})
        program.capture(2, b.push(device))
        b.wrote()
        a, b = b, a
    np.testing.assert_array_equal(a.pull(), np.arange(8))
    a.set(np.full(8, 9, np.float32))
    texture.copy_from(a.push(device))
    program.capture(2, b.push(device))
    b.wrote()
    np.testing.assert_array_equal(b.pull(), np.full(8, 9))


def test_a_row_of_2048_texels_is_the_widest(device: Device, components: int) -> None:
    assert DataTexture(device, 100, components).capacity == 100
    assert DataTexture(device, 2048 * components, components).capacity == 2048 * components
    assert DataTexture(device, 2048 * components + 1, components).capacity == 4096 * components


def test_a_texture_over_the_limit(minimum_device: Device, components: int) -> None:
    with pytest.raises(LimitError, match="2048 x 2049, the device allows 2048 x 2048"):
        DataTexture(minimum_device, 2048 * 2048 * components + 1, components)
    minimum_device.check_always("GL was not asked")


def test_a_buffer_that_is_shorter_than_whole_rows(device: Device, source: MakeSource) -> None:
    body = FETCH_ONE.format(type="vec4", swizzle="")
    program = Program.feedback(device, source(device, "feedback", body), ("result",))
    texture = DataTexture(device, 2049 * 4, 4)
    for seed in range(2):
        values = np.random.default_rng(seed).random(2049 * 4, np.float32)
        short = Buffer(values.shape, parse("R"))
        short.set(values)
        texture.copy_from(short.push(device))
        out = Buffer(values.shape, parse("R"))
        texture.bind(0)
        program.capture(2049, out.push(device))
        out.wrote()
        np.testing.assert_array_equal(out.pull(), values)


def test_other_components_are_refused(device: Device) -> None:
    with pytest.raises(ValueError, match="components must be 1 or 4"):
        DataTexture(device, 12, 3)
