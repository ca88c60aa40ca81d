"""What `benchmarks.launches` has each version of the project run: prints milliseconds as JSON.

It uses nothing but what all versions have. Arguments: the backend, the lengths of chains by commas,
the seconds for each measure.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import glnn
from glnn.gl.egl import EglContext
from glnn.gl.window import WindowContext
from glnn.layers import Layer, Linear, Sigmoid
from glnn.model import Model

LEAST = 5  # runs
WIDTH = 8  # of a product's square matrices: 64 numbers
LAUNCHES = (
    "glDispatchCompute",
    "glDispatchComputeIndirect",
    "glDrawArrays",
    "glDrawArraysInstanced",
)


def alternately(ways: dict[str, Callable[[], float]], seconds: float) -> dict[str, float]:
    """Medians of what `ways` give, each called in turn in so many seconds, after half as many."""
    for share in (0.5, 1.0):
        times: dict[str, list[float]] = {name: [] for name in ways}
        start, runs = perf_counter(), 0
        while runs < LEAST or perf_counter() - start < share * seconds:
            for name, way in ways.items():
                times[name].append(way())
            runs += 1
    return {name: median(values) for name, values in times.items()}


def milliseconds(work: Callable[[], object]) -> float:
    """Wall time of `work`."""
    start = perf_counter()
    work()
    return 1e3 * (perf_counter() - start)


def parts(plan: Any) -> dict[str, Callable[[], float]]:
    """A plan's steps: issued, which waits for nothing, and in all, on what is there."""

    def issued() -> float:
        spent = milliseconds(plan.launch)
        plan.backend.finish()
        return spent

    def waited() -> None:
        plan.launch()
        plan.backend.finish()

    return {"issued": issued, "in all": lambda: milliseconds(waited)}


def planner() -> Any:
    """The class of plans, which was elsewhere once, and took a model."""
    for module in ("glnn.compiler", "glnn.compile", "glnn.model.plan"):
        with suppress(ImportError):
            return import_module(module).Plan
    raise SystemExit("this version of glnn has no plans that are known here")


def chained(model: Model, backend: str, device: glnn.Device | None) -> Any:
    """The plan of `model`, a chain, with a step for each layer; it has run once."""
    opened = glnn.InferenceSession(model, backend, device=device).backend
    shape = (WIDTH, WIDTH)
    apart: dict[str, Any] = {"fused": False}
    with suppress(ImportError, AttributeError):  # which a version of old has not
        apart = {"without": frozenset(import_module("glnn.graph.passes").Pass)}
    plan = planner()(getattr(model, "graph", model), opened, {"input": shape}, **apart)
    if len(plan.steps) != len(model.nodes):
        raise SystemExit(f"{len(model.nodes)} layers have {len(plan.steps)} steps")
    plan.run({"input": np.ones(shape, np.float32)})
    return plan


def chains(
    backend: str, lengths: list[int], seconds: float, device: glnn.Device | None
) -> dict[str, dict[str, float]]:
    """Chains of activations, and of products, of 64 numbers: no step begins before the last one."""
    found: dict[str, dict[str, float]] = {}
    kinds: dict[str, Callable[[int], Layer]] = {
        "activations": lambda _: Sigmoid(),
        "products": lambda seed: Linear(WIDTH, WIDTH, bias=False, seed=seed),
    }
    for kind, layer in kinds.items():
        for length in lengths:
            model = Model.sequential([layer(i) for i in range(length)], (WIDTH,))
            plan = chained(model, backend, device)
            found[f"{length} {kind}"] = alternately(parts(plan), seconds)
    return found


def lenet(
    backend: str, seconds: float, device: glnn.Device | None
) -> tuple[list[str], dict[str, float]]:
    """LeNet on one image: its kernels, and the times of a run and of the run's steps."""
    session = glnn.InferenceSession("lenet", backend, device=device)
    feeds = {session.get_inputs()[0].name: np.zeros((1, 1, 28, 28), np.float32)}
    plan = session.plan({name: array.shape for name, array in feeds.items()})
    session.run(None, feeds)
    ways = {"run": lambda: milliseconds(lambda: session.run(None, feeds)), **parts(plan)}
    return [step.kernel for step in plan.steps], alternately(ways, seconds)


def without_launches() -> glnn.Device:
    """A device that launches nothing: what it takes is the host's part, uploads, readbacks too."""
    # Takes whatever arguments and looks at none of them, so it stands in for any function.
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    for kind in (EglContext, WindowContext):
        load = kind.load_opengl_function

        def instead(self: Any, name: str, load: Any = load) -> Any:
            return nothing if name in LAUNCHES else load(self, name)

        kind.load_opengl_function = instead  # type: ignore[method-assign]
    return glnn.Device()


def main(backend: str, lengths: list[int], seconds: float) -> dict[str, float]:
    """Every time by its name: with the GPU's work first, then without it."""
    found: dict[str, float] = {}
    for chain, times in chains(backend, lengths, seconds, None).items():
        found |= {f"{chain}: {part}": time for part, time in times.items()}
    kernels, times = lenet(backend, seconds, None)
    found["lenet: run"], found["lenet: steps"] = times["run"], times["in all"]
    found["lenet: run less steps"] = times["run"] - times["in all"]
    idle = without_launches()
    for chain, times in chains(backend, lengths, seconds, idle).items():
        found[f"{chain}: no work"] = times["issued"]
    others, times = lenet(backend, seconds, idle)
    if others != kernels:
        raise SystemExit(f"the device that launches nothing takes {others}, not {kernels}")
    return found | {"lenet: no work": times["run"]}


if __name__ == "__main__":
    backend, lengths, seconds = sys.argv[1:]
    print(json.dumps(main(backend, [int(n) for n in lengths.split(",")], float(seconds))))
