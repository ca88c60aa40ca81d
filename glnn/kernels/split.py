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

SCALAR_RANGE = 0, 4  # first word and count of words of an operand of one number


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
    def per_word(self) -> int:
        """The count of numbers in a 32-bit word."""
        return 4 // self.layout.number(self.dtype).itemsize

    def words(self, *shape: int) -> int:
        """Return the 32-bit words that an operand of `shape` takes."""
        return self.layout.words(TensorType(shape, self.dtype))


@dataclass(frozen=True)
class Part:
    """A part of a split op: a tile of a matrix product, or a range of matrices or samples.

    ranges: the first word and the count of words of each operand and `out`. sizes: the uniforms
    and sizes whose values differ from those of the unsplit op.
    """

    ranges: dict[str, tuple[int, int]]
    sizes: dict[str, int]


@dataclass(frozen=True)
class OpSplit(ABC):
    """A split of an op into parts. weight: the layout of weights that are stored part by part."""

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
        accepted = {name: kernel.wants(name) for name in ("x", "weight", "out")}
        row_major = accepted["out"][:1] == accepted["x"][:1] == ("R4",)
        if not isinstance(op, Matmul) or kernel.backend != "compute" or not row_major:
            return None
        if op.prologue is not None:  # a prologue counts the rows of the unsplit x
            return None
        if any(types[name].dtype is DType.float16 for name in ("out", *extents)):
            return None
        shapes = {name: one.shape for name, one in types.items()}
        sizes = {**kernel.defaults, **op.sizes(shapes)}
        if kernel.textures or not set(kernel.launch.sizes) <= set(sizes):
            return None
        max_words = device.max_shader_storage_block_size // 4
        stored = [
            (n, Stored.create(op, n, text, types[n])) for n in accepted for text in accepted[n]
        ]
        preferred = dict(reversed(stored))  # in the first layout that the kernel accepts
        limits = {
            name: _dispatch_limit(kernel, name, sizes, device) for name in ("m", "n", "batch")
        }
        fits_blocks = all(one.words(*shapes[name]) <= max_words for name, one in stored)
        if fits_blocks and all(sizes[name] <= limit for name, limit in limits.items()):
            return None
        align = max(device.shader_storage_buffer_offset_alignment // 4, 4)
        split = _split_batch if op.stacks(shapes) else _split_matrices
        return split(preferred, sizes, limits, max_words, align, extents)


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
            ranges = {k: (first * words, count * words) for k, words in self.matrices.items()}
            by_extent = {
                "full": ranges["out"],
                "channel": (0, -(-self.n // 4) * 4),
                "one": SCALAR_RANGE,
            }
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
        full_part = self._weight_words(self.columns)
        for top in range(0, self.m, self.rows):
            m = min(self.rows, self.m - top)
            for left in range(0, self.n, self.columns):
                n = min(self.columns, self.n - left)
                padded_n = -(-n // 4) * 4
                result = top * self.out_row + left, (m - 1) * self.out_row + padded_n
                by_extent = {"full": result, "channel": (left, padded_n), "one": SCALAR_RANGE}
                ranges = {
                    "x": (top * self.x_row, m * self.x_row),
                    "weight": (left // self.columns * full_part, self._weight_words(n)),
                    "out": result,
                    **{name: by_extent[extent] for name, extent in self.extents.items()},
                }
                sizes = {"m": m, "n": n}
                if not isinstance(self.weight, RowMajor) and self.columns < self.n:
                    sizes |= {"weight_rows": self.columns}
                yield Part(ranges, sizes)

    def _weight_words(self, n: int) -> int:
        """Return the words of `n` rows of the weights."""
        return Stored(self.weight, self.dtype).words(n, self.k)


def _split_batch(
    storage: dict[str, Stored],
    sizes: dict[str, int],
    limits: dict[str, int],
    max_words: int,
    align: int,
    extents: Mapping[str, Extent],
) -> Stack | None:
    """Return the split of a batched product; None where a single matrix is too large."""
    m, n, k, batch = (sizes[name] for name in ("m", "n", "k", "batch"))
    matrices = {
        "x": storage["x"].words(m, k),
        "weight": storage["weight"].words(1, n, k),
        "out": storage["out"].words(m, n),
    }
    if m > limits["m"] or n > limits["n"]:
        return None
    unit = lcm(*(align // gcd(align, words) for words in matrices.values()))
    max_count = min(limits["batch"], *(max_words // max(words, 1) for words in matrices.values()))
    count = _part_size(batch, max_count, unit)
    return Stack(storage["weight"].layout, batch, count, n, matrices, extents) if count else None


def _split_matrices(
    storage: dict[str, Stored],
    sizes: dict[str, int],
    limits: dict[str, int],
    max_words: int,
    align: int,
    extents: Mapping[str, Extent],
) -> Tiles | None:
    """Return the split of a single product. extents: those of the epilogue's operands."""
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    weight = storage["weight"]
    x_row, out_row = (max(storage[o].words(1, row), 1) for o, row in (("x", k), ("out", n)))
    if weight.words(n, k) <= max_words and n <= min(limits["n"], max_words):
        columns = n
    else:
        unit = align * weight.per_word  # parts begin at multiples of so many columns
        weight_row = -(-weight.words(unit, k) // unit)
        max_columns = min(max_words // max(weight_row, 1), max_words, limits["n"]) // unit * unit
        columns = _part_size(n, max_columns, unit)
    if not columns:
        return None
    padded_columns = -(-columns // 4) * 4
    unit = max(align // gcd(align, row) for row in (x_row, out_row))
    max_rows = min(max_words // x_row, (max_words - padded_columns) // out_row + 1, limits["m"])
    rows = _part_size(m, max_rows, unit)
    if not rows:
        return None
    layout = _layout_of_parts(weight.layout, columns, k) if columns < n else weight.layout
    return Tiles(layout, weight.dtype, m, n, k, rows, columns, x_row, out_row, extents)


def _dispatch_limit(kernel: Kernel, size: str, sizes: dict[str, int], device: Capabilities) -> int:
    """Return the greatest value of `size` for which the device allows the workgroups."""
    greatest = 1 << 31
    local = kernel.launch.local_size(kernel.defaults)
    for axis, factors in enumerate(kernel.launch.grid[: kernel.launch.bounded]):
        others = prod(f.invocations(sizes, kernel.defaults) for f in factors if f.size != size)
        for covered in (f.covered.evaluate(kernel.defaults) for f in factors if f.size == size):
            invocations = device.max_compute_work_group_count[axis] * local[axis]
            greatest = min(greatest, invocations // max(others, 1) * covered)
    return greatest


def _part_size(count: int, limit: int, unit: int) -> int:
    """Return the size of the fewest equal parts of `count`, a multiple of `unit` up to `limit`.

    Returns `count` where no split is needed, and 0 where not even one unit fits.
    """
    if count <= limit:
        return count
    limit = limit // unit * unit
    if not limit:
        return 0
    parts = -(-count // limit)
    return -(-count // (parts * unit)) * unit


def _layout_of_parts(layout: Layout, columns: int, k: int) -> Layout:
    """Return `layout` stored in parts of `columns` weights: one more level of Morton order."""
    if not isinstance(layout, Morton):
        return layout
    _, padded_k = layout.padded((columns, k))
    by_part = parse(f"R {columns} {padded_k} {layout.name.removeprefix(NARROW)}")
    return narrowed(by_part) if layout.narrow else by_part


Sizes = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True)
class Batches(OpSplit):
    """A batch of `n` samples, `count` of them in each part.

    sample_bytes: bytes of one sample of each operand with a batch dimension. operand_words: words
    of each unsplit operand. sizes: function that gives the uniforms and sizes for a count of
    samples.
    """

    n: int
    count: int
    sample_bytes: Mapping[str, int]
    operand_words: Mapping[str, int]
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
        """Return the split that `device` needs; None where none is needed or none helps.

        inputs: the operands with a batch dimension. types: the type of each operand and of `out`.
        No part exceeds a storage block or the workgroups of a dispatch, and each begins at a
        multiple of the storage buffers' offset alignment.
        """
        shapes = {name: one.shape for name, one in types.items()}
        if any(len(shapes[name]) < 2 for name in (*inputs, "out")):
            return None
        max_words = device.max_shader_storage_block_size // 4
        operand_words = {n: layouts[n].words(one) for n, one in types.items() if n in layouts}
        n = shapes["out"][0]
        sample_bytes = {
            name: _sample_bytes(layouts[name], types[name])
            for name in (*inputs, "out")
            if shapes[name][0] == n
        }
        if n < 2 or not all(sample_bytes.values()):
            return None
        if all(size <= max_words for size in operand_words.values()) and _fits_dispatch(
            kernel, sizes(n), device
        ):
            return None
        if any(
            size > max_words for name, size in operand_words.items() if name not in sample_bytes
        ):
            return None
        align = max(device.shader_storage_buffer_offset_alignment, 16)
        unit = lcm(*(align // gcd(align, size) for size in sample_bytes.values()))
        count = min(4 * max_words // max(sample_bytes.values()), n) // unit * unit
        while count and not _fits_dispatch(kernel, sizes(count), device):
            count = count // 2 // unit * unit
        return Batches(None, n, count, sample_bytes, operand_words, sizes) if count else None

    @property
    def counts(self) -> set[int]:
        """The distinct numbers of samples of the parts."""
        return {self.count, self.n % self.count or self.count}

    def parts(self, operands: Shapes) -> Iterator[Part]:
        for first in range(0, self.n, self.count):
            count = min(self.count, self.n - first)
            ranges = {name: (0, size) for name, size in self.operand_words.items()}
            for name, size in self.sample_bytes.items():
                begin, end = first * size // 4, (first + count) * size
                end = min(-(-end // 16) * 4, self.operand_words[name])  # shaders read whole vec4
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


def _fits_dispatch(kernel: Kernel, sizes: Mapping[str, int], device: Capabilities) -> bool:
    """Return True where the device allows the workgroups for `sizes`."""
    limits = device.max_compute_work_group_count
    bounded = kernel.launch.groups(sizes, kernel.defaults)[: kernel.launch.bounded]
    return all(count <= limit for count, limit in zip(bounded, limits, strict=False))
