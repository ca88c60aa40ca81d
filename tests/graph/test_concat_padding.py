"""Parts of concatenations are padded to whole vec4 only where their readers can leave these out.

Each case changes one thing in a graph whose parts are padded: two convolutions to 18 channels, side
by side, whose channels take turns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.core.symint import ShapeEnv
from glnn.core.types import DType, TensorType
from glnn.graph.graph import Graph, Value
from glnn.graph.index_map import Axis
from glnn.graph.operator import Operator
from glnn.graph.operators import Concat, Conv2d, Pool2d, Rearrange, Slice, Transpose
from glnn.graph.passes.concat_padding import pad_concats
from glnn.graph.passes.pointwise_fusion import fuse_pointwise
from tests.graph.nets import Net, changed

Random = Callable[..., np.ndarray]
SIZE = 18


class Images(Net):
    """A graph of two images of 48 channels, 3 x 2."""

    def __init__(self, dtype: DType = DType.float32) -> None:
        super().__init__(0)
        self.x = self.image("x", dtype)

    def image(self, name: str, dtype: DType = DType.float32) -> Value:
        return self.builder.input(name, TensorType((2, 48, 3, 2), dtype))

    def conv(self, size: int = SIZE, groups: int = 1, x: Value | None = None) -> Value:
        weight = self.fixed(size, 48 // groups, 1, 1)
        return self(Conv2d(groups=groups), x or self.x, weight)

    def moved(self, x: Value, *channels: Axis) -> Value:
        """Such channels of x, the outermost first, which may be of the height's axis, too."""
        n, _, h, w = x.type.shape
        axes = (Axis(n, 0),), channels, (Axis(h, 2),), (Axis(w, 3),)
        return self(Rearrange(x.type.shape, axes), x)

    def channels(self, x: Value, start: int, end: int, step: int = 1) -> Value:
        return self(Slice((start,), (end,), (1,), (step,)), x)

    def joined(self, *parts: Value, axis: int = 1) -> Value:
        return self(Concat(axis), *parts)

    def shuffled(self, *parts: Value, axis: int = 1) -> Value:
        """The channels of all parts take turns."""
        both, count = self.joined(*parts, axis=axis), len(parts)
        size = both.type.shape[1] // count
        return self.moved(both, Axis(size, 1), Axis(count, 1, 0, size))

    def padded(self, rng: Random, *outputs: Value) -> Graph | None:
        """The graph after the pass, which must give the same results; None where it is the same."""
        graph = self.builder.graph(outputs)
        types = dict(graph.infer_types({value.name: value.type for value in graph.inputs}))
        fused = fuse_pointwise(graph, types, 8)
        result = changed(fused, pad_concats, rng)
        return None if result is fused else result


def sizes_of(graph: Graph, kind: type[Operator]) -> list[int]:
    """Channels of the results of the operators of that kind."""
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    return [types[n.outputs[0]].shape[1] for n in graph.nodes if isinstance(n.operator, kind)]


@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize("count", [2, 3])
def test_parts_are_padded(axis, count, rng) -> None:
    net = Images()
    graph = net.padded(rng, net.shuffled(*(net.conv() for _ in range(count)), axis=axis))
    assert graph is not None and sizes_of(graph, Conv2d) == [20] * count
    assert sizes_of(graph, Concat) == [20 * count]


def test_epilogues_follow_padded_convolutions(rng) -> None:
    """Operands of a number a channel are padded, one number for all is not."""
    net = Images()
    biased = net.of("a + b", net.conv(), net.fixed(SIZE, 1, 1))
    scaled = net.of("a * b", net.conv(), net.fixed(1))
    graph = net.padded(rng, net.shuffled(biased, scaled))
    assert graph is not None and sizes_of(graph, Conv2d) == [20, 20]
    assert all(node.epilogue is None for node in graph.nodes)


