"""The errors that glnn raises on purpose. All of them are `GlnnError`."""

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
    if text.isprintable():  # the most frequent case
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


class GlnnError(Exception):
    """Base of all errors that glnn raises on purpose.

    Its text is safe for a terminal, whatever names it quotes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class DeviceError(GlnnError):
    """No usable GL context, a closed or reset device, the wrong thread, a fork, or a GL error."""


class LimitError(GlnnError):
    """Something exceeds what this device offers: a size, a block, a workgroup."""


class NoRoomError(LimitError, DeviceError):
    """Too little device memory is free, as the device reports or as an allocation shows."""


class ShaderError(GlnnError):
    """A shader does not compile or link, or its declaration is wrong."""


class LayoutError(GlnnError, ValueError):
    """A layout is malformed, or does not fit an array."""


class ShapeError(GlnnError, ValueError):
    """An array's shape or dtype is not what an op, layer or model takes."""


class ReadOnlyError(GlnnError, AttributeError):
    """An attribute cannot be assigned: layers are immutable except for their parameters."""


class ModelError(GlnnError):
    """A model, weight or data file is missing, malformed or refused."""


class UnsupportedOpError(GlnnError):
    """No kernel of this backend can run an op here; the message says why."""


def extra(name: str) -> str:
    """Return the command that installs the missing extra `name`, for an error.

    It lists the extra's packages, so that it works wherever glnn was installed from.
    """
    from importlib import metadata  # takes longer than the import of this whole module

    try:
        listed = [one.split(";") for one in metadata.requires("glnn") or ()]
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        listed = []
    condition = f"extra=='{name}'"
    requirements = [
        one
        for one, *marker in listed
        if condition in "".join(marker).replace(" ", "").replace('"', "'")
    ]
    if not requirements:
        return f"install the extra glnn[{name}]"
    packages = " ".join(f"'{one.strip()}'" for one in requirements)
    return f"{sys.executable} -m pip install {packages} (the extra glnn[{name}])"


def shown(value: object) -> str:
    """Return `value` for an error: its repr in one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of too many digits, or a class whose repr raises
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return ": did you mean 'NAME'?" for the candidate most like `name`; empty without any."""
    from difflib import get_close_matches  # a slow import that only errors need

    by_lower = {one.lower(): one for one in candidates}
    near = get_close_matches(name.lower(), by_lower, 1, 0.7)
    return f": did you mean {by_lower[near[0]]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def raised(error: Exception) -> str:
    """Describe an unexpected `error` in one line: its type and message."""
    name, message = type(error).__name__, printable(first_line(error))
    return name if message == name else f"{name}: {message}"


def fault(error: OSError | ValueError) -> str:
    """Return the reason of a failed file operation in one line: the system's or a library's."""
    return getattr(error, "strerror", None) or first_line(error)
