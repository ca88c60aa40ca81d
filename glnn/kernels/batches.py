"""Splitting of a batch of samples that the device cannot compute in one dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, lcm

from glnn.gl import Capabilities
from glnn.graph.operator import Shapes
from glnn.kernels.kernel import Kernel
from glnn.kernels.split import Part, Split
from glnn.layout import Layout
from glnn.layout.layout import Blocked, RowMajor
from glnn.types import TensorType

Sizes = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True)
class Batches(Split):
    """A batch of `n` samples, `count` of them in each part.

    nbytes: bytes of one sample of each operand with a batch dimension. whole: words of each whole
    operand. sizes: function that gives the uniforms and sizes for a count of samples.
    """

    n: int
    count: int
    nbytes: Mapping[str, int]
    whole: Mapping[str, int]
    sizes: Sizes

    @staticmethod
    def batches(
        kernel: Kernel,
        inputs: tuple[str, ...],
        types: Mapping[str, TensorType],
        layouts: Mapping[str, Layout],
        sizes: Sizes,
        device: Capabilities,
    ) -> Batches | None:
        """Return the parts that `device` needs; None where none are needed or no cut helps.

        inputs: the operands with a batch dimension. types: the type of each operand and of `out`.
        No part exceeds a storage block or the workgroups of a dispatch, and each begins at a
        multiple of the storage buffers' offset alignment.
        """
        shapes = {name: one.shape for name, one in types.items()}
        if any(len(shapes[name]) < 2 for name in (*inputs, "out")):
            return None
        most = device.max_shader_storage_block_size // 4
        whole = {name: layouts[name].words(one) for name, one in types.items() if name in layouts}
        n = shapes["out"][0]
        nbytes = {
            name: _apart(layouts[name], types[name])
            for name in (*inputs, "out")
            if shapes[name][0] == n
        }
        if n < 2 or not all(nbytes.values()):
            return None
        if all(size <= most for size in whole.values()) and _may(kernel, sizes(n), device):
            return None
        if any(size > most for name, size in whole.items() if name not in nbytes):
            return None
        align = max(device.shader_storage_buffer_offset_alignment, 16)
        unit = lcm(*(align // gcd(align, size) for size in nbytes.values()))
        count = min(4 * most // max(nbytes.values()), n) // unit * unit
        while count and not _may(kernel, sizes(count), device):
            count = count // 2 // unit * unit
        return Batches(None, n, count, nbytes, whole, sizes) if count else None

    @property
    def counts(self) -> set[int]:
        """The distinct numbers of samples of the parts."""
        return {self.count, self.n % self.count or self.count}

    def parts(self, operands: Shapes) -> Iterator[Part]:
        for first in range(0, self.n, self.count):
            count = min(self.count, self.n - first)
            ranges = {name: (0, size) for name, size in self.whole.items()}
            for name, size in self.nbytes.items():
                begin, end = first * size // 4, (first + count) * size
                end = min(-(-end // 16) * 4, self.whole[name])  # shaders see whole vec4
                ranges[name] = begin, end - begin
            yield Part(ranges, dict(self.sizes(count)))


def _apart(layout: Layout, type: TensorType) -> int:
    """Return the bytes from one sample to the next; 0 where samples are not contiguous."""
    size = layout.number(type.dtype).itemsize
    if isinstance(layout, RowMajor):
        return size * layout.row(type.shape)
    if isinstance(layout, Blocked) and layout.order[0] == "n":
        return size * layout.size((1, *type.shape[1:]))
    return 0


def _may(kernel: Kernel, sizes: Mapping[str, int], device: Capabilities) -> bool:
    """Return True where the device allows the workgroups for `sizes`."""
    limits = device.max_compute_work_group_count
    bounded = kernel.launch.groups(sizes, kernel.defaults)[: kernel.launch.bounded]
    return all(count <= limit for count, limit in zip(bounded, limits, strict=False))
