"""A batch of samples in parts, where the device cannot compute it in one dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, lcm

from glnn.device import Capabilities
from glnn.graph.operator import Shapes
from glnn.kernels.kernel import Kernel
from glnn.kernels.split import Part, Split
from glnn.layout import Layout
from glnn.layout.layout import Blocked, RowMajor

Sizes = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True)
class Batches(Split):
    """`n` samples, `count` of them at a time.

    floats: of one sample of each operand that has samples. whole: of each operand as it is.
    sizes: the uniforms and sizes of so many samples.
    """

    n: int
    count: int
    floats: Mapping[str, int]
    whole: Mapping[str, int]
    sizes: Sizes

    @staticmethod
    def batches(
        kernel: Kernel,
        inputs: tuple[str, ...],
        shapes: Shapes,
        layouts: Mapping[str, Layout],
        sizes: Sizes,
        device: Capabilities,
    ) -> Batches | None:
        """The parts that `device` needs; None where nothing is too much or no cut helps.

        inputs: the operands that have samples. shapes: of each operand and `out`. No part exceeds
        a storage block or the workgroups that may be dispatched, and each begins where a storage
        buffer may be bound.
        """
        if any(len(shapes[name]) < 2 for name in (*inputs, "out")):
            return None
        most = device.max_shader_storage_block_size // 4
        whole = {name: layouts[name].size(shape) for name, shape in shapes.items()}
        n = shapes["out"][0]
        floats = {
            name: layouts[name].size((1, *shapes[name][1:]))
            for name in (*inputs, "out")
            if shapes[name][0] == n
        }
        if n < 2 or not all(_apart(layouts[name]) for name in floats):
            return None
        if any(n * size != whole[name] for name, size in floats.items()):
            return None
        if all(size <= most for size in whole.values()) and _may(kernel, sizes(n), device):
            return None
        if any(size > most for name, size in whole.items() if name not in floats):
            return None
        align = max(device.shader_storage_buffer_offset_alignment // 4, 1)
        unit = lcm(*(align // gcd(align, size) for size in floats.values() if size))
        count = min(most // max(floats.values()), n) // unit * unit
        while count and not _may(kernel, sizes(count), device):
            count = count // 2 // unit * unit
        return Batches(None, n, count, floats, whole, sizes) if count else None

    def parts(self, operands: Shapes) -> Iterator[Part]:
        for first in range(0, self.n, self.count):
            count = min(self.count, self.n - first)
            ranges = {
                name: (first * self.floats[name], count * self.floats[name])
                if name in self.floats
                else (0, size)
                for name, size in self.whole.items()
            }
            yield Part(ranges, dict(self.sizes(count)))


def _apart(layout: Layout) -> bool:
    """Whether samples lie one after the other."""
    return isinstance(layout, RowMajor) or (isinstance(layout, Blocked) and layout.order[0] == "n")


def _may(kernel: Kernel, sizes: Mapping[str, int], device: Capabilities) -> bool:
    """Whether the workgroups for `sizes` may be dispatched."""
    limits = device.max_compute_work_group_count
    bounded = kernel.launch.groups(sizes, kernel.defaults)[: kernel.launch.bounded]
    return all(count <= limit for count, limit in zip(bounded, limits, strict=False))
