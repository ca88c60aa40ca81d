"""The test of each limit: it is used to its end, or up to a cap, and every number is compared.

A test returns why a value of the limit cannot be used, None where it can, or raises GlnnError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from glnn.core.glsl import expanded, shaders_folder
from glnn.doctor.scratch_program import (
    DRAWN,
    POISON,
    ScratchSpace,
    Words,
    count_from,
    difference,
    floats,
    scatter,
)
from glnn.gl import BufferBlock, Capabilities, DataTexture, Program
from glnn.gl.device_info import MINIMUM

GROUPS = 1 << 21
"""Workgroups that are tried without --full: more take software renderers seconds."""
UNIFORMS = 4096
"""Numbers of uniforms that are tried: kernels have at most a hundred."""
AXES = "xyz"

LimitTest = Callable[[ScratchSpace, int], "str | None"]


@dataclass(frozen=True)
class Probe:
    """The test of one limit."""

    limit: str
    """GL's name, as `Capabilities` has it."""
    what: str
    """The same for people."""
    work: LimitTest
    """The test, which returns why a value cannot be used; None where it can."""
    axis: int | None = None
    """The axis of a limit of three numbers; None where there is one."""
    grain: int = 1
    """The values that are tested are multiples of it."""
    nbytes: float = 0.0
    """Bytes of memory that the test needs for each unit of the limit."""
    most: int | None = None
    """The largest value that is tried without --full."""
    compute: bool = True
    """Whether the test uses compute shaders, else transform feedback."""

    def number(self, offers: Capabilities) -> int:
        """Return the value of the limit in `offers`."""
        value = getattr(offers, self.limit)
        return int(value if self.axis is None else value[self.axis])

    @property
    def guaranteed(self) -> int:
        """The value that OpenGL ES 3.1 guarantees; 0 where it guarantees none."""
        value = MINIMUM.get(self.limit, 0)
        if isinstance(value, tuple):
            return value[self.axis or 0]
        return value


def probes() -> tuple[Probe, ...]:
    """Return the tests of all limits."""
    return (*_of_compute(), *_of_feedback())


def _of_compute() -> Iterator[Probe]:
    size = "max_compute_work_group_size"
    name, what = "max_compute_work_group_invocations", "invocations of a workgroup"
    yield Probe(name, what, invocations, grain=32)
    for i in range(3):
        yield Probe(size, f"{what} along {AXES[i]}", size_along(i), i)
    name, what = "max_compute_shared_memory_size", "bytes of shared memory"
    yield Probe(name, what, shared_memory, grain=1024)
    name, what = "max_compute_shader_storage_blocks", "storage blocks of a shader"
    yield Probe(name, what, blocks, most=64)
    what = "bytes from one beginning of a storage block to the next"
    yield Probe("shader_storage_buffer_offset_alignment", what, alignment)
    name, what = "max_compute_uniform_components", "numbers of uniforms of a compute shader"
    yield Probe(name, what, compute_uniforms, grain=4, most=UNIFORMS)
    name = "max_compute_work_group_count"
    for i in range(3):
        what = f"workgroups along {AXES[i]}"
        yield Probe(name, what, count_along(i), i, nbytes=4, most=GROUPS)
    name, what = "max_shader_storage_block_size", "bytes of a storage block"
    yield Probe(name, what, block_size, grain=1 << 16, nbytes=1)


def _of_feedback() -> Iterator[Probe]:
    of_draws, wide = partial(Probe, compute=False), 1 << 16
    name, what = "max_transform_feedback_interleaved_components", "captured numbers of a vertex"
    yield of_draws(name, what, captured_components, grain=4, most=256)
    name, what = "max_vertex_texture_image_units", "textures of a vertex shader"
    yield of_draws(name, what, texture_units, most=64)
    name, what = "max_vertex_uniform_components", "numbers of uniforms of a vertex shader"
    yield of_draws(name, what, vertex_uniforms, grain=4, most=UNIFORMS)
    name, what = "max_texture_size", "texels along a side of a texture"
    yield of_draws(name, what, texture_size, grain=64, most=wide)
    name, what = "max_array_texture_layers", "layers of a texture"
    yield of_draws(name, what, texture_layers, grain=16, most=wide)
    name, what = "max_texture_buffer_size", "texels of a texture that is a buffer"
    yield of_draws(name, what, buffer_texels, grain=1024, nbytes=4)


