"""Layers, with PyTorch's names, argument order and defaults."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.errors import GlnnError
from glnn.layers.avg_pool2d import AvgPool2d
from glnn.layers.bias import Bias
from glnn.layers.conv2d import Conv2d
from glnn.layers.flatten import Flatten
from glnn.layers.layer import Layer
from glnn.layers.linear import Linear
from glnn.layers.max_pool2d import MaxPool2d
from glnn.layers.relu import ReLU
from glnn.layers.sigmoid import Sigmoid
from glnn.layers.softmax import Softmax
from glnn.layers.tanh import Tanh

__all__ = [
    "BY_NAME",
    "AvgPool2d",
    "Bias",
    "Conv2d",
    "Flatten",
    "Layer",
    "Linear",
    "MaxPool2d",
    "ReLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "registry",
]


def registry(*layers: tuple[str, type[Layer]]) -> Mapping[str, type[Layer]]:
    """Layers by the names that files use. Raises GlnnError where a name occurs twice."""
    table: dict[str, type[Layer]] = {}
    for name, layer in layers:
        if name in table:
            raise GlnnError(f"layer {name!r} is registered twice")
        table[name] = layer
    return table


BY_NAME = registry(
    ("AvgPool2d", AvgPool2d),
    ("Bias", Bias),
    ("Conv2d", Conv2d),
    ("Flatten", Flatten),
    ("Linear", Linear),
    ("MaxPool2d", MaxPool2d),
    ("ReLU", ReLU),
    ("Sigmoid", Sigmoid),
    ("Softmax", Softmax),
    ("Tanh", Tanh),
    ("AffineLayer", Linear),
    ("SigmoidLayer", Sigmoid),
    ("ReLULayer", ReLU),
)
