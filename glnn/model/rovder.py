"""The model files of Rovder 2017: a Network Definition, and a Matrix Definition for each matrix.

    {"layers": [{"layer": "AffineLayer", "weights": "1_w.json", "biases": "1_b.json"},
                {"layer": "SigmoidLayer"}], "size": 2}
    {"rows": 50, "cols": 100, "data_type": "csv", "file": "1_w.csv"}

There, samples are columns and a layer computes W x I + b, with W of shape (h, d) and b of (h, 1).
Here samples are rows; W is the weight of a Linear layer as it is. `size` counts the layers.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError, first_line
from glnn.fileio import check_file, open_regular, resolve_inside
from glnn.layers import Layer, Linear, ReLU, Sigmoid
from glnn.model.files import check_inflated, parse_json, read
from glnn.model.model import Model

Array = NDArray[Any]
MOST_TEXT = 64  # characters of a number and the comma behind it
BYTE_ORDER_MARK = "\ufeff".encode().decode("latin-1")  # as spreadsheets write it before UTF-8
MOST_READ = 1 << 16  # bytes of blank lines and the like
ACTIVATIONS: Mapping[str, Callable[[], Layer]] = {"SigmoidLayer": Sigmoid, "ReLULayer": ReLU}


def parse(document: Mapping[str, Any], where: str, path: Path | None) -> Model:
    """The model that a Network Definition describes.

    where: what errors call the document. path: its file, or None where it has none and can
    therefore name no matrices. Raises ModelError for every fault.
    """
    entries = document.get("layers")
    if not isinstance(entries, list) or not entries:
        raise ModelError(f'{where}: "layers" must be a list that is not empty')
    size = document.get("size", len(entries))
    if size != len(entries):
        raise ModelError(f'{where}: "size" is {size!r}, but there are {len(entries)} layers')
    layers = [_layer(entry, where, path) for entry in entries]
    features = next((layer.in_features for layer in layers if isinstance(layer, Linear)), None)
    if features is None:
        raise ModelError(f"{where}: without an AffineLayer the input's size is unknown")
    try:
        return Model.sequential(layers, (features,), Path(where).stem)
    except (ModelError, ShapeError) as error:
        raise ModelError(f"{where}: {error}") from None


def _layer(entry: Any, where: str, path: Path | None) -> Layer:
    kind = entry.get("layer") if isinstance(entry, dict) else None
    if isinstance(kind, str) and kind in ACTIVATIONS:
        return ACTIVATIONS[kind]()
    if kind != "AffineLayer":
        known = ", ".join(("AffineLayer", *ACTIVATIONS))
        raise ModelError(f"{where}: unknown layer {kind!r}; known are {known}")
    if path is None:
        raise ModelError(f"{where}: an AffineLayer names files, so load the model by its path")
    for key in ("weights", "biases"):
        if key not in entry:
            raise ModelError(f'{where}: an AffineLayer needs "{key}", a Matrix Definition file')
    weight, biases = (_matrix(path, entry[key]) for key in ("weights", "biases"))
    rows, columns = weight.shape
    if biases.shape != (rows, 1):
        file = resolve_inside(path.parent, path, entry["biases"])
        raise ModelError(f"{file}: biases for {rows} rows must be ({rows}, 1), got {biases.shape}")
    layer = Linear(columns, rows)
    layer.weight, layer.bias = weight, biases.reshape(rows)
    return layer


def _matrix(network: Path, name: object) -> Array:
    """The matrix of the Matrix Definition that the Network Definition `network` calls `name`."""
    definition = resolve_inside(network.parent, network, name)
    document = parse_json(read(definition), str(definition))
    shape: tuple[Any, Any] = document.get("rows"), document.get("cols")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
        raise ModelError(f'{definition}: "rows" and "cols" must be positive integers, got {shape}')
    if document.get("data_type") != "csv":
        raise ModelError(
            f'{definition}: "data_type" must be "csv", got {document.get("data_type")!r}'
        )
    file = resolve_inside(network.parent, definition, document.get("file"))
    matrix = _csv(file, *shape)
    if matrix.shape != shape:
        raise ModelError(f"{file}: {definition.name} promises {shape}, got {matrix.shape}")
    return matrix


def _csv(file: Path, rows: int, columns: int) -> Array:
    """The numbers of a file of comma-separated values; nan and inf are numbers too.

    A file of more than `rows` rows is read to the first that is too many. One that ends in `.gz`
    is inflated. Raises ModelError where numbers are missing, or the file is longer than so many
    numbers can be.
    """
    check_file(file)
    try:
        check_inflated(file, file.stat().st_size, 4 * rows * columns)
        with _open(file) as text, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file: the shape check tells
            lines = _lines(file, text, rows, columns)
            matrix = np.loadtxt(
                lines, np.float32, None, ",", ndmin=2, max_rows=rows + 1, encoding=None
            )
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ModelError(f"{file}: not numbers separated by commas: {first_line(error)}") from None
    return np.asarray(matrix)


@contextmanager
def _open(file: Path) -> Iterator[IO[str]]:
    with open(file, "rb", opener=open_regular) as raw:
        if file.suffix != ".gz":
            yield TextIOWrapper(raw, "latin-1")
        else:
            with gzip.open(raw, "rt", encoding="latin-1") as text:
                yield cast(IO[str], text)


def _lines(file: Path, text: IO[str], rows: int, columns: int) -> Iterator[str]:
    """The lines of `text`. Raises ModelError where they are too long for what they should hold."""
    longest = MOST_TEXT * columns + 2
    left = longest * rows + MOST_READ
    mark = BYTE_ORDER_MARK
    while line := text.readline(longest + 1 + len(mark)).removeprefix(mark):
        mark = ""  # the first line only
        left -= len(line)
        if len(line) > longest or left < 0:
            raise ModelError(f"{file}: too long for {rows} rows of {columns} numbers")
        yield line
