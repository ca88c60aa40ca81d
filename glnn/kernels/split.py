"""Splitting of an op that the device cannot compute in one dispatch, by matrices or by samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, lcm, prod

from glnn.core.layout import Layout, Morton, narrowed, parse
from glnn.core.layout.layout import Blocked, RowMajor
from glnn.core.layout.parse import NARROW
from glnn.core.types import DType, TensorType
from glnn.gl import Capabilities
from glnn.graph.epilogue import Extent
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.matmul import Matmul
from glnn.kernels.kernel import Kernel

ONE = 0, 4  # words of an operand of one number


@dataclass(frozen=True)
class Stored:
    """The layout and the element type of an operand in memory."""

    layout: Layout
    dtype: DType

    @classmethod
    def create(cls, op: Operator, name: str, layout: str, type: TensorType) -> Stored:
        """Return the storage of the operand `name` of `op`, of this `type`, in the named layout."""
        packed = name in op.int8_operands and type.dtype is DType.int8
        return cls(narrowed(parse(layout)) if packed else parse(layout), type.dtype)

    @property
    def in_word(self) -> int:
        """The count of numbers in a 32-bit word."""
        return 4 // self.layout.number(self.dtype).itemsize

    def words(self, *shape: int) -> int:
        """Return the 32-bit words that an operand of `shape` takes."""
        return self.layout.words(TensorType(shape, self.dtype))


@dataclass(frozen=True)
class Part:
    """A part of a product: some rows of x by some rows of the weights, or some batch entries.

    ranges: the first word and the count of words of each operand and `out`. sizes: the uniforms
    and sizes in which the part differs from the whole.
    """

    ranges: dict[str, tuple[int, int]]
    sizes: dict[str, int]


@dataclass(frozen=True)
class OpSplit(ABC):
    """A cut of an op into parts. weight: the layout of the weights if these are stored by part."""

    weight: Layout | None

    @abstractmethod
    def parts(self, operands: Shapes) -> Iterator[Part]:
        """Yield the parts in the order of the result."""

    @staticmethod
    def plan(
        kernel: Kernel,
        op: Operator,
        types: Mapping[str, TensorType],
        device: Capabilities,
        extents: Mapping[str, Extent],
    ) -> OpSplit | None:
        """Return the split that `device` needs; None where none is needed or none helps.

        types: the type of each operand and of `out`. extents: the broadcast extents of the
        epilogue's operands. No part exceeds a storage block or the workgroups of a dispatch, and
        each begins at a multiple of the storage buffers' offset alignment. Float16 results are not
        split.
        """
        takes = {name: kernel.wants(name) for name in ("x", "weight", "out")}
        plain = takes["out"][:1] == takes["x"][:1] == ("R4",)
        if not isinstance(op, Matmul) or kernel.backend != "compute" or not plain:
            return None
        if op.prologue is not None:  # which counts rows of the whole
            return None
        if any(types[name].dtype is DType.float16 for name in ("out", *extents)):
            return None
        shapes = {name: one.shape for name, one in types.items()}
        counted = {**kernel.defaults, **op.sizes(shapes)}
        if kernel.textures or not set(kernel.launch.sizes) <= set(counted):
            return None
        most = device.max_shader_storage_block_size // 4
        each = [(n, Stored.create(op, n, text, types[n])) for n in takes for text in takes[n]]
        layouts = dict(reversed(each))  # as is wanted the most, though it may lie otherwise by now
        limits = {name: _dispatched(kernel, name, counted, device) for name in ("m", "n", "batch")}
        small = all(one.words(*shapes[name]) <= most for name, one in each)
        if small and all(counted[name] <= limit for name, limit in limits.items()):
            return None
        align = max(device.shader_storage_buffer_offset_alignment // 4, 4)
        make = _stack if op.stacks(shapes) else _tiles
        return make(layouts, counted, limits, most, align, extents)


@dataclass(frozen=True)
class Stack(OpSplit):
    """A batched product of `batch` matrices, `count` of them in each part.

    matrices: the words of one matrix of each operand. extents: broadcast extents of the epilogue's
    operands.
    """

    batch: int
    count: int
    n: int
    matrices: dict[str, int]
    extents: Mapping[str, Extent]

    def parts(self, operands: Shapes) -> Iterator[Part]:
        for first in range(0, self.batch, self.count):
            count = min(self.count, self.batch - first)
            ranges = {k: (first * floats, count * floats) for k, floats in self.matrices.items()}
            by_extent = {"full": ranges["out"], "channel": (0, -(-self.n // 4) * 4), "one": ONE}
            ranges |= {name: by_extent[extent] for name, extent in self.extents.items()}
            yield Part(ranges, {"batch": count})


@dataclass(frozen=True)
class Tiles(OpSplit):
    """A product of x (m, k) and weight (n, k), in tiles of `rows` x `columns` of the result.

    dtype: the type of the weights. x_row, out_row: the words of a row of x and of the result.
    """

    weight: Layout
    dtype: DType
    m: int
    n: int
    k: int
    rows: int
    columns: int
    x_row: int
    out_row: int
    extents: Mapping[str, Extent]

    def parts(self, operands: Shapes) -> Iterator[Part]:
        whole = self._stored(self.columns)
        for top in range(0, self.m, self.rows):
            m = min(self.rows, self.m - top)
            for left in range(0, self.n, self.columns):
                n = min(self.columns, self.n - left)
                wide = -(-n // 4) * 4
                result = top * self.out_row + left, (m - 1) * self.out_row + wide
                by_extent = {"full": result, "channel": (left, wide), "one": ONE}
                ranges = {
                    "x": (top * self.x_row, m * self.x_row),
                    "weight": (left // self.columns * whole, self._stored(n)),
                    "out": result,
                    **{name: by_extent[extent] for name, extent in self.extents.items()},
                }
                sizes = {"m": m, "n": n}
                if not isinstance(self.weight, RowMajor) and self.columns < self.n:
                    sizes |= {"weight_rows": self.columns}
                yield Part(ranges, sizes)

    def _stored(self, n: int) -> int:
        """Return the words of a part with n rows of the weights."""
        return Stored(self.weight, self.dtype).words(n, self.k)


def _stack(
    storage: dict[str, Stored],
    sizes: dict[str, int],
    limits: dict[str, int],
    most: int,
    align: int,
    extents: Mapping[str, Extent],
) -> Stack | None:
    """Return the split of a batched product; None where a single matrix is too large already."""
    m, n, k, batch = (sizes[name] for name in ("m", "n", "k", "batch"))
    matrices = {
        "x": storage["x"].words(m, k),
        "weight": storage["weight"].words(1, n, k),
        "out": storage["out"].words(m, n),
    }
    if m > limits["m"] or n > limits["n"]:
        return None
    unit = lcm(*(align // gcd(align, floats) for floats in matrices.values()))
    fit = min(limits["batch"], *(most // max(floats, 1) for floats in matrices.values()))
    count = _share(batch, fit, unit)
    return Stack(storage["weight"].layout, batch, count, n, matrices, extents) if count else None


def _tiles(
    storage: dict[str, Stored],
    sizes: dict[str, int],
    limits: dict[str, int],
    most: int,
    align: int,
    extents: Mapping[str, Extent],
) -> Tiles | None:
    """Return the split of a single product. extents: those of the epilogue's operands."""
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    stored = storage["weight"]
    x_row, out_row = (max(storage[o].words(1, row), 1) for o, row in (("x", k), ("out", n)))
    if stored.words(n, k) <= most and n <= min(limits["n"], most):
        columns = n
    else:
        unit = align * stored.in_word  # columns that begin a part
        weight_row = -(-stored.words(unit, k) // unit)
        fit = min(most // max(weight_row, 1), most, limits["n"]) // unit * unit
        columns = _share(n, fit, unit)
    if not columns:
        return None
    wide = -(-columns // 4) * 4
    unit = max(align // gcd(align, row) for row in (x_row, out_row))
    fit = min(most // x_row, (most - wide) // out_row + 1, limits["m"])
    rows = _share(m, fit, unit)
    if not rows:
        return None
    weight = _in_parts(stored.layout, columns, k) if columns < n else stored.layout
    return Tiles(weight, stored.dtype, m, n, k, rows, columns, x_row, out_row, extents)


def _dispatched(kernel: Kernel, size: str, sizes: dict[str, int], device: Capabilities) -> int:
    """Return the greatest value of `size` for which the device allows the workgroups."""
    most = 1 << 31
    local = kernel.launch.local_size(kernel.defaults)
    for axis, along in enumerate(kernel.launch.grid[: kernel.launch.bounded]):
        others = prod(a.invocations(sizes, kernel.defaults) for a in along if a.size != size)
        for covered in (a.covered.evaluate(kernel.defaults) for a in along if a.size == size):
            limit = device.max_compute_work_group_count[axis] * local[axis]
            most = min(most, limit // max(others, 1) * covered)
    return most


def _share(count: int, most: int, unit: int) -> int:
    """Return the size of the fewest equal shares of `count`, multiples of `unit` up to `most`.

    Returns 0 where not even one unit fits.
    """
    if count <= most:
        return count
    most = most // unit * unit
    if not most:
        return 0
    shares = -(-count // most)
    return -(-count // (shares * unit)) * unit


def _in_parts(layout: Layout, columns: int, k: int) -> Layout:
    """Return `layout` with blocks of `columns` weights: one more level of Morton order."""
    if not isinstance(layout, Morton):
        return layout
    _, wide = layout.padded((columns, k))
    whole = parse(f"R {columns} {wide} {layout.name.removeprefix(NARROW)}")
    return narrowed(whole) if layout.narrow else whole


Sizes = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True)
class Batches(OpSplit):
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
            name: _sample_bytes(layouts[name], types[name])
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


def _sample_bytes(layout: Layout, type: TensorType) -> int:
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
