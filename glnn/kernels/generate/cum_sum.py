"""Generator of cumulative sums and products: the strides along and between lines."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from glnn.errors import UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.graph.operators.reductions import CumSum
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.kernels.generate.move import on_gpu
from glnn.kernels.generate.strides import collapsed, strides
from glnn.layout import Layout
from glnn.symint import same
from glnn.types import MOST, DType, TensorType

LONGEST = 4096  # numbers of a line where each result walks all of it: beyond, the host is faster


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for the templates of shaders/cum_sum: see `Generator.make`."""
    if not isinstance(op, CumSum):
        raise UnsupportedOpError(f"it computes cumulative sums, no {op.name}")
    on_gpu(types)
    shape = types["x"].shape
    axis, extent = op.axis % len(shape), shape[op.axis]
    if backend == "feedback" and extent > LONGEST:
        raise UnsupportedOpError(f"it takes lines of at most {LONGEST} numbers, got {extent}")
    dims = layouts["x"].dims(shape)
    steps = strides(shape, shape, layouts["x"])
    kept, along = collapsed([i for i in range(len(shape)) if i != axis], shape, {"x": steps})
    uniforms: dict[str, Uniform] = {
        "kept": kept,
        "kept_strides": along["x"],
        "reduced": (extent,),
        "reduced_strides": (steps[axis],),
        "lines": prod(kept),
        "extent": extent,
        "apart": dims[axis].stride,
        "pitch": dims[axis - 1].stride if axis else MOST,
    }
    defines = {
        "KEPT": len(kept),
        "FLOATS": int(types["x"].dtype is DType.float32),
        "EXCLUSIVE": int(op.exclusive),
        "REVERSE": int(op.reverse),
        "PRODUCT": int(op.multiply),
        "COLUMNS": int(not same(steps[axis], 1)),
    }
    return Generated(str(defines), {}, defines, uniforms)


def examples() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Return operators that cover every variant of the templates."""
    floats, whole = TensorType((5, 3, 7)), TensorType((5, 3, 7), DType.int32)
    return {
        "rows": (CumSum(-1), {"x": floats}),
        "columns": (CumSum(1, exclusive=True), {"x": whole}),
        "back": (CumSum(0, reverse=True), {"x": floats}),
        "products": (CumSum(-1, multiply=True), {"x": floats}),
    }
