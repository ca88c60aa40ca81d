"""ONNX classifiers as ncnn's files: what `benchmarks.ncnn_vulkan` has ncnn run.

A .param file is text: a magic number, how many layers and blobs there are, and a line for each
layer (its kind, name, numbers of inputs and outputs, their names, and its parameters as key=value).
The .bin file has the layers' weights in their order, as float32; those of convolutions and products
follow a word that says so. Every blob is read once: what several layers read goes through a Split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import GlnnError

Array = NDArray[Any]
Parameters = dict[int, object]
MAGIC = 7767517
FLOAT32 = np.zeros(1, np.uint32).tobytes()  # the word before weights that are float32
RELU, CLIP = 1, 3  # what a convolution or product may do to its results
PLAIN = ("Identity", "Dropout")  # what comes out is what went in


class Writer:
    """The layers of an ONNX model of one input, as text and weights.

    model: an `onnx.ModelProto`. shape: (channels, height, width) of the input. Raises GlnnError
    where it has what is not known here.
    """

    def __init__(self, model: Any, shape: tuple[int, int, int]) -> None:
        from onnx import numpy_helper

        graph = model.graph
        self._values: dict[str, Array] = {
            one.name: numpy_helper.to_array(one) for one in graph.initializer
        }
        self._nodes = [node for node in graph.node if not self._known(node, numpy_helper)]
        self._renamed: dict[str, str] = {}
        self._lines: list[str] = []
        self._weights: list[bytes] = []
        self._blobs = 0
        self._fused: set[int] = set()
        given = [one.name for one in graph.input if one.name not in self._values]
        if len(given) != 1 or len(graph.output) != 1:
            raise GlnnError("expected a network of one input and one output")
        self.input, self.output = given[0], graph.output[0].name
        self._uses = Counter(self._name(name) for node in self._nodes for name in node.input)
        self._left: dict[str, list[str]] = {}
        c, h, w = shape
        self._add("Input", [], self.input, {0: w, 1: h, 2: c})
        for i, node in enumerate(self._nodes):
            if i not in self._fused:
                self._write(i, node)

    def save(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.param and NAME.bin into `folder`."""
        param, weights = folder / f"{name}.param", folder / f"{name}.bin"
        head = f"{MAGIC}\n{len(self._lines)} {self._blobs}\n"
        param.write_text(head + "\n".join(self._lines) + "\n", "utf-8")
        weights.write_bytes(b"".join(self._weights))
        return param, weights

    def _known(self, node: Any, helper: Any) -> bool:
        """Whether what `node` gives is known before a run; it is noted then."""
        if node.op_type == "Constant":
            self._values[node.output[0]] = helper.to_array(node.attribute[0].t)
        elif node.op_type in PLAIN and node.input[0] in self._values:
            self._values[node.output[0]] = self._values[node.input[0]]
        else:
            return False
        return True

    def _name(self, name: str) -> str:
        """The blob that an ONNX value is, without what is not allowed in a name."""
        return self._renamed.get(name, name).replace(" ", "_")

    def _read(self, name: str) -> str:
        """The name by which the next layer reads a blob."""
        name = self._name(name)
        if self._uses[name] < 2:
            return name
        return self._left[name].pop()

    def _add(self, kind: str, inputs: list[str], output: str, parameters: Parameters) -> None:
        """A line for a layer, and one for a Split where several layers read what it gives."""
        name = self._name(output)
        values = [f"{key}={value}" for key, value in parameters.items()]
        words = [kind, f"l{len(self._lines)}", str(len(inputs)), "1", *inputs, name, *values]
        self._lines.append(" ".join(words))
        self._blobs += 1
        if (uses := self._uses[name]) > 1:
            self._left[name] = [f"{name}_{i}" for i in range(uses)]
            split = ["Split", f"l{len(self._lines)}", "1", str(uses), name, *self._left[name]]
            self._lines.append(" ".join(split))
            self._blobs += uses

    def _write(self, i: int, node: Any) -> None:
        if node.op_type in PLAIN:
            self._renamed[node.output[0]] = self._name(node.input[0])
            return
        if (write := WRITERS.get(node.op_type)) is None:
            raise GlnnError(f"no layer of ncnn is known here for {node.op_type}")
        kind, inputs, parameters, weights = write(_attributes(node), self._operands(node))
        read = [self._read(name) for name in list(node.input)[:inputs]]
        output = node.output[0]
        if weights:
            found, output = self._activation(output)
            parameters |= found
        self._add(kind, read, output, parameters)
        self._weights += weights

    def _operands(self, node: Any) -> list[Array | None]:
        """The numbers of each of the node's inputs, None of those that a run computes."""
        return [self._values.get(name) for name in node.input]

    def _activation(self, output: str) -> tuple[Parameters, str]:
        """What follows a layer with weights and becomes a part of it, and what that gives."""
        readers = [(i, n) for i, n in enumerate(self._nodes) if output in n.input]
        if len(readers) != 1 or readers[0][1].op_type not in ("Relu", "Clip"):
            return {}, output
        i, node = readers[0]
        self._fused.add(i)
        if node.op_type == "Relu":
            return {9: RELU}, node.output[0]
        low, high = (float(value) for value in self._operands(node)[1:] if value is not None)
        return {9: CLIP, -23310: f"2,{low:g},{high:g}"}, node.output[0]


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


