"""What `benchmarks.transfers` has each version of the project run: prints milliseconds as JSON.

It uses nothing but what all versions have. Arguments: the backend, sizes in MiB by commas, the
seconds for each measure.
"""

import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

import glnn
from glnn.core.layout import parse
from glnn.gl import Buffer
from glnn.layers import Linear, MaxPool2d, ReLU
from glnn.model import Model, Node, TensorInfo

LEAST = 5  # runs
OUTPUTS, WIDTH = 32, 64
WIDE, POOL = 256, 8  # pixels
Timed = Callable[[], float]


def alternately(ways: dict[str, Timed], seconds: float) -> dict[str, float]:
    """Medians of what `ways` give, each called in turn in so many seconds, after half as many."""
    for share in (0.5, 1.0):
        times: dict[str, list[float]] = {name: [] for name in ways}
        start, runs = perf_counter(), 0
        while runs < LEAST or perf_counter() - start < share * seconds:
            for name, way in ways.items():
                times[name].append(way())
            runs += 1
    return {name: median(values) for name, values in times.items()}


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of `work`."""
    start = perf_counter()
    work()
    return 1e3 * (perf_counter() - start)


def check(found: NDArray[np.float32], x: NDArray[np.float32]) -> None:
    """Exit unless what came back is what was sent."""
    if not np.array_equal(found.reshape(-1), x.reshape(-1)):
        raise SystemExit("what came back is not what was sent")


def of_a_session(backend: str, x: NDArray[np.float32]) -> Timed:
    """A run of a model that does next to nothing, a ReLU of numbers above 0: up, a step, down."""
    session = glnn.InferenceSession(Model.sequential([ReLU()], x.shape[1:]), backend)
    check(session.run(None, {"input": x})[0], x)
    return lambda: timed(lambda: session.run(None, {"input": x}))


def of_buffers(backend: str, x: NDArray[np.float32]) -> dict[str, Timed]:
    """Device buffers: up until it is there; down of what the GPU has just written."""
    device = glnn.InferenceSession("lenet", backend).backend.device
    assert device is not None
    source, target = (Buffer(x.shape, parse("R")) for _ in range(2))

    def pushed() -> None:
        source.push(device)
        device.finish()

    def up() -> float:
        source.set(x)
        device.activate()
        return timed(pushed)

    def down() -> float:
        device.activate()
        target.copy_from(source, device)
        device.finish()
        return timed(target.pull)

    up()
    down()
    check(target.pull(), x)
    return {"up": up, "down": down}


def of_pixels(backend: str, count: int) -> dict[str, Timed]:
    """Runs of a model that makes few numbers of so many pixels, of 8 bits on the host.

    The host scales them and gives floats, or the model takes bytes and does so. A version that has
    no such inputs has the host do it in either case.
    """
    high = max(count // WIDE, POOL)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 1, high, WIDE), np.uint8)
    pool = Node("pool", MaxPool2d(POOL), ("scaled",), "pooled")
    info = TensorInfo("scaled", ("N", *pixels.shape[1:]))
    floats = glnn.InferenceSession(Model((pool,), (info,), ("pooled",), "floats"), backend)

    def scaled() -> list[NDArray[np.float32]]:
        return floats.run(None, {"scaled": pixels.astype(np.float32) / np.float32(255)})

    function = getattr(glnn.layers, "Pointwise", None)
    if function is None:
        return {"pixels as floats": lambda: timed(scaled), "pixels as bytes": lambda: timed(scaled)}
    nodes = (
        Node("wide", function("cast_float32"), ("pixels",), "wide"),
        Node("scaled", function("div", [255.0]), ("wide",), "scaled"),
        pool,
    )
    given = TensorInfo("pixels", ("N", *pixels.shape[1:]), "tensor(uint8)")
    bytes = glnn.InferenceSession(Model(nodes, (given,), ("pooled",), "bytes"), backend)
    if not np.allclose(bytes.run(None, {"pixels": pixels})[0], scaled()[0], rtol=1e-6):
        raise SystemExit("pixels that are bytes give other results")
    return {
        "pixels as floats": lambda: timed(scaled),
        "pixels as bytes": lambda: timed(lambda: bytes.run(None, {"pixels": pixels})),
    }


def of_outputs(backend: str) -> Timed:
    """A run of a model of many small outputs."""
    names = [f"out{i}" for i in range(OUTPUTS)]
    nodes = tuple(
        Node(name, Linear(WIDTH, WIDTH, seed=i), ("input",), name) for i, name in enumerate(names)
    )
    model = Model(nodes, (TensorInfo("input", ("N", WIDTH)),), tuple(names), "outputs")
    session = glnn.InferenceSession(model, backend)
    feeds = {"input": np.ones((1, WIDTH), np.float32)}
    return lambda: timed(lambda: session.run(None, feeds))


def main(backend: str, sizes: list[str], seconds: float) -> dict[str, float]:
    """Every time by its name."""
    found: dict[str, float] = {}
    for size in sizes:
        count = max(1, round(float(size) * 2**20 / 4))
        x = np.random.default_rng(0).random((1, count), np.float32)
        ways = {"run": of_a_session(backend, x), **of_buffers(backend, x)}
        ways |= of_pixels(backend, count)
        found |= {f"{size} MiB: {way}": ms for way, ms in alternately(ways, seconds).items()}
    outputs = alternately({"run": of_outputs(backend)}, seconds)
    return found | {f"{OUTPUTS} outputs of {4 * WIDTH} bytes: run": outputs["run"]}


if __name__ == "__main__":
    backend, sizes, seconds = sys.argv[1:]
    print(json.dumps(main(backend, sizes.split(","), float(seconds))))
