"""Networks of the zoo as layers with random weights: their shapes, where there is no PyTorch."""

from __future__ import annotations

from collections.abc import Callable

from glnn import layers
from glnn.model import Model
from glnn.suite.networks import IMAGE, NetworkBuilder, mobilenet_v2


def efficientnet_b0() -> Model:
    """Build the network of Tan and Le 2019, table 1."""
    net, c = NetworkBuilder("efficientnet_b0", IMAGE), 32
    net.convolve(3, c, 3, 2, 1, layers.SiLU())
    blocks = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3))
    more = ((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
    for wider, out, count, first, size in (*blocks, *more):
        for place in range(count):
            before, hidden = net.last, wider * c
            if wider > 1:
                net.convolve(c, hidden, 1, 1, 1, layers.SiLU())
            stride = 1 if place else first
            images = net.convolve(hidden, hidden, size, stride, hidden, layers.SiLU())
            net.then(layers.AdaptiveAvgPool2d(1))
            net.convolve(hidden, c // 4, 1, 1, 1, layers.SiLU())
            factors = net.convolve(c // 4, hidden, 1, 1, 1, layers.Sigmoid())
            net.then(layers.Pointwise("mul"), images, factors)
            net.convolve(hidden, out)
            if place:
                net.then(layers.Add(), net.last, before)
            c = out
    net.convolve(c, 1280, 1, 1, 1, layers.SiLU())
    return net.classify(1280)


def resnet50() -> Model:
    """Build the network of He and others 2015, table 1, with strides in the 3 x 3 convolutions."""
    net, c = NetworkBuilder("resnet50", IMAGE), 64
    net.convolve(3, c, 7, 2, 1, layers.ReLU())
    net.then(layers.MaxPool2d(3, 2, 1))
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(count):
            before, stride = net.last, 1 if place else first
            net.convolve(c, width, 1, 1, 1, layers.ReLU())
            net.convolve(width, width, 3, stride, 1, layers.ReLU())
            made = net.convolve(width, 4 * width)
            if not place:
                net.last = before
                before = net.convolve(c, 4 * width, 1, stride)
            net.then(layers.Add(), made, before)
            net.then(layers.ReLU())
            c = 4 * width
    return net.classify(c)


def vit_b_16() -> Model:
    """Build the encoder of Dosovitskiy and others 2020, table 1, of 197 tokens."""
    net, width = NetworkBuilder("vit_b_16", (197, 768)), 768
    for _ in range(12):
        before = net.last
        x = net.then(layers.LayerNorm(width))
        net.then(layers.MultiheadAttention(width, 12, batch_first=True), x, x, x)
        before = net.then(layers.Add(), net.last, before)
        net.then(layers.LayerNorm(width))
        net.then(layers.Linear(width, 4 * width))
        net.then(layers.GELU())
        net.then(layers.Linear(4 * width, width))
        net.then(layers.Add(), net.last, before)
    net.then(layers.LayerNorm(width))
    return net.model()


NETWORKS: dict[str, Callable[[], Model]] = {
    build.__name__: build for build in (mobilenet_v2, efficientnet_b0, resnet50, vit_b_16)
}
