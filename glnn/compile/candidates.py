"""The backends that `auto` chooses among, and the executor of a graph on one or on the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from glnn.backends import Backend, open_backend, tried
from glnn.choice import TIE
from glnn.compile.executor import Executor
from glnn.compile.fastest import Fastest
from glnn.device import Device
from glnn.errors import DeviceError
from glnn.graph.graph import Graph
from glnn.kernels.architecture import architecture
from glnn.kernels.predict import pace
from glnn.settings import Settings


def executor_of(
    graph: Graph,
    backend: str | Backend,
    prefer: str = "fastest",
    *,
    kernels: Mapping[str, str] | None = None,
    **options: Any,
) -> Executor | Fastest:
    """Return what runs `graph` on `backend`: with "auto" on the fastest, where several open.

    prefer: "fastest", or "gpu" to keep the CPU free where there is a GPU. The others are those of
    `Executor`. Raises DeviceError where nothing opens.
    """
    asked = {name: options.get(name) for name in ("device", "gpu", "limits")}
    found = candidates(backend, kernels or {}, prefer, **asked)
    if len(found) > 1:
        return Fastest(graph, found, options)
    return Executor(graph, backend, kernels=kernels, **options)


def candidates(
    backend: str | Backend,
    kernels: Mapping[str, str],
    prefer: str = "fastest",
    *,
    device: Device | None = None,
    gpu: int | str | None = None,
    limits: str | None = None,
) -> dict[str, Backend]:
    """Return the backends that are timed against one another, by name; none where none is chosen.

    Nothing is chosen where a backend or kernels are named, `GLNN_BACKEND` names backends, or only
    one opens. Raises DeviceError where nothing opens.
    """
    if backend != "auto" or kernels or Settings.from_environment().backends:
        return {}
    first = open_backend("auto", device, gpu=gpu, limits=limits)
    found = {first.name: first}
    if first.device is None:
        return {}  # nothing else opens
    offers = first.device.capabilities
    keeps_free = prefer == "gpu" and offers.software is None
    for name in tried(device, gpu):
        if name in found or (name == "cpu" and keeps_free):
            continue
        own = None if name == "cpu" else device
        with suppress(DeviceError):
            found[name] = open_backend(name, own, gpu=None if name == "cpu" else gpu, limits=limits)
    if found.keys() == {"compute", "feedback"} and pace(architecture(offers)).feedback > TIE:
        del found["feedback"]
    return found if len(found) > 1 else {}
