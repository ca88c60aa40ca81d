"""Readers of the values in a kernel's declaration, and the error they raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any

from glnn.errors import ShaderError

Reader = Callable[[Any], Any]
"""Function that converts a TOML value, or raises DeclarationError."""


class DeclarationError(ShaderError):
    """An invalid value in a declaration, with the keys that lead to it."""

    def __init__(self, what: str, *keys: str) -> None:
        super().__init__(f"{'.'.join(keys)}: {what}" if keys else what)
        self.what, self.keys = what, keys


@contextmanager
def under(key: str) -> Iterator[None]:
    """Prefix the keys of a DeclarationError raised inside with `key`."""
    try:
        yield
    except DeclarationError as error:
        raise DeclarationError(error.what, key, *error.keys) from None


def expected(words: str, value: Any) -> DeclarationError:
    """Return the DeclarationError for a `value` that is not what `words` describe."""
    return DeclarationError(f"expected {words}, got {value!r}")


def of_type(kind: type, words: str) -> Reader:
    """Return a reader of values of type `kind`. words: the type's name in error messages."""

    def read(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise expected(words, value)
        return value

    return read


text = of_type(str, "a string")
whole = of_type(int, "an integer")
flag = of_type(bool, "true or false")


def share(value: Any) -> float:
    """Read a number between 0 and 1, both excluded."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise expected("a number between 0 and 1", value)
    return value


def list_of(entry: Reader) -> Reader:
    """Return a reader of lists whose entries `entry` reads."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise expected("a list", value)
        return tuple(map(entry, value))

    return read


def table_of(entry: Reader) -> Reader:
    """Return a reader of tables whose values `entry` reads."""

    def read(value: Any) -> dict[str, Any]:
        found = {}
        for name, part in entries(value):
            with under(name):
                found[name] = entry(part)
        return found

    return read


def record(made: type, keys: Mapping[str, Reader]) -> Reader:
    """Return a reader of tables with these `keys` into the dataclass `made`."""
    needed = [f.name for f in fields(made) if f.default is f.default_factory is MISSING]

    def read(value: Any) -> Any:
        found = keyed(value, keys)
        if missing := [name for name in needed if name not in found]:
            raise DeclarationError(f"key {missing[0]!r} is missing")
        return made(**found)

    return read


def keyed(value: Any, keys: Mapping[str, Reader]) -> dict[str, Any]:
    """Read the table `value`, each entry by the reader that `keys` has for it."""
    found = {}
    for name, part in entries(value):
        if name not in keys:
            raise DeclarationError(f"unknown key {name!r}, expected one of {sorted(keys)}")
        with under(name):
            found[name] = keys[name](part)
    return found


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table. Raises DeclarationError for any other value."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise expected("a table", value)
    yield from value.items()
