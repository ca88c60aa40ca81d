"""The `light_*` models of the ONNX package with weights that tell engines apart.

As they come every weight is 0.02, which most mistakes pass. Here each has seeded random weights of
the scale that keeps numbers about 1, and the outputs are the numbers before the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = tuple(sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("*.onnx")))


def shipped(name: str) -> onnx.ModelProto:
    """The model as it comes."""
    return onnx.load(FOLDER / f"light_{name}.onnx")


def seeded(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model with weights of its own and without a softmax behind."""
    model = shipped(name)
    graph = model.graph
    known = {one.name: one for one in graph.initializer}
    rng = np.random.default_rng(seed)
    roles = {value: role for node in graph.node for value, role in _roles(node)}
    for node in graph.node:  # by way of a view
        if node.op_type in ("Unsqueeze", "Reshape") and node.output[0] in roles:
            roles[node.input[0]] = roles[node.output[0]]
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(n) for n in numpy_helper.to_array(known[node.input[0]]))
        array = _weights(rng, roles[node.output[0]], shape)
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    for one in graph.initializer:
        if one.name in roles and one.data_type == onnx.TensorProto.FLOAT and one.name in known:
            array = _weights(rng, roles[one.name], tuple(one.dims))
            one.CopyFrom(numpy_helper.from_array(array, one.name))
    last = kept[-1]
    if last.op_type == "Softmax":
        kept.pop()
        graph.output[0].CopyFrom(helper.make_empty_tensor_value_info(last.input[0]))
        graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    del graph.node[:]
    graph.node.extend(kept)
    return model


def image(model: onnx.ModelProto, seed: int = 1) -> dict[str, Any]:
    """Random pixels by the name of the input."""
    weights = {one.name for one in model.graph.initializer}
    (given,) = (one for one in model.graph.input if one.name not in weights)
    shape = [dim.dim_value or 1 for dim in given.type.tensor_type.shape.dim]
    return {given.name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def _roles(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """What the operands of `node` are that are weights."""
    named = {
        "Conv": ("", "conv", "shift"),
        "Gemm": ("", "gemm", "shift"),
        "BatchNormalization": ("", "scale", "shift", "shift", "var"),
        "Mul": ("", "scale"),
        "Add": ("", "shift"),
    }
    for name, role in zip(node.input, named.get(node.op_type, ()), strict=False):
        if role:
            turned = role == "gemm" and any(a.name == "transB" and a.i for a in node.attribute)
            yield name, "conv" if turned else role


def _weights(rng: np.random.Generator, role: str, shape: tuple[int, ...]) -> Any:
    if role in ("conv", "gemm"):
        reach = prod(shape[1:]) if role == "conv" else shape[0]
        found = rng.standard_normal(shape) * sqrt(2 / reach)
    elif role == "shift":
        found = 0.1 * rng.standard_normal(shape)
    else:
        found = rng.uniform(0.8, 1.2, shape)
    return found.astype(np.float32)
