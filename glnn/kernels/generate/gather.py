"""Generator of gather kernels: nested loops over operand, indices and result."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.errors import UnsupportedOpError
from glnn.graph.index_map import Leg, Walk
from glnn.graph.operator import Operator
from glnn.graph.operators.gather import Gather, GatherElements, GatherND, Lookup
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.kernels.generate.move import loops, on_gpu, strides
from glnn.layout import Layout
from glnn.symint import divides
from glnn.types import DType, TensorType

Operands = Mapping[str, TensorType]


def generate(
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
    walk = Walk.of(legs)
    capture = backend == "feedback"
    walk = walk.whole if capture else walk
    looked = op.looked(len(x), index)
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


def examples() -> Mapping[str, tuple[Operator, Operands]]:
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
