"""Layers, with PyTorch's names, argument order and defaults."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.errors import GlnnError
from glnn.layers.adaptive_avg_pool2d import AdaptiveAvgPool2d
from glnn.layers.adaptive_max_pool2d import AdaptiveMaxPool2d
from glnn.layers.add import Add
from glnn.layers.avg_pool2d import AvgPool2d
from glnn.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from glnn.layers.bias import Bias
from glnn.layers.concat import Concat
from glnn.layers.conv2d import Conv2d
from glnn.layers.dropout import Dropout
from glnn.layers.flatten import Flatten
from glnn.layers.identity import Identity
from glnn.layers.layer import Layer
from glnn.layers.linear import Linear
from glnn.layers.local_response_norm import LocalResponseNorm
from glnn.layers.max_pool2d import MaxPool2d
from glnn.layers.relu import ReLU
from glnn.layers.sigmoid import Sigmoid
from glnn.layers.softmax import Softmax
from glnn.layers.subsample import Subsample2d
from glnn.layers.tanh import Tanh

__all__ = [
    "BY_NAME",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "Add",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bias",
    "Concat",
    "Conv2d",
    "Dropout",
    "Flatten",
    "Identity",
    "Layer",
    "Linear",
    "LocalResponseNorm",
    "MaxPool2d",
    "ReLU",
    "Sigmoid",
    "Softmax",
    "Subsample2d",
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
    ("AdaptiveAvgPool2d", AdaptiveAvgPool2d),
    ("AdaptiveMaxPool2d", AdaptiveMaxPool2d),
    ("Add", Add),
    ("AvgPool2d", AvgPool2d),
    ("BatchNorm1d", BatchNorm1d),
    ("BatchNorm2d", BatchNorm2d),
    ("BatchNorm3d", BatchNorm3d),
    ("Bias", Bias),
    ("Concat", Concat),
    ("Conv2d", Conv2d),
    ("Dropout", Dropout),
    ("Flatten", Flatten),
    ("Identity", Identity),
    ("Linear", Linear),
    ("LocalResponseNorm", LocalResponseNorm),
    ("MaxPool2d", MaxPool2d),
    ("ReLU", ReLU),
    ("Sigmoid", Sigmoid),
    ("Softmax", Softmax),
    ("Subsample2d", Subsample2d),
    ("Tanh", Tanh),
    ("AffineLayer", Linear),
    ("SigmoidLayer", Sigmoid),
    ("ReLULayer", ReLU),
)
