"""The limits that kernels rely on, and how each is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from glnn.device import Capabilities
from glnn.device.capabilities import MINIMUM
from glnn.doctor import compute_limits, feedback_limits
from glnn.doctor.ground import Ground

GROUPS = 1 << 21
"""Workgroups that are tried unless all is asked for: more take software renderers seconds."""
UNIFORMS = 4096
"""Numbers of uniforms that are tried: kernels have a hundred at the most."""
NAMES = "xyz"

Try = Callable[[Ground, int], "str | None"]


@dataclass(frozen=True)
class Probe:
    """How one limit is tried."""

    limit: str
    """GL's name, as `Capabilities` has it."""
    what: str
    """The same for people."""
    work: Try
    """Why so much cannot be had; None where it can."""
    axis: int | None = None
    """Which of three numbers it is; None where there is one."""
    grain: int = 1
    """What is tried is a multiple of this."""
    nbytes: float = 0.0
    """Bytes that each one takes."""
    most: int | None = None
    """The most that is tried, whatever is stated, unless all is asked for."""
    compute: bool = True
    """Whether it takes compute shaders, else transform feedback."""

    def number(self, offers: Capabilities) -> int:
        """What `offers` states."""
        known = getattr(offers, self.limit)
        return int(known if self.axis is None else known[self.axis])

    @property
    def guaranteed(self) -> int:
        """What OpenGL ES 3.1 guarantees; 0 where that is nothing."""
        known = MINIMUM.get(self.limit, 0)
        if isinstance(known, tuple):
            return known[self.axis or 0]
        return known


def probes() -> tuple[Probe, ...]:
    """All limits that are tried."""
    return (*_of_compute(), *_of_feedback())


def _of_compute() -> Iterator[Probe]:
    of, size = compute_limits, "max_compute_work_group_size"
    name, what = "max_compute_work_group_invocations", "invocations of a workgroup"
    yield Probe(name, what, of.invocations, grain=32)
    for i in range(3):
        yield Probe(size, f"{what} along {NAMES[i]}", of.size_along(i), i)
    name, what = "max_compute_shared_memory_size", "bytes of shared memory"
    yield Probe(name, what, of.shared_memory, grain=1024)
    name, what = "max_compute_shader_storage_blocks", "storage blocks of a shader"
    yield Probe(name, what, of.blocks, most=64)
    what = "bytes from one beginning of a storage block to the next"
    yield Probe("shader_storage_buffer_offset_alignment", what, of.alignment)
    name, what = "max_compute_uniform_components", "numbers of uniforms of a compute shader"
    yield Probe(name, what, of.uniforms, grain=4, most=UNIFORMS)
    name = "max_compute_work_group_count"
    for i in range(3):
        what = f"workgroups along {NAMES[i]}"
        yield Probe(name, what, of.count_along(i), i, nbytes=4, most=GROUPS)
    name, what = "max_shader_storage_block_size", "bytes of a storage block"
    yield Probe(name, what, of.block_size, grain=1 << 16, nbytes=1)


def _of_feedback() -> Iterator[Probe]:
    of, wide = feedback_limits, 1 << 16
    rows: tuple[tuple[str, str, Try, int, int, int | None], ...] = (
        (
            "max_transform_feedback_interleaved_components",
            "captured numbers of a vertex",
            of.components,
            4,
            0,
            256,
        ),
        (
            "max_vertex_texture_image_units",
            "textures of a vertex shader",
            of.units,
            1,
            0,
            64,
        ),
        (
            "max_vertex_uniform_components",
            "numbers of uniforms of a vertex shader",
            of.uniforms,
            4,
            0,
            UNIFORMS,
        ),
        ("max_texture_size", "texels along a side of a texture", of.texture_size, 64, 0, wide),
        ("max_array_texture_layers", "layers of a texture", of.layers, 16, 0, wide),
        (
            "max_texture_buffer_size",
            "texels of a texture that is a buffer",
            of.buffer_texels,
            1024,
            4,
            None,
        ),
    )
    for name, what, work, grain, nbytes, most in rows:
        yield Probe(name, what, work, None, grain, nbytes, most, compute=False)
