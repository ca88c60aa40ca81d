"""Checked access to the entries of a model's settings, and a check of users' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, shown

MOST_LAYERS, MOST_WIDTH, MOST_VOCABULARY, MOST_CONTEXT = 1024, 1 << 17, 1 << 22, 1 << 24
"""Limits of a model's sizes."""
MOST_NUMBER = float(np.finfo(np.float32).max)  # backends compute in float32


class ModelEntries:
    """The entries of a model's file, or of a part of it, checked as they are read.

    All methods raise ModelError where an entry is missing and has no default, or is out of range.
    """

    def __init__(self, path: Path, entries: Mapping[str, Any], prefix: str = "") -> None:
        """path: of the file. prefix: of all keys."""
        self.path, self._entries, self._prefix = path, entries, prefix
        self._read: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """Return an entry; see `setting`."""
        self._read.add(key)
        return setting(self.path, self._entries, self._prefix + key, kind, default)

    def any(self, key: str) -> Any:
        """Return an entry of any kind, None where it is missing."""
        self._read.add(key)
        return self._entries.get(self._prefix + key)

    def optional(self, key: str, kind: type[Any]) -> Any:
        """Return an entry, None where it is missing."""
        return self.get(key, kind) if self._entries.get(self._prefix + key) is not None else None

    def above(self, least: float, key: str, default: float | None = None) -> float:
        """Return an entry that is a number above `least`."""
        number: float = self.get(key, float, default)
        if not number > least:
            raise self._refusal(key, f"must be above {least}", number)
        return number

    def at_least(self, least: float, key: str, default: float | None = None) -> float:
        """Return an entry that is a number of at least `least`."""
        number: float = self.get(key, float, default)
        if not number >= least:
            raise self._refusal(key, f"must be {least} or more", number)
        return number

    def size(
        self, key: str, default: int | None = None, most: int = MOST_WIDTH, least: int = 1
    ) -> int:
        """Return an entry that is an integer from `least` to `most`."""
        number: int = self.get(key, int, default)
        if not least <= number <= most:
            raise self._refusal(key, f"must be from {least} to {most}", number)
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return an entry that is a list of numbers above 0."""
        numbers = self.get(key, list)
        if not all(isinstance(n, (int, float)) and 0 < n <= MOST_NUMBER for n in numbers):
            raise self._refusal(key, "must be numbers above 0", numbers)
        return tuple(map(float, numbers))

    def part(self, key: str) -> ModelEntries:
        """Return the entries of an entry that is an object; none where it is missing."""
        return ModelEntries(self.path, self.get(key, dict, {}))

    def with_defaults(self, entries: Mapping[str, Any]) -> ModelEntries:
        """Return these entries, and those of `entries` that are missing here."""
        return ModelEntries(self.path, {**entries, **self._entries}, self._prefix)

    def unread(self) -> list[str]:
        """Return the keys, without the prefix, that no method has read."""
        start = len(self._prefix)
        keys = (key[start:] for key in self._entries if key.startswith(self._prefix))
        return [key for key in keys if key not in self._read]

    def _refusal(self, key: str, expected: str, got: object) -> ModelError:
        return ModelError(f"{self.path}: {self._prefix + key!r} {expected}, got {shown(got)}")


def setting(
    path: Path, entries: Mapping[str, Any], key: str, kind: type[Any], default: Any = None
) -> Any:
    """Return the entry `key` as `kind`; a whole number is a float, too.

    path: of the file that has the entries. default: returned where the entry is missing; None: a
    missing entry raises. Raises ModelError also where it is of another kind, or a number that
    float32 cannot represent.
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
    if kind is float and not abs(value) <= MOST_NUMBER:
        raise ModelError(f"{path}: {key!r} must be finite in float32, got {shown(value)}")
    return value


def whole_number(name: str, value: object, most: int = 1 << 31, least: int = 1) -> int:
    """Return `value` as an integer. Raises ModelError unless it is one from `least` to `most`."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not least <= value <= most:  # type: ignore[operator]
        raise ModelError(f"{name} must be an integer from {least} to {most}, got {shown(value)}")
    return int(value)  # type: ignore[call-overload,no-any-return]
