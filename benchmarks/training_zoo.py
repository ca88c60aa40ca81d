"""Networks for the benchmarks of training, as glnn's layers with seeded weights."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from glnn.layers import (
    GELU,
    AdaptiveAvgPool2d,
    Add,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Layer,
    LayerNorm,
    Linear,
    MaxPool2d,
    MultiheadAttention,
    ReLU,
    ReLU6,
)
from glnn.model import Model, Node, TensorInfo
from glnn.suite.networks import MOBILENET_V2

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
"""Blocks of each stage: of two convolutions, or, from 50 on, of three with four times the width."""
BOTTLENECK = 50


class Chain:
    """A builder that appends layers with seeded weights to a network."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Node] = []
        self._generator = np.random.default_rng(seed)

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add `layer`, which reads `inputs`; its output has its name."""
        self.nodes.append(Node(name, layer, inputs, name))
        return name

    def conv(
        self, name: str, x: str, channels: tuple[int, int], kernel: int, stride: int, gain: float,
        groups: int = 1,
    ) -> str:  # fmt: skip
        """Add a convolution with He's weights and a batch normalisation, scaled by `gain`.

        channels: of input and output.
        """
        c, o = channels
        conv = Conv2d(c, o, kernel, stride, kernel // 2, groups=groups, bias=False)
        spread = sqrt(2 / (c // groups * kernel * kernel))
        shape = (o, c // groups, kernel, kernel)
        conv.weight = self._generator.standard_normal(shape, np.float32) * np.float32(spread)
        norm = BatchNorm2d(o)
        norm.weight = self._random(o, 0.9 * gain, 1.1 * gain)
        norm.bias = self._random(o, -0.1, 0.1)
        norm.running_mean = self._random(o, -0.1, 0.1)
        norm.running_var = self._random(o, 0.8, 1.2)
        return self.add(f"{name}_norm", norm, self.add(name, conv, x))

    def _random(self, count: int, least: float, most: float) -> NDArray[np.float32]:
        return self._generator.uniform(least, most, count).astype(np.float32)

    def block(self, name: str, x: str, c: int, width: int, stride: int, bottleneck: bool) -> int:
        """Add a residual block, and return its output channels."""
        out = 4 * width if bottleneck else width
        shortcut = x
        if stride != 1 or c != out:
            shortcut = self.conv(f"{name}_short", x, (c, out), 1, stride, 1)
        if bottleneck:  # the middle convolution has the stride, as in torchvision
            parts = [(c, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        else:
            parts = [(c, width, 3, stride), (width, out, 3, 1)]
        for i, (inputs, outputs, kernel, step) in enumerate(parts, 1):
            last = i == len(parts)  # its gain is smaller, or signals would double in every block
            gain = 0.3 if last else 1
            x = self.conv(f"{name}_conv{i}", x, (inputs, outputs), kernel, step, gain)
            x = x if last else self.add(f"{name}_relu{i}", ReLU(), x)
        self.add(f"{name}_relu", ReLU(), self.add(f"{name}_add", Add(), x, shortcut))
        return out


def resnet(depth: int, *, size: int = 224, classes: int = 1000, seed: int = 0) -> Model:
    """Build the ResNet of He et al. 2015, table 1, with torchvision's shapes: x (n, 3, size, size)
    to (n, classes), with seeded weights. depth: 18, 34 or 50.
    """
    chain = Chain(seed)
    x = chain.add("relu", ReLU(), chain.conv("conv", "input", (3, 64), 7, 2, 1))
    x, channels = chain.add("pool", MaxPool2d(3, 2, 1), x), 64
    for stage, blocks in enumerate(DEPTHS[depth]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            name = f"stage{stage + 1}_{block + 1}"
            channels = chain.block(name, x, channels, 64 << stage, stride, depth >= BOTTLENECK)
            x = f"{name}_relu"
    x = chain.add("flatten", Flatten(), chain.add("mean", AdaptiveAvgPool2d(1), x))
    out = chain.add("fc", Linear(channels, classes, seed=seed), x)
    image = TensorInfo("input", ("N", 3, size, size))
    return Model(tuple(chain.nodes), (image,), (out,), f"resnet{depth}")


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


def mobilenet_v2(*, size: int = 64, classes: int = CLASSES, seed: int = 0) -> Model:
    """MobileNetV2 of Sandler and others 2018, table 2: x (n, 3, size, size) to (n, classes)."""
    chain, c = Chain(seed), 32
    x = chain.add("relu", ReLU6(), chain.conv("conv", "input", (3, c), 3, 2, 1))
    for stage, (expansion, out, count, first) in enumerate(MOBILENET_V2, 1):
        for block in range(count):
            name, block_input, hidden = f"block{stage}_{block + 1}", x, expansion * c
            if expansion > 1:
                x = chain.conv(f"{name}_wide", x, (c, hidden), 1, 1, 1)
                x = chain.add(f"{name}_relu1", ReLU6(), x)
            stride = 1 if block else first
            x = chain.conv(f"{name}_depthwise", x, (hidden, hidden), 3, stride, 1, hidden)
            x = chain.add(f"{name}_relu2", ReLU6(), x)
            x = chain.conv(f"{name}_narrow", x, (hidden, out), 1, 1, 0.5)
            x = chain.add(f"{name}_add", Add(), x, block_input) if block else x
            c = out
    x = chain.add("last_relu", ReLU6(), chain.conv("last", x, (c, 1280), 1, 1, 1))
    x = chain.add("flatten", Flatten(), chain.add("mean", AdaptiveAvgPool2d(1), x))
    scores = chain.add("fc", Linear(1280, classes, seed=seed), x)
    image = TensorInfo("input", ("N", 3, size, size))
    return Model(tuple(chain.nodes), (image,), (scores,), "mobilenet_v2")


TOKENS = (128, 384)
"""Tokens of a sequence, and their width."""


def transformer(depth: int = 6, heads: int = 6, seed: int = 0) -> Model:
    """Encoder of Vaswani et al. 2017 that normalises first, with GELU: (n, *TOKENS) to scores."""
    chain, x, (tokens, width) = Chain(seed), "input", TOKENS

    def linear(name: str, x: str, inputs: int, outputs: int) -> str:
        return chain.add(name, Linear(inputs, outputs, seed=seed + len(chain.nodes)), x)

    for i in range(1, depth + 1):
        norm = chain.add(f"norm{i}_1", LayerNorm(width), x)
        attention = MultiheadAttention(width, heads, batch_first=True, seed=seed + i)
        attended = chain.add(f"attention{i}", attention, norm, norm, norm)
        x = chain.add(f"add{i}_1", Add(), attended, x)
        norm = chain.add(f"norm{i}_2", LayerNorm(width), x)
        wide = chain.add(f"gelu{i}", GELU(), linear(f"wide{i}", norm, width, 4 * width))
        x = chain.add(f"add{i}_2", Add(), linear(f"narrow{i}", wide, 4 * width, width), x)
    x = chain.add("flatten", Flatten(), chain.add("norm", LayerNorm(width), x))
    scores = linear("fc", x, tokens * width, CLASSES)
    return Model(
        tuple(chain.nodes), (TensorInfo("input", ("N", *TOKENS)),), (scores,), "transformer"
    )
