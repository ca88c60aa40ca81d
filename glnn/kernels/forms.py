"""What values of a declaration are read as, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any

from glnn.errors import ShaderError

Reader = Callable[[Any], Any]
"""Makes of a value of the TOML what it stands for, or raises DeclarationError."""


class DeclarationError(ShaderError):
    """What is wrong with a value of a declaration, behind the keys that lead to it."""

    def __init__(self, what: str, *keys: str) -> None:
        super().__init__(f"{'.'.join(keys)}: {what}" if keys else what)
        self.what, self.keys = what, keys


@contextmanager
def under(key: str) -> Iterator[None]:
    """Put `key` before the keys of a DeclarationError."""
    try:
        yield
    except DeclarationError as error:
        raise DeclarationError(error.what, key, *error.keys) from None


def expected(words: str, value: Any) -> DeclarationError:
    """The DeclarationError of a `value` that is none of what the `words` describe."""
    return DeclarationError(f"expected {words}, got {value!r}")


def of_type(kind: type, words: str) -> Reader:
    """The reader of a value of this type, which the `words` call it."""

    def read(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise expected(words, value)
        return value

    return read


text = of_type(str, "a string")
whole = of_type(int, "an integer")
flag = of_type(bool, "true or false")


def share(value: Any) -> float:
    """A number between 0 and 1."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise expected("a number between 0 and 1", value)
    return value


def list_of(entry: Reader) -> Reader:
    """The reader of a list of what `entry` reads."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise expected("a list", value)
        return tuple(map(entry, value))

    return read


def table_of(entry: Reader) -> Reader:
    """The reader of a table of what `entry` reads, by names."""

    def read(value: Any) -> dict[str, Any]:
        found = {}
        for name, part in entries(value):
            with under(name):
                found[name] = entry(part)
        return found

    return read


def record(made: type, keys: Mapping[str, Reader]) -> Reader:
    """The reader of a table with these `keys`, of which a dataclass is made."""
    needed = [f.name for f in fields(made) if f.default is f.default_factory is MISSING]

    def read(value: Any) -> Any:
        found = keyed(value, keys)
        if missing := [name for name in needed if name not in found]:
            raise DeclarationError(f"key {missing[0]!r} is missing")
        return made(**found)

    return read


def keyed(value: Any, keys: Mapping[str, Reader]) -> dict[str, Any]:
    """The table `value`, each entry read by what `keys` has for it."""
    found = {}
    for name, part in entries(value):
        if name not in keys:
            raise DeclarationError(f"unknown key {name!r}, expected one of {sorted(keys)}")
        with under(name):
            found[name] = keys[name](part)
    return found


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a table."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise expected("a table", value)
    yield from value.items()
