"""Limits of vertex shaders and textures, each used to its end: every number is compared.

Each function gives why so much cannot be had, None where it can, or raises GlnnError.
"""

from __future__ import annotations

import numpy as np

from glnn.doctor.scratch_program import DRAWN, ScratchSpace, count_from, difference, floats, scatter
from glnn.gl import DataTexture

CAPTURED = """out highp vec4 result[%d];
uniform int first;
void main() {
    uint place = uint(first + gl_VertexID) * %du;
%s}
"""
FETCHED = """uniform highp %s data;
uniform int first;
out highp float result;
void main() { result = texelFetch(data, %s).x; }
"""
UNIFORMS = """uniform highp ivec4 given[%d];
uniform int first;
out highp float result;
void main() {
    int i = first + gl_VertexID;
    result = float(given[i >> 2][i & 3]);
}
"""
NEAR = 8  # texels on either side of a power of two
VERTICES = 65


def components(ground: ScratchSpace, count: int) -> str | None:
    """Test a vertex shader that captures `count` numbers."""
    lines = ""
    for i in range(count // 4):
        numbers = ", ".join(f"scatter(place + {4 * i + k}u)" for k in range(4))
        lines += f"    result[{i}] = vec4({numbers});\n"
    program = ground.feedback(CAPTURED % (count // 4, count, lines))
    got = ground.capture(program, VERTICES)
    return difference(got, floats(scatter(count_from(0, VERTICES * count))))


def uniforms(ground: ScratchSpace, count: int) -> str | None:
    """Test `count` numbers of uniforms: one is the beginning of the draw, the others are an
    array.
    """
    count = (count - 4) // 4 * 4
    numbers = scatter(count_from(0, count))
    program = ground.feedback(UNIFORMS % (count // 4))
    got = ground.capture(program, count, {"given": tuple(map(int, numbers))})
    return difference(got, floats(numbers))


def units(ground: ScratchSpace, count: int) -> str | None:
    """Test `count` textures that one vertex shader fetches from."""
    numbers = scatter(count_from(1, count))
    kept = [ground.plane((1, 1), numbers[i : i + 1]) for i in range(count)]
    body = "".join(f"uniform highp sampler2D data{i};\n" for i in range(count))
    body += "uniform int first;\nout highp float result;\nvoid main() {\n    result = -1.0;\n"
    for i in range(count):
        body += f"    if (first + gl_VertexID == {i}) "
        body += f"result = texelFetch(data{i}, ivec2(0), 0).x;\n"
    program = ground.feedback(body + "}\n")
    for unit, texture in enumerate(kept):
        texture.use(unit)
    return difference(ground.capture(program, count, _units(count)), floats(numbers))


def _units(count: int) -> dict[str, int]:
    return {f"data{i}": i for i in range(count)}


def texture_size(ground: ScratchSpace, side: int) -> str | None:
    """Test a texture `side` pixels wide, and one `side` pixels high."""
    for size, place in (((side, 1), "ivec2(i, 0)"), ((1, side), "ivec2(0, i)")):
        if fault := _texture(ground, size, "sampler2D", place):
            return f"a texture of {size[0]} x {size[1]}: {fault}"
    return None


def layers(ground: ScratchSpace, count: int) -> str | None:
    """Test a texture of `count` layers."""
    return _texture(ground, (1, 1, count), "sampler2DArray", "ivec3(0, 0, i)")


def _texture(ground: ScratchSpace, size: tuple[int, ...], sampler: str, place: str) -> str | None:
    numbers = scatter(count_from(0, max(size)))
    at = place.replace("i)", "first + gl_VertexID)").replace("(i,", "(first + gl_VertexID,")
    program = ground.feedback(FETCHED % (sampler, f"{at}, 0"))
    texture = ground.plane(size, numbers)
    texture.use(0)
    return difference(ground.capture(program, max(size), {"data": 0}), floats(numbers))


def buffer_texels(ground: ScratchSpace, count: int) -> str | None:
    """Test a buffer texture of `count` texels: its ends, and the places near powers of two.

    What a driver lets wrap is found there: the number of bits of a place, or of a byte's.
    """
    memory = ground.memory(count, np.zeros(1, np.uint32))
    ranges = list(_ranges(count))
    for first, number in ranges:
        memory.copy.write(floats(scatter(count_from(first, number))), offset=4 * first)
    texture = DataTexture(ground.device, count, "r32f", "samplerBuffer")
    texture.copy_from(memory.copy)
    texture.bind(0)
    program = ground.feedback(
        FETCHED.replace("uniform int first", "uniform int first, start")
        % ("samplerBuffer", "start + first + gl_VertexID")
    )
    for first, number in ranges:
        got = ground.capture(program, number, {"data": 0, "start": first})
        if fault := difference(got, floats(scatter(count_from(first, number))), first):
            return fault
    return None


def _ranges(count: int) -> list[tuple[int, int]]:
    """Return the places to test among `count`: the first of each range, and its length."""
    ends = [(0, min(DRAWN, count)), (max(count - DRAWN, 0), min(DRAWN, count))]
    powers = (1 << n for n in range(DRAWN.bit_length(), count.bit_length()))
    near = [(power - NEAR, min(2 * NEAR, count - power + NEAR)) for power in powers]
    return [*ends, *(one for one in near if one[1] > 0)]
