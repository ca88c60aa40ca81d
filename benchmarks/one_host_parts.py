"""What `benchmarks.host_parts` has each version of the project run: prints microseconds as JSON.

It uses nothing but what all versions have. Arguments: the compiled host_parts.c, the works by
commas, 1 where GL's functions do nothing, and the seconds for each work.
"""

import ctypes
import json
import sys
from collections import Counter
from collections.abc import Callable
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

import glnn
from glnn.gl.egl import EglContext
from glnn.layers import Add, Embedding, Linear, ReLU
from glnn.model import Model, Node, TensorInfo
from glnn.training import SGD, CrossEntropyLoss, Trainer

LEAST = 20  # runs
WARM = 0.6  # seconds: a GPU's clock and its driver need some
UPLOADS = ("glBufferSubData",)
LAUNCHES = (
    *("glUseProgram", "glBindBufferRange", "glBindBufferBase", "glDispatchCompute"),
    *("glMemoryBarrier", "glDrawArrays", "glDrawArraysInstanced", "glUniform1i", "glUniform1ui"),
    *("glUniform1iv", "glUniform2iv", "glUniform3iv", "glUniform4iv"),
    *("glUniform1uiv", "glUniform1fv"),
)
ANSWERS = {
    **dict.fromkeys((*UPLOADS, *LAUNCHES, "glBindBuffer", "glCopyBufferSubData", "glFlush"), 0),
    **{"glFenceSync": 1, "glClientWaitSync": 0x911A, "glDeleteSync": 0, "glGetError": 0},
    **{"glGetGraphicsResetStatus": 0, "glGetGraphicsResetStatusEXT": 0, "glBindVertexArray": 0},
}
"""The functions of a run, and what each returns while it does nothing."""


class Recorder:
    """GL's functions of a run, as they were called."""

    def __init__(self, compiled: str) -> None:
        library = ctypes.CDLL(compiled)
        library.stand_in.restype = ctypes.c_void_p
        library.stand_in.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
        self._idle, self._count = (ctypes.c_int64.in_dll(library, n) for n in ("idle", "events"))
        many = ctypes.c_int64 * 65536
        self._numbers, self._begun, self._ended = (
            many.in_dll(library, name) for name in ("numbers", "begun", "ended")
        )
        self._names: list[str] = []
        load, known = EglContext.load_opengl_function, dict[str, int]()

        def instead(context: EglContext, name: str) -> int:
            address = load(context, name)
            if name not in ANSWERS or not address:
                return address
            if name not in known:
                known[name] = library.stand_in(len(self._names), address, ANSWERS[name])
                self._names.append(name)
            return known[name]

        kind: Any = EglContext
        kind.load_opengl_function = instead

    def idle(self, on: bool) -> None:
        self._idle.value = on

    def clear(self) -> None:
        self._count.value = 0

    def events(self) -> list[tuple[str, int, int]]:
        """The name, the begin and the end of each call since `clear`, in nanoseconds."""
        every = range(self._count.value)
        return [(self._names[self._numbers[i]], self._begun[i], self._ended[i]) for i in every]


def parts(events: list[tuple[str, int, int]], start: int, end: int) -> dict[str, float]:
    """The microseconds of each part of a run, from `start` to `end`."""

    def of(*names: str) -> list[tuple[str, int, int]]:
        return [one for one in events if one[0] in names]

    uploads, launches, waits = of(*UPLOADS), of(*LAUNCHES), of("glClientWaitSync")
    first, last = launches[0][1], launches[-1][2]
    found = {"before the launches": first - start}
    if uploads:
        found |= {"before the upload": uploads[0][1] - start}
        found |= {"upload": uploads[-1][2] - uploads[0][1], "behind it": first - uploads[-1][2]}
    found |= {"launches": last - first}
    if waits:
        found |= {"before the wait": waits[0][1] - last, "wait": waits[-1][2] - waits[0][1]}
        found |= {"behind the wait": end - waits[-1][2]}
    found |= {"in all": end - start, "in GL": sum(b - a for _, a, b in events)}
    for name, begun, ended in events:
        found[name] = found.get(name, 0) + ended - begun
    return {name: 1e-3 * nanoseconds for name, nanoseconds in found.items()}


