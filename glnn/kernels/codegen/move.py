"""Generators of kernels that move numbers: index maps, gathers, scatters and concatenations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from glnn.core.layout import Layout, without_strip
from glnn.core.layout.layout import CHANNELS_LAST
from glnn.core.symint import divides, hint, same
from glnn.core.types import DType, Shape, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.index_map import EDGES, Leg, Strides, Walk
from glnn.graph.operator import Operator
from glnn.graph.operators.concat import Concat
from glnn.graph.operators.gather import Gather, GatherElements, GatherND, Lookup
from glnn.graph.operators.move import Flip, Move, Pad, Transpose
from glnn.graph.operators.scatter import (
    REDUCTIONS,
    Put,
    ScatterElements,
    ScatterND,
    ScatterSorted,
)
from glnn.kernels.codegen.generated import Generated, OneLaunch, Uniform

Operands = Mapping[str, TensorType]
TEXTURES = 16  # of a vertex shader: OpenGL ES 3.0 guarantees no more
ENDLESS = 2**31 - 1


def pieces(op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for kernels that copy each operand of a Concat by a launch of its own."""
    axis, names = _checked(op, types, fp16=backend == "compute")
    shape = types["out"].shape
    writes = strides(layouts["out"], shape)
    walks: dict[str, Walk] = {}
    begin = 0
    for name in names:
        operand_shape = types[name].shape
        legs = [
            Leg(*leg)
            for leg in zip(
                operand_shape, strides(layouts[name], operand_shape), writes, strict=True
            )
        ]
        legs.sort(key=lambda leg: -leg.write)  # in the order of memory, whatever the layout
        walk = Walk.from_legs(legs)
        target = layouts["out"].offset + begin * writes[axis]
        walks[name] = replace(walk, base=layouts[name].offset, target=target)
        begin += operand_shape[axis]
    width = 4 if all(walk.quads is not None for walk in walks.values()) else 1
    rank = max(len(walk.legs) for walk in walks.values())
    copies = {
        name: loops(_of_rank(walk, rank), False, 0, width=width) for name, walk in walks.items()
    }
    if width == 1 and types["out"].dtype is DType.float16:
        raise UnsupportedOpError("halves are moved by four, and channels are not in whole fours")
    largest = max(names, key=lambda name: hint(walks[name].places))
    launches = tuple(OneLaunch(copies[name].uniforms, name) for name in names)
    return replace(copies[largest], launches=launches)


