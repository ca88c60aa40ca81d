"""The model files of Rovder 2017: a Network Definition, and a Matrix Definition for each matrix.

    {"layers": [{"layer": "AffineLayer", "weights": "1_w.json", "biases": "1_b.json"},
                {"layer": "SigmoidLayer"}], "size": 2}
    {"rows": 50, "cols": 100, "data_type": "csv", "file": "1_w.csv"}

In Rovder's models samples are columns, and a layer computes W x I + b, with W of shape (h, d) and b
of (h, 1). In glnn samples are rows; W is the weight of a Linear layer, unchanged. `size` is the
number of layers.
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from glnn.core.fileio import atomic_write, check_file, open_regular, resolve_inside
from glnn.core.tensor_info import BATCH, show
from glnn.core.types import Array
from glnn.errors import ModelError, ShapeError, fault, first_line, suggestion
from glnn.layers import Layer, Linear, ReLU, Sigmoid
from glnn.model.files import check_inflated, parse_json, read
from glnn.model.model import Model
from glnn.model.node import Content

MOST_TEXT = 64  # characters of a number and its comma
BYTE_ORDER_MARK = "\ufeff".encode().decode("latin-1")  # spreadsheets write it before UTF-8
MOST_READ = 1 << 16  # bytes of blank lines
ACTIVATIONS: Mapping[str, Callable[[], Layer]] = {"SigmoidLayer": Sigmoid, "ReLULayer": ReLU}


def parse(document: Mapping[str, Any], where: str, path: Path | None) -> Model:
    """Return the model that a Network Definition describes.

    where: the document's name in errors. path: its file; None where it has none, and therefore
    cannot name matrices. Raises ModelError for every fault.
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
        known = ("AffineLayer", *ACTIVATIONS)
        near = suggestion(kind, known) if isinstance(kind, str) else ""
        near = near or f"; known are {', '.join(known)}"
        raise ModelError(f"{where}: unknown layer {kind!r}{near}")
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
    """Read the matrix of the Matrix Definition `name`, a path in the file `network`."""
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
    """Read the numbers of a CSV file, `.csv` or `.csv.gz`; nan and inf are numbers, too.

    At most `rows` + 1 rows are read. Raises ModelError where numbers are missing, or the file is
    too long for rows x columns numbers.
    """
    check_file(file)
    try:
        check_inflated(file, file.stat().st_size, 4 * rows * columns)
        with _open(file) as text, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file: the shape is checked
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
    """Yield the lines of `text`. Raises ModelError where they are too long for their numbers."""
    longest = MOST_TEXT * columns + 2
    remaining = longest * rows + MOST_READ
    mark = BYTE_ORDER_MARK
    while line := text.readline(longest + 1 + len(mark)).removeprefix(mark):
        mark = ""  # only the first line has one
        remaining -= len(line)
        if len(line) > longest or remaining < 0:
            raise ModelError(f"{file}: too long for {rows} rows of {columns} numbers")
        yield line


KINDS: dict[type[Layer], str] = {
    Linear: "AffineLayer",
    Sigmoid: "SigmoidLayer",
    ReLU: "ReLULayer",
}


def save(path: Path, content: Content) -> None:
    """Write the Network Definition `path`, and the Matrix Definitions and .csv files of its layers.

    Those of layer i have `path`'s stem and -i_w or -i_b. Each file is written atomically, the
    Network Definition last. Raises ModelError for a model that is no chain of the format's layers.
    """
    _check(path, content)
    matrices: dict[str, Array] = {}
    layers: list[dict[str, str]] = []
    for number, node in enumerate(content.nodes, 1):
        layers.append({"layer": KINDS[type(node.layer)]})
        if isinstance(node.layer, Linear):
            bias = node.layer.bias
            bias = np.zeros(node.layer.out_features, np.float32) if bias is None else bias
            for key, letter, matrix in (
                ("weights", "w", node.layer.weight),
                ("biases", "b", bias[:, None]),
            ):
                name = f"{path.stem}-{number}_{letter}"
                matrices[name], layers[-1][key] = matrix, f"{name}.json"
    try:
        with ExitStack() as files:  # they are renamed in reverse order
            files.enter_context(atomic_write(path)).write(_json(layers=layers, size=len(layers)))
            for name, matrix in matrices.items():
                rows, columns = matrix.shape
                shape = {"rows": rows, "cols": columns}
                definition = _json(**shape, data_type="csv", file=f"{name}.csv")
                files.enter_context(atomic_write(path.with_name(f"{name}.json"))).write(definition)
                stream = files.enter_context(atomic_write(path.with_name(f"{name}.csv")))
                np.savetxt(stream, matrix, "%.9g", ",")
    except (OSError, ValueError) as error:  # a full disk, a path that holds a zero byte
        raise ModelError(f"{path}: cannot be written: {fault(error)}") from None


def _json(**document: Any) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _check(path: Path, content: Content) -> None:
    """Raise ModelError where the format cannot represent the model."""
    what = "a Network Definition"
    first, *others = content.inputs
    if others or len(content.outputs) > 1:
        raise ModelError(f"{path}: {what} has one input and one output")
    if len(first.shape) != 2 or first.shape[0] != BATCH:
        shape = show(first.shape)
        raise ModelError(f"{path}: {what} takes (N, features), the input {first.name!r} is {shape}")
    previous = first.name
    for node in content.nodes:
        if type(node.layer) not in KINDS:
            known = ", ".join(kind.__name__ for kind in KINDS)
            kind = type(node.layer).__name__
            raise ModelError(f"{path}: layer {node.name!r}: {what} has {known}, and no {kind}")
        if node.inputs != (previous,):
            raise ModelError(f"{path}: layer {node.name!r}: {what} is a chain, it reads another")
        previous = node.output
    if content.outputs != (previous,):
        raise ModelError(f"{path}: {what} gives what its last layer makes, {previous!r}")
    if not any(isinstance(node.layer, Linear) for node in content.nodes):
        raise ModelError(f"{path}: {what} without a Linear layer does not say the input's size")
