"""A model with other parameters."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.model import Model
from glnn.model.onnx_format import GraphModel
from glnn.types import Array


def trained(model: Model, weights: Mapping[str, Array]) -> Model:
    """`model` with `weights`, by the names of its parameters, in the place of its own.

    Layers are assigned, and it is the same model; of an ONNX model it is a new one.
    """
    if isinstance(model, GraphModel):
        return model.with_parameters(weights) if weights else model
    for node in model.nodes:
        for name in node.layer.shapes:
            if (full := f"{node.name}.{name}") in weights:
                setattr(node.layer, name, weights[full])
    return model
