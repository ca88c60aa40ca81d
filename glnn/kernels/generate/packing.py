"""Unpacking of numbers of which several are stored in a word: bytes and halves."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.layout import Layout
from glnn.layout.bytes import PACKED_ROWS
from glnn.layout.layout import PACKED
from glnn.types import DType


@dataclass(frozen=True)
class Packing:
    """The packing of an operand's numbers into words, the first number in the lowest bits."""

    file: str
    """The file in shaders/common that defines the two functions."""
    four: str
    """The GLSL function that unpacks four numbers from the word or words that hold them."""
    one: str
    """The GLSL function that unpacks one number, given its word and its index in the array."""
    count: int
    """The count of numbers in a word."""
    word: str
    """GLSL's type of a word."""
    words: str
    """GLSL's type of the word or words that hold four numbers."""


UNSIGNED = Packing("bytes.glsl", "four_unsigned", "one_unsigned", 4, "int", "int")
SIGNED = Packing("bytes.glsl", "four_signed", "one_signed", 4, "int", "int")
HALVES = Packing("half.glsl", "four_halves", "one_half", 2, "uint", "uvec2")
BYTES = {DType.uint8: UNSIGNED, DType.bool: UNSIGNED, DType.int8: SIGNED}


def packing(dtype: DType, layout: Layout, *, fetched: bool) -> Packing | None:
    """Return the packing of `dtype` in `layout`; None where each number has its own word.

    fetched: True for reading from a texture, whose texels may be halves.
    """
    if dtype is DType.float16:
        return None if fetched else HALVES
    return BYTES.get(dtype) if layout in (PACKED, PACKED_ROWS) else None
