"""Reading model files: every fault is a ModelError that names the file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from glnn.core import fileio
from glnn.errors import ModelError

MOST_JSON = 16 << 20  # bytes of a .json file; parsed, it takes some twenty times as many
MOST_DIGITS = 20  # of an integer: the time to read it grows with their square
MOST_INFLATED = 1 << 30  # bytes to which any file may inflate
RATIO = 50  # a larger file may inflate to so many times its bytes: weights and images shrink less


def read(path: Path) -> bytes:
    """Return the content of a .json file. Raises ModelError."""
    fileio.check_file(path)
    try:
        return fileio.read_bytes(path, MOST_JSON)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in `data`. where: its name in errors. Raises ModelError."""
    try:
        document = json.loads(data, object_pairs_hook=_object, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ModelError(f"{where}: expected a JSON object, got {type(document).__name__}")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {name!r:.100} occurs twice")
    return result


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def check_inflated(path: Path, size: int, nbytes: int) -> None:
    """Raise ModelError where a file of `size` bytes inflates to more than real ones do."""
    most = max(MOST_INFLATED, RATIO * size)
    if nbytes > most:
        raise ModelError(f"{path}: its {size} bytes would inflate to {nbytes}, at most {most} are")
