"""ResNets of glnn's layers, and what `benchmarks.resnet` has each version of the project run.

It uses nothing but what all versions have, and prints JSON. Arguments: the backend, the depth, the
size of an image, images in a batch, the seconds for each measure.
"""

import json
import sys
from collections.abc import Callable
from math import sqrt
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

import glnn
from glnn.layers import (
    AdaptiveAvgPool2d,
    Add,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
)
from glnn.model import Model, Node, TensorInfo

LEAST = 3  # runs
DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
"""Blocks of each stage: of two convolutions, or, from 50 on, of three with four times the width."""
BOTTLENECK = 50


class Chain:
    """The layers of a ResNet, one after the other, with seeded weights."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Node] = []
        self._generator = np.random.default_rng(seed)

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add `layer`, which reads `inputs`; its output has its name."""
        self.nodes.append(Node(name, layer, inputs, name))
        return name

    def conv(
        self, name: str, x: str, channels: tuple[int, int], kernel: int, stride: int, gain: float
    ) -> str:
        """A convolution of He's weights and the batch normalisation behind it, scaled by `gain`."""
        given, made = channels
        conv = Conv2d(given, made, kernel, stride, kernel // 2, bias=False)
        spread = sqrt(2 / (given * kernel * kernel))
        shape = (made, given, kernel, kernel)
        conv.weight = self._generator.standard_normal(shape, np.float32) * np.float32(spread)
        norm = BatchNorm2d(made)
        norm.weight = self._random(made, 0.9 * gain, 1.1 * gain)
        norm.bias = self._random(made, -0.1, 0.1)
        norm.running_mean = self._random(made, -0.1, 0.1)
        norm.running_var = self._random(made, 0.8, 1.2)
        return self.add(f"{name}_norm", norm, self.add(name, conv, x))

    def _random(self, count: int, least: float, most: float) -> NDArray[np.float32]:
        return self._generator.uniform(least, most, count).astype(np.float32)

    def block(self, name: str, x: str, given: int, width: int, stride: int, deep: bool) -> int:
        """A block that adds its input to what it makes of it; gives the channels that it makes."""
        made = 4 * width if deep else width
        short = x
        if stride != 1 or given != made:
            short = self.conv(f"{name}_short", x, (given, made), 1, stride, 1)
        if deep:  # the stride is the middle one's, as in torchvision
            parts = [(given, width, 1, 1), (width, width, 3, stride), (width, made, 1, 1)]
        else:
            parts = [(given, width, 3, stride), (width, made, 3, 1)]
        for i, (before, after, kernel, step) in enumerate(parts, 1):
            last = i == len(parts)  # smaller, or signals would double in every block
            x = self.conv(f"{name}_conv{i}", x, (before, after), kernel, step, 0.3 if last else 1)
            x = x if last else self.add(f"{name}_relu{i}", ReLU(), x)
        self.add(f"{name}_relu", ReLU(), self.add(f"{name}_add", Add(), x, short))
        return made


def resnet(depth: int, *, size: int = 224, classes: int = 1000, seed: int = 0) -> Model:
    """ResNet of He et al. 2015, table 1, with torchvision's shapes: x (n, 3, size, size) to
    (n, classes), with seeded weights. depth: 18, 34 or 50.
    """
    chain = Chain(seed)
    x = chain.add("relu", ReLU(), chain.conv("conv", "input", (3, 64), 7, 2, 1))
    x, given = chain.add("pool", MaxPool2d(3, 2, 1), x), 64
    for stage, blocks in enumerate(DEPTHS[depth]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            name = f"stage{stage + 1}_{block + 1}"
            given = chain.block(name, x, given, 64 << stage, stride, depth >= BOTTLENECK)
            x = f"{name}_relu"
    x = chain.add("flatten", Flatten(), chain.add("mean", AdaptiveAvgPool2d(1), x))
    out = chain.add("fc", Linear(given, classes, seed=seed), x)
    image = TensorInfo("input", ("N", 3, size, size))
    return Model(tuple(chain.nodes), (image,), (out,), f"resnet{depth}")


def milliseconds(work: Callable[[], object]) -> float:
    """Wall time of `work`."""
    start = perf_counter()
    work()
    return 1e3 * (perf_counter() - start)


def alternately(ways: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median times of `ways`, each run in turn in so many seconds, after half as many."""
    for share, least in ((0.5, 1), (1.0, LEAST)):
        times: dict[str, list[float]] = {name: [] for name in ways}
        start, runs = perf_counter(), 0
        while runs < least or perf_counter() - start < share * seconds:
            for name, way in ways.items():
                times[name].append(milliseconds(way))
            runs += 1
    return {name: median(values) for name, values in times.items()}


def main(backend: str, depth: int, size: int, batch: int, seconds: float) -> dict[str, float]:
    """A run from host array to host array, its steps with everything on the device, their ratio."""
    session = glnn.InferenceSession(resnet(depth, size=size), backend)
    feeds = {"input": np.random.default_rng(1).random((batch, 3, size, size), np.float32)}
    plan = session.plan({"input": feeds["input"].shape})
    (result,) = session.run(None, feeds)
    if not np.isfinite(result).all():
        raise SystemExit("the result is not finite")

    def steps() -> None:
        plan.perform()
        plan.backend.finish()

    found = alternately({"run": lambda: session.run(None, feeds), "steps": steps}, seconds)
    return {**found, "run / steps": found["run"] / found["steps"]}


if __name__ == "__main__":
    backend, *numbers, seconds = sys.argv[1:]
    depth, size, batch = map(int, numbers)
    print(json.dumps(main(backend, depth, size, batch, float(seconds))))
