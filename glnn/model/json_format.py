"""glnn's own model files: a .json file with the graph, an .npz file with the parameters.

    {"format": "glnn", "version": 1, "name": "lenet",
     "weights": "lenet.weights-8d21f0aa35c6b97e.npz",
     "inputs": [{"name": "image", "shape": ["N", 1, 28, 28]}],
     "layers": [{"name": "c1", "layer": "Conv2d", "arguments": {"in_channels": 1, ...},
                 "inputs": ["image"], "output": "c1"}, ...],
     "outputs": ["probabilities"]}

An input that is not float32 says so: `"type": "tensor(int32)"`. The .npz file holds `c1.weight`,
`c1.bias` and so on, float32. A layer without `inputs` reads what the layer before it makes; one
without `output` makes a tensor of its own name; a model without `outputs` gives what its last layer
makes. `weights` is left out where no layer has parameters; the file may have any name. `metadata`
may say more of the model, by name: texts, or objects and lists, which are texts of JSON to
`Model.metadata` and in .onnx files.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError
from glnn.fileio import resolve_inside
from glnn.layers import BY_NAME, Layer
from glnn.model.json_writing import FORMAT, VERSION
from glnn.model.metadata import from_json
from glnn.model.model import Model
from glnn.model.node import Node
from glnn.model.npz import Npz, open_npz
from glnn.tensor_info import TensorInfo

Array = NDArray[Any]
KEYS = {"format", "version", "name", "weights", "inputs", "layers", "outputs", "metadata"}
LAYER_KEYS = {"name", "layer", "arguments", "inputs", "output"}


def parse(
    document: Mapping[str, Any], where: str, path: Path | None, untrained: bool = False
) -> Model:
    """The model that `document` describes.

    where: what errors call the document. path: its file, or None where it has none and can
    therefore name no weights. untrained: whether these are not read. Raises ModelError for every
    fault.
    """
    try:
        _check_header(document)
        inputs = tuple(_input(entry) for entry in _list(document, "inputs"))
        nodes = _nodes(document, inputs)
        outputs = _list(document, "outputs") if "outputs" in document else [nodes[-1].output]
        name = document.get("name", Path(where).stem)
        if not isinstance(name, str):
            raise ModelError(f'"name" must be a text, got {name!r}')
        metadata = from_json(document.get("metadata", {}))
        model = Model(nodes, inputs, _texts("outputs", outputs), name, metadata)
    except (ModelError, ShapeError) as error:
        raise ModelError(f"{where}: {error}") from None
    if not untrained:
        _fill(model, document.get("weights"), where, path)
    return model


def _check_header(document: Mapping[str, Any]) -> None:
    if document.get("format") != FORMAT:
        raise ModelError(f'"format" must be "{FORMAT}", got {document.get("format")!r}')
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ModelError(f'"version" must be an integer of at least 1, got {version!r}')
    if version > VERSION:
        raise ModelError(f"format version {version} is newer than this glnn reads, {VERSION}")
    _check_keys("the model", document, KEYS)


def _check_keys(what: str, entry: Mapping[str, Any], allowed: set[str]) -> None:
    if unknown := sorted(set(entry) - allowed):
        raise ModelError(f"{what} has the unknown key {unknown[0]!r}")


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list) or not value:
        raise ModelError(f'"{key}" must be a list that is not empty, got {value!r:.40}')
    return value


def _texts(what: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ModelError(f'"{what}" must be a list of names, got {values!r:.40}')
    return tuple(values)


def _input(entry: Any) -> TensorInfo:
    if not isinstance(entry, dict) or not isinstance(entry.get("shape"), list):
        raise ModelError(f'"inputs" must hold objects with "name" and "shape", got {entry!r:.40}')
    _check_keys("an input", entry, {"name", "shape", "type"})
    type = entry.get("type", "tensor(float)")
    return TensorInfo(entry.get("name", ""), tuple(entry["shape"]), type)


def _nodes(document: Mapping[str, Any], inputs: tuple[TensorInfo, ...]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    previous = inputs[0].name
    for number, entry in enumerate(_list(document, "layers"), start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ModelError(f'layer {number} must be an object with a "name", got {entry!r:.40}')
        name = entry["name"]
        _check_keys(f"layer {name!r}", entry, LAYER_KEYS)
        layer = _layer(f"layer {name!r}", entry.get("layer"), entry.get("arguments", {}))
        reads = _texts("inputs", entry.get("inputs", [previous]))
        (previous,) = _texts("output", [entry.get("output", name)])
        nodes.append(Node(name, layer, reads, previous))
    return tuple(nodes)


def _layer(what: str, kind: object, arguments: object) -> Layer:
    """A layer from its kind and its constructor's arguments."""
    if not isinstance(kind, str) or kind not in BY_NAME:
        raise ModelError(f"{what}: unknown kind {kind!r}; known are {', '.join(sorted(BY_NAME))}")
    if not isinstance(arguments, dict):
        raise ModelError(f'{what}: "arguments" must be an object, got {arguments!r:.40}')
    try:
        inspect.signature(BY_NAME[kind]).bind(**arguments)
    except TypeError as error:
        raise ModelError(f"{what}: {kind}: {error}") from None
    try:
        return BY_NAME[kind](**arguments)
    except ShapeError as error:
        raise ShapeError(f"{what}: {error}") from None


def _fill(model: Model, weights: object, where: str, path: Path | None) -> None:
    """Give every layer of `model` its parameters, from the file that `weights` names."""
    wanted = {f"{node.name}.{name}" for node in model.nodes for name in node.layer.shapes}
    if weights is None and not wanted:
        return
    if weights is None:
        raise ModelError(f'{where}: the layers have parameters, but there is no "weights" file')
    if path is None:
        raise ModelError(f"{where}: it names the file {weights!r:.40}, so load it by its path")
    file = resolve_inside(path.parent, path, weights)
    with open_npz(file) as archive:
        for key in sorted(wanted ^ set(archive.names)):
            fault = "is missing" if key in wanted else "belongs to no layer"
            raise ModelError(f"{file}: the array {key!r} {fault}")
        for node in model.nodes:
            for name in node.layer.shapes:
                try:
                    setattr(node.layer, name, _parameter(archive, node, name))
                except ShapeError as error:
                    raise ModelError(f"{file}: layer {node.name!r}: {error}") from None


def _parameter(archive: Npz, node: Node, name: str) -> Array:
    """Read a parameter of a layer, whose header is checked first."""
    header = archive.header(f"{node.name}.{name}")
    what = f"{type(node.layer).__name__} {name}"
    if header.dtype.kind not in "fiub":
        raise ShapeError(f"{what} must be a float32 NumPy array, got {header.dtype} array")
    if header.shape != node.layer.shapes[name]:
        expected = node.layer.shapes[name]
        raise ShapeError(f"{what} must have shape {expected}, got {header.shape}")
    return archive.read(f"{node.name}.{name}")
