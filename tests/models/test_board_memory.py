"""The memory that networks for boards are planned with, within the least limits, as on a board."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from glnn import layers
from glnn.backends.compute import Compute
from glnn.compiler.memory_budget import Outline
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError
from glnn.gl import Device
from glnn.kernels.architecture import architecture
from glnn.model import Model
from glnn.model.model import Node

IMAGE = (TensorInfo("x", (1, 3, 224, 224)),)


class Nodes(list[Node]):
    """Nodes of a network, one after the other; `last` is what the newest one gives."""

    last = "x"

    def then(self, layer: layers.Layer, *inputs: str) -> str:
        self.last = f"v{len(self)}"
        self.append(
            Node(self.last, layer, inputs or (self[-1].output if self else "x",), self.last)
        )
        return self.last


def mobilenet_v2() -> Model:
    """Sandler and others 2018, table 2."""
    nodes, channels = Nodes(), 32

    def convolve(
        c: int, o: int, k: int, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> str:
        conv = layers.Conv2d(c, o, k, stride=stride, padding=k // 2, groups=groups, bias=False)
        nodes.then(conv)
        nodes.then(layers.BatchNorm2d(o))
        return nodes.then(layers.ReLU6()) if relu else nodes.last

    convolve(3, channels, 3, 2)
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for wider, out, count, first in (*blocks, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for place in range(count):
            before, hidden = nodes.last, wider * channels
            if wider > 1:
                convolve(channels, hidden, 1)
            convolve(hidden, hidden, 3, 1 if place else first, hidden)
            convolve(hidden, out, 1, relu=False)
            if place:
                nodes.then(layers.Add(), nodes.last, before)
            channels = out
    convolve(channels, 1280, 1)
    for layer in (layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(1280, 1000)):
        nodes.then(layer)
    return Model(tuple(nodes), IMAGE, (nodes.last,), "mobilenet_v2")


def squeezenet() -> Model:
    """SqueezeNet 1.1 of Iandola and others 2016."""
    nodes, channels = Nodes(), 64
    nodes.then(layers.Conv2d(3, channels, 3, stride=2))
    nodes.then(layers.ReLU())
    for place, (squeezed, wide) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        if place in (0, 2, 4):
            nodes.then(layers.MaxPool2d(3, 2, ceil_mode=True))
        nodes.then(layers.Conv2d(channels, squeezed, 1))
        before = nodes.then(layers.ReLU())
        expanded = []
        for kernel in (1, 3):
            nodes.then(layers.Conv2d(squeezed, wide, kernel, padding=kernel // 2), before)
            expanded.append(nodes.then(layers.ReLU()))
        nodes.then(layers.Concat(), *expanded)
        channels = 2 * wide
    for layer in (layers.Conv2d(channels, 1000, 1), layers.ReLU(), layers.AdaptiveAvgPool2d(1)):
        nodes.then(layer)
    nodes.then(layers.Flatten())
    return Model(tuple(nodes), IMAGE, (nodes.last,), "squeezenet1_1")


@pytest.fixture(params=["", "V3D 7.1", "Mali-T860 (Panfrost)", "Mali-G52 (Panfrost)"])
def board(request: pytest.FixtureRequest) -> Iterator[Compute]:
    """A device with the least limits, of those architectures that have the fewest registers."""
    try:
        device = Device(limits="es31-minimum")
    except DeviceError as closed:
        pytest.skip(str(closed))
    with device:
        if why := device.capabilities.why_no_compute():
            pytest.skip(why)
        if request.param:
            device.capabilities = replace(
                device.capabilities, vendor="Mesa", renderer=request.param
            )
        yield Compute(device)


@pytest.mark.parametrize(
    ("build", "parameters"), [(mobilenet_v2, 3_504_872), (squeezenet, 1_235_496)]
)
def test_a_board_of_512_mib_has_room(
    board: Compute, build: Callable[[], Model], parameters: int
) -> None:
    """A sixteenth of it at the most: the system and the program need the rest."""
    model = build()
    found = Outline.create(model.graph, board, {"x": (1, 3, 224, 224)})
    assert found.peak <= 32 << 20
    assert 3.9 * parameters <= found.parameters


def test_boards_walk_along_rows_of_windows(board: Compute) -> None:
    """The other kernels of convolutions channel by channel take more registers."""
    found = Outline.create(mobilenet_v2().graph, board, {"x": (1, 3, 224, 224)})
    boards = ("Midgard", "Bifrost", "V3D")
    walks = architecture(board.device.capabilities) in boards
    assert ("depthwise_rows_3x3" in {step.kernel for step in found.steps}) == walks
