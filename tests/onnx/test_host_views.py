"""Views between host steps and steps of the GPU: every arrangement, and random graphs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import pytest

import glnn
from glnn.compiler import lower
from glnn.errors import DeviceError
from tests.onnx import host_graphs
from tests.onnx.host_graphs import Graph

COUNT = 200
KINDS = {
    "host": host_graphs._top,
    "gpu": host_graphs._bounded,
    "view": host_graphs._reshaped,
}


@pytest.fixture(params=host_graphs.BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend with a GPU, which keeps small work between host steps."""
    try:
        glnn.backends.open_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(lower, "left_to_host", host_graphs.never_left)
    return str(request.param)


def arranged(kinds: tuple[str, ...], reads: tuple[int, ...], every: bool) -> onnx.ModelProto:
    """Return nodes of `kinds`, each of which reads the input (0) or the result of one before it.

    every: whether all results are outputs; else those that no other reads.
    """
    graph, draw, values = Graph(), random.Random(len(kinds)), ["x"]
    for kind, place in zip(kinds, reads, strict=True):
        values.append(KINDS[kind](graph, draw, values[place]))
    outputs = [v for i, v in enumerate(values) if i and (every or i not in reads)]
    return graph.proto(outputs)


@pytest.mark.parametrize("first", KINDS)
def test_every_arrangement(first: str, backend: str) -> None:
    cases = [
        (kinds, reads)
        for depth in (2, 3)
        for kinds in itertools.product(KINDS, repeat=depth)
        for reads in itertools.product(*(range(i + 1) for i in range(depth)))
        if kinds[0] == first and "host" in kinds
    ]
    for (kinds, reads), every in itertools.product(cases, (False, True)):
        proto = arranged(kinds, reads, every)
        x = host_graphs.given(proto, 1)
        assert not host_graphs.wrong(proto, x, [backend]), (kinds, reads, every)


@pytest.mark.parametrize("part", range(4))
def test_random_graphs(part: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part % 2:
        monkeypatch.undo()  # small work may be the host's
    count = COUNT // 4
    for seed in range(part * count, (part + 1) * count):
        proto = host_graphs.random_graph(seed)
        x = host_graphs.given(proto, seed)
        assert not host_graphs.wrong(proto, x, [backend]), seed


@pytest.mark.parametrize("name", ["Reshape", "Flatten", "Unsqueeze", "Squeeze", "Identity"])
def test_a_view_of_a_cast_of_float64(name: str, backend: str) -> None:
    """A product reads the cast, and its view is an output and another host step's operand."""
    graph = Graph((8, 12))
    wide = graph.add("Cast", "x", to=onnx.TensorProto.DOUBLE)
    cast = graph.made(graph.add("Cast", wide, to=onnx.TensorProto.FLOAT), (8, 12))
    draw = random.Random(1)
    product = host_graphs._product(graph, draw, cast)
    if name == "Squeeze":
        cast = host_graphs._unsqueezed(graph, draw, cast)
    view = {
        "Reshape": host_graphs._reshaped,
        "Flatten": host_graphs._flattened,
        "Unsqueeze": host_graphs._unsqueezed,
        "Squeeze": host_graphs._squeezed,
        "Identity": host_graphs._same,
    }[name](graph, draw, cast)
    top = host_graphs._top(graph, draw, view)
    proto = graph.proto([product, view, top])
    x = np.random.default_rng(3).integers(-9, 10, (8, 12)).astype(np.float32)
    assert not host_graphs.wrong(proto, x, [backend])


def test_a_transpose_that_is_a_view_of_what_only_the_host_reads(backend: str) -> None:
    """Channels last seen as channels first: no launch reads or writes the memory."""
    graph = Graph((1, 2, 6, 8))
    draw = random.Random(1)
    turned = graph.made(graph.add("Transpose", "x", perm=(0, 3, 1, 2)), (1, 8, 2, 6))
    proto = graph.proto([host_graphs._top(graph, draw, "x"), turned])
    assert not host_graphs.wrong(proto, host_graphs.given(proto, 1), [backend])
