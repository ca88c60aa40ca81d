"""Checks of layers' arguments, which may come from a file. They raise ShapeError."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, TypeGuard

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.graph.operators.windows import MOST

Sizes = tuple[int, ...]
Ints = int | Sequence[int]
"""An integer for all dimensions, or one for each."""
IntsOrNone = int | None | Sequence[int | None]
MANY = ("none", "a list of one", "two of them", "three of them")
LARGEST = float(np.finfo(np.float32).max)


def integer(what: str, value: object, least: int = 1) -> int:
    """Return `value`, of any integer type but bool, as an int from `least` to a shader's greatest
    int.
    """
    result = index(what, value, f" of at least {least}")
    if result < least:
        raise ShapeError(f"{what} must be an integer of at least {least}, got {shown(value)}")
    if result > MOST:
        raise ShapeError(f"{what} must be an integer of at most {MOST}, got {shown(value)}")
    return result


def index(what: str, value: object, bounds: str = "") -> int:
    """Return `value`, of any integer type but bool, as an int."""
    try:
        if not isinstance(value, (bool, np.bool_)):
            return operator.index(value)  # type: ignore[arg-type]  # it raises TypeError
    except TypeError:
        pass
    raise ShapeError(f"{what} must be an integer{bounds}, got {shown(value)}")


def number(what: str, value: object, least: float, most: float = inf) -> float:
    """Return `value`, a number of any real type that float32 holds, from `least` to `most`."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        if LARGEST < value <= most or least <= value < -LARGEST:
            raise ShapeError(f"{what} must be a number that float32 holds, got {shown(value)}")
        if least <= value <= most:
            return int(value) if isinstance(value, (int, np.integer)) else float(value)
    bounds = f" of at least {least:g}" if most == inf else f" from {least:g} to {most:g}"
    bounds = "" if least == -inf else bounds
    raise ShapeError(f"{what} must be a number{bounds}, got {shown(value)}")


def sizes(what: str, value: object, count: int, least: int = 1) -> Sizes:
    """Return `value` for each of `count` dimensions; one integer stands for all."""
    if is_list(value):
        if len(value) != count:
            raise ShapeError(f"{what} must be an integer or {MANY[count]}, got {shown(value)}")
        return tuple(integer(what, one, least) for one in value)
    return (integer(what, value, least),) * count


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return True for an argument of several numbers: a list, a tuple or an array."""
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def sizes_or_none(what: str, value: object, count: int) -> tuple[int | None, ...]:
    """Return `value`, integers or None, for each of `count` dimensions; one stands for all."""
    each = value if is_list(value) else (value,) * count
    if len(each) != count:
        many = f"an integer or None, or {MANY[count]}"
        raise ShapeError(f"{what} must be {many}, got {shown(value)}")
    return tuple(None if one is None else integer(what, one) for one in each)


def axis_names(count: int) -> str:
    """Return the names of `count` spatial dimensions, as errors write a shape."""
    return ("", "l", "h, w", "d, h, w")[count]


def flag(what: str, value: object) -> bool:
    """Return `value`, a bool of Python or NumPy, as a Python bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ShapeError(f"{what} must be true or false, got {shown(value)}")
    return bool(value)


def only(what: str, value: object, needed: bool, reason: str) -> None:
    """Raise ShapeError unless the bool `value` is `needed`, the only one that is supported."""
    if flag(what, value) is not needed:
        raise ShapeError(f"{what} must be {str(needed).lower()}: {reason}")


def plain(kind: str, device: object, dtype: object) -> None:
    """Raise ShapeError unless `device` is None and `dtype` is None or float32."""
    if device is not None:
        raise ShapeError(
            f"{kind} device must be None, as the backend that runs a layer says where: "
            f"got {shown(device)}"
        )
    try:
        fits = dtype is None or np.dtype(dtype) == np.float32  # type: ignore[call-overload]
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ShapeError(f"{kind} dtype must be None or float32, got {shown(dtype)}")


def with_unusual(config: Mapping[str, Any], **arguments: tuple[object, object]) -> dict[str, Any]:
    """Return `config` with those `arguments`, pairs (value, default), that are not the default.

    PyTorch shows arguments in the same way. Older versions of glnn, which lack an argument, can
    read files in which it has its default.
    """
    unusual = {name: value for name, (value, default) in arguments.items() if value != default}
    return {**config, **unusual}
