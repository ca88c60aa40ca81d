"""The formats of files that a model of layers can be written in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from glnn.errors import ModelError, shown
from glnn.model.content import Content

FORMATS: Mapping[str, tuple[str, str]] = {
    "glnn": (".json", "json_writing"),
    "onnx": (".onnx", "onnx_writing"),
    "rovder": (".json", "rovder_writing"),
}
"""How the files of each end, the first of an ending being the usual one, and the module here that
writes them. It is imported then: what knows ONNX's operators takes long."""


def find(path: str | os.PathLike[str], format: str | None) -> str:
    """The format to write `path` in: `format`, or the usual one of its ending.

    Raises ModelError for a format that is not known, and a path that does not end as it should.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"a model is saved to a path, got {shown(path)}")
    if format is not None and (not isinstance(format, str) or format not in FORMATS):
        raise ModelError(f"format must be one of {', '.join(FORMATS)}, got {shown(format)}")
    suffix = Path(path).suffix
    for name, (ending, _) in FORMATS.items():
        if ending == suffix and format in (None, name):
            return name
    endings = FORMATS[format][:1] if format else dict.fromkeys(e for e, _ in FORMATS.values())
    raise ModelError(f"{os.fspath(path)}: a model is saved as a {' or '.join(endings)} file")


def save(path: str | os.PathLike[str], format: str | None, content: Content) -> None:
    """Write `content` to `path`: see `Model.save`."""
    _, writer = FORMATS[find(path, format)]
    import_module(f"glnn.model.{writer}").save(Path(path), content)
