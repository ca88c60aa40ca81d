"""What `benchmarks.speed` has each version of the project run: prints JSON, milliseconds by name.

It uses nothing but what all versions have. Arguments: the backend, what to measure by commas, the
seconds for each, the size of VGG-16's image, LeNet's and the perceptrons' batch.
"""

import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

import glnn
from benchmarks.mlp import layers, model, perceptrons
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.layers import Linear
from glnn.model.load import vgg16

LEAST = 3  # runs


def milliseconds(work: Callable[[], object], seconds: float) -> float:
    """Median of the runs of `work`, which waits, in so many seconds, after half as many."""
    for share in (0.5, 1.0):
        times: list[float] = []
        start = perf_counter()
        while len(times) < LEAST or perf_counter() - start < share * seconds:
            before = perf_counter()
            work()
            times.append(1e3 * (perf_counter() - before))
    return median(times)


def network(built: glnn.Model, shape: tuple[int, ...], backend: str, seconds: float) -> float:
    """A run of `built` from host array to host array."""
    session = glnn.InferenceSession(built, backend)
    feeds = {session.get_inputs()[0].name: np.random.default_rng(0).random(shape, np.float32)}
    return milliseconds(lambda: session.run(None, feeds), seconds)


def product(size: int, backend: str) -> float:
    """A product of square matrices, on the device, without transfers."""
    a, b = np.random.default_rng(size).random((2, size, size), np.float32) - np.float32(0.5)
    opened = open_backend(backend)
    assert isinstance(opened, GlBackend)
    op = Linear(size, size, bias=False).op
    return 1e3 * kernel_time(opened, op, {"x": a, "weight": b.T}, None).seconds


def measure(what: str, backend: str, seconds: float, size: int, batch: int) -> float:
    """What one name stands for: vgg16, lenet, sgemm and its size, or a perceptron."""
    if what == "vgg16":
        return network(vgg16(size=size), (1, 3, size, size), backend, seconds)
    if what == "lenet":
        return network(glnn.load("lenet"), (batch, 1, 28, 28), backend, seconds)
    if what.startswith("sgemm"):
        return product(int(what.removeprefix("sgemm")), backend)
    widths = perceptrons()[what]
    return network(model(layers(widths), what), (batch, widths[0]), backend, seconds)


if __name__ == "__main__":
    backend, names, seconds, size, batch = sys.argv[1:]
    options = float(seconds), int(size), int(batch)
    print(json.dumps({name: measure(name, backend, *options) for name in names.split(",")}))
