"""Weights of whisper in ONNX files, as Optimum exports them from transformers.

A folder has encoder_model.onnx, and decoder_model.onnx or decoder_model_merged.onnx. Exporters
transpose the matrices of linear layers and call them `onnx::MatMul_123`, but the node that
multiplies by one has its layer's name, `/model/decoder/layers.0/fc1/MatMul`. So parameters are
identified by the nodes that read them. The graphs themselves are not run.
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
"""Files of the decoder, each of which has all its weights."""
MERGED = re.compile(r"_merged_\d+$")
PARAMETERS = (".weight", ".bias")
PLAIN_DOMAINS = ("", "ai.onnx")
QUANTIZED = ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul")


def find_onnx_files(folder: Path) -> tuple[Path, Path] | None:
    """Return the files of the encoder and the decoder in `folder`, or in its folder `onnx`.

    Returns None where the encoder's is missing. Raises ModelError where only the decoder's is.
    """
    for parent in (folder, folder / "onnx"):
        if (parent / ENCODER_FILE).exists():
            decoders = [parent / name for name in DECODER_FILES if (parent / name).exists()]
            if not decoders:
                raise ModelError(
                    f"{parent}: beside {ENCODER_FILE} there must be {' or '.join(DECODER_FILES)}"
                )
            return parent / ENCODER_FILE, decoders[0]
    return None


class OnnxWeights:
    """The parameters in an ONNX file, by transformers' names."""

    def __init__(self, path: Path, half: str) -> None:
        """half: "encoder" or "decoder".

        Raises ModelError where the file is no ONNX model, or the package onnx is missing.
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
            del self._arrays[head]  # a second copy of the tokens' embeddings
        kinds = {dtype: name for name, dtype in DTYPES.items()}
        self.entries = {
            name: TensorEntry(name, kinds.get(a.dtype, str(a.dtype)), a.shape, 0, a.nbytes)
            for name, a in self._arrays.items()
        }

    def _check_biases(self) -> None:
        """Raise ModelError where no bias was found for a layer that has one in whisper."""
        for name in self._arrays:
            module = name.removesuffix(".weight")
            has_bias = name != module and ".layers." in name and not module.endswith("k_proj")
            if has_bias and f"{module}.bias" not in self._arrays:
                raise ModelError(f"{self.path}: there is no node that adds {module + '.bias'!r}")

    def read(self, name: str) -> Array:
        """Return a tensor."""
        return np.ascontiguousarray(self._arrays[name])

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor's numbers."""
        return self.read(name).reshape(-1).view(np.uint8)


def _transformers_name(name: str, half: str) -> str:
    """Return transformers' name of the parameter `name` in the export of a half."""
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
    """Return the parameters of a GraphProto and its branches, by their modules' names."""
    constants: dict[str, Array] = {}
    nodes = []
    for part in _graphs(graph):
        for tensor in part.initializer:
            if len(tensor.dims) > 0:  # scalars are no parameters
                constants[tensor.name] = tensors.array(tensor)
        nodes += part.node
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
        reader.read(node)
    constants = {MERGED.sub("", name): array for name, array in constants.items()}
    named = {name: array for name, array in constants.items() if name.endswith(PARAMETERS)}
    return {**named, **reader.parameters}


class _ParameterReader:
    """Collects `parameters` by their modules' names, which are those of the nodes that read them.

    constants: by the names of their values. producers: nodes by the names of their outputs.
    """

    def __init__(self, constants: Mapping[str, Array], producers: Mapping[str, Any]) -> None:
        self._constants, self._producers = constants, producers
        self.parameters: dict[str, Array] = {}

    def read(self, node: Any) -> None:
        """Add the parameters that a node reads."""
        module = node.name.rpartition("/")[0].strip("/").replace("/", ".")
        inputs = [self._constants.get(name) for name in node.input]
        if node.op_type == "MatMul":
            self._read_matrix(module, node.input[1], inputs[1])
        elif node.op_type in ("Conv", "LayerNormalization"):
            for kind, array in zip(("weight", "bias"), inputs[1:]):
                if array is not None:
                    self.parameters[f"{module}.{kind}"] = array
        elif node.op_type == "Add":
            for array in inputs:
                if array is not None and array.ndim == 1 and module:
                    self.parameters[f"{module}.bias"] = array
                elif array is not None and array.ndim == 2:  # the encoder's positions
                    name = f"{module}.embed_positions.weight".lstrip(".")
                    self.parameters[name] = array

    def _read_matrix(self, module: str, name: str, array: Array | None) -> None:
        """Add the matrix `name`, the right operand of a module's MatMul."""
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
            self.parameters[key] = array
