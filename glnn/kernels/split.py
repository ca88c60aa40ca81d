"""A matrix product in parts, where its operands are larger than a storage block may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from glnn.device import Capabilities
from glnn.kernels.kernel import Kernel
from glnn.layout import Layout, Morton, parse
from glnn.layout.half import SUFFIX, Half
from glnn.layout.layout import RowMajor
from glnn.ops.matmul import Matmul
from glnn.ops.op import Op, Shape, Shapes


@dataclass(frozen=True)
class Part:
    """Some rows of x by some rows of the weights.

    ranges: for each operand and `out`, the first float and how many follow. sizes: the uniforms
    in which it differs from the whole.
    """

    ranges: dict[str, tuple[int, int]]
    sizes: dict[str, int]


@dataclass(frozen=True)
class Split:
    """How x (m, k) by weight (n, k) is cut: `rows` of x and of the result by `columns` of it.

    weight: the layout of the weights, whose parts follow each other.
    """

    m: int
    n: int
    k: int
    rows: int
    columns: int
    x_row: int
    out_row: int
    weight: Layout

    @classmethod
    def of(
        cls, kernel: Kernel, op: Op, shapes: Shapes, output: Shape, device: Capabilities
    ) -> Split | None:
        """The split that `device` needs; None where nothing is too large or no split helps.

        Parts begin where a storage buffer may be bound, at multiples of the offset alignment.
        """
        plain = kernel.layouts["out"] == "R" and kernel.layouts.get("x") in ("R", "R" + SUFFIX)
        if not isinstance(op, Matmul) or kernel.backend != "compute" or not plain:
            return None
        if kernel.textures or len(shapes["weight"]) != 2:
            return None
        most = device.max_shader_storage_block_size // 4
        given = {name: parse(kernel.layouts[name]) for name in ("x", "weight", "out")}
        sized = {"x": shapes["x"], "weight": shapes["weight"], "out": output}
        if all(given[name].size(shape) <= most for name, shape in sized.items()):
            return None
        (m, k), n = shapes["x"], shapes["weight"][0]
        align = max(device.shader_storage_buffer_offset_alignment // 4, 4)
        x_row, out_row = given["x"].size((1, k)), given["out"].size((1, n))
        weight_row = given["weight"].size((align, k)) // align
        columns = _share(n, min(most // weight_row, most), align)
        unit = max(align // gcd(align, row) for row in (x_row, out_row))
        fit = min(most // x_row, (most - columns) // out_row + 1) if columns else 0
        rows = _share(m, fit, unit)
        if not rows or not columns:
            return None
        weight = _in_parts(given["weight"], columns, k) if columns < n else given["weight"]
        return cls(m, n, k, rows, columns, x_row, out_row, weight)

    def parts(self, operands: Shapes) -> Iterator[Part]:
        """The parts, row by row."""
        row = self.weight.size((self.columns, self.k)) // self.columns
        for top in range(0, self.m, self.rows):
            m = min(self.rows, self.m - top)
            for left in range(0, self.n, self.columns):
                n = min(self.columns, self.n - left)
                wide = -(-n // 4) * 4
                result = top * self.out_row + left, (m - 1) * self.out_row + wide
                ranges = {
                    "x": (top * self.x_row, m * self.x_row),
                    "weight": (left * row, self._stored(n)),
                    "out": result,
                    "bias": (left, wide),
                    "c": result,
                }
                kept = {name: r for name, r in ranges.items() if name in (*operands, "out")}
                sizes = {"m": m, "n": n}
                if not isinstance(self.weight, RowMajor) and self.columns < self.n:
                    sizes |= {"weight_rows": self.columns}
                yield Part(kept, sizes)

    def _stored(self, n: int) -> int:
        """Floats of a part of n weights."""
        return self.weight.size((n, self.k))


def _share(count: int, most: int, unit: int) -> int:
    """The size of the fewest equal shares of `count`, multiples of `unit` of at most `most`.

    0 where not even one unit fits.
    """
    if count <= most:
        return count
    most = most // unit * unit
    if not most:
        return 0
    shares = -(-count // most)
    return -(-count // (shares * unit)) * unit


def _in_parts(layout: Layout, columns: int, k: int) -> Layout:
    """`layout` with every `columns` weights by themselves: one more level of Morton order."""
    if isinstance(layout, Half):
        return Half(_in_parts(layout.inner, columns, k))
    if not isinstance(layout, Morton):
        return layout
    _, wide = layout.padded((columns, k))
    return parse(f"R {columns} {wide} {layout.name}")
