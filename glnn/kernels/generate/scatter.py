"""Generator of scatter kernels: the strides by which a result finds its updates."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from glnn.errors import UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.graph.operators.scatter import (
    REDUCTIONS,
    Put,
    ScatterElements,
    ScatterND,
    ScatterSorted,
)
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.kernels.generate.move import on_gpu, strides
from glnn.layout import Layout
from glnn.types import DType, TensorType

Operands = Mapping[str, TensorType]


def generate(
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


def examples() -> Mapping[str, tuple[Operator, Operands]]:
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
