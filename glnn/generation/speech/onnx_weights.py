"""Weights of whisper in ONNX files, as Optimum exports them from transformers.

A folder has encoder_model.onnx, and decoder_model.onnx or decoder_model_merged.onnx. Exporters turn
the matrices of linear layers round and call them `onnx::MatMul_123`, but the node that multiplies
by one is called after its layer, `/model/decoder/layers.0/fc1/MatMul`. So parameters are found by
what the nodes do with them; the graphs themselves are not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.types import Array
from glnn.errors import ModelError
from glnn.model.weight_files import DTYPES, TensorEntry
from glnn.onnx.importing import Tensors
from glnn.onnx.model_proto import package, read

ENCODER_FILE = "encoder_model.onnx"
DECODER_FILES = ("decoder_model.onnx", "decoder_model_merged.onnx")
"""Files of the decoder, any one of which has all its weights."""
MERGED = re.compile(r"_merged_\d+$")
PARAMETERS = (".weight", ".bias")
PLAIN_DOMAINS = ("", "ai.onnx")
QUANTIZED = ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul")


def find_onnx_files(folder: Path) -> tuple[Path, Path] | None:
    """Return the files of the encoder and the decoder in `folder`, or in its folder `onnx`.

    None where no file of the encoder is there. Raises ModelError where the decoder's is missing.
    """
    for place in (folder, folder / "onnx"):
        if (place / ENCODER_FILE).exists():
            found = [place / name for name in DECODER_FILES if (place / name).exists()]
            if not found:
                raise ModelError(
                    f"{place}: beside {ENCODER_FILE} there must be {' or '.join(DECODER_FILES)}"
                )
            return place / ENCODER_FILE, found[0]
    return None


class OnnxWeights:
    """The parameters that an ONNX file has, by the names that transformers gives them."""

    def __init__(self, path: Path, half: str) -> None:
        """half: "encoder" or "decoder".

        Raises ModelError where the file is no ONNX model, or the package onnx is not there.
        """
        self.path = path
        onnx = package(str(path))
        tensors = Tensors(onnx, str(path), path.parent, path.resolve().parent)
        self._arrays = {
            _transformers_name(name, half): array
            for name, array in _parameters(read(path).graph, tensors).items()
        }
        self._check_biases()
        head, table = "proj_out.weight", f"model.{half}.embed_tokens.weight"
        if head in self._arrays and np.array_equal(self._arrays[head], self._arrays.get(table, 0)):
            del self._arrays[head]  # it is the table of tokens, which the file has twice
        kinds = {dtype: name for name, dtype in DTYPES.items()}
        self.entries = {
            name: TensorEntry(name, kinds.get(one.dtype, str(one.dtype)), one.shape, 0, one.nbytes)
            for name, one in self._arrays.items()
        }

    def _check_biases(self) -> None:
        """Raise ModelError where a layer has no bias that whisper's has: it was not found."""
        for name in self._arrays:
            module = name.removesuffix(".weight")
            wanted = name != module and ".layers." in name and not module.endswith("k_proj")
            if wanted and f"{module}.bias" not in self._arrays:
                raise ModelError(f"{self.path}: there is no node that adds {module + '.bias'!r}")

    def read(self, name: str) -> Array:
        """Return a tensor."""
        return np.ascontiguousarray(self._arrays[name])

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor's numbers."""
        return self.read(name).reshape(-1).view(np.uint8)


def _transformers_name(name: str, half: str) -> str:
    """Return what transformers calls a parameter that an export of one half calls `name`."""
    if name.startswith("proj_out."):
        return name
    return f"model.{half}.{name.removeprefix('model.').removeprefix(f'{half}.')}"


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a GraphProto and those of its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _parameters(graph: Any, tensors: Tensors) -> dict[str, Array]:
    """Return the parameters of a GraphProto and its branches, by the modules they are of."""
    constants: dict[str, Array] = {}
    nodes = []
    for one in _graphs(graph):
        for tensor in one.initializer:
            if len(tensor.dims) > 0:  # others are numbers that nodes compute with
                constants[tensor.name] = tensors.array(tensor)
        nodes += one.node
    for node in nodes:
        if node.domain not in PLAIN_DOMAINS or node.op_type in QUANTIZED:
            raise ModelError(
                f"{tensors.where}: a graph with {node.op_type} ({node.name!r}) is fused or "
                "quantized, which weights are not read of: take it as Optimum exports it"
            )
        if node.op_type == "Identity" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
    reader = _ParameterReader(constants, {name: node for node in nodes for name in node.output})
    for node in nodes:
        reader.take(node)
    named = {MERGED.sub("", name): array for name, array in constants.items()}
    rest = {name: one for name, one in named.items() if name.endswith(PARAMETERS)}
    return {**rest, **reader.found}


class _ParameterReader:
    """Names parameters by the nodes that read them.

    constants: by the names of their values. producers: nodes by the names of their outputs.
    """

    def __init__(self, constants: Mapping[str, Array], producers: Mapping[str, Any]) -> None:
        self._constants, self._producers = constants, producers
        self.found: dict[str, Array] = {}

    def take(self, node: Any) -> None:
        """Note the parameters that a node reads."""
        module = node.name.rpartition("/")[0].strip("/").replace("/", ".")
        inputs = [self._constants.get(name) for name in node.input]
        if node.op_type == "MatMul":
            self._take_matrix(module, node.input[1], inputs[1])
        elif node.op_type in ("Conv", "LayerNormalization"):
            for kind, array in zip(("weight", "bias"), inputs[1:]):
                if array is not None:
                    self.found[f"{module}.{kind}"] = array
        elif node.op_type == "Add":
            for array in inputs:
                if array is not None and array.ndim == 1 and module:
                    self.found[f"{module}.bias"] = array
                elif array is not None and array.ndim == 2:  # of the encoder's places
                    self.found[f"{module}.embed_positions.weight".lstrip(".")] = array

    def _take_matrix(self, module: str, name: str, array: Array | None) -> None:
        """Note the matrix `name` that a module multiplies by from the right."""
        if array is None:
            producer = self._producers.get(name)
            if producer is None or producer.op_type != "Transpose":
                return
            name = producer.input[0]
            array = self._constants.get(name)
        else:
            array = array.T
        if array is not None and array.ndim == 2:
            plain = MERGED.sub("", name)
            key = plain if plain.endswith(PARAMETERS) else f"{module}.weight"
            self.found[key] = array
