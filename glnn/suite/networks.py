"""Networks of the suite, as layers with seeded weights: their shapes count, not their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glnn import data, layers
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import Array
from glnn.layers import Layer
from glnn.model import Model, load
from glnn.model.node import Node

SEED = 2026


class NetworkBuilder:
    """A builder that appends layers to a network; a layer reads the last result by default."""

    def __init__(self, name: str, sample: tuple[int, ...]) -> None:
        self.name, self.input = name, TensorInfo("x", ("N", *sample))
        self.nodes: list[Node] = []
        self.last = "x"

    def then(self, layer: Layer, *inputs: str) -> str:
        """Add `layer` behind `inputs`, and return the name of its result."""
        before, self.last = self.last, f"v{len(self.nodes)}"
        self.nodes.append(Node(self.last, layer, inputs or (before,), self.last))
        return self.last

    def convolve(
        self, c: int, o: int, size: int = 1, stride: int = 1, groups: int = 1, *behind: Layer
    ) -> str:
        """Add a convolution, whose bias is what a normalisation leaves, and the layers `behind`."""
        self.then(layers.Conv2d(c, o, size, stride, size // 2, groups=groups))
        for layer in behind:
            self.then(layer)
        return self.last

    def add(self, *summands: str) -> str:
        """Add the sum of two results, as residual networks do."""
        return self.then(layers.Add(), *summands)

    def classify(self, channels: int, classes: int = 1000) -> Model:
        """Add the mean over each image and a head of `classes`, and return the model."""
        self.then(layers.AdaptiveAvgPool2d(1))
        self.then(layers.Flatten())
        self.then(layers.Linear(channels, classes))
        return self.model()

    def model(self) -> Model:
        """Return the model, whose result is the last one."""
        return Model(tuple(self.nodes), (self.input,), (self.last,), self.name)


IMAGE = (3, 224, 224)
MOBILENET_V2 = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
"""Stages of blocks: expansion factor, output channels, number of blocks, stride of the first."""


def mobilenet_v2() -> Model:
    """Build the network of Sandler and others 2018, table 2."""
    net, c = NetworkBuilder("mobilenet_v2", IMAGE), 32
    net.convolve(3, c, 3, 2, 1, layers.ReLU6())
    for expansion, out, count, first in MOBILENET_V2:
        for block in range(count):
            block_input, hidden = net.last, expansion * c
            if expansion > 1:
                net.convolve(c, hidden, 1, 1, 1, layers.ReLU6())
            net.convolve(hidden, hidden, 3, 1 if block else first, hidden, layers.ReLU6())
            net.convolve(hidden, out)
            if block:
                net.add(net.last, block_input)
            c = out
    net.convolve(c, 1280, 1, 1, 1, layers.ReLU6())
    return net.classify(1280)


def resnet18() -> Model:
    """Build the network of He and others 2015, table 1."""
    net, c = NetworkBuilder("resnet18", IMAGE), 64
    net.convolve(3, c, 7, 2, 1, layers.ReLU())
    net.then(layers.MaxPool2d(3, 2, 1))
    for width, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            shortcut = net.last
            net.convolve(c, width, 3, stride, 1, layers.ReLU())
            residual = net.convolve(width, width, 3)
            if stride > 1:
                net.last = shortcut
                shortcut = net.convolve(c, width, 1, stride)
            net.add(residual, shortcut)
            net.then(layers.ReLU())
            c = width
    return net.classify(c)


def unet() -> Model:
    """Build a small network after Ronneberger and others 2015: 16 to 128 channels, three levels."""
    net, c, levels = NetworkBuilder("unet", (3, 128, 128)), 3, list[str]()
    for width in (16, 32, 64):
        net.convolve(c, width, 3, 1, 1, layers.ReLU())
        levels.append(net.convolve(width, width, 3, 1, 1, layers.ReLU()))
        net.then(layers.MaxPool2d(2))
        c = width
    net.convolve(c, 128, 3, 1, 1, layers.ReLU())
    c = 128
    for width, level in zip((64, 32, 16), reversed(levels)):
        wider = net.then(layers.ConvTranspose2d(c, width, 2, 2))
        net.then(layers.Concat(), wider, level)
        net.convolve(2 * width, width, 3, 1, 1, layers.ReLU())
        c = width
    net.convolve(c, 2)
    return net.model()


def encoder() -> Model:
    """Build an encoder after Vaswani and others 2017, of MiniLM's size: 6 layers, 128 tokens."""
    width, heads, count = 384, 12, 6
    net = NetworkBuilder("encoder", (128, width))
    for _ in range(count):
        before = net.last
        net.then(layers.MultiheadAttention(width, heads, batch_first=True), before, before, before)
        net.add(net.last, before)
        before = net.then(layers.LayerNorm(width))
        net.then(layers.Linear(width, 4 * width))
        net.then(layers.GELU())
        net.then(layers.Linear(4 * width, width))
        net.add(net.last, before)
        net.then(layers.LayerNorm(width))
    return net.model()


def gru() -> Model:
    """Build two recurrent layers of 128 units (Cho and others 2014) over 100 steps of sound."""
    net = NetworkBuilder("gru", (100, 40))
    net.then(layers.GRU(40, 128, num_layers=2, batch_first=True))
    net.then(layers.Linear(128, 12))
    return net.model()


def lenet() -> Model:
    """Load the trained LeNet that glnn has."""
    return load(data.model("lenet"))


@dataclass(frozen=True)
class SuiteNetwork:
    """A network of the suite, with the number of samples of its runs."""

    build: Callable[[], Model]
    batch: int = 1

    @property
    def name(self) -> str:
        """The network's name and, of more than one sample, their number."""
        return self.build.__name__ + (f", {self.batch}" if self.batch > 1 else "")

    def model(self) -> Model:
        """Build the model with seeded weights; a trained one keeps its own."""
        model = self.build()
        if self.build is not lenet:
            model.begin(SEED)
        return model

    def sample(self, model: Model) -> Array:
        """Return seeded inputs, (batch, *sample) of float32."""
        generator = np.random.default_rng(SEED)
        shape = model.inputs[0].with_batch(self.batch)
        return generator.standard_normal(shape, dtype=np.float32)


NETWORKS = (
    SuiteNetwork(lenet),
    SuiteNetwork(lenet, 100),
    *map(SuiteNetwork, (mobilenet_v2, resnet18, unet, encoder, gru)),
)