RANGE, END = 1 << 20, 64  # words that a dispatch writes; words at either end of such a range
GROUP_SIZE = 64  # invocations of a workgroup that writes or reads many words
OUT = "layout(std430, binding = 0) buffer Out { uint result[]; };\n"
SHARED = """layout(local_size_x = %d, local_size_y = %d, local_size_z = %d) in;
shared uint kept[%d];
const uint COUNT = %du, STEP = %du;
void main() {
    uint seed = COUNT * gl_WorkGroupID.x;
    for (uint i = gl_LocalInvocationIndex; i < COUNT; i += STEP) kept[i] = scatter(seed + i);
    workgroup_barrier();
    for (uint i = gl_LocalInvocationIndex; i < COUNT; i += STEP)
        result[seed + i] = kept[COUNT - 1u - i];
}
"""
SIZE = """layout(local_size_x = %d, local_size_y = %d, local_size_z = %d) in;
void main() {
    result[gl_LocalInvocationIndex] = scatter(gl_LocalInvocationID.%s);
}
"""
COUNTED = """layout(local_size_x = 1) in;
void main() { result[gl_WorkGroupID.%s] = scatter(gl_WorkGroupID.%s); }
"""
FILL = """layout(local_size_x = %d) in;
uniform int first, count, words;
void main() {
    uint i = uint(first) + gl_GlobalInvocationID.x, most = uint(words);
    if (gl_GlobalInvocationID.x < uint(count)) %s;
}
"""
FIRST, SECOND = "result[i] = scatter(i)", "result[i] += scatter(most - 1u - i)"
READ = """layout(std430, binding = 1) readonly buffer In { uint given[]; };
layout(local_size_x = %d) in;
void main() { result[gl_LocalInvocationIndex] = given[gl_LocalInvocationIndex]; }
"""
COMPUTE_UNIFORMS = """layout(local_size_x = %d) in;
uniform ivec4 given[%d];
void main() {
    for (uint i = gl_LocalInvocationIndex; i < %du; i += %du)
        result[i] = uint(given[i >> 2][i & 3u]);
}
"""
EXCHANGING = 3  # workgroups that exchange numbers through shared memory


def invocations(scratch: ScratchSpace, count: int) -> str | None:
    """Test workgroups of `count` invocations, which exchange numbers."""
    offers = scratch.device.capabilities
    shape, remaining = [], count
    for most in offers.max_compute_work_group_size:
        shape.append(next(n for n in range(min(remaining, most), 0, -1) if remaining % n == 0))
        remaining //= shape[-1]
    return _check_shared(scratch, (shape[0], shape[1], shape[2]), count)


