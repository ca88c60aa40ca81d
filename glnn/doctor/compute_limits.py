"""Limits of compute shaders, each used to its end: every number is compared.

Each function gives why so much cannot be had, None where it can, or raises GlnnError.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from glnn.core.glsl import expanded, shaders_folder
from glnn.doctor.scratch_program import POISON, ScratchSpace, Words, count_from, difference, scatter
from glnn.gl import Program, SharedMemory

WALKED, END = 1 << 20, 64  # words that a dispatch writes, and at the ends of such a piece
WALKING = 64  # invocations of such a workgroup
OUT = "layout(std430, binding = 0) buffer Out { uint result[]; };\n"
SHARED = """layout(local_size_x = %d, local_size_y = %d, local_size_z = %d) in;
shared uint kept[%d];
const uint COUNT = %du, STEP = %du;
void main() {
    uint seed = COUNT * gl_WorkGroupID.x;
    for (uint i = gl_LocalInvocationIndex; i < COUNT; i += STEP) kept[i] = scatter(seed + i);
    wait();
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
UNIFORMS = """layout(local_size_x = %d) in;
uniform ivec4 given[%d];
void main() {
    for (uint i = gl_LocalInvocationIndex; i < %du; i += %du)
        result[i] = uint(given[i >> 2][i & 3u]);
}
"""
GROUPS = 3


def invocations(ground: ScratchSpace, count: int) -> str | None:
    """Test workgroups of `count` invocations, which exchange numbers."""
    offers = ground.device.capabilities
    shape, left = [], count
    for most in offers.max_compute_work_group_size:
        shape.append(next(n for n in range(min(left, most), 0, -1) if left % n == 0))
        left //= shape[-1]
    return _check_shared(ground, (shape[0], shape[1], shape[2]), count)


def shared_memory(ground: ScratchSpace, nbytes: int) -> str | None:
    """Test workgroups that fill `nbytes` of shared memory, and read them."""
    most = ground.device.capabilities.max_compute_work_group_size[0]
    return _check_shared(ground, (min(WALKING, most), 1, 1), nbytes // 4)


def _check_shared(ground: ScratchSpace, shape: tuple[int, int, int], words: int) -> str | None:
    x, y, z = shape
    step = x * y * z
    wait = expanded(shaders_folder() / "common" / "wait.glsl")  # as kernels do
    program = ground.compute(OUT + wait + SHARED % (x, y, z, words, words, step))
    out = ground.memory(GROUPS * words)
    ground.dispatch(program, (GROUPS, 1, 1), [out])
    expected = scatter(count_from(0, GROUPS * words)).reshape(GROUPS, words)[:, ::-1]
    return _difference(ground, out, lambda first, n: expected.reshape(-1)[first : first + n])


def size_along(axis: int) -> Callable[[ScratchSpace, int], str | None]:
    """Return the test of workgroups that are long along `axis`."""

    def work(ground: ScratchSpace, count: int) -> str | None:
        shape = tuple(count if i == axis else 1 for i in range(3))
        program = ground.compute(OUT + SIZE % (*shape, "xyz"[axis]))
        out = ground.memory(count)
        ground.dispatch(program, (1, 1, 1), [out])
        return _difference(ground, out, lambda first, n: scatter(count_from(first, n)), count)

    return work


def count_along(axis: int) -> Callable[[ScratchSpace, int], str | None]:
    """Return the test of many workgroups along `axis`."""

    def work(ground: ScratchSpace, count: int) -> str | None:
        name = "xyz"[axis]
        program = ground.compute(OUT + COUNTED % (name, name))
        out = ground.memory(count)
        x, y, z = (count if i == axis else 1 for i in range(3))
        ground.dispatch(program, (x, y, z), [out])
        return _difference(ground, out, lambda first, n: scatter(count_from(first, n)), count)

    return work


def blocks(ground: ScratchSpace, count: int) -> str | None:
    """Test a shader of `count` storage blocks, each with a buffer of its own."""
    ins = count - 1
    body = OUT + "layout(local_size_x = 1) in;\n"
    for i in range(ins):
        body += f"layout(std430, binding = {i + 1}) readonly buffer In{i} {{ uint given{i}[]; }};\n"
    reads = "".join(f"    result[{i}] = given{i}[1];\n" for i in range(ins))
    program = ground.compute(f"{body}void main() {{\n    result[{ins}] = 1u;\n{reads}}}\n")
    numbers = np.append(scatter(count_from(0, ins)), 1).astype(np.uint32)
    given = [ground.memory(64, np.full(64, number, np.uint32)) for number in numbers[:-1]]
    out = ground.memory(count)
    ground.dispatch(program, (1, 1, 1), [out, *given])
    return _difference(ground, out, lambda first, n: numbers[first : first + n], count)


def block_size(ground: ScratchSpace, nbytes: int) -> str | None:
    """Test a storage block of `nbytes`: every word is written, read and written again.

    Where that takes long, only the ends of most pieces are, which is noted.
    """
    words = nbytes // 4
    fill, again = (ground.compute(OUT + FILL % (WALKING, how)) for how in (FIRST, SECOND))
    out, start = ground.memory(words), perf_counter()
    done: list[tuple[int, int]] = []
    for first in range(0, words, WALKED):
        count = min(WALKED, words - first)
        ranges = [(first, count)]
        if first and perf_counter() - start > ground.patience and count > 2 * END:
            ranges = [(first, END), (first + count - END, END)]
            ground.note = f"of most of it only the ends of every {4 * WALKED >> 20} MiB were seen"
        for place, number in ranges:
            _walk(ground, fill, out, place, number, words)
        done += ranges
    for place, number in done:
        _walk(ground, again, out, place, number, words)
    for place, number in done:
        for first, got in ground.read(out, number, place):
            places = count_from(first, len(got))
            expected = scatter(places) + scatter(np.uint32(words - 1) - places)
            if fault := difference(got, expected, first):
                return fault
    return None


def _walk(
    ground: ScratchSpace, program: Program, out: SharedMemory, first: int, count: int, words: int
) -> None:
    """Let `program` write `count` of all `words` of `out`, from the `first` on."""
    values = {"first": first, "count": count, "words": words}
    ground.dispatch(program, (-(-count // WALKING), 1, 1), [out], values)


def uniforms(ground: ScratchSpace, count: int) -> str | None:
    """Test `count` numbers of uniforms, all in one array."""
    numbers = scatter(count_from(0, count))
    program = ground.compute(OUT + UNIFORMS % (WALKING, count // 4, count, WALKING))
    out = ground.memory(count)
    ground.dispatch(program, (1, 1, 1), [out], {"given": tuple(map(int, numbers))})
    return _difference(ground, out, lambda first, n: numbers[first : first + n], count)


def alignment(ground: ScratchSpace, nbytes: int) -> str | None:
    """Test a storage block that begins `nbytes` behind the beginning of a buffer."""
    count = 16
    program = ground.compute(OUT + READ % count)
    out, numbers = ground.memory(count), scatter(count_from(0, nbytes // 4 + count))
    given = ground.memory(len(numbers), numbers)
    out.copy.bind_to_storage_buffer(0, 0, out.nbytes)
    given.copy.bind_to_storage_buffer(1, nbytes, 4 * count)
    ground.ran(program, (1, 1, 1), {})
    return _difference(
        ground, out, lambda first, n: numbers[nbytes // 4 :][first : first + n], count
    )


def _difference(
    ground: ScratchSpace,
    out: SharedMemory,
    expected: Callable[[int, int], Words],
    words: int | None = None,
) -> str | None:
    """Describe the first difference of `out` from `expected`, a function of a first index and a
    count.
    """
    for first, got in ground.read(out, out.size if words is None else words):
        if fault := difference(got, expected(first, len(got)), first):
            missing = int(np.count_nonzero(got == POISON))
            return f"{fault}; {missing} were never written" if missing else fault
    return None
