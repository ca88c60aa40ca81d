"""ONNX's backend interface: `onnx.backend.base.Backend`, as functions of a module.

`prepare(model, backend="compute").run(inputs)` runs a ModelProto. Options are those of
InferenceSession. `device` is where arrays come from and go to: "CPU", the host, is the only one.
`supports(model)` says which nodes the host computes, and why.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glnn.backends import open_backend
from glnn.compiler.partitioned_graph import find_hosted
from glnn.core.types import unboxed
from glnn.errors import GlnnError, ModelError
from glnn.model.load import load, load_bytes
from glnn.session import InferenceSession


class BackendRep:
    """A model that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model; return the outputs in the model's order.

        inputs: the inputs in order, or by name, or the array of the only input. Sequences are
        lists; a missing optional value is None.
        """
        names = [info.name for info in self.session.get_inputs()]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            listed = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(listed) != len(names):
                raise ModelError(f"expected {len(names)} inputs, {names}, got {len(listed)}")
            feeds = dict(zip(names, listed, strict=True))
        feeds = {name: _array(value) for name, value in feeds.items()}
        return tuple(map(unboxed, self.session.run(None, feeds)))


def prepare(model: Any, device: str = "CPU", **kwargs: Any) -> BackendRep:
    """Prepare a ModelProto to run. kwargs, and errors raised: those of InferenceSession."""
    if not supports_device(device):
        raise GlnnError(f"device must be CPU, got {device!r}")
    return BackendRep(InferenceSession(model.SerializeToString(), **kwargs))


def run_model(model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
    """Run a ModelProto once on `inputs`, given as to `BackendRep.run`; return the outputs."""
    return prepare(model, device, **kwargs).run(inputs)


def run_node(
    node: Any,
    inputs: Any,
    device: str = "CPU",
    outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Run a NodeProto on arrays of its operands; return the results.

    opset_version: of ONNX's operator set, by default the newest of the package.
    """
    from onnx import defs, helper

    version = kwargs.pop("opset_version", defs.onnx_opset_version())
    names = [name for name in node.input if name]
    arrays = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
    if len(arrays) != len(names):
        raise ModelError(f"{node.op_type} reads {len(names)} operands, got {len(arrays)}")
    operands = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), np.shape(array)
        )
        for name, array in zip(names, arrays, strict=True)
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], node.op_type, operands, results)
    imports = [helper.make_opsetid(node.domain, version)]
    return run_model(helper.make_model(graph, opset_imports=imports), arrays, device, **kwargs)


@dataclass(frozen=True)
class Support:
    """The device that computes a node of a model, with the reason."""

    node: str
    """The node's name; operator and number where it has none."""
    operator: str
    """The operator's name."""
    on_gpu: bool
    """True where the GPU computes the node."""
    reason: str
    """The reasons why the host computes parts of the node; empty where it computes none."""


def supports(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    backend: str = "auto",
    gpu: int | str | None = None,
    limits: str | None = None,
) -> tuple[Support, ...]:
    """Return for each node of `model`, in order, whether the GPU or the host computes it.

    model: a ModelProto, or the path of a file. shapes: of inputs, by name; open sizes of other
    inputs are 1. backend, gpu, limits: as of InferenceSession. Nodes whose sizes are known only in
    a run are reported as the GPU's. Raises what InferenceSession raises for a model that cannot be
    computed.
    """
    is_path = isinstance(model, (str, os.PathLike))
    loaded = load(model) if is_path else load_bytes(model.SerializeToString())
    known_shapes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    types = {
        info.name: info.tensor_type.of_shape(known_shapes.get(info.name, info.with_batch(1)))
        for info in loaded.inputs
    }
    loaded.check({name: type.shape for name, type in types.items()})
    opened = open_backend(backend, gpu=gpu, limits=limits, gl_kernels=True)
    hosted = find_hosted(loaded.graph, opened, types) if opened.device else ()
    supported = []
    for node in loaded.graph.nodes:
        hosted_here = [
            h for h in hosted if h.layer == node.name or h.layer.startswith(f"{node.name}/")
        ]
        reason = "; ".join(dict.fromkeys(map(str, hosted_here)))
        on_gpu = opened.device is not None and not hosted_here
        supported.append(Support(node.name, node.operator.label, on_gpu, reason))
    return tuple(supported)


def supports_device(device: str) -> bool:
    """Return True for "CPU": arrays are in the host's memory."""
    return device.partition(":")[0] == "CPU"


def is_compatible(model: Any, device: str = "CPU", **kwargs: Any) -> bool:
    """Return True where the ModelProto can be run."""
    try:
        prepare(model, device, **{"backend": "cpu", **kwargs})
    except GlnnError:
        return False
    return True


def _array(value: Any) -> Any:
    """Convert a NumPy scalar to an array without dimensions, which a session takes."""
    return np.asarray(value) if isinstance(value, np.generic) else value
