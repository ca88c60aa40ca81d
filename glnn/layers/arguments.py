"""Checks of layers' arguments, which may come from a file: ShapeError says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from glnn.errors import ShapeError
from glnn.ops.windows import MOST

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]


def integer(what: str, value: object, least: int = 1) -> int:
    """`value`, if it is an integer of at least `least` that an int32 holds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ShapeError(f"{what} must be an integer of at least {least}, got {value!r}")
    if value > MOST:
        raise ShapeError(f"{what} must be at most {MOST}, got {value}")
    return value


def number(what: str, value: object, least: float, most: float = inf) -> float:
    """`value`, if it is a number of at least `least` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        bounds = f"of at least {least:g}" if most == inf else f"from {least:g} to {most:g}"
        raise ShapeError(f"{what} must be a number {bounds}, got {value!r}")
    return value


def pair(what: str, value: object, least: int = 1) -> Pair:
    """`value` as (height, width); one integer stands for both."""
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise ShapeError(f"{what} must be an integer or two of them, got {value!r}")
        return integer(what, value[0], least), integer(what, value[1], least)
    both = integer(what, value, least)
    return both, both


def single(what: str, value: object) -> Pair:
    """`value` as (1, 1), the only size that global pooling has."""
    size = pair(what, value)
    if size != (1, 1):
        raise ShapeError(f"{what} must be 1 (global pooling), got {value!r}")
    return size


def flag(what: str, value: object) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise ShapeError(f"{what} must be true or false, got {value!r}")
    return value


def sides(padding: Pair) -> tuple[int, int, int, int]:
    """A padding of (height, width) as an op's (top, left, bottom, right)."""
    return (*padding, *padding)