def timed(recorder: Recorder, work: Callable[[], object], seconds: float) -> dict[str, float]:
    """The 10th percentile and the median of each part, and the calls of GL."""
    times: dict[str, list[float]] = {}
    events: list[tuple[str, int, int]] = []
    for duration in (min(WARM, 2 * seconds), seconds):
        times.clear()
        begun, runs = perf_counter(), 0
        while runs < LEAST or perf_counter() - begun < duration:
            recorder.clear()
            start = perf_counter_ns()
            work()
            end = perf_counter_ns()
            events = recorder.events()
            for name, value in parts(events, start, end).items():
                times.setdefault(name, []).append(value)
            runs += 1
    found = {f"{name}, 10%": sorted(each)[len(each) // 10] for name, each in times.items()}
    found |= {f"{name}, median": median(each) for name, each in times.items()}
    found |= {f"calls of {name}": float(n) for name, n in Counter(e[0] for e in events).items()}
    return {**found, "calls of GL": float(len(events))}


def mlp() -> Model:
    """The MLP 784-512-10."""
    layers = [Linear(784, 512, seed=1), ReLU(), Linear(512, 10, seed=2)]
    return Model.sequential(layers, (784,))


def training(device: glnn.Device, batch: int) -> Callable[[], object]:
    """A step of the MLP by SGD with momentum, waited for."""
    optimizer = SGD(lr=1e-3, momentum=0.9)
    trainer = Trainer(mlp(), CrossEntropyLoss(), optimizer, "compute", device=device)
    generator = np.random.default_rng(1)
    given = [
        (generator.random((batch, 784), np.float32), generator.integers(0, 10, batch, np.int32))
        for _ in range(2)
    ]
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = 1 - turn
        trainer.step(*given[turn])
        device.finish()

    step()
    if not np.isfinite(trainer.loss):
        raise SystemExit("the loss is not finite")
    return step


def embeddings(tokens: int) -> Model:
    """The embeddings of token, position and kind of a text, int64 all of them, and a product."""
    names = ("ids", "positions", "kinds")
    inputs = tuple(TensorInfo(name, ("N", tokens), "tensor(int64)") for name in names)
    rows = [
        Node(f"{name}_rows", Embedding(size, 64, seed=1), (name,), f"{name}_rows")
        for name, size in zip(names, (30522, 512, 2), strict=True)
    ]
    two = Node("two", Add(), (rows[0].output, rows[1].output), "two")
    three = Node("three", Add(), ("two", rows[2].output), "three")
    y = Node("y", Linear(64, 2, seed=2), ("three",), "y")
    return Model((*rows, two, three, y), inputs, ("y",))


def session(
    device: glnn.Device, model: Model | str, shape: tuple[int, ...]
) -> Callable[[], object]:
    """A run of a session, from host array to host array."""
    made = glnn.InferenceSession(model, "compute", device=device)
    generator = np.random.default_rng(1)
    feeds: dict[str, Any] = {
        one.name: generator.integers(0, 2, shape)
        if one.type == "tensor(int64)"
        else generator.random(shape, np.float32)
        for one in made.get_inputs()
    }
    made.run(None, feeds)
    return lambda: made.run(None, feeds)


WORKS: dict[str, Callable[[glnn.Device], Callable[[], object]]] = {
    "training 64": lambda device: training(device, 64),
    "training 512": lambda device: training(device, 512),
    "session 64": lambda device: session(device, mlp(), (64, 784)),
    "lenet 1": lambda device: session(device, "lenet", (1, 1, 28, 28)),
    "embeddings 8": lambda device: session(device, embeddings(128), (8, 128)),
}


def main(compiled: str, works: list[str], idle: bool, seconds: float) -> dict[str, float]:
    """Every part of every work by its name."""
    recorder = Recorder(compiled)
    device = glnn.Device()
    found: dict[str, float] = {}
    for name in works:
        work = WORKS[name](device)
        recorder.idle(idle)
        for part, value in timed(recorder, work, seconds).items():
            found[f"{name}: {part}"] = value
        recorder.idle(False)
        work()  # else what was never launched is read
    return found


if __name__ == "__main__":
    compiled, works, idle, seconds = sys.argv[1:]
    print(json.dumps(main(compiled, works.split(","), idle == "1", float(seconds))))
