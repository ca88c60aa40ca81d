"""Random networks of all layers."""

from __future__ import annotations

import random

import numpy as np

from glnn import layers
from glnn.core.tensor_info import TensorInfo
from glnn.errors import GlnnError
from glnn.layers import Layer
from glnn.model.model import Model, Node

Shape = tuple[int, ...]


def random_convolution(draw: random.Random, channels: int, seed: int) -> Layer:
    groups = draw.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    out = groups * draw.choice([1, 4, 7, 32, 36])
    if draw.random() < 0.2:
        groups = out = channels  # depthwise
    return layers.Conv2d(
        channels,
        out if out <= 80 else groups,
        draw.choice([1, 3, 3, 5]),
        stride := draw.choice([1, 1, 2]),
        draw.choice([0, 1, 2, "same" if stride == 1 else "valid"]),
        draw.choice([1, 1, 2]),
        groups,
        bias=draw.random() < 0.7,
        seed=seed,
    )


def batch_norm(channels: int, seed: int) -> Layer:
    layer = layers.BatchNorm2d(channels)
    generator = np.random.default_rng(seed)
    layer.running_mean = generator.standard_normal(channels, np.float32)
    layer.running_var = generator.random(channels, np.float32) + np.float32(0.5)
    return layer


def random_layer(draw: random.Random, shape: Shape, seed: int) -> Layer:
    """A layer of one input of `shape`, which may yet turn out not to fit."""
    made = [
        lambda: layers.ReLU(),
        lambda: layers.Sigmoid(),
        lambda: layers.MaxPool2d(draw.choice([2, 3]), draw.choice([1, 2]), draw.choice([0, 1])),
        lambda: layers.AvgPool2d(2, ceil_mode=draw.random() < 0.5),
        lambda: layers.AdaptiveAvgPool2d((draw.choice([1, 3, 4]), draw.choice([None, 5]))),
        lambda: layers.AdaptiveMaxPool2d(draw.choice([1, 7])),
        lambda: batch_norm(shape[1], seed),
        lambda: layers.LocalResponseNorm(draw.choice([1, 3, 5])),
        lambda: layers.Dropout(0.5),
        lambda: layers.Subsample2d(shape[1], 2),
    ]
    if draw.random() < 0.4:
        return random_convolution(draw, shape[1], seed)
    return draw.choice(made)()


def random_model(seed: int) -> Model:
    draw = random.Random(seed)
    size = draw.choice([1, 3, 4, 5, 16, 33]), draw.randrange(5, 14), draw.randrange(5, 14)
    shapes: dict[str, Shape] = {"input": (2, *size)}
    nodes: list[Node] = []
    for i in range(draw.randrange(3, 10)):
        name = draw.choice(list(shapes)[-3:])
        shape, reads = shapes[name], [name]
        joined = draw.choice(["", "", "add", "concat"])
        try:
            if joined:
                fits = [
                    other
                    for other, s in shapes.items()
                    if (s == shape if joined == "add" else (s[0], s[2:]) == (shape[0], shape[2:]))
                ]
                count = 2 if joined == "add" else draw.choice([2, 3, 4, 5])
                reads += [draw.choice(fits) for _ in range(count - 1)]
                layer: Layer = layers.Add() if joined == "add" else layers.Concat(count)
            else:
                layer = random_layer(draw, shape, i)
            made = layer.infer(*(shapes[read] for read in reads))
        except GlnnError:  # it does not fit: another
            continue
        if made[1] <= 200:
            nodes.append(Node(f"n{i}", layer, tuple(reads), f"n{i}"))
            shapes[f"n{i}"] = made
    outputs = [nodes[-1].output] if nodes else []
    if nodes and draw.random() < 0.3:
        outputs.append(draw.choice(nodes).output)
    return Model(tuple(nodes), (TensorInfo("input", ("N", *size)),), tuple(dict.fromkeys(outputs)))
