"""Generators of concatenation kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from glnn.core.layout import Layout
from glnn.core.symint import divides, hint, same
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.index_map import Leg, Walk
from glnn.graph.operator import Operator
from glnn.graph.operators.concat import Concat
from glnn.kernels.codegen.generated import Generated, OneLaunch, Uniform
from glnn.kernels.codegen.move import loops, on_gpu, strides

Operands = Mapping[str, TensorType]
TEXTURES = 16  # of a vertex shader: OpenGL ES 3.0 guarantees no more
ENDLESS = 2**31 - 1


def pieces(op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for kernels that copy each operand to its place by a launch of its own."""
    axis, names = _checked(op, types, halves=backend == "compute")
    shape = types["out"].shape
    writes = strides(layouts["out"], shape)
    walks: dict[str, Walk] = {}
    begin = 0
    for name in names:
        own = types[name].shape
        legs = [Leg(*leg) for leg in zip(own, strides(layouts[name], own), writes, strict=True)]
        legs.sort(key=lambda leg: -leg.write)  # in the order of memory, whatever the layout
        walk = Walk.from_legs(legs)
        target = layouts["out"].first + begin * writes[axis]
        walks[name] = replace(walk, base=layouts[name].first, target=target)
        begin += own[axis]
    width = 4 if all(walk.quads is not None for walk in walks.values()) else 1
    rank = max(len(walk.legs) for walk in walks.values())
    made = {
        name: loops(_of_rank(walk, rank), False, 0, width=width) for name, walk in walks.items()
    }
    if width == 1 and types["out"].dtype is DType.float16:
        raise UnsupportedOpError("halves are moved by four, and channels are not in whole fours")
    largest = max(names, key=lambda name: hint(walks[name].places))
    launches = tuple(OneLaunch(made[name].uniforms, name) for name in names)
    plain = made[largest]
    return replace(plain, launches=launches)


def joined(op: Operator, types: Operands, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for kernels that read each number of the result from the operand that has it.

    They read from buffers on compute, from textures on feedback.
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
    """Generate as `joined` does for channels in whole groups of four: an image is one run."""
    axis, names = _checked(op, types)
    if axis != 1 or not all(divides(4, types[name].shape[1]) for name in names):
        raise UnsupportedOpError("channels are not in whole groups of four")
    images = [prod(types[name].shape[1:]) for name in names]
    sizes = [prod(types[name].shape) for name in names]
    whole = (sum(images), ENDLESS)
    return _fetches(names, images, whole, images, [0] * len(names), sizes)


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
    more = [Leg(1, 0, 0)] * (rank - len(walk.legs))
    return replace(walk, legs=(*more, *walk.legs))


def _checked(op: Operator, types: Operands, halves: bool = False) -> tuple[int, list[str]]:
    """Return the axis and the operands' names. Raises UnsupportedOpError unless `op` is a Concat.

    halves: True where all tensors may be float16.
    """
    if not isinstance(op, Concat):
        raise UnsupportedOpError(f"it puts tensors behind one another, no {op.name}")
    if not halves or any(one.dtype is not DType.float16 for one in types.values()):
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
