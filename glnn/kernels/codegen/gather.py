"""Generators of gather and scatter kernels: how each result finds its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from glnn.core.layout import Layout
from glnn.core.symint import divides
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.index_map import Leg, Walk
from glnn.graph.operator import Operator
from glnn.graph.operators.gather import Gather, GatherElements, GatherND, Lookup
from glnn.graph.operators.scatter import (
    REDUCTIONS,
    Put,
    ScatterElements,
    ScatterND,
    ScatterSorted,
)
from glnn.kernels.codegen.generated import Generated, Uniform
from glnn.kernels.codegen.move import loops, on_gpu, strides

Operands = Mapping[str, TensorType]


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
    looked = op.indexed_axes(len(x), index)
    apart = [reads[axis] for axis in looked]
    width = 4 if walk.quads is not None and all(divides(4, step) for step in apart) else 1
    made = loops(walk, capture, layouts["x"].size(x), width=width)
    taken = walk.quads if width == 4 and walk.quads is not None else walk
    uniforms: dict[str, Uniform] = {
        **made.uniforms,
        "looks": tuple(leg.look for leg in taken.legs),
        "sizes": tuple(x[axis] for axis in looked),
        "along": tuple(step // width for step in apart),
        "index_step": looks[-1] if len(looked) > 1 else 0,
        "index_last": max(layouts["index"].size(index) - 1, 0),
    }
    defines = {**made.defines, "DEPTH": len(looked)}
    texel = "rgba32" if width == 4 else "r32"
    fetched = {"x": f"{texel}{'f' if half else 'i'}"}
    return Generated(str(defines), {}, defines, uniforms, fetched)


def gather_examples() -> Mapping[str, tuple[Operator, Operands]]:
    """Return operators that cover every variant of the templates."""
    indices = {rank: TensorType((2, 3, 2)[:rank], DType.int32) for rank in (1, 2, 3)}
    by_one, by_four = TensorType((5, 3, 7)), TensorType((5, 4, 8))
    halves = {one: TensorType(one.dims, DType.float16) for one in (by_one, by_four)}
    return {
        "rows": (Gather(), {"x": by_four, "index": indices[1]}),
        "rows-of-halves": (Gather(), {"x": halves[by_four], "index": indices[1]}),
        "inner-of-halves": (Gather(1), {"x": halves[by_one], "index": indices[2]}),
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
        for name, own in (("looks", look), ("strides", step)):
            uniforms[name] = tuple(0 if i == axis else n for i, n in enumerate(own))
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
    found: dict[str, tuple[Operator, Operands]] = {}
    for reduction in REDUCTIONS:
        operands = {"x": floats, "index": index, "updates": TensorType(index.dims)}
        found[f"elements-{reduction}"] = ScatterElements(1, reduction), operands
        operands = {"x": whole, "index": pairs, "updates": TensorType((4, 7), DType.int32)}
        found[f"tuples-{reduction}"] = ScatterND(reduction), operands
    table = TensorType((5 + 1 + 4,), DType.int32)
    rows = {"x": floats, "index": table, "updates": TensorType((4, 3, 7))}
    return {**found, "sorted": (ScatterSorted(1, "add"), rows)}
