"""Networks built by name, with seeded weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np

from glnn.errors import ModelError
from glnn.images import Preprocessing, metadata
from glnn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
)
from glnn.model.model import Model

BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
"""Convolutions of each block of VGG-16, and their output channels."""


def vgg16(
    configuration: str = "D", *, size: int = 224, classes: int = 1000, seed: int = 0
) -> Model:
    """VGG-16 of Simonyan and Zisserman 2014, table 1: x (n, 3, size, size) to (n, classes).

    configuration: D, all kernels 3 x 3, or C, where the third of a block is 1 x 1. Rovder 2019
    calls its network model C, yet finds 74% of the parameters in the first fully-connected layer,
    which is so in D (in C it would be 77%). size: a multiple of 32. The weights are He's, so that
    signals keep their size through the layers. Its metadata say what is done to pictures: as for
    ImageNet. Raises ModelError for other arguments.
    """
    if configuration not in ("C", "D"):
        raise ModelError(f"vgg16: configuration must be C or D, got {configuration!r}")
    if not isinstance(size, int) or size < 32 or size % 32:
        raise ModelError(f"vgg16: size must be a multiple of 32, got {size!r}")
    layers: dict[str, Layer] = {}
    channels = 3
    for block, (count, width) in enumerate(BLOCKS, 1):
        for place in range(1, count + 1):
            kernel = 1 if configuration == "C" and place == 3 else 3
            layers[f"conv{block}_{place}"] = Conv2d(channels, width, kernel, padding=kernel // 2)
            layers[f"relu{block}_{place}"] = ReLU()
            channels = width
        layers[f"pool{block}"] = MaxPool2d(2)
    layers["flatten"] = Flatten()
    features = channels * (size // 32) ** 2
    for number, (inputs, outputs) in enumerate(
        ((features, 4096), (4096, 4096), (4096, classes)), start=6
    ):
        layers[f"fc{number}"] = Linear(inputs, outputs)
        layers[f"relu{number}"] = ReLU()
    del layers["relu8"]
    layers["softmax"] = Softmax()
    _seed(layers, seed)
    name = "vgg16" if configuration == "D" else "vgg16-c"
    said = metadata(Preprocessing.imagenet(size))
    return Model.sequential(list(layers.values()), (3, size, size), name, list(layers), said)


def lenet(*, seed: int = 0) -> Model:
    """LeNet-5 of LeCun 1998 as Rovder 2019 runs it, sigmoids and 2 x 2 averages, untrained:
    x (n, 1, 28, 28) to (n, 10).
    """
    layers: dict[str, Layer] = {
        "c1": Conv2d(1, 6, 5, padding=2),
        "sigmoid1": Sigmoid(),
        "s2": AvgPool2d(2),
        "c3": Conv2d(6, 16, 5),
        "sigmoid3": Sigmoid(),
        "s4": AvgPool2d(2),
        "flatten": Flatten(),
        "c5": Linear(400, 120),
        "sigmoid5": Sigmoid(),
        "f6": Linear(120, 84),
        "sigmoid6": Sigmoid(),
        "out": Linear(84, 10),
        "softmax": Softmax(),
    }
    _seed(layers, seed)
    return Model.sequential(list(layers.values()), (1, 28, 28), "lenet-untrained", list(layers))


BUILDERS: Mapping[str, Callable[[], Model]] = {
    "vgg16": vgg16,
    "vgg16-c": lambda: vgg16("C"),
    "lenet-untrained": lenet,
}
"""Functions that build the models of `glnn.load`, by name."""


def _seed(layers: Mapping[str, Layer], seed: int) -> None:
    """Give every layer normal weights of variance 2 / fan-in, 1 / fan-in in the last, and biases
    a tenth of that size.
    """
    weighted = [layer for layer in layers.values() if isinstance(layer, (Conv2d, Linear))]
    for place, layer in enumerate(weighted):
        generator = np.random.default_rng([seed, place])
        gain = 1.0 if layer is weighted[-1] else 2.0
        shape = layer.shapes["weight"]
        scale = np.float32(sqrt(gain / np.prod(shape[1:])))
        layer.weight = scale * generator.standard_normal(shape, np.float32)
        layer.bias = 0.1 * scale * generator.standard_normal(shape[:1], np.float32)
