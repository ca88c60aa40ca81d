"""Parsing of layouts' names."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from glnn.core.layout.bytes import PACKED_ROWS, PackedTiles
from glnn.core.layout.layout import CHANNELS_LAST, DENSE, PACKED, PADDED, Blocked, Layout, RowMajor
from glnn.core.layout.morton import Morton
from glnn.core.layout.strip import Strip
from glnn.core.types import Shape
from glnn.errors import LayoutError, shown

NAMED: dict[str, Layout] = {one.name: one for one in (DENSE, PADDED, PACKED, PACKED_ROWS)}
NARROW = "packed "  # prefix of a layout's name: its numbers take as many bytes as on the host
MOST = 2**31 - 1  # the greatest int of a shader
MOST_NUMBERS = 24  # each is a dimension of an array, of which NumPy takes 32


@cache
def parse(text: str) -> Layout:
    """Return the layout that `text` names.

    Raises LayoutError where `text` names none.
    """
    if any(len(n) > len(str(MOST)) or int(n) > MOST for n in re.findall("[0-9]+", text)):
        raise LayoutError(f"layout {shown(text)}: expected numbers of at most {MOST}")
    if text in NAMED:
        return NAMED[text]
    if tiles := re.fullmatch(r"packed ([0-9]+)x([0-9]+)", text):
        return PackedTiles(int(tiles[1]), int(tiles[2]))
    if text.startswith(NARROW):
        return narrowed(parse(text.removeprefix(NARROW)))
    if strip := re.fullmatch(rf"({CHANNELS_LAST}|{PADDED.name}) ([0-9]+)/([0-9]+)", text):
        return Strip(parse(strip[1]), int(strip[2]), int(strip[3]))
    if len(re.findall("[0-9]+", text)) > MOST_NUMBERS:
        raise LayoutError(f"layout {shown(text)}: expected at most {MOST_NUMBERS} sizes")
    if (morton := Morton.parse(text)) is not None:
        return morton
    match = re.fullmatch(r"([A-Za-z]+)((?:[0-9]+[a-z])*)", text)
    if not match:
        raise LayoutError(f"layout {shown(text)}: expected one like R, R4, C 4 2 C or nChw4c")
    blocks = tuple((int(n), d) for n, d in re.findall(r"([0-9]+)([a-z])", match[2]))
    order = tuple(match[1].lower())
    split = {letter.lower() for letter in match[1] if letter.isupper()}
    dims = next((d for d in ("nchw", "oihw", "oi") if sorted(d) == sorted(order)), None)
    if dims is None:
        raise LayoutError(
            f"layout {shown(text)}: expected one like R, C 4 2 C or nChw4c, of n c h w or o i"
        )
    if split != {d for _, d in blocks} or any(n < 1 for n, _ in blocks):
        raise LayoutError(
            f"layout {shown(text)}: upper-case dimensions and inner blocks do not match"
        )
    return Blocked(text, dims, order, blocks)


def narrowed(layout: Layout) -> Layout:
    """Return `layout` with numbers as small as on the host: `packed C 4 4 C` for `C 4 4 C`.

    Raises LayoutError unless `layout` is row major, blocked or a Morton order, with numbers of a
    word each.
    """
    if layout.narrow or not isinstance(layout, RowMajor | Blocked | Morton):
        raise LayoutError(f"layout {layout.name}: its numbers are as small as the host's already")
    return replace(layout, name=NARROW + layout.name, narrow=True)


def resized(text: str, before: Shape, after: Shape) -> str:
    """Return the layout for shape `after` of a tensor that had the layout `text` for shape
    `before`.
    """
    layout = parse(text)
    return layout.resized(before, after).name if isinstance(layout, Strip) else text