def images_as_channels(net: Images) -> Value:
    """As many images as parts have channels, which are no more."""
    y = net.builder.input("y", TensorType((SIZE, 48, 3, 2)))
    axes = (Axis(2, 1),), (Axis(SIZE, 0),), (Axis(3, 2),), (Axis(2, 3),)
    return net(Rearrange(y.type.shape, axes), y)


def taller(net: Images) -> Value:
    """Channels of x, and a row of zeros below each."""
    axes = (Axis(2, 0),), (Axis(SIZE, 1),), (Axis(4, 2),), (Axis(2, 3),)
    return net(Rearrange((2, 48, 3, 2), axes), net.x)


PARTS: dict[str, Callable[[Images], Value]] = {
    "channels": lambda net: net.channels(net.x, 0, SIZE),
    "channels before two more": lambda net: net.channels(net.x, 28, 46),
    "every other one": lambda net: net.channels(net.x, 0, 36, 2),
    "of images cut smaller": lambda net: net(Slice((0, 0), (SIZE, 2), (1, 2), (1, 1)), net.x),
    "pairs": lambda net: net.moved(net.x, Axis(9, 1), Axis(2, 1, 0, 24)),
}
"""Moves that make further channels."""
RIGID_PARTS: dict[str, Callable[[Images], Value]] = {
    "an input": lambda net: net.builder.input("y", TensorType((2, SIZE, 3, 2))),
    "numbers that no run changes": lambda net: net.fixed(2, SIZE, 3, 2),
    "a convolution of them": lambda net: net.conv(x=net.fixed(2, 48, 3, 2)),
    "a pool": lambda net: net(Pool2d("max", (1, 1)), net.channels(net.x, 0, SIZE)),
    "of groups": lambda net: net.conv(groups=3),
    "weights of a run": lambda net: net(
        Conv2d(), net.x, net.builder.input("weight", TensorType((SIZE, 48, 1, 1)))
    ),
    "a bias of a run": lambda net: net.of(
        "a + b", net.conv(), net.builder.input("bias", TensorType((SIZE, 1, 1)))
    ),
    "an epilogue of images": lambda net: net.of("a * b", net.conv(), net.fixed(2, SIZE, 3, 2)),
    "the last channels": lambda net: net.channels(net.x, 48 - SIZE, 48),
    "the last but one": lambda net: net.channels(net.x, 29, 47),
    "backwards": lambda net: net.channels(net.x, 30, 12, -1),
    "images as channels": images_as_channels,
    "beyond the end": taller,
    "in threes": lambda net: net.moved(net.x, Axis(6, 1), Axis(3, 1, 0, 16)),
}
"""Parts that no operator makes with further channels."""


@pytest.mark.parametrize("part", PARTS)
def test_moves_make_further_channels(part, rng) -> None:
    net = Images()
    a, b = PARTS[part](net), PARTS[part](net)
    graph = net.padded(rng, net.shuffled(a, b))
    assert graph is not None and sizes_of(graph, Concat) == [40]


def test_slices_stay_slices(rng) -> None:
    net = Images()
    graph = net.padded(rng, net.shuffled(net.channels(net.x, 4, 4 + SIZE), net.conv()))
    assert graph is not None and sizes_of(graph, Slice) == [20]


@pytest.mark.parametrize("part", RIGID_PARTS)
def test_parts_that_cannot_be_padded(part, rng) -> None:
    """All parts or none: the other one could be."""
    net = Images()
    rigid = RIGID_PARTS[part](net)
    h, w = rigid.type.shape[2:]
    other = net.conv() if (h, w) == (3, 2) else RIGID_PARTS[part](net)
    assert net.padded(rng, net.shuffled(rigid, other)) is None


@pytest.mark.parametrize("sizes", [(18, 17), (20, 20)])
def test_sizes_that_are_not_padded(sizes, rng) -> None:
    """Parts of several sizes, and those of whole vec4."""
    net = Images()
    both = net.joined(*map(net.conv, sizes))
    assert net.padded(rng, net.channels(both, 0, 9)) is None


