"""Small shaders that the device tests run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glnn.gl import Device, Program, Source

SCALE = """
layout(local_size_x = 4) in;
layout(std430, binding = 0) buffer In { float a[]; };
layout(std430, binding = 1) buffer Out { float b[]; };
uniform int count;
uniform float factor;
void main() {
    int i = int(gl_GlobalInvocationID.x);
    if (i < count) b[i] = factor * a[i];
}
"""
FETCH = """
uniform highp sampler2D data;
uniform float factor;
out highp vec4 result;
void main() {
    result = factor * texelFetch(data, ivec2(gl_VertexID & 2047, gl_VertexID >> 11), 0);
}
"""

MakeSource = Callable[[Device, str, str], Source]


@pytest.fixture(scope="session")
def source() -> MakeSource:
    """Makes a Source from a body: the header comes from the file "header"."""

    def make(device: Device, stage: str, body: str) -> Source:
        if stage == "compute" and not device.capabilities.compute:
            pytest.skip(device.capabilities.why_no_compute() or "")
        header = device.capabilities.header(stage)
        origin = [("header", i) for i, _ in enumerate(header.splitlines(), 1)]
        origin += [("test.glsl", i) for i, _ in enumerate(body.splitlines(), 1)]
        return Source("test.glsl", header + body, tuple(origin))

    return make


@pytest.fixture
def scale(source: MakeSource) -> Callable[[Device], Program]:
    """Makes the program that computes out = factor * in, 4 floats a workgroup."""
    return lambda device: Program.compute(device, source(device, "compute", SCALE))


@pytest.fixture
def fetch(source: MakeSource) -> Callable[[Device], Program]:
    """Makes the program that captures factor * texel i as vertex i's vec4."""
    return lambda device: Program.feedback(device, source(device, "feedback", FETCH), ("result",))
