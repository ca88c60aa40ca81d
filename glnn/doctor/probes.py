"""The limits that kernels rely on, and how each is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glnn.device import Capabilities
from glnn.device.capabilities import MINIMUM
from glnn.doctor import compute_limits, feedback_limits
from glnn.doctor.ground import Ground

GROUPS = 1 << 21
"""Workgroups that are tried unless all is asked for: more take software renderers seconds."""
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
    of = compute_limits
    sizes = [
        Probe(
            "max_compute_work_group_size",
            f"invocations of a workgroup along {NAMES[axis]}",
            of.size_along(axis),
            axis,
        )
        for axis in range(3)
    ]
    counts = [
        Probe(
            "max_compute_work_group_count",
            f"workgroups along {NAMES[axis]}",
            of.count_along(axis),
            axis,
            nbytes=4,
            most=GROUPS,
        )
        for axis in range(3)
    ]
    vertex, wide = feedback_limits, 1 << 16
    return (
        Probe(
            "max_compute_work_group_invocations",
            "invocations of a workgroup",
            of.invocations,
            grain=32,
        ),
        *sizes,
        Probe(
            "max_compute_shared_memory_size", "bytes of shared memory", of.shared_memory, grain=1024
        ),
        Probe(
            "max_compute_shader_storage_blocks", "storage blocks of a shader", of.blocks, most=64
        ),
        Probe(
            "shader_storage_buffer_offset_alignment",
            "bytes from one beginning of a storage block to the next",
            of.alignment,
        ),
        *counts,
        Probe(
            "max_shader_storage_block_size",
            "bytes of a storage block",
            of.block_size,
            grain=1 << 16,
            nbytes=1,
        ),
        Probe(
            "max_transform_feedback_interleaved_components",
            "captured numbers of a vertex",
            vertex.components,
            grain=4,
            most=256,
            compute=False,
        ),
        Probe(
            "max_vertex_texture_image_units",
            "textures of a vertex shader",
            vertex.units,
            most=64,
            compute=False,
        ),
        Probe(
            "max_texture_size",
            "texels along a side of a texture",
            vertex.texture_size,
            grain=64,
            most=wide,
            compute=False,
        ),
        Probe(
            "max_array_texture_layers",
            "layers of a texture",
            vertex.layers,
            grain=16,
            most=wide,
            compute=False,
        ),
        Probe(
            "max_texture_buffer_size",
            "texels of a texture that is a buffer",
            vertex.buffer_texels,
            grain=1024,
            nbytes=4,
            compute=False,
        ),
    )
