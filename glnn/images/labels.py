"""The names of classes, from files or from a model's metadata."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from glnn.core.fileio import check_file, read_bytes
from glnn.errors import ModelError, shown

KEY = "labels"
"""glnn's key of the names in metadata: a JSON list, or an object of numbers and names."""
KEYS = (KEY, "names", "id2label", "class_names", "classes")
"""The keys of the names in metadata: the second is Ultralytics', the third Hugging Face's."""
MOST = 1 << 24  # bytes of a file, or characters of an entry

Labels = Mapping[int, str]
"""Names by the numbers of classes."""


def read_labels(path: str) -> Labels:
    """Read the names in the file `path`.

    It has a name in each line; or is a .json file of a list, an object from numbers to names or
    from names to numbers, or Hugging Face's `id2label`; or a .csv file with a number and a name, or
    a name, in each row. Raises ModelError for anything else.
    """
    file = Path(path)
    check_file(file)
    try:
        text = read_bytes(file, MOST).decode("utf-8-sig")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: expected names in UTF-8") from None
    try:
        if file.suffix.lower() == ".json":
            result = _labels(json.loads(text))
        elif file.suffix.lower() == ".csv":
            result = _rows(text)
        else:
            result = _lines(text)
    except (ValueError, RecursionError, csv.Error) as error:
        raise ModelError(f"{path}: no names of classes: {error}") from None
    return result


def labels_of(metadata: Mapping[str, str]) -> Labels | None:
    """Return the names in a model's metadata, under one of KEYS; None without any."""
    for key in KEYS:
        text = metadata.get(key, "")
        if not text.strip() or len(text) > MOST:
            continue
        try:
            if text.lstrip()[0] not in "[{":
                return dict(enumerate(t.strip() for t in _lines_or_commas(text)))
            return _labels(_parse(text))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def text_of(labels: Labels | Sequence[str]) -> str:
    """Return the names as the text for a model's metadata. Raises ModelError for anything else."""
    try:
        if isinstance(labels, str):
            raise TypeError("got one text")
        result = _labels(dict(labels) if isinstance(labels, Mapping) else list(labels))
    except (TypeError, ValueError) as error:
        raise ModelError(f"labels must be names, or numbers and names: {error}") from None
    is_list = set(result) == set(range(len(result)))
    return json.dumps(
        [result[i] for i in range(len(result))] if is_list else result, ensure_ascii=False
    )


def _parse(text: str) -> object:
    """Parse JSON, or a literal of Python."""
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text.strip())


def _labels(document: object) -> Labels:
    """Return the names in a list or an object. Raises ValueError for any other document."""
    if isinstance(document, dict):
        if isinstance(document.get("id2label"), dict):
            return _labels(document["id2label"])
        if all(isinstance(n, int) and not _is_number(k) for k, n in document.items()):
            document = {number: name for name, number in document.items()}
        entries = list(document.items())
    elif isinstance(document, (list, tuple)):
        entries = list(enumerate(document))
    else:
        raise ValueError(f"expected a list or an object, got {shown(document)}")
    result = {_class(number): _name(name) for number, name in entries}
    if not result:
        raise ValueError("there are none")
    return result


def _is_number(text: object) -> bool:
    return isinstance(text, int) or (isinstance(text, str) and text.isascii() and text.isdigit())


def _class(number: object) -> int:
    """Return the number of a class."""
    if isinstance(number, bool) or not _is_number(number) or len(str(number)) > 9:
        raise ValueError(f"expected the number of a class, got {shown(number)}")
    result = int(number)  # type: ignore[call-overload]
    if result < 0:
        raise ValueError(f"expected the number of a class, got {result}")
    return int(result)


def _name(name: object) -> str:
    """Return a name; of a list, the last element, as in Keras' list for ImageNet."""
    if isinstance(name, (list, tuple)) and name:
        name = name[-1]
    if not isinstance(name, str):
        raise ValueError(f"expected a name, got {shown(name)}")
    return name.strip()


def _lines(text: str) -> Labels:
    """Parse a name a line; empty lines at the end are ignored."""
    lines = text.rstrip().splitlines()
    if not lines:
        raise ValueError("it is empty")
    return {number: line.strip() for number, line in enumerate(lines)}


def _lines_or_commas(text: str) -> list[str]:
    return text.strip().splitlines() if "\n" in text.strip() else text.split(",")


def _rows(text: str) -> Labels:
    """Parse rows of a number and a name, in either order, or of names; the first row may be a
    header.
    """
    rows = [row for row in csv.reader(StringIO(text)) if any(cell.strip() for cell in row)]
    if not rows:
        raise ValueError("it is empty")
    if all(len(row) == 1 for row in rows):
        return {number: row[0].strip() for number, row in enumerate(rows)}
    if not any(_is_number(cell.strip()) for cell in rows[0]):
        rows = rows[1:]
    result: dict[int, str] = {}
    for row in rows:
        cells = [cell.strip() for cell in row]
        number_columns = [i for i, cell in enumerate(cells[:2]) if _is_number(cell)]
        if len(cells) < 2 or not number_columns:
            raise ValueError(f"expected a number and a name, got {shown(row)}")
        column = number_columns[0]
        number = _class(cells[column])
        if number in result:
            raise ValueError(f"class {number} has two names")
        result[number] = cells[1 - column]
    if not result:
        raise ValueError("there are none")
    return result
