"""Writing glnn's own model files: see `json_format`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glnn.errors import ModelError
from glnn.layers import BY_NAME
from glnn.model.files import MOST_JSON
from glnn.model.metadata import as_json
from glnn.model.node import Content, Node, parameters
from glnn.model.npz import MOST_READ
from glnn.model.saving import write_model
from glnn.tensor_info import TensorInfo
from glnn.types import DType

FORMAT = "glnn"
VERSION = 1
SPARE = 100  # bytes of a file's or an array's entry besides its name
MOST_NAME = 60_000  # bytes of an array's name; a zip file counts them in 16 bits


def save(target: Path, content: Content) -> None:
    """Write the .json file `target` and the weights beside it: see `Model.save`."""
    nodes = content.nodes
    arrays = parameters(nodes)
    for array in arrays:
        _check_name(array)

    def text(weights: str | None) -> str:
        entries = {
            "name": content.name,
            **({"weights": weights} if weights else {}),
            "inputs": [_input(info) for info in content.inputs],
            "layers": [_entry(node) for node in nodes],
            "outputs": content.outputs,
            **({"metadata": as_json(content.metadata)} if content.metadata else {}),
        }
        return json.dumps({"format": FORMAT, "version": VERSION, **entries}, indent=2)

    described = len(text(target.name)) + SPARE
    listed = sum(len(array.encode()) + SPARE for array in arrays)
    if described > MOST_JSON or listed > MOST_READ:
        raise ModelError(f"{target}: {len(nodes)} layers of such names are too many to load")
    write_model(target, arrays, lambda weights: (text(weights) + "\n").encode())


def _input(info: TensorInfo) -> dict[str, Any]:
    """Return an input's entry in the file, without a type for float32."""
    found: dict[str, Any] = {"name": info.name, "shape": info.shape}
    return found if info.dtype is DType.float32 else {**found, "type": info.type}


def _check_name(name: str) -> None:
    """Raise ModelError unless an .npz file can call an array `name`."""
    try:
        fits = "\0" not in name and len(name.encode()) <= MOST_NAME
    except UnicodeEncodeError:  # half of a surrogate pair
        fits = False
    if not fits:
        raise ModelError(f"the array {name!r:.100} cannot be saved: no .npz file can name it so")


def _entry(node: Node) -> dict[str, Any]:
    """Return a layer's entry in the file."""
    kind = type(node.layer).__name__
    if BY_NAME.get(kind) is not type(node.layer):
        raise ModelError(f"layer {node.name!r}: {kind} cannot be saved")
    entry: dict[str, Any] = {"name": node.name, "layer": kind}
    if arguments := node.layer.config():
        entry["arguments"] = arguments
    return {**entry, "inputs": node.inputs, "output": node.output}