def joined(op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for kernels in which each number of the result is read from one of the operands.

    Operands are buffers on compute, textures on feedback.
    """
    axis, names = _checked(op, types)
    shape = types["out"].shape
    writes = strides(layouts["out"], shape)
    block = writes[axis]
    reads = {name: strides(layouts[name], types[name].shape) for name in names}
    ends = [types[name].shape[axis] * block for name in names]
    return _fetches(
        names,
        ends,
        (writes[0] if axis > 0 else ENDLESS, shape[axis] * block if axis > 1 else ENDLESS),
        [reads[name][0] if axis > 0 else 0 for name in names],
        [types[name].shape[axis] * block if axis > 1 else 0 for name in names],
        [layouts[name].size(types[name].shape) for name in names],
        prod(shape[1:]),
        [reads[name][0] - block if axis == 0 and reads[name][0] else 0 for name in names],
        stored=backend == "compute",
        places=prod(shape),
    )


def grouped(
    op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate as `joined`, for channels in whole groups of four: an image is one run."""
    axis, names = _checked(op, types)
    if axis != 1 or not all(divides(4, types[name].shape[1]) for name in names):
        raise UnsupportedOpError("channels are not in whole groups of four")
    images = [prod(types[name].shape[1:]) for name in names]
    sizes = [prod(types[name].shape) for name in names]
    pitches = (sum(images), ENDLESS)
    return _fetches(names, images, pitches, images, [0] * len(names), sizes)


def _fetches(
    names: list[str],
    extents: list[int],
    pitches: tuple[int, int],
    outer: list[int],
    middle: list[int],
    sizes: list[int],
    columns: int = 0,
    padding: Sequence[int] = (),
    *,
    stored: bool = False,
    places: int = 0,
) -> Generated:
    """Generate the fetches of a concatenation, runs of the operands inside two loops.

    extents: the numbers of each operand in one run of the result. pitches: the result's strides of
    the outer and the middle loop. outer, middle: each operand's strides of these loops. padding:
    numbers behind each row of `columns` numbers in each operand, where a run consists of rows.
    stored: True for buffers instead of textures. places: numbers of the result.
    """
    padded = not all(same(one, 0) for one in padding)
    numbers = [*extents, *outer, *middle, *(p for p in pitches if not same(p, ENDLESS))]
    if len(names) > TEXTURES:
        raise UnsupportedOpError(f"it takes at most {TEXTURES} operands")
    width = 4 if not padded and all(divides(4, n) for n in numbers) else 1
    ends = [sum(extents[: i + 1]) // width for i in range(len(names))]
    uniforms: dict[str, Uniform] = {
        "outer_pitch": max(pitches[0] if same(pitches[0], ENDLESS) else pitches[0] // width, 1),
        "middle_pitch": max(pitches[1] if same(pitches[1], ENDLESS) else pitches[1] // width, 1),
        "outer_reads": tuple(n // width for n in outer),
        "middle_reads": tuple(n // width for n in middle),
        "starts": (0, *ends[:-1]),
        "ends": tuple(ends),
        "lasts": tuple(max(n // width - 1, 0) for n in sizes),
        "places": places // width,
    }
    defines = {"COUNT": len(names), "WIDTH": width}
    if padded:
        uniforms |= {"columns": columns, "padding": tuple(padding)}
        defines["PADDED"] = 1
    return Generated(
        str(defines),
        {
            "operands": lambda: "\n".join(_concat_declarations(names, stored)),
            "fetches": lambda: "\n".join(f"    FETCH({name}, {i})" for i, name in enumerate(names)),
        },
        defines,
        uniforms,
        dict.fromkeys(names, "rgba32i" if width == 4 else "r32i"),
    )


def _concat_declarations(names: list[str], stored: bool) -> list[str]:
    """Return the lines that declare the operands; the bindings of buffers begin at 1."""
    if not stored:
        return [f"uniform highp {name.upper()}_SAMPLER {name};" for name in names]
    blocks = [f"layout(std430, binding = {i}) buffer {n.upper()}" for i, n in enumerate(names, 1)]
    return [f"{block} {{ NUMBERS {n}[]; }};" for block, n in zip(blocks, names, strict=True)]


def _of_rank(walk: Walk, rank: int) -> Walk:
    """Return `walk` with `rank` loops, adding outer loops of one iteration."""
    outer = [Leg(1, 0, 0)] * (rank - len(walk.legs))
    return replace(walk, legs=(*outer, *walk.legs))


def _checked(op: Operator, types: Operands, fp16: bool = False) -> tuple[int, list[str]]:
    """Return the axis and the operands' names. Raises UnsupportedOpError unless `op` is a Concat.

    fp16: True where all tensors may be float16.
    """
    if not isinstance(op, Concat):
        raise UnsupportedOpError(f"it puts tensors behind one another, no {op.name}")
    if not fp16 or any(one.dtype is not DType.float16 for one in types.values()):
        on_gpu(types)
    return op.axis % len(types["out"].dims), [name for name in types if name != "out"]


def concat_examples() -> Mapping[str, tuple[Operator, Operands]]:
    """Return operators that cover every variant of the templates."""
    odd, even = TensorType((2, 3, 2, 5)), TensorType((2, 4, 2, 8), DType.int32)
    return {
        "two": (Concat(), {"x0": odd, "x1": odd}),
        "three-by-four": (Concat(-1), {"x0": even, "x1": even, "x2": even}),
        "along-the-first": (Concat(0), {f"x{i}": even for i in range(3)}),
    }


def concat_image_examples() -> Mapping[str, tuple[Operator, Operands]]:
    """Return operators that cover the kernels of images."""
    x = TensorType((2, 8, 3, 5))
    return {"two": (Concat(), {"x0": x, "x1": x})}


def generate_gather(
    op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for kernels that gather words one by one, or by contiguous four."""
    if not isinstance(op, Lookup):
        raise UnsupportedOpError(f"it looks numbers up, no {op.name}")
    half = types["x"].dtype is DType.float16
    on_gpu({name: one for name, one in types.items() if name != "x" or not half})
    x, index, out = (types[name].shape for name in ("x", "index", "out"))
    reads, looks, writes = (
        strides(layouts[name], types[name].shape) for name in ("x", "index", "out")
    )
    legs = [
        Leg(count, 0 if a is None else reads[a], write, look=0 if i is None else looks[i])
        for count, write, (a, i) in zip(out, writes, op.axes(len(x), index), strict=True)
    ]
    walk = Walk.from_legs(legs)
    capture = backend == "feedback"
    walk = walk.whole if capture else walk
    indexed = op.indexed_axes(len(x), index)
    steps = [reads[axis] for axis in indexed]
    width = 4 if walk.quads is not None and all(divides(4, step) for step in steps) else 1
    made = loops(walk, capture, layouts["x"].size(x), width=width)
    moved = walk.quads if width == 4 and walk.quads is not None else walk
    uniforms: dict[str, Uniform] = {
        **made.uniforms,
        "looks": tuple(leg.look for leg in moved.legs),
        "sizes": tuple(x[axis] for axis in indexed),
        "along": tuple(step // width for step in steps),
        "index_step": looks[-1] if len(indexed) > 1 else 0,
        "index_last": max(layouts["index"].size(index) - 1, 0),
    }
    defines = {**made.defines, "DEPTH": len(indexed)}
    texel = "rgba32" if width == 4 else "r32"
    fetched = {"x": f"{texel}{'f' if half else 'i'}"}
    return Generated(str(defines), {}, defines, uniforms, fetched)


def gather_examples() -> Mapping[str, tuple[Operator, Operands]]:
    """Return operators that cover every variant of the templates."""
    indices = {rank: TensorType((2, 3, 2)[:rank], DType.int32) for rank in (1, 2, 3)}
    by_one, by_four = TensorType((5, 3, 7)), TensorType((5, 4, 8))
    as_fp16 = {one: TensorType(one.dims, DType.float16) for one in (by_one, by_four)}
    return {
        "rows": (Gather(), {"x": by_four, "index": indices[1]}),
        "rows-of-halves": (Gather(), {"x": as_fp16[by_four], "index": indices[1]}),
        "inner-of-halves": (Gather(1), {"x": as_fp16[by_one], "index": indices[2]}),
        "inner": (Gather(1), {"x": by_one, "index": indices[2]}),
        "elements": (GatherElements(), {"x": by_one, "index": indices[3]}),
        "tuples": (GatherND(), {"x": by_one, "index": indices[3]}),
        "tuples-of-rows": (GatherND(), {"x": by_four, "index": indices[3]}),
    }


def generate_scatter(
    op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for kernels in which each result looks up its own updates: see `Generator.make`."""
    if not isinstance(op, Put):
        raise UnsupportedOpError(f"it puts updates where indices say, no {op.name}")
    on_gpu(types)
    x, index, updates = (types[name].shape for name in ("x", "index", "updates"))
    pitch, look, step = (
        strides(layouts[name], types[name].shape) for name in ("out", "index", "updates")
    )
    rank, uniforms = len(x), dict[str, Uniform]()
    if not rank:
        raise UnsupportedOpError("x has no dimensions")
    if isinstance(op, ScatterElements):
        axis = op.axis % rank
        looked, depth = axis, 1
        for name, numbers in (("looks", look), ("strides", step)):
            uniforms[name] = tuple(0 if i == axis else n for i, n in enumerate(numbers))
        uniforms["index_step"] = 0
        uniforms["within"] = tuple(x[i] if i == axis else n for i, n in enumerate(index))
        uniforms |= _walked((index[axis],), (look[axis],), (step[axis],))
    else:
        looked, depth = 0, op.leading if isinstance(op, ScatterSorted) else index[-1]
        count = len(updates) - (rank - depth)  # of the dimensions that are walked
        uniforms |= {"looks": (0,) * rank, "strides": (0,) * depth + step[count:]}
        uniforms |= {"within": x, "index_step": look[-1]}
        uniforms |= _walked(updates[:count], look[:count], step[:count])
    uniforms |= {"pitch": pitch, "size": x, "starts": prod(x[:depth]) + 1}
    defines = {
        "RANK": rank,
        "DEPTH": depth,
        "LOOKED": looked,
        "REDUCTION": REDUCTIONS.index(op.reduction),
        "FLOATS": int(types["x"].dtype is DType.float32),
        "SORTED": int(isinstance(op, ScatterSorted)),
    }
    return Generated(str(defines), {}, defines, uniforms)


def _walked(
    shape: tuple[int, ...], look: tuple[int, ...], step: tuple[int, ...]
) -> dict[str, Uniform]:
    """Return two loops over the updates' own dimensions; all but the first are contiguous."""
    if len(shape) < 2:
        shape, look, step = (1, *shape), (0, *look), (0, *step)
    if len(shape) < 2:  # a single update
        shape, look, step = (1, 1), (0, 0), (0, 0)
    return {
        "outer_count": shape[0] if prod(shape) else 0,
        "inner_count": max(prod(shape[1:]), 1),
        "outer_look": look[0] if look else 0,
        "inner_look": look[-1] if len(look) > 1 else 0,
        "outer_update": step[0],
        "inner_update": step[-1],
    }


def scatter_examples() -> Mapping[str, tuple[Operator, Operands]]:
    """Return operators that cover every variant of the templates."""
    floats, whole = TensorType((5, 3, 7)), TensorType((5, 3, 7), DType.int32)
    index = TensorType((2, 3, 2), DType.int32)
    pairs = TensorType((4, 2), DType.int32)
    examples: dict[str, tuple[Operator, Operands]] = {}
    for reduction in REDUCTIONS:
        operands = {"x": floats, "index": index, "updates": TensorType(index.dims)}
        examples[f"elements-{reduction}"] = ScatterElements(1, reduction), operands
        operands = {"x": whole, "index": pairs, "updates": TensorType((4, 7), DType.int32)}
        examples[f"tuples-{reduction}"] = ScatterND(reduction), operands
    table = TensorType((5 + 1 + 4,), DType.int32)
    rows = {"x": floats, "index": table, "updates": TensorType((4, 3, 7))}
    return {**examples, "sorted": (ScatterSorted(1, "add"), rows)}


TILE = 32  # side of a tile of shaders/move/tiled_transpose.comp
MIN_SIDE = 8  # shortest loop that is transposed by tiles


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for kernels that move words one by one, or by contiguous four: see `Generator`."""
    capture = backend == "feedback"
    packs_fp16 = not capture and types["x"].dtype is types["out"].dtype is DType.float16
    walk = walk_of(op, types, layouts, packs_fp16)
    assert isinstance(op, Move)  # else it has no walk
    walk = walk.whole if capture else walk
    if packs_fp16 and (walk.quads is None or op.value):
        raise UnsupportedOpError("halves are moved by four, and what is put beside them is 0")
    fill = 0 if packs_fp16 else bits(op.value, types["x"])
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
    width, moved = (1, walk) if quads is None else (4, quads)
    legs = moved.legs
    inner = [prod(leg.count for leg in legs[i + 1 :]) for i in range(len(legs))]
    uniforms: dict[str, Uniform] = {
        "places": moved.places,
        "words": moved.places * width,
        "pitch": tuple(leg.write for leg in legs) if capture else tuple(inner),
        "counts": tuple(leg.count for leg in legs),
        "reads": tuple(leg.read for leg in legs),
        "writes": tuple(leg.write for leg in legs),
        "base": moved.base,
        "target_base": moved.target,
        "fill": fill,
        "lanes": 4,
        "x_last": max(words // width - 1, 0),
        "first": tuple(leg.first for leg in legs),
        "extent": tuple(leg.count if leg.extent is None else leg.extent for leg in legs),
    }
    defines = {"RANK": len(legs), "EDGE": EDGES.index(moved.edge), "WIDTH": width}
    return Generated(
        str(defines), {}, defines, uniforms, {"x": "rgba32i" if width == 4 else "r32i"}
    )


def examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover every variant of the templates."""
    by_one, by_four = TensorType((3, 5, 7)), TensorType((3, 4, 8), DType.int32)
    result: dict[str, tuple[Operator, Mapping[str, TensorType]]] = {
        "transposed": (Transpose((2, 1, 0)), {"x": by_one}),
        "by-four": (Transpose((1, 0, 2)), {"x": by_four}),
        "rank-8": (Transpose(tuple(range(7, -1, -1))), {"x": TensorType((2,) * 8)}),
    }
    for edge in EDGES[1:]:
        result[edge] = Pad((1, 2, 1), (1, 0, 1), edge), {"x": by_one}
        result[f"{edge}-by-four"] = Pad((1, 1, 0), (1, 1, 0), edge), {"x": by_four}
    return result


def image_examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover the kernels of images."""
    x = {"x": TensorType((2, 3, 4, 5))}
    return {
        "flipped": (Flip((2, 3)), x),
        "padded": (Pad((0, 0, 1, 1), (0, 0, 1, 1)), x),
        "channels": (Pad((0, 1, 0, 0), (0, 1, 0, 0)), x),
    }


def transpose_examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover the kernels that transpose matrices."""
    x = {"x": TensorType((8, 9, 10, 11))}
    return {
        "a-matrix": (Transpose((1, 0)), {"x": TensorType((33, 65))}),
        "loops-around": (Transpose((3, 1, 0, 2)), x),
        "two-loops-read": (Transpose((0, 3, 2, 1)), x),
    }


def transpose(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for kernels that transpose matrices by tiles in shared memory: see `Generator`."""
    walk = walk_of(op, types, layouts).transposed
    if walk is None:
        raise UnsupportedOpError("it transposes matrices, of which there are none")
    *around, high, wide = walk.legs
    # A loop that continues the reads of `high`, though not its writes, is merged with it: as the
    # channels of a kernel's weights with its taps.
    merged = next((leg for leg in around if same(leg.read, high.count)), None)
    if merged is not None:
        around.remove(merged)
    count = high.count * (1 if merged is None else merged.count)
    if count < MIN_SIDE or wide.count < MIN_SIDE:
        raise UnsupportedOpError("it transposes matrices, of which there are none")
    tiles_wide = -(-wide.count // TILE)
    matrix_tiles = -(-count // TILE) * tiles_wide
    tiles = matrix_tiles * prod(leg.count for leg in around)
    uniforms: dict[str, Uniform] = {
        "high": count,
        "wide": wide.count,
        "wide_reads": wide.read,
        "inner": high.count,
        "inner_writes": high.write,
        "outer_writes": 0 if merged is None else merged.write,
        "tiles": tiles,
        "tiles_wide": tiles_wide,
        "tiles_each": matrix_tiles,
        "tile_invocations": tiles * TILE,
        "base": walk.base,
        "target_base": walk.target,
        "pitch": tuple(prod(leg.count for leg in around[i + 1 :]) for i in range(len(around))),
        "reads": tuple(leg.read for leg in around),
        "writes": tuple(leg.write for leg in around),
    }
    rank = len(around) + 2
    return Generated(str(rank), {}, {"RANK": rank}, uniforms)


def walk_of(
    op: Operator,
    types: Mapping[str, TensorType],
    layouts: Mapping[str, Layout],
    fp16: bool = False,
) -> Walk:
    """Return the loops of `op` over memory. Raises UnsupportedOpError where there are none.

    fp16: whether it moves float16 numbers.
    """
    if not isinstance(op, Move):
        raise UnsupportedOpError(f"it moves numbers, no {op.name}")
    x, out = types["x"].shape, types["out"].shape
    if not fp16:
        on_gpu(types)
    steps = strides(layouts["x"], x), strides(layouts["out"], out)
    index_map = op.map(x)
    walk = index_map.walk(x, *steps)
    if without_strip(layouts["x"]).name == without_strip(layouts["out"]).name == CHANNELS_LAST:
        channels = -(-x[1] // 4) * 4
        if (padded := index_map.padded(1, x[1], channels)) is not None:
            walk = padded.walk((x[0], channels, *x[2:]), *steps)
    begin, target = layouts["x"].offset, layouts["out"].offset
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
    steps_of: dict[int, set[int | None]] = {axis: set() for axis in range(len(shape))}
    for dim in layout.dims(shape):
        even = divides(dim.step, dim.stride)
        steps_of[dim.axis].add(dim.stride // dim.step if even else None)
    if any(len(steps) != 1 or None in steps for steps in steps_of.values()):
        raise UnsupportedOpError(f"numbers of layout {layout.name} lie apart unevenly")
    return tuple(step for steps in steps_of.values() for step in steps if step is not None)


def bits(value: float | int | bool, type: TensorType) -> int:
    """Return the word, as int32, that holds `value` in a tensor of this type."""
    word = np.asarray(value).astype(type.dtype.numpy).astype(type.dtype.word)
    return int(word.view(np.int32))
