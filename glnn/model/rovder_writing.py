"""Writing the model files of Rovder 2017: see `rovder`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, fault
from glnn.fileio import atomic_write
from glnn.layers import Layer, Linear, ReLU, Sigmoid
from glnn.model.node import Content
from glnn.tensor_info import BATCH, show
from glnn.types import Array

KINDS: dict[type[Layer], str] = {
    Linear: "AffineLayer",
    Sigmoid: "SigmoidLayer",
    ReLU: "ReLULayer",
}


def save(path: Path, content: Content) -> None:
    """Write the Network Definition `path`, and for the layer number i `path`'s stem with -i_w.json
    and -i_b.json, the Matrix Definitions, and the .csv files of these.

    Each file is there whole or not at all, and the Network Definition comes last. Raises ModelError
    for a model that is no chain of the layers that the format has.
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
        with ExitStack() as files:  # which end in the opposite order
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
    """Raise ModelError, which names what cannot be said, unless the format can say all."""
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
