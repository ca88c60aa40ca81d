"""Nodes that move numbers and compute none, and where each number of their results comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Data:
    """An operand whose numbers are moved."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """A node. Operands are `Data`, an array, or None for one that is left out."""

    operands: Sequence[Data | Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1


def ints(*numbers: Any) -> Array:
    return np.array(numbers, np.int64)


SCALAR, EMPTY, FLAT, CUBE = Data(()), Data((0, 3)), Data((4,)), Data((2, 3, 4))
Moves = Iterator[Move]


def identity(version: int) -> Moves:
    for data in (SCALAR, EMPTY, FLAT, CUBE):
        yield Move([data])


def reshape(version: int) -> Moves:
    for data, shape in (
        (CUBE, ints(4, 6)),
        (CUBE, ints(-1, 2)),
        (CUBE, ints(0, 0, -1)),
        (FLAT, ints(2, 1, 2)),
        (SCALAR, ints(1, 1)),
        (Data((1,)), np.zeros(0, np.int64)),
    ):
        yield Move([data, shape])
    if version >= 14:
        yield Move([EMPTY, ints(3, 0)], {"allowzero": 1})


def transpose(version: int) -> Moves:
    yield from identity(version)
    yield Move([CUBE], {"perm": [1, 2, 0]})
    yield Move([Data((2, 0, 3))], {"perm": [2, 0, 1]})


def with_axes(version: int, data: Data, axes: list[int] | None, since: int = 13) -> Move:
    """`axes` as an attribute, or as an operand from operator set `since` on."""
    if axes is None:
        return Move([data])
    return Move([data, ints(*axes)]) if version >= since else Move([data], {"axes": axes})


def squeeze(version: int) -> Moves:
    ones = Data((1, 3, 1, 2))
    for data, axes in ((ones, [0]), (ones, [0, 2]), (ones, None), (Data((1, 1)), None)):
        yield with_axes(version, data, axes)
    yield with_axes(version, Data((1, 0, 1)), [2])
    if version >= 11:
        yield with_axes(version, ones, [-2])


def unsqueeze(version: int) -> Moves:
    for data, axes in ((CUBE, [0]), (CUBE, [1, 4]), (FLAT, [0, 1, 2]), (SCALAR, [0]), (EMPTY, [1])):
        yield with_axes(version, data, axes)
    if version >= 11:
        yield with_axes(version, CUBE, [-1])
        yield with_axes(version, CUBE, [3, 0])


def flatten(version: int) -> Moves:
    yield Move([CUBE])
    yield Move([EMPTY])
    for axis in (0, 2, 3) if version < 11 else (0, 2, 3, -1, -3):
        yield Move([CUBE], {"axis": axis})


def concat(version: int) -> Moves:
    yield Move([CUBE, Data((2, 1, 4)), Data((2, 0, 4))], {"axis": 1})
    yield Move([FLAT, FLAT], {"axis": 0})
    yield Move([EMPTY, EMPTY], {"axis": 0})
    yield Move([CUBE], {"axis": 2})
    if version >= 11:
        yield Move([CUBE, Data((2, 3, 1))], {"axis": -1})


def split(version: int) -> Moves:
    data = Data((2, 6))
    even = {"num_outputs": 3} if version >= 18 else {}
    yield Move([data], {"axis": 1, **even}, 3)
    uneven = [1, 3, 2]
    if version >= 13:
        yield Move([data, ints(*uneven)], {"axis": -1}, 3)
        yield Move([FLAT, ints(4, 0)], {}, 2)
    else:
        yield Move([data], {"axis": 1, "split": uneven}, 3)
        yield Move([FLAT], {"split": [3, 1]}, 2)
    if version >= 18:
        yield Move([Data((7, 2))], {"num_outputs": 3}, 3)


def slice_(version: int) -> Moves:
    big = 2**31 - 1
    for starts, ends, axes in (
        ([0, 1], [1, 3], [0, 1]),
        ([-3], [-1], [1]),
        ([1], [big], [2]),
        ([5], [9], [1]),
    ):
        if version < 10:
            yield Move([CUBE], {"starts": starts, "ends": ends, "axes": axes})
        else:
            yield Move([CUBE, ints(*starts), ints(*ends), ints(*axes)])
    if version < 10:
        yield Move([CUBE], {"starts": [0, 1], "ends": [2, 2]})
        return
    yield Move([CUBE, ints(0, 1), ints(2, 2)])
    yield Move([CUBE, ints(0), ints(4), ints(2), ints(3)])
    yield Move([CUBE, ints(-1, big), ints(-big, -big), ints(1, 2), ints(-1, -2)])
    if version >= 11:
        yield Move([CUBE, ints(1), ints(3), ints(-1)])
    yield Move([CUBE, *(np.array([n], np.int32) for n in (1, 3, 2))])


def gather(version: int) -> Moves:
    yield Move([CUBE, ints(1, 0, 1)])
    yield Move([CUBE, ints([0, 2], [1, 1])], {"axis": 1})
    yield Move([CUBE, np.array(1, np.int64)], {"axis": 2})
    yield Move([CUBE, np.array([[3]], np.int32)], {"axis": 2})
    yield Move([CUBE, np.zeros(0, np.int64)])
    yield Move([Data((3, 0)), ints(2, 0)])
    if version >= 11:
        yield Move([CUBE, ints(-1, 0)], {"axis": -2})


def gather_elements(version: int) -> Moves:
    yield Move([CUBE, ints([[1, 0, 1, 0]])])
    yield Move([CUBE, ints([[2, 0], [1, 1]], [[0, 0], [2, -1]])], {"axis": 1})
    yield Move([CUBE, ints([[3], [0]], [[1], [2]])], {"axis": -1})
    yield Move([FLAT, np.zeros(0, np.int64)])
    yield Move([FLAT, np.array([3, -4], np.int32)])


def gather_nd(version: int) -> Moves:
    yield Move([CUBE, ints([0, 2], [1, -1])])
    yield Move([CUBE, ints([[1]], [[0]])])
    yield Move([CUBE, ints(1, 2, 3)])
    yield Move([CUBE, np.zeros((0, 2), np.int64)])
    if version >= 12:
        yield Move([CUBE, ints([1], [0])], {"batch_dims": 1})
        yield Move([Data((2, 3, 4, 2)), ints([[0], [3], [1]], [[-1], [2], [2]])], {"batch_dims": 2})


def scatter_elements(version: int) -> Moves:
    yield Move([CUBE, ints([[1, 0, 1, 0]]), Data((1, 1, 4))])
    index = ints([[2, 0], [1, 1]], [[0, 1], [2, 0]])
    yield Move([Data((2, 3, 2)), index[:, :1], Data((2, 1, 2))], {"axis": 1})
    yield Move([FLAT, ints(2, 0), Data((2,))])
    yield Move([FLAT, np.zeros(0, np.int64), Data((0,))])
    if version >= 11:
        yield Move([FLAT, np.array([-1, 0], np.int32), Data((2,))], {"axis": -1})


def scatter_nd(version: int) -> Moves:
    yield Move([CUBE, ints([0, 2], [1, 1]), Data((2, 4))])
    yield Move([CUBE, ints([[1]], [[0]]), Data((2, 1, 3, 4))])
    yield Move([CUBE, ints([1, 2, 3]), Data((1,))])
    yield Move([FLAT, ints([-1]), Data((1,))])
    yield Move([CUBE, np.zeros((0, 1), np.int64), Data((0, 3, 4))])


def expand(version: int) -> Moves:
    yield Move([Data((3, 1)), ints(2, 3, 4)])
    yield Move([Data((3, 1)), ints(1, 4)])
    yield Move([CUBE, ints(1)])
    yield Move([SCALAR, ints(2, 2)])
    yield Move([Data((1, 3)), ints(0, 3)])
    yield Move([CUBE, np.zeros(0, np.int64)])


def tile(version: int) -> Moves:
    yield Move([Data((2, 3)), ints(1, 2)])
    yield Move([CUBE, ints(2, 1, 3)])
    yield Move([CUBE, ints(1, 0, 1)])
    yield Move([EMPTY, ints(2, 2)])


def pad(version: int) -> Moves:
    data = Data((3, 4))
    modes = ("constant", "reflect", "edge") + (("wrap",) if version >= 19 else ())
    for mode in modes:
        pads = [1, 2, 2, 1]
        if version < 11:
            yield Move([data], {"pads": pads, "mode": mode})
        else:
            yield Move([data, ints(*pads)], {"mode": mode})
    if version >= 11:
        yield Move([data, ints(0, 1, 2, 0), SCALAR])
        yield Move([data, ints(-1, 1, 0, -2), SCALAR])
        yield Move([EMPTY, ints(1, 0, 0, 1), SCALAR])
    if version >= 18:
        yield Move([data, ints(2, 1), SCALAR, ints(1)])
        yield Move([data, ints(2, 1), None, ints(-2)], {"mode": "edge"})


def where(version: int) -> Moves:
    for condition, *shapes in (
        ([True, False, True, False], (4,), (4,)),
        ([[True], [False]], (3,), ()),
        (True, (2, 2), (2,)),
        (np.zeros((0, 1), bool), (3,), (1, 3)),
    ):
        yield Move([np.array(condition), *map(Data, shapes)])


def depth_to_space(version: int) -> Moves:
    yield Move([Data((2, 8, 2, 3))], {"blocksize": 2})
    if version >= 11:
        for mode in ("DCR", "CRD"):
            yield Move([Data((1, 18, 2, 1))], {"blocksize": 3, "mode": mode})


def space_to_depth(version: int) -> Moves:
    yield Move([Data((2, 2, 4, 6))], {"blocksize": 2})
    yield Move([Data((1, 1, 3, 6))], {"blocksize": 3})


def reverse_sequence(version: int) -> Moves:
    yield Move([Data((4, 3)), ints(4, 1, 2)])
    yield Move([Data((3, 4, 2)), ints(2, 4, 1)], {"batch_axis": 0, "time_axis": 1})


def trilu(version: int) -> Moves:
    yield Move([CUBE])
    yield Move([CUBE], {"upper": 0})
    for k in (-1, 2, 9):
        yield Move([Data((3, 4)), np.array(k, np.int64)], {"upper": k % 2})
    yield Move([EMPTY])


def center_crop_pad(version: int) -> Moves:
    yield Move([Data((5, 4)), ints(3, 4)])
    yield Move([Data((5, 4)), ints(8, 3)])
    yield Move([Data((5, 4, 3)), ints(2, 6)], {"axes": [0, 2]})
    yield Move([Data((5, 4, 3)), ints(7)], {"axes": [-1]})


def tensor_scatter(version: int) -> Moves:
    cache, new = Data((2, 3, 6, 2)), Data((2, 3, 2, 2))
    yield Move([cache, new, ints(1, 4)])
    yield Move([cache, new])
    yield Move([cache, new, ints(5, 3)], {"mode": "circular"})
    yield Move([Data((2, 6, 2)), Data((2, 1, 2)), ints(0, 5)], {"axis": -2})


def nearest(version: int) -> Moves:
    """Resize: pixels as they are."""
    data, scales = Data((1, 2, 3, 4)), np.array([1, 1, 2, 0.5], np.float32)
    if version < 11:
        yield Move([data, scales], {"mode": "nearest"})
        return
    none = np.zeros(0, np.float32) if version < 13 else None
    ways = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    for way in ways:
        for round_ in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            attributes = {"coordinate_transformation_mode": way, "nearest_mode": round_}
            sizes = ints(1, 2, 5, 3)
            yield Move([data, none, none, sizes], {"mode": "nearest", **attributes})


def upsample(version: int) -> Moves:
    data, scales = Data((1, 2, 3, 4)), np.array([1, 1, 2, 3], np.float32)
    if version < 9:
        yield Move([data], {"scales": scales.tolist(), "mode": "nearest"})
    else:
        yield Move([data, scales])


def one_hot(version: int) -> Moves:
    depth = np.array(4, np.int64)
    yield Move([ints([0, 3], [-1, 9]), depth, Data((2,))])
    yield Move([ints(1, 2), np.array([3], np.int32), Data((2,))], {"axis": 0})
    yield Move([np.array([2.0], np.float32), depth, Data((2,))])
    yield Move([np.zeros((0, 2), np.int64), depth, Data((2,))], {"axis": 1})


CASES: dict[str, Callable[[int], Moves]] = {
    "CenterCropPad": center_crop_pad,
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Identity": identity,
    "OneHot": one_hot,
    "Pad": pad,
    "Reshape": reshape,
    "Resize": nearest,
    "ReverseSequence": reverse_sequence,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "TensorScatter": tensor_scatter,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
    "Where": where,
}
"""By operator: nodes of each version."""
