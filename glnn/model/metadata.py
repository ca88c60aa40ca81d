"""Metadata of a model: texts by name, in every format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from glnn.errors import ModelError, shown


def check_metadata(metadata: object, where: str) -> dict[str, str]:
    """Return a copy of `metadata`. Raises ModelError, which begins with `where`, unless all are
    texts.
    """
    if not isinstance(metadata, Mapping):
        raise ModelError(f"{where}: metadata must be texts by name, got {shown(metadata)}")
    for key, text in metadata.items():
        if not isinstance(key, str) or not key or not isinstance(text, str):
            entry = f"{shown(key)}: {shown(text)}"
            raise ModelError(f"{where}: metadata must be texts by name, got {entry}")
    return dict(metadata)


def as_json(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return metadata as a .json file has it: a text that is a JSON object or list, as that."""
    return {key: _object(text) for key, text in metadata.items()}


def from_json(document: object) -> dict[str, str]:
    """Return the metadata of what `as_json` returned. Raises ModelError for anything else."""
    if not isinstance(document, dict):
        raise ModelError(f'"metadata" must be an object, got {shown(document)}')
    return {k: v if isinstance(v, str) else _text(k, v) for k, v in document.items()}


def _object(text: str) -> Any:
    """Return the object or list that `text` is, where it is written as `_text` does; else
    `text`.
    """
    if not text.startswith(("{", "[")):
        return text
    try:
        found = json.loads(text)
        return found if json.dumps(found, ensure_ascii=False) == text else text
    except (ValueError, RecursionError):
        return text


def _text(key: str, value: object) -> str:
    if not isinstance(value, (dict, list)):
        raise ModelError(f'"metadata": {shown(key)} must be a text, an object or a list')
    return json.dumps(value, ensure_ascii=False)
