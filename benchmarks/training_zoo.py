"""The networks that the benchmarks of training train, of glnn's layers with seeded weights."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.one_resnet import resnet
from glnn.layers import Conv2d, Flatten, Layer, Linear, MaxPool2d, ReLU
from glnn.model import Model

IMAGE = (1, 28, 28)
CLASSES = 10
DIGIT = 28 * 28


def mlp(*widths: int, seed: int = 0) -> Model:
    """A perceptron of these widths, the input's first, ReLU between: (n, widths[0]) to scores."""
    layers: list[Layer] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [Linear(a, b, seed=len(widths) * seed + i), ReLU()]
    return Model.sequential(layers[:-1], (widths[0],), "mlp_" + "_".join(map(str, widths)))


def lenet(seed: int = 0) -> Model:
    """LeNet-5 with ReLU and max pooling: images (n, 1, 28, 28) to scores (n, 10)."""
    first = 5 * seed
    return Model.sequential(
        [
            Conv2d(1, 6, 5, padding=2, seed=first), ReLU(), MaxPool2d(2),
            Conv2d(6, 16, 5, seed=first + 1), ReLU(), MaxPool2d(2), Flatten(),
            Linear(400, 120, seed=first + 2), ReLU(), Linear(120, 84, seed=first + 3), ReLU(),
            Linear(84, CLASSES, seed=first + 4),
        ],
        IMAGE,
        "lenet_relu",
    )  # fmt: skip


def resnet18(seed: int = 0) -> Model:
    """ResNet-18 with torchvision's layers, of ten classes: images (n, 3, 32, 32) to scores."""
    return resnet(18, size=32, classes=CLASSES, seed=seed)
