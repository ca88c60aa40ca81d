"""The formats of files that a model of layers can be written in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from glnn.errors import ModelError, shown
from glnn.model.node import Content
from glnn.registry import module_for

FORMATS: Mapping[str, str] = {"glnn": ".json", "onnx": ".onnx", "rovder": ".json"}
"""Endings of files by format; the first format of an ending is its usual one."""


def find(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format to write `path` in: `format`, or the usual one of its ending.

    Raises ModelError for a format that is not known, and a path that does not end as it should.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"a model is saved to a path, got {shown(path)}")
    if format is not None and (not isinstance(format, str) or format not in FORMATS):
        raise ModelError(f"format must be one of {', '.join(FORMATS)}, got {shown(format)}")
    suffix = Path(path).suffix
    for name, ending in FORMATS.items():
        if ending == suffix and format in (None, name):
            return name
    endings = dict.fromkeys([FORMATS[format]] if format else FORMATS.values())
    raise ModelError(f"{os.fspath(path)}: a model is saved as a {' or '.join(endings)} file")


def save(path: str | os.PathLike[str], format: str | None, content: Content) -> None:
    """Write `content` to `path`: see `Model.save`."""
    module_for(f"write {find(path, format)}").save(Path(path), content)
