"""Formats of quantized weights: their layouts in files and in device memory, and their values.

A weight of (n, k) elements is a sequence of units of 32, row by row, each row in whole blocks of
one or several units; the last block of a row may be padded. `QuantizedFormat.pack` splits the
blocks into sections, each with one field of all units:

    quants    2, 4 or 8 bits a weight, or whole floats
    high      the fifth bit, or the fifth and sixth
    scales    scales, and minima where the format has these
    zeros     zero points, a byte each

Each section begins at a multiple of 16 bytes, so that a kernel reads whole `uvec4`. Four-bit quants
are in the order of GGML's blocks of 32: byte j of a unit's 16 has weight j in its lower half and
weight j + 16 in its upper. With two bits byte j has weights 4 j to 4 j + 3, the first lowest.

`GGML_FORMATS` has GGML's names and byte layouts of blocks, as GGUF files have them.
`INTEGER_FORMATS` are for ONNX's integers with a scale, and perhaps a zero point, for each block of
16 to 256 weights: `IntegerBlocks` converts these to blocks.
`shaders/common/quantized.glsl` unpacks all of them; a new format is a row here and a case there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.core.types import Array, from_bfloat16
from glnn.errors import ShapeError

UNIT = 32
"""Weights of a unit."""
QUAD = 16
"""Bytes that a kernel reads at once."""
CHUNK = 1 << 20
"""Weights that are converted at a time, which bounds the memory this takes."""
INTEGER = -1
"""The code of formats that GGUF files do not have."""

Bytes = NDArray[np.uint8]
Scaled = tuple[Array, Array, Array | float]
"""Values (units, 32), scales (units, 1 or 2), and minima (units, 1) or 0; float32."""
HALF, FLOAT = np.dtype("<f2"), np.dtype("<f4")
BFLOAT = np.dtype("<u2")
"""The bits of a bfloat16, a type that NumPy does not have."""
_BITS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_ORDINARY: dict[np.dtype[Any], tuple[int, int]] = {
    HALF: (0x8FFF, 0x3000),
    FLOAT: (0x80FFFFFF, 0x3E000000),
    BFLOAT: (0x80FF, 0x3E00),
}
"""A mask and bits to set, by which any float gets a magnitude from 2^-3 to 1."""


class Blocks(Protocol):
    """A table of bytes, a block of a file in each row; rows are read as they are needed."""

    def __len__(self) -> int:
        """Return the number of blocks."""
        ...

    def __getitem__(self, rows: slice, /) -> Bytes:
        """Return the bytes of some blocks: (rows, bytes of a block)."""
        ...


class JoinedBlocks:
    """The blocks of several tensors, concatenated; see `Blocks`."""

    def __init__(self, parts: Sequence[Blocks | Bytes]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _within(self, first: int, last: int) -> Iterator[Bytes]:
        offset = 0
        for part in self._parts:
            begin, end = max(first - offset, 0), min(last - offset, len(part))
            if begin < end:
                yield part[begin:end]
            offset += len(part)

    def __getitem__(self, rows: slice, /) -> Bytes:
        """Return the bytes of some blocks, uncopied where they are of one tensor."""
        first, last, _ = rows.indices(len(self))
        parts = list(self._within(first, last))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class IntegerBlocks:
    """A tensor of integers as blocks of a format of `INTEGER_FORMATS`; see `Blocks`.

    values: (n, k) integers. offset: added to them, and to their zero points, so that they are
    unsigned. shared: number of weights of a row that share a scale and a zero point. scales:
    (n, count) floats, one for each such part of a row. zeros: likewise, integers; None for a format
    without zero points.
    """

    def __init__(
        self,
        format: QuantizedFormat,
        values: Array,
        offset: int,
        shared: int,
        scales: Array,
        zeros: Array | None = None,
    ) -> None:
        self._format, self._values, self._offset = format, values, offset
        self._scales, self._zeros, self._shared = scales, zeros, shared
        self._across = -(-values.shape[1] // format.block)

    def __len__(self) -> int:
        count: int = len(self._values) * self._across
        return count

    def __getitem__(self, rows: slice, /) -> Bytes:
        """Return the bytes of some blocks: (blocks, bytes of a block)."""
        first, last, _ = rows.indices(len(self))
        top, bottom = first // self._across, -(-last // self._across)
        integers, format = self._values[top:bottom], self._format
        values = np.zeros((len(integers), self._across * format.block), np.uint8)
        values[:, : integers.shape[1]] = self._unsigned(integers)
        quants, scales, *zeros = format.sections
        parts = [_pack_integers(values.reshape(-1, UNIT), quants)]
        parts.append(self._by_block(self._scales[top:bottom]).astype(scales.dtype.base))
        if zeros and self._zeros is not None:
            parts.append(self._unsigned(self._by_block(self._zeros[top:bottom])))
        fields = [_bytes_of(part.reshape(len(integers) * self._across, -1)) for part in parts]
        return np.concatenate(fields, 1)[first - top * self._across : last - top * self._across]

    def _unsigned(self, integers: Array) -> Bytes:
        return (integers.astype(np.int16) + self._offset).astype(np.uint8)

    def _by_block(self, parameters: Array) -> Array:
        """Repeat `parameters` of parts of a row for the format's blocks, or halves of these."""
        (halves,) = self._format.sections[1].dtype.shape
        parts = np.arange(self._across * halves) * (self._format.block // halves) // self._shared
        return parameters[:, np.minimum(parts, parameters.shape[1] - 1)]


@dataclass(frozen=True)
class Section:
    """A field of all units of a packed weight.

    dtype: of the field of a run of `units` units.
    """

    name: str
    dtype: np.dtype[Any]
    units: int = 1

    def nbytes(self, units: int) -> int:
        """Return the bytes of so many units, which are whole runs."""
        return self.dtype.itemsize * units // self.units

    def quads(self, units: int) -> int:
        """Return the groups of 16 bytes that the section takes for so many units."""
        return -(-self.nbytes(units) // QUAD)

    def view(self, raw: Bytes) -> Array:
        """Return the array in the section's bytes."""
        result: Array = np.ndarray((raw.nbytes // self.dtype.itemsize,), self.dtype, raw.data)
        return result

    def randomize_floats(self, raw: Bytes) -> None:
        """Make the floats in the section's random bytes finite, of magnitudes from 2^-3 to 1."""
        table = self.view(raw)
        parts = [table[name] for name in self.dtype.names] if self.dtype.names else [table]
        for part in parts:
            if part.dtype in _ORDINARY:
                bits = part.view(_BITS[part.itemsize])
                keep, add = _ORDINARY[part.dtype]
                bits[...] = bits & keep | add


@dataclass(frozen=True)
class QuantizedFormat:
    """A format of quantized weights.

    name: GGML's, in lower case, or int or uint, the bits, and the weights that share a scale. code:
    its number in GGUF files, INTEGER for none. block: weights of a block. block_bytes: bytes of
    such a block. sections: of a packed weight, in order. split: converts bytes of blocks to bytes
    of each section, (blocks, bytes). scaled: converts the sections' arrays to values, scales and
    minima. macros: for shaders, beside the code.
    """

    name: str
    code: int
    block: int
    block_bytes: int
    sections: tuple[Section, ...]
    split: Callable[[Bytes], Sequence[Bytes]]
    scaled: Callable[..., Scaled]
    macros: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """Return the name in upper case, as GGML writes it."""
        return self.name.upper()

    @property
    def has_zeros(self) -> bool:
        """Return True where blocks have zero points."""
        return any(section.name == "zeros" for section in self.sections)

    def units(self, n: int, k: int) -> int:
        """Return the units of a weight of (n, k) numbers."""
        whole = max(self.block // UNIT, 1)  # units that are padded to
        return n * -(-k // (whole * UNIT)) * whole

    def first_quads(self, units: int) -> dict[str, int]:
        """Return the offset of each section by name, and the size as "end", in 16 bytes."""
        offsets, offset = {}, 0
        for section in self.sections:
            offsets[section.name] = offset
            offset += section.quads(units)
        return {**offsets, "end": offset}

    def words(self, n: int, k: int) -> int:
        """Return the words of 32 bits of a packed weight of (n, k) numbers."""
        return self.first_quads(self.units(n, k))["end"] * (QUAD // 4)

    def row_bytes(self, k: int) -> int:
        """Return the bytes of a row of k weights in a file.

        Raises ShapeError unless a row has whole blocks.
        """
        if k % self.block:
            raise ShapeError(f"{self}: a row must have whole blocks of {self.block}, got {k}")
        return k // self.block * self.block_bytes

    def pack(self, blocks: Blocks | Bytes, n: int, k: int) -> NDArray[np.int32]:
        """Return the packed weight, (words,) int32, of a file's blocks.

        blocks: those of all rows, (count, block_bytes). Raises ShapeError where they do not fit.
        """
        count = n * -(-k // self.block)
        if len(blocks) != count:
            raise ShapeError(f"{self} ({n}, {k}) has {count} blocks, got {len(blocks)}")
        packed = np.zeros(self.words(n, k), np.int32)
        places = self.first_quads(self.units(n, k))
        raw = packed.view(np.uint8)
        if self.block == 1:
            self._pack_numbers(blocks, raw, n, k)
            return packed
        step = max(CHUNK // self.block, 1)
        for first in range(0, count, step):
            chunk = np.asarray(blocks[first : first + step])
            for section, part in zip(self.sections, self.split(chunk), strict=True):
                begin = places[section.name] * QUAD + first * part.shape[1]
                raw[begin : begin + part.size] = part.reshape(-1)
        return packed

    def _pack_numbers(self, blocks: Blocks | Bytes, raw: Bytes, n: int, k: int) -> None:
        """Copy the numbers of a format without blocks, each row padded to whole units."""
        width = -(-k // UNIT) * UNIT * self.block_bytes
        rows = raw[: n * width].reshape(n, width)
        step = max(CHUNK // max(k, 1), 1)
        for first in range(0, n, step):
            last = min(first + step, n)
            chunk = np.asarray(blocks[first * k : last * k])
            rows[first:last, : k * self.block_bytes] = chunk.reshape(last - first, -1)

    def tables(self, packed: Array, n: int, k: int) -> list[tuple[Section, Bytes]]:
        """Return each section of a packed weight of (n, k) numbers and its bytes, (n, bytes)."""
        across = self.units(1, k)
        places = self.first_quads(n * across)
        raw = packed.view(np.uint8)
        tables = []
        for section in self.sections:
            begin, width = places[section.name] * QUAD, section.nbytes(across)
            tables.append((section, raw[begin : begin + width * n].reshape(n, width)))
        return tables

    def part(self, packed: Array, n: int, k: int, spans: Sequence[slice]) -> NDArray[np.int32]:
        """Return the concatenated `spans` of rows of a packed weight of (n, k) numbers, packed."""
        count = sum(len(range(n)[span]) for span in spans)
        result = np.zeros(self.words(count, k), np.int32)
        sources = self.tables(np.ascontiguousarray(packed), n, k)
        for (_, source), (_, target) in zip(sources, self.tables(result, count, k), strict=True):
            np.concatenate([source[span] for span in spans], out=target)
        return result

    def unpack(self, packed: Array, n: int, k: int, rows: NDArray[np.integer] | slice) -> Array:
        """Return some rows of a packed weight of (n, k) numbers as float32, (rows, k)."""
        across = self.units(1, k)
        parts = [
            section.view(np.ascontiguousarray(table[rows]).reshape(-1))
            for section, table in self.tables(np.ascontiguousarray(packed), n, k)
        ]
        count = len(range(n)[rows]) if isinstance(rows, slice) else len(rows)
        values, scales, minima = self.scaled(*parts)
        blocks = scales.shape[1]
        by_half = values.reshape(len(values), blocks, UNIT // blocks)
        with np.errstate(invalid="ignore", over="ignore"):  # scales may be no numbers
            wide = (by_half * scales[..., None]).reshape(-1, UNIT) + minima
        return np.asarray(wide.reshape(count, across * UNIT)[:, :k])


def _split_at(*widths: int) -> Callable[[Bytes], Sequence[Bytes]]:
    """Return a function that splits blocks into parts of so many bytes, the last part first."""

    def split(blocks: Bytes) -> Sequence[Bytes]:
        parts = np.split(blocks, np.cumsum(widths[:-1]), axis=1)
        return [np.ascontiguousarray(part) for part in (parts[-1], *reversed(parts[:-1]))]

    return split


def _bytes_of(array: Array) -> Bytes:
    """Return the bytes of the rows of `array`, (rows, bytes)."""
    plain = np.ascontiguousarray(array)
    return plain.view(np.uint8).reshape(len(plain), -1)


def pack_bits(values: Bytes, bits: int) -> Bytes:
    """Return the bytes of values of `bits` bits each, the lowest first, (..., 32) to (..., n)."""
    flat = np.unpackbits(values[..., None], axis=-1, bitorder="little", count=bits)
    return np.packbits(flat.reshape(*values.shape[:-1], -1), axis=-1, bitorder="little")


def unpack_bits(packed: Bytes, bits: int) -> Bytes:
    """Return the values that `pack_bits` packed, (units, 32)."""
    flat = np.unpackbits(packed.view(np.uint8).reshape(-1, 4 * bits), axis=1, bitorder="little")
    return np.packbits(flat.reshape(-1, UNIT, bits), axis=2, bitorder="little")[..., 0]


def pack_nibbles(values: Bytes) -> Bytes:
    """Return the bytes of values of four bits, (..., 32) to (..., 16), in GGML's order."""
    return np.asarray(values[..., :16] | (values[..., 16:] << 4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """Return the values that `pack_nibbles` packed, (units, 32)."""
    pairs = packed.view(np.uint8).reshape(-1, 16)
    return np.concatenate((pairs & 15, pairs >> 4), axis=1)


def _floats(values: Array) -> Array:
    """Return `values` as float32, (units, values a unit)."""
    return values.astype(np.float32).reshape(len(values), -1)


def _four_bits(quants: Array, zero: int = 0) -> Array:
    return _floats(unpack_nibbles(quants)) - zero


def _five_bits(quants: Array, high: Array, zero: int = 0) -> Array:
    return _floats(unpack_nibbles(quants) | (unpack_bits(high, 1) << 4)) - zero


def _with_minimum(values: Array, scales: Array) -> Scaled:
    return values, _floats(scales["scale"]), _floats(scales["minimum"])


IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of iq4_nl's quants."""


def _table_values(quants: Array) -> Array:
    return np.asarray(np.array(IQ4_NL, np.float32)[unpack_nibbles(quants)])


# GGML's K-quants: blocks of eight units, whose scales have six or eight bits and a scale of their
# own.
def _nibbles_of_64(packed: Bytes) -> Bytes:
    """Return the values of eight units, (blocks, 8, 32), of 128 bytes, each 32 of which have 64."""
    parts = packed.reshape(-1, 4, 1, UNIT)
    return np.concatenate((parts & 15, parts >> 4), axis=2).reshape(-1, 8, UNIT)


def _split_q4_k(blocks: Bytes) -> Sequence[Bytes]:
    quants = pack_nibbles(_nibbles_of_64(blocks[:, 16:]))
    return _bytes_of(quants), np.ascontiguousarray(blocks[:, :16])


def _split_q5_k(blocks: Bytes) -> Sequence[Bytes]:
    quants = pack_nibbles(_nibbles_of_64(blocks[:, 48:]))
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")  # of units, in a byte
    high = np.packbits(bits.swapaxes(1, 2), axis=2, bitorder="little")
    return _bytes_of(quants), _bytes_of(high), np.ascontiguousarray(blocks[:, :16])


def _six_bits(values: Array, scales: Array) -> Scaled:
    """Scale `values` by `K_SCALES`: bytes 0 to 3 have scales of four units, 4 to 7 their minima;
    what these leave of two bits each, and bytes 8 to 11, have those of the other four.
    """
    low, middle, top = np.split(scales["six_bits"], 3, axis=1)
    scale = np.concatenate((low & 63, (top & 15) | (low >> 6 << 4)), axis=1)
    minimum = np.concatenate((middle & 63, (top >> 4) | (middle >> 6 << 4)), axis=1)
    scale = _floats(scales["scale"]) * scale
    minimum = -_floats(scales["minimum"]) * minimum
    return values, scale.reshape(-1, 1), minimum.reshape(-1, 1)


def _split_q6_k(blocks: Bytes) -> Sequence[Bytes]:
    low, high = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, UNIT)
    nibbles = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 8, UNIT)
    pairs = np.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2)
    scales = np.zeros((len(blocks), Q6_SCALES.itemsize), np.uint8)
    scales[:, :18] = blocks[:, 192:]
    quants = _bytes_of(pack_nibbles(nibbles))
    return quants, _bytes_of(pack_bits(pairs.reshape(-1, 8, UNIT), 2)), scales


def _q6_k(quants: Array, high: Array, scales: Array) -> Scaled:
    values = unpack_nibbles(quants) | (unpack_bits(high, 2) << 4)
    scale = _floats(scales["scale"]) * scales["halves"]
    return _floats(values) - 32, scale.reshape(-1, 2), 0.0


def _unscaled(values: Array) -> Scaled:
    return values.reshape(-1, UNIT), np.ones((values.size // UNIT, 1), np.float32), 0.0


def _whole(blocks: Bytes) -> Sequence[Bytes]:
    return (blocks,)


def _bytes(name: str, count: int) -> Section:
    return Section(name, np.dtype((np.void, count)))


PAIR = np.dtype([("scale", HALF), ("minimum", HALF)])
K_SCALES = np.dtype([("scale", HALF), ("minimum", HALF), ("six_bits", "u1", 12)])
Q6_SCALES = np.dtype([("halves", "i1", 16), ("scale", HALF), ("padding", "u1", 14)])
QUANTS, FIFTH = _bytes("quants", 16), _bytes("high", 4)
SCALE, SCALE_AND_MINIMUM = Section("scales", HALF), Section("scales", PAIR)
OF_EIGHT = Section("scales", K_SCALES, units=8)

_ROWS = (
    QuantizedFormat(
        "f32", 0, 1, 4, (Section("quants", np.dtype((FLOAT, UNIT))),), _whole, _unscaled
    ),
    QuantizedFormat(
        "f16",
        1,
        1,
        2,
        (Section("quants", np.dtype((HALF, UNIT))),),
        _whole,
        lambda quants: _unscaled(quants.astype(FLOAT)),
    ),
    QuantizedFormat(
        "bf16",
        30,
        1,
        2,
        (Section("quants", np.dtype((BFLOAT, UNIT))),),
        _whole,
        lambda quants: _unscaled(from_bfloat16(quants)),
    ),
    QuantizedFormat(
        "q4_0",
        2,
        32,
        18,
        (QUANTS, SCALE),
        _split_at(2, 16),
        lambda quants, scales: (_four_bits(quants, 8), _floats(scales), 0.0),
    ),
    QuantizedFormat(
        "q4_1",
        3,
        32,
        20,
        (QUANTS, SCALE_AND_MINIMUM),
        _split_at(4, 16),
        lambda quants, scales: _with_minimum(_four_bits(quants), scales),
    ),
    QuantizedFormat(
        "q5_0",
        6,
        32,
        22,
        (QUANTS, FIFTH, SCALE),
        _split_at(2, 4, 16),
        lambda quants, high, scales: (_five_bits(quants, high, 16), _floats(scales), 0.0),
    ),
    QuantizedFormat(
        "q5_1",
        7,
        32,
        24,
        (QUANTS, FIFTH, SCALE_AND_MINIMUM),
        _split_at(4, 4, 16),
        lambda quants, high, scales: _with_minimum(_five_bits(quants, high), scales),
    ),
    QuantizedFormat(
        "q8_0",
        8,
        32,
        34,
        (Section("quants", np.dtype(("i1", 32))), SCALE),
        _split_at(2, 32),
        lambda quants, scales: (_floats(quants.reshape(-1, UNIT)), _floats(scales), 0.0),
    ),
    QuantizedFormat(
        "q4_k",
        12,
        256,
        144,
        (QUANTS, OF_EIGHT),
        _split_q4_k,
        lambda quants, scales: _six_bits(_four_bits(quants), scales),
    ),
    QuantizedFormat(
        "q5_k",
        13,
        256,
        176,
        (QUANTS, FIFTH, OF_EIGHT),
        _split_q5_k,
        lambda quants, high, scales: _six_bits(_five_bits(quants, high), scales),
    ),
    QuantizedFormat(
        "q6_k",
        14,
        256,
        210,
        (QUANTS, _bytes("high", 8), Section("scales", Q6_SCALES, units=8)),
        _split_q6_k,
        _q6_k,
    ),
    QuantizedFormat(
        "iq4_nl",
        20,
        32,
        18,
        (QUANTS, SCALE),
        _split_at(2, 16),
        lambda quants, scales: (_table_values(quants), _floats(scales), 0.0),
    ),
)
GGML_FORMATS = {row.name: row for row in _ROWS}
"""GGML's formats by name."""


INTEGER_QUANTS = {
    2: _bytes("quants", 8),
    4: QUANTS,
    8: Section("quants", np.dtype(("u1", UNIT))),
}
"""The section of integers of so many bits."""


def _pack_integers(values: Bytes, quants: Section) -> Bytes:
    """Return the bytes of values (units, 32) in the section `quants`."""
    if quants == INTEGER_QUANTS[2]:
        return pack_bits(values, 2)
    return pack_nibbles(values) if quants == QUANTS else values


def _unpack_integers(quants: Array, bits: int) -> Bytes:
    """Return the values that `_pack_integers` packed, (units, 32)."""
    if bits == 2:
        return unpack_bits(quants, 2)
    return unpack_nibbles(quants) if bits == 4 else quants.reshape(-1, UNIT)


@dataclass(frozen=True)
class _Integers:
    """Scales the unsigned integers of a format of `INTEGER_FORMATS`, less their zero points."""

    bits: int
    units: int

    def __call__(self, quants: Array, scales: Array, zeros: Array | None = None) -> Scaled:
        values = _floats(_unpack_integers(quants, self.bits))
        if zeros is None:
            return values - (1 << self.bits - 1), self._by_unit(scales), 0.0
        points = self._by_unit(zeros)
        return values - points.repeat(UNIT // points.shape[1], 1), self._by_unit(scales), 0.0

    def _by_unit(self, of_blocks: Array) -> Array:
        return _floats(of_blocks).repeat(self.units, 0)


def _integer_format_name(bits: int, block: int, scale: np.dtype[Any], zeros: bool) -> str:
    return f"{'u' * zeros}int{bits}_{block}" + "_float16" * (scale == HALF)


def _integer_format(bits: int, block: int, scale: np.dtype[Any], zeros: bool) -> QuantizedFormat:
    """Return the format of unsigned integers of so many bits, whose blocks of `block` weights have
    scales of the dtype `scale`, and `zeros` or else the middle of their range for 0.
    """
    units, halves = max(block // UNIT, 1), max(UNIT // block, 1)
    quants = INTEGER_QUANTS[bits]
    points = Section("zeros", np.dtype(("u1", (halves,))), units)
    sections = (quants, Section("scales", np.dtype((scale, (halves,))), units), *(points,) * zeros)
    widths = [section.nbytes(units) for section in sections]
    ends = np.cumsum(widths)[:-1]
    macros = {"BITS": bits, "BLOCK": block, "ZEROS": zeros, "HALF_SCALES": scale == HALF}
    return QuantizedFormat(
        _integer_format_name(bits, block, scale, zeros),
        INTEGER,
        units * UNIT,
        sum(widths),
        sections,
        lambda blocks: [np.ascontiguousarray(part) for part in np.split(blocks, ends, 1)],
        _Integers(bits, units),
        tuple((key, int(value)) for key, value in macros.items()),
    )


BITS = tuple(INTEGER_QUANTS)
BLOCKS = 16, 32, 64, 128, 256
"""Weights that share a scale in integer formats."""
INTEGER_FORMATS = {
    row.name: row
    for row in (
        _integer_format(bits, block, scale, zeros)
        for bits in BITS
        for block in BLOCKS
        for scale in (FLOAT, HALF)
        for zeros in (False, True)
    )
}
"""Formats of integers in blocks by name, as int4_32, or uint4_32 where these have zero points."""


def integer_format(
    bits: int, shared: int, scale: np.dtype[Any], n: int, k: int, *, zeros: bool
) -> QuantizedFormat | None:
    """Return the smallest format for (n, k) integers of so many bits; None where there is none.

    shared: the weights of a row that share a scale. scale: its dtype. zeros: True with zero points.
    """
    able = (
        _integer_format_name(bits, block, scale, zeros)
        for block in BLOCKS
        if bits in BITS and (shared >= k or shared % block == 0)
    )
    formats = (INTEGER_FORMATS[name] for name in able)
    return min(formats, key=lambda format: format.words(n, k), default=None)


FORMATS = GGML_FORMATS | INTEGER_FORMATS
"""All formats by name."""
