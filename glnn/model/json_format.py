"""glnn's own model files: a .json file with the graph, an .npz file with the parameters.

    {"format": "glnn", "version": 1, "name": "lenet",
     "weights": "lenet.weights-8d21f0aa35c6b97e.npz",
     "inputs": [{"name": "image", "shape": ["N", 1, 28, 28]}],
     "layers": [{"name": "c1", "layer": "Conv2d", "arguments": {"in_channels": 1, ...},
                 "inputs": ["image"], "output": "c1"}, ...],
     "outputs": ["probabilities"]}

An input that is not float32 has a type: `"type": "tensor(int32)"`. The .npz file holds `c1.weight`,
`c1.bias` and so on, float32. A layer without `inputs` reads the result of the layer before it; the
result of one without `output` has the layer's name; a model without `outputs` returns the result of
its last layer. `weights` is left out where no layer has parameters; the file may have any name.
`metadata` maps names to texts, or to objects and lists, which are texts of JSON in `Model.metadata`
and in .onnx files.

A model is replaced by a single rename.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glnn.core import fileio
from glnn.core.fileio import open_regular, resolve_inside
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import DType
from glnn.errors import ModelError, ShapeError, fault, shown, suggestion
from glnn.layers import BY_NAME, Layer
from glnn.model.files import MOST_JSON
from glnn.model.formats import metadata_from_json, metadata_to_json
from glnn.model.model import Model
from glnn.model.node import Content, Node, parameters
from glnn.model.npz import MOST_READ, Npz, open_npz

Array = NDArray[Any]
KEYS = {"format", "version", "name", "weights", "inputs", "layers", "outputs", "metadata"}
LAYER_KEYS = {"name", "layer", "arguments", "inputs", "output"}


def parse(
    document: Mapping[str, Any], where: str, path: Path | None, untrained: bool = False
) -> Model:
    """Return the model that `document` describes.

    where: the document's name in errors. path: its file; None where it has none, and so can name no
    weights. untrained: True to leave the weights unread. Raises ModelError for every fault.
    """
    try:
        _check_header(document)
        inputs = tuple(_input(entry) for entry in _list(document, "inputs"))
        nodes = _nodes(document, inputs)
        outputs = _list(document, "outputs") if "outputs" in document else [nodes[-1].output]
        name = document.get("name", Path(where).stem)
        if not isinstance(name, str):
            raise ModelError(f'"name" must be a text, got {name!r}')
        metadata = metadata_from_json(document.get("metadata", {}))
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
    """Return a layer of class `kind` with these arguments. what: its name in errors."""
    if not isinstance(kind, str) or kind not in BY_NAME:
        near = suggestion(kind, BY_NAME) if isinstance(kind, str) else ""
        near = near or f"; known are {', '.join(sorted(BY_NAME))}"
        raise ModelError(f"{what}: unknown kind {shown(kind)}{near}")
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
    """Assign every parameter of `model` from the file that `weights` names."""
    expected = {f"{node.name}.{name}" for node in model.nodes for name in node.layer.shapes}
    if weights is None and not expected:
        return
    if weights is None:
        raise ModelError(f'{where}: the layers have parameters, but there is no "weights" file')
    if path is None:
        raise ModelError(f"{where}: it names the file {weights!r:.40}, so load it by its path")
    file = resolve_inside(path.parent, path, weights)
    with open_npz(file) as archive:
        for key in sorted(expected ^ set(archive.names)):
            fault = "is missing" if key in expected else "belongs to no layer"
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


FORMAT = "glnn"
VERSION = 1
SPARE = 100  # bytes of an entry of a file or an array, besides its name
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
            "inputs": [_input_entry(info) for info in content.inputs],
            "layers": [_layer_entry(node) for node in nodes],
            "outputs": content.outputs,
            **({"metadata": metadata_to_json(content.metadata)} if content.metadata else {}),
        }
        return json.dumps({"format": FORMAT, "version": VERSION, **entries}, indent=2)

    header_bytes = len(text(target.name)) + SPARE
    names_bytes = sum(len(array.encode()) + SPARE for array in arrays)
    if header_bytes > MOST_JSON or names_bytes > MOST_READ:
        raise ModelError(f"{target}: {len(nodes)} layers of such names are too many to load")
    write_two_files(target, arrays, lambda weights: (text(weights) + "\n").encode())


def _input_entry(info: TensorInfo) -> dict[str, Any]:
    """Return an input's entry in the file, without a type for float32."""
    result: dict[str, Any] = {"name": info.name, "shape": info.shape}
    return result if info.dtype is DType.float32 else {**result, "type": info.type}


def _check_name(name: str) -> None:
    """Raise ModelError unless an .npz file can call an array `name`."""
    try:
        fits = "\0" not in name and len(name.encode()) <= MOST_NAME
    except UnicodeEncodeError:  # half of a surrogate pair
        fits = False
    if not fits:
        raise ModelError(f"the array {name!r:.100} cannot be saved: no .npz file can name it so")


