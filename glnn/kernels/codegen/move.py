"""Generator of kernels that move numbers: the nested loops over memory of an index map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from glnn.core.layout import Layout, alone
from glnn.core.layout.layout import CHANNELS_LAST
from glnn.core.symint import divides
from glnn.core.types import DType, Shape, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.index_map import EDGES, Strides, Walk
from glnn.graph.operator import Operator
from glnn.graph.operators.move import Flip, Move, Pad, Transpose
from glnn.kernels.codegen.generated import Generated, Uniform

TILE = 32  # places of a tile's side: shaders/move/tiled_transpose.comp
LEAST = 8  # places below which a loop is not worth tiles


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for kernels that move words one by one, or by contiguous four: see `Generator`."""
    capture = backend == "feedback"
    halves = not capture and types["x"].dtype is types["out"].dtype is DType.float16
    walk = walk_of(op, types, layouts, halves)
    assert isinstance(op, Move)  # else it has no walk
    walk = walk.whole if capture else walk
    if halves and (walk.quads is None or op.value):
        raise UnsupportedOpError("halves are moved by four, and what is put beside them is 0")
    fill = 0 if halves else bits(op.value, types["x"])
    return loops(walk, capture, layouts["x"].size(types["x"].shape), fill)


def loops(
    walk: Walk, capture: bool, words: int, fill: int = 0, width: int | None = None
) -> Generated:
    """Generate the uniforms and macros of a kernel that runs the loops `walk`.

    capture: whether the results are captured in the order of memory. words: size of the operand.
    fill: the word for places outside the operand. width: words moved at a time, 1 or 4; the most
    possible unless given.
    """
    quads = None if width == 1 else walk.quads
    width, taken = (1, walk) if quads is None else (4, quads)
    legs = taken.legs
    inner = [prod(leg.count for leg in legs[i + 1 :]) for i in range(len(legs))]
    uniforms: dict[str, Uniform] = {
        "places": taken.places,
        "pitch": tuple(leg.write for leg in legs) if capture else tuple(inner),
        "reads": tuple(leg.read for leg in legs),
        "writes": tuple(leg.write for leg in legs),
        "base": taken.base,
        "target_base": taken.target,
        "fill": fill,
        "lanes": 4,
        "x_last": max(words // width - 1, 0),
        "first": tuple(leg.first for leg in legs),
        "extent": tuple(leg.count if leg.extent is None else leg.extent for leg in legs),
    }
    defines = {"RANK": len(legs), "EDGE": EDGES.index(taken.edge), "WIDTH": width}
    return Generated(
        str(defines), {}, defines, uniforms, {"x": "rgba32i" if width == 4 else "r32i"}
    )


def examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover every variant of the templates."""
    by_one, by_four = TensorType((3, 5, 7)), TensorType((3, 4, 8), DType.int32)
    found: dict[str, tuple[Operator, Mapping[str, TensorType]]] = {
        "transposed": (Transpose((2, 1, 0)), {"x": by_one}),
        "by-four": (Transpose((1, 0, 2)), {"x": by_four}),
        "rank-8": (Transpose(tuple(range(7, -1, -1))), {"x": TensorType((2,) * 8)}),
    }
    for edge in EDGES[1:]:
        found[edge] = Pad((1, 2, 1), (1, 0, 1), edge), {"x": by_one}
        found[f"{edge}-by-four"] = Pad((1, 1, 0), (1, 1, 0), edge), {"x": by_four}
    return found


def image_examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover the kernels of images."""
    x = {"x": TensorType((2, 3, 4, 5))}
    return {
        "flipped": (Flip((2, 3)), x),
        "padded": (Pad((0, 0, 1, 1), (0, 0, 1, 1)), x),
        "channels": (Pad((0, 1, 0, 0), (0, 1, 0, 0)), x),
    }


def turn_examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover the kernels that transpose matrices."""
    x = {"x": TensorType((8, 9, 10, 11))}
    return {
        "a-matrix": (Transpose((1, 0)), {"x": TensorType((33, 65))}),
        "loops-around": (Transpose((3, 1, 0, 2)), x),
    }


def turn(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for kernels that transpose matrices by tiles in shared memory: see `Generator`."""
    walk = walk_of(op, types, layouts).turned
    if walk is None or any(leg.count < LEAST for leg in walk.legs[-2:]):
        raise UnsupportedOpError("it turns matrices, of which there are none")
    *around, high, wide = walk.legs
    tiles_wide = -(-wide.count // TILE)
    each = -(-high.count // TILE) * tiles_wide
    tiles = each * prod(leg.count for leg in around)
    uniforms: dict[str, Uniform] = {
        "high": high.count,
        "wide": wide.count,
        "wide_reads": wide.read,
        "high_writes": high.write,
        "tiles": tiles,
        "tiles_wide": tiles_wide,
        "tiles_each": each,
        "tile_invocations": tiles * TILE,
        "base": walk.base,
        "target_base": walk.target,
        "pitch": tuple(prod(leg.count for leg in around[i + 1 :]) for i in range(len(around))),
        "reads": tuple(leg.read for leg in around),
        "writes": tuple(leg.write for leg in around),
    }
    return Generated(str(len(walk.legs)), {}, {"RANK": len(walk.legs)}, uniforms)


def walk_of(
    op: Operator,
    types: Mapping[str, TensorType],
    layouts: Mapping[str, Layout],
    halves: bool = False,
) -> Walk:
    """Return the loops of `op` over memory. Raises UnsupportedOpError where there are none.

    halves: whether it moves float16 numbers.
    """
    if not isinstance(op, Move):
        raise UnsupportedOpError(f"it moves numbers, no {op.name}")
    x, out = types["x"].shape, types["out"].shape
    if not halves:
        on_gpu(types)
    steps = strides(layouts["x"], x), strides(layouts["out"], out)
    found = op.map(x)
    walk = found.walk(x, *steps)
    if alone(layouts["x"]).name == alone(layouts["out"]).name == CHANNELS_LAST:
        channels = -(-x[1] // 4) * 4
        if (whole := found.padded(1, x[1], channels)) is not None:
            walk = whole.walk((x[0], channels, *x[2:]), *steps)
    begin, target = layouts["x"].first, layouts["out"].first
    return replace(walk, base=walk.base + begin, target=walk.target + target)


def on_gpu(types: Mapping[str, TensorType]) -> None:
    """Raise UnsupportedOpError where a tensor's type is not stored in whole words on a GPU."""
    for name, one in types.items():
        if not one.dtype.on_gpu or one.dtype is DType.float16:
            raise UnsupportedOpError(f"{name} is {one.dtype.value}, of which no GPU has words")


def strides(layout: Layout, shape: Shape) -> Strides:
    """Return the stride along each axis. Raises UnsupportedOpError where one is not constant."""
    if layout.ranks is not None and len(shape) not in layout.ranks:
        raise UnsupportedOpError(f"layout {layout.name} is none of shape {shape}")
    found: dict[int, set[int | None]] = {axis: set() for axis in range(len(shape))}
    for dim in layout.dims(shape):
        even = divides(dim.step, dim.stride)
        found[dim.axis].add(dim.stride // dim.step if even else None)
    if any(len(steps) != 1 or None in steps for steps in found.values()):
        raise UnsupportedOpError(f"numbers of layout {layout.name} lie apart unevenly")
    return tuple(step for steps in found.values() for step in steps if step is not None)


def bits(value: float | int | bool, type: TensorType) -> int:
    """Return the word, as int32, that holds `value` in a tensor of this type."""
    word = np.asarray(value).astype(type.dtype.numpy).astype(type.dtype.word)
    return int(word.view(np.int32))
