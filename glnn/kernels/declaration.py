"""What form the value of each key of a declaration has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Form = tuple[str, Callable[[Any], bool]]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_factor(value: Any) -> bool:
    return _is_whole(value) or _is_text(value)


def _list(entry: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(entry, value))


def _table(entry: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(entry, value.values()))


_is_product = _list(_is_factor, 1)


def _is_quantity(value: Any) -> bool:
    return _is_factor(value) or _is_product(value) or _list(_is_product, 1)(value)


_TEXT: Form = "a string", _is_text
_TEXTS: Form = "a list of strings", _list(_is_text)
_WHOLE: Form = "an integer", _is_whole
_WHOLES_BY_NAME: Form = "a table of integers", _table(_is_whole)
_LAYOUTS: Form = (
    "a table of strings, or lists of them",
    _table(lambda value: _is_text(value) or _list(_is_text, 1)(value)),
)
_TEXT_BY_NAME: Form = "a table of strings", _table(_is_text)
_QUANTITY = "integers and parameters, lists of them to multiply, or lists of such lists to add up"
FORMS: Mapping[str, Form] = {
    "shader": _TEXT,
    "stages": _TEXT,
    "generate": _TEXT,
    "backend": _TEXT,
    "summary": _TEXT,
    "layouts": _LAYOUTS,
    "workgroup": (
        "a list of three integers or parameters",
        lambda value: _list(_is_quantity, 3)(value) and len(value) == 3,
    ),
    "grid": (
        "a list of sizes' names, or of lists of them",
        _list(lambda value: _is_text(value) or _list(_is_text)(value)),
    ),
    "per_invocation": (f"a table of {_QUANTITY}", _table(_is_quantity)),
    "strided": ("true or false", lambda value: isinstance(value, bool)),
    "shared_bytes": (_QUANTITY, _is_quantity),
    "bindings": _WHOLES_BY_NAME,
    "textures": _TEXT_BY_NAME,
    "captures": (_QUANTITY, _is_quantity),
    "instances": _TEXT,
    "attributes": (f"a table of {_QUANTITY}", _table(_is_quantity)),
    "in_place": _TEXT,
    "epilogue": _TEXT,
    "extents": _TEXTS,
    "stacks": _TEXTS,
    "halves": _TEXTS,
    "tune": ("a table of lists of integers", _table(_list(_is_whole))),
    "architectures": ("a table of tables of integers", _table(_table(_is_whole))),
    "unfit": _TEXTS,
    "requires": _WHOLES_BY_NAME,
    "max_outputs": _WHOLE,
    "min_outputs": _WHOLE,
    "at_most": _WHOLES_BY_NAME,
    "at_least": _WHOLES_BY_NAME,
    "devices": _TEXTS,
    "slow_on": _TEXTS,
    "priority": _WHOLE,
    "tolerance": ("a number between 0 and 1", _is_share),
}
"""What each key expects, in words and as a test. These are all the keys there are."""


def fault(text: Mapping[str, Any]) -> str | None:
    """What is wrong with the parsed TOML `text` of a declaration; None where nothing is."""
    if unknown := set(text) - set(FORMS):
        return f"unknown key {sorted(unknown)[0]!r}"
    if missing := {"summary", "layouts"} - set(text):
        return f"key {sorted(missing)[0]!r} is missing"
    for key, value in text.items():
        expected, fits = FORMS[key]
        if not fits(value):
            return f"{key}: expected {expected}, got {value!r}"
    return None