def _layer_entry(node: Node) -> dict[str, Any]:
    """Return a layer's entry in the file."""
    kind = type(node.layer).__name__
    if BY_NAME.get(kind) is not type(node.layer):
        raise ModelError(f"layer {node.name!r}: {kind} cannot be saved")
    entry: dict[str, Any] = {"name": node.name, "layer": kind}
    if arguments := node.layer.config():
        entry["arguments"] = arguments
    return {**entry, "inputs": node.inputs, "output": node.output}


if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

NO_MODEL = {errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.EFBIG}
"""Errors of reading a path that is no file, or one too large to be loaded."""


def write_two_files(
    target: Path, arrays: Mapping[str, NDArray[Any]], text: Callable[[str | None], bytes]
) -> None:
    """Write the .json file `target` and, where there are `arrays`, an .npz file beside it.

    text: returns the .json file's content for the .npz file's name, None without one.

    The .npz file gets a unique name, so that the old model is unchanged until `target` is replaced.
    If the process is killed at any point, either the old model or the new one is complete. Files
    left over, the old weights too, are removed now or by the next save, unless another .json file
    of the folder names them, or a file whose name begins with that of `target` (net.json.bak).
    Raises ModelError where something cannot be written.
    """
    if target.is_dir():
        raise ModelError(f"{target}: cannot be written: it is a folder")
    former = _former_weights(target)
    try:
        with ExitStack() as files:
            name = None
            if arrays:
                name = f"{target.stem}.weights-{secrets.token_hex(8)}.npz"
                stream = files.enter_context(_create(target.with_name(name)))
                np.savez(stream, **arrays)  # type: ignore[arg-type]
                _sync(stream)
            draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            stream = files.enter_context(_create(draft))
            stream.write(text(name))
            _sync(stream)
            _sync_folder(target.parent)  # the weights are on disk before a model names them
            if sys.platform == "win32":
                stream.close()  # an open file cannot be renamed there
            fileio.publish(draft, target)
            _sync_folder(target.parent)  # before the old weights are removed
    except (OSError, ValueError) as error:  # a name that holds a zero byte, a full disk
        raise ModelError(f"{target}: cannot be written: {fault(error)}") from None
    finally:
        _remove_unused(target, former)


@contextmanager
def _create(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file, locked while it is open: then no other save removes it as unused."""
    while True:
        with path.open("xb") as stream:
            with suppress(OSError):  # some file systems lock nothing
                _lock(stream, wait=True)
            if os.fstat(stream.fileno()).st_nlink:
                yield stream
                return
        # Another save removed it before it was locked.


def _lock(stream: IO[bytes], wait: bool = False) -> None:
    """Lock the file until it is closed. Raises OSError where another process has it locked.

    wait: True to wait for that process instead, which removes unused files.
    """
    if sys.platform != "win32":
        flock(stream, LOCK_EX | (0 if wait else LOCK_NB))


@contextmanager
def _lock_unused(path: Path) -> Iterator[None]:
    """Lock the file. Raises OSError where another process is writing it."""
    if sys.platform == "win32":  # an open file cannot be removed there
        yield
    else:
        with open(path, "r+b", opener=open_regular) as stream:
            _lock(stream)
            yield


def _sync(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems and systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _former_weights(target: Path) -> str | None:
    """Return the .npz file of the model at `target` if it is named as by older versions of glnn."""
    with suppress(OSError, ValueError, RecursionError):
        document = json.loads(fileio.read_bytes(target, MOST_JSON))
        name = target.with_suffix(".npz").name
        if isinstance(document, dict) and document.get("weights") == name:
            return name
    return None


def _remove_unused(target: Path, former: str | None) -> None:
    """Remove files that saves of `target` left behind: those that no model in the folder names and
    no process is writing. former: the old model's weights, if named as by older versions of glnn.
    """
    stem = re.escape(target.stem)
    ours = re.compile(rf"{stem}\.weights-[0-9a-f]{{16}}\.npz|\.{stem}\.(json|npz)\.[0-9a-f]{{8}}")
    with suppress(OSError):
        for path in list(target.parent.iterdir()):
            if (ours.fullmatch(path.name) or path.name == former) and not path.is_symlink():
                # Locked first: a save names its weights before it unlocks them.
                with suppress(OSError), _lock_unused(path):
                    if not _is_named(path, target.name):
                        path.unlink()


def _is_named(path: Path, model: str) -> bool:
    """Return True where a model in the folder of `path` names it, or cannot be read.

    Models are the folder's .json files, and files whose names begin with `model`, as net.json.bak.
    """
    names = path.name.encode("utf-8", "surrogateescape"), json.dumps(path.name)[1:-1].encode()
    for other in path.parent.iterdir():
        if not other.name.endswith(".json") and not other.name.startswith(model):
            continue
        try:
            content = fileio.read_bytes(other, MOST_JSON)
        except OSError as error:
            if error.errno in NO_MODEL:
                continue
            return True
        if any(name in content for name in names):
            return True
    return False
