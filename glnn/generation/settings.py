"""Entries of a model's settings and numbers of a user, checked as they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, shown


def setting(
    path: Path, entries: Mapping[str, Any], key: str, kind: type[Any], default: Any = None
) -> Any:
    """Return the entry `key` as `kind`; a whole number is a float, too.

    path: of the file that has the entries. default: what is returned where there is no such entry;
    None raises. Raises ModelError where it is missing, of another kind, or no finite number.
    """
    value = entries.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"{path}: it has no {key!r}")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        got = f"{shown(value)} ({type(value).__name__})"
        raise ModelError(f"{path}: {key!r} must be {kind.__name__}, got {got}")
    if kind is float and not math.isfinite(value):
        raise ModelError(f"{path}: {key!r} must be finite, got {value}")
    return value


def whole_number(name: str, value: object, most: int = 1 << 31) -> int:
    """Return `value` as an integer. Raises ModelError unless it is one from 1 to `most`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 1 <= value <= most:  # type: ignore[operator]
        raise ModelError(f"{name} must be an integer from 1 to {most}, got {shown(value)}")
    return int(value)  # type: ignore[call-overload,no-any-return]
