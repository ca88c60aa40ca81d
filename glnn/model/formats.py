"""The file formats of models of layers, and their metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glnn.errors import ModelError, shown
from glnn.model.node import Content
from glnn.registry import module_for


def check_metadata(metadata: object, where: str) -> dict[str, str]:
    """Return a copy of `metadata`. Raises ModelError, which begins with `where`, unless they are
    texts by name.
    """
    if not isinstance(metadata, Mapping):
        raise ModelError(f"{where}: metadata must be texts by name, got {shown(metadata)}")
    for key, text in metadata.items():
        if not isinstance(key, str) or not key or not isinstance(text, str):
            pair = f"{shown(key)}: {shown(text)}"
            raise ModelError(f"{where}: metadata must be texts by name, got {pair}")
    return dict(metadata)


def metadata_to_json(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return metadata for a .json file: texts of JSON objects and lists as objects and lists."""
    return {key: _parse_nested(text) for key, text in metadata.items()}


def metadata_from_json(document: object) -> dict[str, str]:
    """Return the metadata in a .json file, the inverse of `metadata_to_json`. Raises ModelError."""
    if not isinstance(document, dict):
        raise ModelError(f'"metadata" must be an object, got {shown(document)}')
    return {k: v if isinstance(v, str) else _format_nested(k, v) for k, v in document.items()}


def _parse_nested(text: str) -> Any:
    """Return the JSON object or list in `text` if `_format_nested` writes it so, else `text`."""
    if not text.startswith(("{", "[")):
        return text
    try:
        result = json.loads(text)
        return result if json.dumps(result, ensure_ascii=False) == text else text
    except (ValueError, RecursionError):
        return text


def _format_nested(key: str, value: object) -> str:
    if not isinstance(value, (dict, list)):
        raise ModelError(f'"metadata": {shown(key)} must be a text, an object or a list')
    return json.dumps(value, ensure_ascii=False)


FORMATS: Mapping[str, str] = {"glnn": ".json", "onnx": ".onnx", "rovder": ".json"}
"""Endings of files by format; the first format of an ending is its usual one."""
MATRIX_FILES = ("-[0-9]*_[wb].json", "-[0-9]*_[wb].csv")
"""Patterns of the names of rovder's matrices, in place of the ending of its .json file."""


def find(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format in which to write `path`: `format`, or the usual one of its ending.

    Raises ModelError for an unknown format, and for a path with an ending of another one.
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