def test_parts_that_others_read(rng) -> None:
    net = Images()
    a, b = net.conv(), net.conv()
    assert net.padded(rng, net.shuffled(a, b), net.of("a + 1.0", a)) is None


def test_parts_that_are_outputs(rng) -> None:
    net = Images()
    a, b = net.conv(), net.conv()
    assert net.padded(rng, net.shuffled(a, b), a) is None


def test_the_same_part_twice(rng) -> None:
    """It would be computed twice."""
    net = Images()
    a = net.conv()
    assert net.padded(rng, net.shuffled(a, a)) is None


def test_a_single_part(rng) -> None:
    net = Images()
    assert net.padded(rng, net.channels(net.joined(net.conv()), 0, 9)) is None


@pytest.mark.parametrize("axis", [0, 2])
def test_other_axes(axis, rng) -> None:
    net = Images()
    both = net.joined(net.conv(), net.conv(), axis=axis)
    assert net.padded(rng, net.channels(both, 0, 9)) is None


def test_concatenated_vectors(rng) -> None:
    net = Images()
    a, b = (net.builder.input(name, TensorType((6,))) for name in "ab")
    both = net.joined(a, b, axis=0)
    assert net.padded(rng, net(Slice((0,), (7,), (0,), (1,)), both)) is None


def test_other_numbers_than_float32(rng) -> None:
    net = Images(DType.int32)
    a, b = net.channels(net.x, 0, SIZE), net.channels(net.x, 4, 4 + SIZE)
    assert net.padded(rng, net.shuffled(a, b)) is None


def test_concatenations_that_are_outputs(rng) -> None:
    net = Images()
    both = net.joined(net.conv(), net.conv())
    assert net.padded(rng, net.channels(both, 0, 9), both) is None


@pytest.mark.parametrize("open_parts", [True, False])
def test_channels_whose_number_is_open(open_parts) -> None:
    """Parts may be of whole vec4 in another run, and what they are moved from of fewer channels."""
    net = Images()
    parts = net.channels(net.x, 0, SIZE), net.channels(net.x, 4, 4 + SIZE)
    graph = net.builder.graph([net.shuffled(*parts)])
    types = dict(graph.infer_types({"x": net.x.type}))
    channels = ShapeEnv().symbol("c", SIZE if open_parts else 48, (1, 64))
    for value in parts if open_parts else (net.x,):
        types[value] = TensorType((2, channels, 3, 2))
    assert pad_concats(graph, types) is graph


READERS: dict[str, Callable[[Images, Value], Value]] = {
    "channels of a part": lambda net, x: net.channels(x, 20, 33),
    "every other channel of a part": lambda net, x: net.channels(x, 1, 17, 2),
    "one of each part": lambda net, x: net.channels(x, 5, 24, SIZE),
    "turned": lambda net, x: net(
        Rearrange((2, 36, 3, 2), ((Axis(2, 0),), (Axis(18, 1),), (Axis(2, 3),), (Axis(3, 2),))), x
    ),
    "of images cut smaller": lambda net, x: net(Slice((3, 1), (9, 3), (1, 2), (1, 1)), x),
}
"""What reads channels of parts."""
OTHER_READERS: dict[str, Callable[[Images, Value], Value]] = {
    "a pool": lambda net, x: net(Pool2d("max", (1, 1)), x),
    "all channels": lambda net, x: net.channels(x, 0, 36),
    "a transposition": lambda net, x: net(Transpose((0, 1, 3, 2)), x),
    "across parts": lambda net, x: net.channels(x, 10, 20),
    "steps across parts": lambda net, x: net.channels(x, 0, 36, 17),
    "backwards": lambda net, x: net.channels(x, 16, 2, -1),
    "last": lambda net, x: net(
        Rearrange((2, 36, 3, 2), ((Axis(2, 0),), (Axis(3, 2),), (Axis(2, 3),), (Axis(18, 1),))), x
    ),
    "rows": lambda net, x: net(
        Rearrange((2, 36, 3, 2), ((Axis(2, 0),), (Axis(18, 1),), (Axis(3, 2), Axis(2, 3)))), x
    ),
    "with rows": lambda net, x: net(
        Rearrange(
            (2, 36, 3, 2), ((Axis(2, 0),), (Axis(18, 1), Axis(3, 2)), (Axis(1),), (Axis(2, 3),))
        ),
        x,
    ),
    "beyond the end": lambda net, x: net(
        Rearrange((2, 36, 3, 2), ((Axis(2, 0),), (Axis(18, 1),), (Axis(4, 2),), (Axis(2, 3),))), x
    ),
}
"""What reads the concatenation otherwise."""


