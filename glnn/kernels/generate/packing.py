"""How shaders take numbers apart of which several lie in a word."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.layout import Layout
from glnn.layout.bytes import PACKED_ROWS
from glnn.layout.layout import PACKED
from glnn.types import DType


@dataclass(frozen=True)
class Packing:
    """How several numbers of an operand lie in a word, the first of them in its lowest bits."""

    file: str
    """Of shaders/common, which has the two functions."""
    four: str
    """The function that gives four numbers of the word, or the words, that hold them."""
    one: str
    """That which gives a number of its word and of its place in the array."""
    count: int
    """How many there are in a word."""
    word: str
    """GLSL's type of a word."""
    words: str
    """GLSL's type of what holds four numbers."""


UNSIGNED = Packing("bytes.glsl", "four_unsigned", "one_unsigned", 4, "int", "int")
SIGNED = Packing("bytes.glsl", "four_signed", "one_signed", 4, "int", "int")
HALVES = Packing("half.glsl", "four_halves", "one_half", 2, "uint", "uvec2")
BYTES = {DType.uint8: UNSIGNED, DType.bool: UNSIGNED, DType.int8: SIGNED}


def packing(dtype: DType, layout: Layout, *, fetched: bool) -> Packing | None:
    """How numbers of `dtype` lie in `layout`; None where each has a word of its own.

    fetched: whether from a texture, whose texels may be halves.
    """
    if dtype is DType.float16:
        return None if fetched else HALVES
    return BYTES.get(dtype) if layout in (PACKED, PACKED_ROWS) else None