def shared_memory(scratch: ScratchSpace, nbytes: int) -> str | None:
    """Test workgroups that fill `nbytes` of shared memory, and read them."""
    most = scratch.device.capabilities.max_compute_work_group_size[0]
    return _check_shared(scratch, (min(GROUP_SIZE, most), 1, 1), nbytes // 4)


def _check_shared(scratch: ScratchSpace, shape: tuple[int, int, int], words: int) -> str | None:
    x, y, z = shape
    step = x * y * z
    barrier = expanded(shaders_folder() / "common" / "barrier.glsl")  # that of the kernels
    program = scratch.compute(OUT + barrier + SHARED % (x, y, z, words, words, step))
    out = scratch.memory(EXCHANGING * words)
    scratch.dispatch(program, (EXCHANGING, 1, 1), [out])
    expected = scatter(count_from(0, EXCHANGING * words)).reshape(EXCHANGING, words)[:, ::-1]
    return _memory_difference(
        scratch, out, lambda first, n: expected.reshape(-1)[first : first + n]
    )


def size_along(axis: int) -> Callable[[ScratchSpace, int], str | None]:
    """Return the test of workgroups that are long along `axis`."""

    def work(scratch: ScratchSpace, count: int) -> str | None:
        shape = tuple(count if i == axis else 1 for i in range(3))
        program = scratch.compute(OUT + SIZE % (*shape, AXES[axis]))
        out = scratch.memory(count)
        scratch.dispatch(program, (1, 1, 1), [out])
        return _memory_difference(
            scratch, out, lambda first, n: scatter(count_from(first, n)), count
        )

    return work


def count_along(axis: int) -> Callable[[ScratchSpace, int], str | None]:
    """Return the test of many workgroups along `axis`."""

    def work(scratch: ScratchSpace, count: int) -> str | None:
        name = AXES[axis]
        program = scratch.compute(OUT + COUNTED % (name, name))
        out = scratch.memory(count)
        x, y, z = (count if i == axis else 1 for i in range(3))
        scratch.dispatch(program, (x, y, z), [out])
        return _memory_difference(
            scratch, out, lambda first, n: scatter(count_from(first, n)), count
        )

    return work


def blocks(scratch: ScratchSpace, count: int) -> str | None:
    """Test a shader with `count` storage blocks, each with a buffer of its own."""
    ins = count - 1
    body = OUT + "layout(local_size_x = 1) in;\n"
    for i in range(ins):
        body += f"layout(std430, binding = {i + 1}) readonly buffer In{i} {{ uint given{i}[]; }};\n"
    reads = "".join(f"    result[{i}] = given{i}[1];\n" for i in range(ins))
    program = scratch.compute(f"{body}void main() {{\n    result[{ins}] = 1u;\n{reads}}}\n")
    numbers = np.append(scatter(count_from(0, ins)), 1).astype(np.uint32)
    inputs = [scratch.memory(64, np.full(64, number, np.uint32)) for number in numbers[:-1]]
    out = scratch.memory(count)
    scratch.dispatch(program, (1, 1, 1), [out, *inputs])
    return _memory_difference(scratch, out, lambda first, n: numbers[first : first + n], count)


def block_size(scratch: ScratchSpace, nbytes: int) -> str | None:
    """Test a storage block of `nbytes`: every word is written, read and written again.

    Where that takes long, only the ends of most ranges are tested, with a note.
    """
    words = nbytes // 4
    fill, again = (scratch.compute(OUT + FILL % (GROUP_SIZE, how)) for how in (FIRST, SECOND))
    out, start = scratch.memory(words), perf_counter()
    done: list[tuple[int, int]] = []
    for first in range(0, words, RANGE):
        count = min(RANGE, words - first)
        ranges = [(first, count)]
        if first and perf_counter() - start > scratch.patience and count > 2 * END:
            ranges = [(first, END), (first + count - END, END)]
            scratch.note = f"of most of it only the ends of every {4 * RANGE >> 20} MiB were seen"
        for start_word, number in ranges:
            _write_range(scratch, fill, out, start_word, number, words)
        done += ranges
    for start_word, number in done:
        _write_range(scratch, again, out, start_word, number, words)
    for start_word, number in done:
        for first, got in scratch.read(out, number, start_word):
            indices = count_from(first, len(got))
            expected = scatter(indices) + scatter(np.uint32(words - 1) - indices)
            if fault := difference(got, expected, first):
                return fault
    return None


def _write_range(
    scratch: ScratchSpace, program: Program, out: BufferBlock, first: int, count: int, words: int
) -> None:
    """Run `program`, which writes `count` of the `words` words of `out` from `first` on."""
    values = {"first": first, "count": count, "words": words}
    scratch.dispatch(program, (-(-count // GROUP_SIZE), 1, 1), [out], values)


def compute_uniforms(scratch: ScratchSpace, count: int) -> str | None:
    """Test `count` numbers of uniforms, all in one array."""
    numbers = scatter(count_from(0, count))
    program = scratch.compute(OUT + COMPUTE_UNIFORMS % (GROUP_SIZE, count // 4, count, GROUP_SIZE))
    out = scratch.memory(count)
    scratch.dispatch(program, (1, 1, 1), [out], {"given": tuple(map(int, numbers))})
    return _memory_difference(scratch, out, lambda first, n: numbers[first : first + n], count)


def alignment(scratch: ScratchSpace, nbytes: int) -> str | None:
    """Test a storage block that begins at an offset of `nbytes` in a buffer."""
    count = 16
    program = scratch.compute(OUT + READ % count)
    out, numbers = scratch.memory(count), scatter(count_from(0, nbytes // 4 + count))
    source = scratch.memory(len(numbers), numbers)
    out.copy.bind_to_storage_buffer(0, 0, out.nbytes)
    source.copy.bind_to_storage_buffer(1, nbytes, 4 * count)
    scratch.run(program, (1, 1, 1), {})
    return _memory_difference(
        scratch, out, lambda first, n: numbers[nbytes // 4 :][first : first + n], count
    )


def _memory_difference(
    scratch: ScratchSpace,
    out: BufferBlock,
    expected: Callable[[int, int], Words],
    words: int | None = None,
) -> str | None:
    """Describe the first difference of `out` from `expected`, a function of a first index and a
    count.
    """
    for first, got in scratch.read(out, out.size if words is None else words):
        if fault := difference(got, expected(first, len(got)), first):
            missing = int(np.count_nonzero(got == POISON))
            return f"{fault}; {missing} were never written" if missing else fault
    return None


CAPTURE = """out highp vec4 result[%d];
uniform int first;
void main() {
    uint place = uint(first + gl_VertexID) * %du;
%s}
"""
FETCH = """uniform highp %s data;
uniform int first;
out highp float result;
void main() { result = texelFetch(data, %s).x; }
"""
VERTEX_UNIFORMS = """uniform highp ivec4 given[%d];
uniform int first;
out highp float result;
void main() {
    int i = first + gl_VertexID;
    result = float(given[i >> 2][i & 3]);
}
"""
NEAR = 8  # texels on either side of a power of two
VERTICES = 65


def captured_components(scratch: ScratchSpace, count: int) -> str | None:
    """Test a vertex shader that captures `count` numbers."""
    lines = ""
    for i in range(count // 4):
        numbers = ", ".join(f"scatter(place + {4 * i + k}u)" for k in range(4))
        lines += f"    result[{i}] = vec4({numbers});\n"
    program = scratch.feedback(CAPTURE % (count // 4, count, lines))
    got = scratch.capture(program, VERTICES)
    return difference(got, floats(scatter(count_from(0, VERTICES * count))))


def vertex_uniforms(scratch: ScratchSpace, count: int) -> str | None:
    """Test `count` numbers of uniforms: one is the beginning of the draw, the others are an
    array.
    """
    count = (count - 4) // 4 * 4
    numbers = scatter(count_from(0, count))
    program = scratch.feedback(VERTEX_UNIFORMS % (count // 4))
    got = scratch.capture(program, count, {"given": tuple(map(int, numbers))})
    return difference(got, floats(numbers))


def texture_units(scratch: ScratchSpace, count: int) -> str | None:
    """Test `count` textures that one vertex shader fetches from."""
    numbers = scatter(count_from(1, count))
    textures = [scratch.plane((1, 1), numbers[i : i + 1]) for i in range(count)]
    body = "".join(f"uniform highp sampler2D data{i};\n" for i in range(count))
    body += "uniform int first;\nout highp float result;\nvoid main() {\n    result = -1.0;\n"
    for i in range(count):
        body += f"    if (first + gl_VertexID == {i}) "
        body += f"result = texelFetch(data{i}, ivec2(0), 0).x;\n"
    program = scratch.feedback(body + "}\n")
    for unit, texture in enumerate(textures):
        texture.use(unit)
    return difference(scratch.capture(program, count, _units(count)), floats(numbers))


def _units(count: int) -> dict[str, int]:
    return {f"data{i}": i for i in range(count)}


def texture_size(scratch: ScratchSpace, side: int) -> str | None:
    """Test a texture `side` pixels wide, and one `side` pixels high."""
    for size, index in (((side, 1), "ivec2(i, 0)"), ((1, side), "ivec2(0, i)")):
        if fault := _texture(scratch, size, "sampler2D", index):
            return f"a texture of {size[0]} x {size[1]}: {fault}"
    return None


def texture_layers(scratch: ScratchSpace, count: int) -> str | None:
    """Test a texture of `count` layers."""
    return _texture(scratch, (1, 1, count), "sampler2DArray", "ivec3(0, 0, i)")


def _texture(scratch: ScratchSpace, size: tuple[int, ...], sampler: str, index: str) -> str | None:
    numbers = scatter(count_from(0, max(size)))
    texel = index.replace("i)", "first + gl_VertexID)").replace("(i,", "(first + gl_VertexID,")
    program = scratch.feedback(FETCH % (sampler, f"{texel}, 0"))
    texture = scratch.plane(size, numbers)
    texture.use(0)
    return difference(scratch.capture(program, max(size), {"data": 0}), floats(numbers))


def buffer_texels(scratch: ScratchSpace, count: int) -> str | None:
    """Test a buffer texture of `count` texels: its ends, and the indices near powers of two.

    There a driver's index, of a texel or of a byte, wraps where it has too few bits.
    """
    memory = scratch.memory(count, np.zeros(1, np.uint32))
    ranges = list(_ranges(count))
    for first, number in ranges:
        content = floats(scatter(count_from(first, number)))
        scratch.device.write_buffer(memory.copy, content, 4 * first)
    texture = DataTexture(scratch.device, count, "r32f", "samplerBuffer")
    texture.copy_from(memory.copy)
    texture.bind(0)
    program = scratch.feedback(
        FETCH.replace("uniform int first", "uniform int first, start")
        % ("samplerBuffer", "start + first + gl_VertexID")
    )
    for first, number in ranges:
        got = scratch.capture(program, number, {"data": 0, "start": first})
        if fault := difference(got, floats(scatter(count_from(first, number))), first):
            return fault
    return None


def _ranges(count: int) -> list[tuple[int, int]]:
    """Return the ranges of indices to test among `count`: first index and length."""
    ends = [(0, min(DRAWN, count)), (max(count - DRAWN, 0), min(DRAWN, count))]
    powers = (1 << n for n in range(DRAWN.bit_length(), count.bit_length()))
    near = [(power - NEAR, min(2 * NEAR, count - power + NEAR)) for power in powers]
    return [*ends, *(one for one in near if one[1] > 0)]