@pytest.mark.parametrize("reader", READERS)
def test_readers_of_padded_parts(reader, rng) -> None:
    net = Images()
    graph = net.padded(rng, READERS[reader](net, net.joined(net.conv(), net.conv())))
    assert graph is not None and sizes_of(graph, Concat) == [40]


@pytest.mark.parametrize("reader", OTHER_READERS)
def test_readers_that_padding_would_disturb(reader, rng) -> None:
    """All of them or none: the other one could be."""
    net = Images()
    both = net.joined(net.conv(), net.conv())
    assert net.padded(rng, net.channels(both, 0, 7), OTHER_READERS[reader](net, both)) is None


Window = tuple[Axis, ...]


def windows(start: int, size: int = 9, step: int = 1) -> Window:
    """Channels of both parts that take turns."""
    return Axis(size, 1, start, step), Axis(2, 1, 0, SIZE)


def turned(net: Images, x: Value, *channels: Axis) -> Value:
    """Such channels, the image's columns as rows."""
    axes = (Axis(2, 0),), channels, (Axis(2, 3),), (Axis(3, 2),)
    return net(Rearrange(x.type.shape, axes), x)


def test_slices_of_one_move(rng) -> None:
    """Halves of what takes turns are made by one move, each from a whole vec4 on."""
    net = Images()
    both = net.joined(net.conv(), net.conv())
    graph = net.padded(rng, net.moved(both, *windows(9)), net.moved(both, *windows(0)))
    assert graph is not None and sizes_of(graph, Rearrange) == [40]
    starts = [n.operator.starts for n in graph.nodes if isinstance(n.operator, Slice)]
    assert sorted(starts) == [(0,), (20,)]


MOVES: dict[str, tuple[Window, ...]] = {
    "one": (windows(0),),
    "from the same one": (windows(0, 9), windows(0, 6)),
    "of other steps": (windows(0, 9), windows(9, 5, 2)),
    "of other factors": (windows(0), (Axis(9, 1, 9), Axis(1, 1, 0, SIZE))),
    "of other distances": (windows(0, 4), windows(4, 4), windows(12, 4)),
    "the last would reach beyond the end": (windows(0, 5), windows(16, 2)),
}
"""Channels that each node reads, which one move cannot make."""


@pytest.mark.parametrize("moves", MOVES)
def test_moves_that_stay_apart(moves, rng) -> None:
    net = Images()
    both = net.joined(net.conv(), net.conv())
    graph = net.padded(rng, *(net.moved(both, *channels) for channels in MOVES[moves]))
    assert graph is not None and not sizes_of(graph, Slice)
    assert len(sizes_of(graph, Rearrange)) == len(MOVES[moves])


def test_moves_of_other_images_stay_apart(rng) -> None:
    net = Images()
    both = net.joined(net.conv(), net.conv())
    graph = net.padded(rng, net.moved(both, *windows(0)), turned(net, both, *windows(9)))
    assert graph is not None and sizes_of(graph, Rearrange) == [18, 18]
