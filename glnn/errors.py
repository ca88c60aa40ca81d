"""Every error glnn raises on purpose. All of them are `GlnnError`."""

import sys
from collections.abc import Iterable

__all__ = [
    "DeviceError",
    "GlnnError",
    "LayoutError",
    "LimitError",
    "ModelError",
    "NoRoomError",
    "ReadOnlyError",
    "ShaderError",
    "ShapeError",
    "UnsupportedOpError",
]


def printable(text: str) -> str:
    """Return `text` with all control characters but line ends escaped, safe for a terminal.

    Characters that are not printable (`str.isprintable`) are written as in a literal: `\\x1b`.
    """
    if text.isprintable():  # which most is
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


class GlnnError(Exception):
    """Base of all errors that glnn raises on purpose.

    Its text can be printed as it is, whatever the names that it quotes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class DeviceError(GlnnError):
    """No usable GL context, a closed or reset device, the wrong thread, a fork, or a GL error."""


class LimitError(GlnnError):
    """Something exceeds what this device offers: a size, a block, a workgroup."""


class NoRoomError(LimitError, DeviceError):
    """Too little of the device's memory is free, by what it says or once it is asked for more."""


class ShaderError(GlnnError):
    """A shader does not compile or link, or its declaration is wrong."""


class LayoutError(GlnnError, ValueError):
    """A layout is malformed, or does not fit an array."""


class ShapeError(GlnnError, ValueError):
    """An array's shape or dtype is not what an op, layer or model takes."""


class ReadOnlyError(GlnnError, AttributeError):
    """An attribute cannot be assigned: a layer stays as it was made, but for its parameters."""


class ModelError(GlnnError):
    """A model, weight or data file is missing, malformed or refused."""


class UnsupportedOpError(GlnnError):
    """No kernel of this backend can run an op here; the message says why."""


def extra(name: str) -> str:
    """Return what an error says of the missing extra called `name`: the command that installs it.

    The command names the extra's packages, so that it works wherever glnn itself came from.
    """
    from importlib import metadata  # takes longer to import than all else of this module

    try:
        listed = [one.split(";") for one in metadata.requires("glnn") or ()]
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        listed = []
    wanted = f"extra=='{name}'"
    requirements = [
        one
        for one, *marker in listed
        if wanted in "".join(marker).replace(" ", "").replace('"', "'")
    ]
    if not requirements:
        return f"install the extra glnn[{name}]"
    packages = " ".join(f"'{one.strip()}'" for one in requirements)
    return f"{sys.executable} -m pip install {packages} (the extra glnn[{name}])"


def shown(value: object) -> str:
    """Return `value` as an error quotes it: its repr in one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of more digits than Python prints, or somebody's own class
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return ": did you mean 'NAME'?" for the candidate that is like `name`; empty without."""
    from difflib import get_close_matches  # takes time that only errors need

    by_lower = {one.lower(): one for one in candidates}
    near = get_close_matches(name.lower(), by_lower, 1, 0.7)
    return f": did you mean {by_lower[near[0]]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def raised(error: Exception) -> str:
    """Name the type of an `error` that nobody expected, and what it says, in one line."""
    name, said = type(error).__name__, printable(first_line(error))
    return name if said == name else f"{name}: {said}"


def fault(error: OSError | ValueError) -> str:
    """Return the reason of a failed file operation in one line: the system's, or a library's."""
    return getattr(error, "strerror", None) or first_line(error)