Written = tuple[str, int, Parameters, list[bytes]]
"""A layer's kind, how many of the node's inputs are blobs, its parameters, its weights."""


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array, np.float32).tobytes()


def _window(said: Mapping[str, Any], kernel: tuple[int, int], keys: tuple[int, ...]) -> Parameters:
    """Kernel, stride, and padding at the left, right, top and bottom; `keys` are those of ncnn."""
    top, left, bottom, right = said.get("pads", (0, 0, 0, 0))
    down, across = said.get("strides", (1, 1))
    values = (kernel[1], kernel[0], across, down, left, right, top, bottom)
    return dict(zip(keys, values, strict=True))


def _conv(said: Mapping[str, Any], given: list[Array | None]) -> Written:
    weight, bias = given[1], given[2] if len(given) > 2 else None
    if weight is None:
        raise GlnnError("expected weights that never change")
    groups, (down, across) = said.get("group", 1), said.get("dilations", (1, 1))
    parameters: Parameters = {0: weight.shape[0], 5: int(bias is not None), 6: weight.size}
    kernel = (weight.shape[2], weight.shape[3])
    parameters |= _window(said, kernel, (1, 11, 3, 13, 4, 15, 14, 16)) | {2: across, 12: down}
    parameters |= {7: groups} if groups > 1 else {}
    kind = "ConvolutionDepthWise" if groups > 1 else "Convolution"
    return kind, 1, parameters, [FLOAT32, _bytes(weight), *([] if bias is None else [_bytes(bias)])]


def _gemm(said: Mapping[str, Any], given: list[Array | None]) -> Written:
    weight, bias = given[1], given[2] if len(given) > 2 else None
    if weight is None or said.get("alpha", 1.0) != 1.0 or said.get("beta", 1.0) != 1.0:
        raise GlnnError("expected a plain product by weights that never change")
    weight = weight if said.get("transB") else weight.T
    parameters: Parameters = {0: weight.shape[0], 1: int(bias is not None), 2: weight.size}
    own = [] if bias is None else [_bytes(bias)]
    return "InnerProduct", 1, parameters, [FLOAT32, _bytes(weight), *own]


def _pool(kind: int) -> Callable[[Mapping[str, Any], list[Array | None]], Written]:
    def write(said: Mapping[str, Any], given: list[Array | None]) -> Written:
        if any(size != 1 for size in said.get("dilations", ())):
            raise GlnnError("ncnn's pools have no dilation")
        height, width = said["kernel_shape"]
        parameters: Parameters = {0: kind, 5: 0 if said.get("ceil_mode") else 1}
        parameters |= _window(said, (height, width), (1, 11, 2, 12, 3, 14, 13, 15))
        return "Pooling", 1, parameters | {6: said.get("count_include_pad", 0)}, []

    return write


def _clip(said: Mapping[str, Any], given: list[Array | None]) -> Written:
    low, high = (float(value) for value in given[1:] if value is not None)
    return "Clip", 1, {0: low, 1: high}, []


def _concat(said: Mapping[str, Any], given: list[Array | None]) -> Written:
    return "Concat", len(given), {0: said["axis"] - 1}, []  # no batch


def _softmax(said: Mapping[str, Any], given: list[Array | None]) -> Written:
    axis = said.get("axis", -1)
    return "Softmax", 1, {0: axis - 1 if axis > 0 else axis, 1: 1}, []


WRITERS: dict[str, Callable[[Mapping[str, Any], list[Array | None]], Written]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MaxPool": _pool(0),
    "AveragePool": _pool(1),
    "GlobalAveragePool": lambda said, given: ("Pooling", 1, {0: 1, 4: 1}, []),
    "Relu": lambda said, given: ("ReLU", 1, {}, []),
    "Clip": _clip,
    "Add": lambda said, given: ("BinaryOp", 2, {0: 0}, []),
    "Concat": _concat,
    "Softmax": _softmax,
    "Flatten": lambda said, given: ("Flatten", 1, {}, []),
}
"""What each operator of ONNX is to ncnn."""
