"""Quantized weights as files have them, and what they are, weight by weight, as GGML's text says.

Written anew from the format's description, without arrays: slow, and independent of what it tests.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from glnn.graph.quantization import GGML_FORMATS, INTEGER_FORMATS, IQ4_NL, IntegerBlocks

FLOATS_AT = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
}
"""The bytes of a block at which it has numbers of float16."""


def random_blocks(name: str, n: int, k: int, seed: int) -> NDArray[np.uint8]:
    """The blocks of a weight of (n, k) numbers, whose scales are ordinary numbers."""
    form, generator = GGML_FORMATS[name], np.random.default_rng(seed)
    if form.block == 1:
        wide = generator.standard_normal((n * k, 1)).astype(np.float32)
        if name == "bf16":
            return (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return wide.astype({"f32": np.float32, "f16": np.float16}[name]).view(np.uint8)
    count = n * k // form.block
    blocks = generator.integers(0, 256, (count, form.block_bytes), np.uint8)
    for place in FLOATS_AT[name]:
        numbers = generator.uniform(-1, 1, (count, 1)).astype(np.float16)
        blocks[:, place : place + 2] = numbers.view(np.uint8)
    return blocks


INTEGERS = (
    *("int4_16", "int4_32_float16", "uint4_32", "uint4_64", "uint4_256_float16", "int8_64"),
    *("uint8_16_float16", "uint8_128", "int8_256_float16", "int2_16", "uint2_64_float16"),
)
"""Formats of integers, with each number of bits, scales of each size, zero points and without."""


def random_integers(
    name: str, n: int, k: int, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """A packed weight of (n, k) random integers, and its numbers, each by itself."""
    generator, form = np.random.default_rng(seed), INTEGER_FORMATS[name]
    kind, share, *scale = name.split("_")
    shared, zeros, bits = int(share), kind[0] == "u", int(kind[-1])
    low = 0 if zeros else -(1 << bits - 1)
    values = generator.integers(low, low + (1 << bits), (n, k), np.int16)
    count = -(-k // shared)
    scales = generator.uniform(-1, 1, (n, count)).astype(*scale or ("float32",))
    points = generator.integers(0, 1 << bits, (n, count), np.int16) if zeros else None
    packed = form.pack(IntegerBlocks(form, values, -low, shared, scales, points), n, k)
    numbers = [
        float(scales[i, j // shared])
        * (int(values[i, j]) - (0 if points is None else int(points[i, j // shared])))
        for i in range(n)
        for j in range(k)
    ]
    return packed, np.array(numbers).reshape(n, k)


def fitting(name: str, k: int) -> int:
    """The next number of terms of which rows have whole blocks."""
    block = GGML_FORMATS[name].block
    return -(-k // block) * block


def unpacked(name: str, blocks: NDArray[np.uint8], n: int, k: int) -> NDArray[np.float32]:
    """The numbers of a weight of (n, k) numbers, of its blocks."""
    numbers = [one for block in blocks for one in block_numbers(name, block.tobytes())]
    return np.array(numbers, np.float32).reshape(n, k)


def block_numbers(name: str, block: bytes) -> list[float]:
    """The numbers of one block."""
    return BLOCKS[name](block)


def _half(block: bytes, place: int) -> float:
    return float(struct.unpack_from("<e", block, place)[0])


def _nibble(quants: bytes, i: int) -> int:
    """Number i of 32 in 16 bytes."""
    return quants[i % 16] >> (4 * (i // 16)) & 15


def _q4_0(block: bytes) -> list[float]:
    return [_half(block, 0) * (_nibble(block[2:], i) - 8) for i in range(32)]


def _q4_1(block: bytes) -> list[float]:
    return [_half(block, 0) * _nibble(block[4:], i) + _half(block, 2) for i in range(32)]


def _fifth(high: bytes, i: int) -> int:
    return (int.from_bytes(high, "little") >> i & 1) << 4


def _q5_0(block: bytes) -> list[float]:
    quants = [_nibble(block[6:], i) | _fifth(block[2:6], i) for i in range(32)]
    return [_half(block, 0) * (q - 16) for q in quants]


def _q5_1(block: bytes) -> list[float]:
    quants = [_nibble(block[8:], i) | _fifth(block[4:8], i) for i in range(32)]
    return [_half(block, 0) * q + _half(block, 2) for q in quants]


def _q8_0(block: bytes) -> list[float]:
    return [_half(block, 0) * q for q in struct.unpack_from("<32b", block, 2)]


def _six_bits(scales: bytes, j: int) -> tuple[int, int]:
    """The scale and the minimum of unit j of eight."""
    if j < 4:
        return scales[j] & 63, scales[j + 4] & 63
    low, high = scales[j + 4] & 15, scales[j + 4] >> 4
    return low | (scales[j - 4] >> 6) << 4, high | (scales[j] >> 6) << 4


def _k_quants(block: bytes, quants: bytes, high: bytes | None) -> list[float]:
    found = []
    for i in range(256):
        pair, j = divmod(i, 64)
        unit, place = i // 32, j % 32
        value = quants[32 * pair + place] >> (4 * (j // 32)) & 15
        if high is not None:
            value |= (high[place] >> unit & 1) << 4
        scale, minimum = _six_bits(block[4:16], unit)
        found.append(_half(block, 0) * scale * value - _half(block, 2) * minimum)
    return found


def _q4_k(block: bytes) -> list[float]:
    return _k_quants(block, block[16:], None)


def _q5_k(block: bytes) -> list[float]:
    return _k_quants(block, block[48:], block[16:48])


def _q6_k(block: bytes) -> list[float]:
    low, high, scales = block[:128], block[128:192], struct.unpack_from("<16b", block, 192)
    found = []
    for i in range(256):
        half, j = divmod(i, 128)
        quarter, place = divmod(j, 32)
        byte = low[64 * half + 32 * (quarter % 2) + place]
        value = byte >> (4 * (quarter // 2)) & 15
        value |= (high[32 * half + place] >> (2 * quarter) & 3) << 4
        found.append(_half(block, 208) * scales[i // 16] * (value - 32))
    return found


def _iq4_nl(block: bytes) -> list[float]:
    return [_half(block, 0) * IQ4_NL[_nibble(block[2:], i)] for i in range(32)]


def _f32(block: bytes) -> list[float]:
    return list(struct.unpack("<f", block))


def _f16(block: bytes) -> list[float]:
    return [_half(block, 0)]


def _bf16(block: bytes) -> list[float]:
    return list(struct.unpack("<f", b"\0\0" + block))


BLOCKS = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
}
