"""Generators of reductions and of cumulative sums: loops over operands, expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from glnn.core.layout import Layout
from glnn.core.layout.layout import RowMajor
from glnn.core.symint import divides, same
from glnn.core.types import MOST, DType, Shape, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators.reductions import ArgReduce, CumSum, Kind, Reduce, axes_of
from glnn.kernels.codegen.expression import (
    STORED,
    VECTORS,
    WRAPPED,
    fingerprint,
    function,
    types_on_gpu,
    uniforms,
)
from glnn.kernels.codegen.generated import Generated, Uniform
from glnn.kernels.codegen.move import on_gpu


def broadcast_strides(shape: Shape, operand_shape: Shape, layout: Layout) -> list[int]:
    """Return the stride along each axis of `shape` in numbers, 0 where the operand broadcasts.

    operand_shape: the shape of an operand in `layout` that broadcasts to `shape`. Raises
    UnsupportedOpError unless the layout is row major.
    """
    if not isinstance(layout, RowMajor):
        raise UnsupportedOpError(f"it takes rows, not what lies in {layout.name}")
    leading = [0] * (len(shape) - len(operand_shape))
    return leading + [
        0 if same(dim.extent, 1) else dim.stride for dim in layout.dims(operand_shape)
    ]


def collapsed(
    axes: Sequence[int], shape: Shape, steps: Mapping[str, Sequence[int]]
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Merge `axes` of `shape`; return their sizes and the strides of each operand along them.

    steps: each operand's strides along all axes. Neighbouring axes that are contiguous in every
    operand are merged. Without any axis of more than one place, there is one of size 1.
    """
    sizes: list[int] = []
    merged: dict[str, list[int]] = {name: [] for name in steps}
    for axis in axes:
        if same(shape[axis], 1):
            continue
        contiguous = bool(sizes) and all(
            same(merged[name][-1], strides[axis] * shape[axis]) for name, strides in steps.items()
        )
        sizes[-1:] = [sizes[-1] * shape[axis]] if contiguous else [*sizes[-1:], shape[axis]]
        for name, strides in steps.items():
            outer = [] if contiguous else merged[name][-1:]
            merged[name][-1:] = [*outer, strides[axis]]
    if not sizes:
        return (1,), dict.fromkeys(steps, (0,))
    return tuple(sizes), {name: tuple(strides) for name, strides in merged.items()}


KINDS: Mapping[Kind, int] = {"sum": 0, "mean": 0, "prod": 1, "max": 2, "min": 3}
"""The value of the macro KIND in shaders/reduce/body.glsl."""
FLOATS: Mapping[Kind, str] = {
    "sum": "0.0",
    "mean": "0.0",
    "prod": "1.0",
    "max": "uintBitsToFloat(0xff800000u)",
    "min": "uintBitsToFloat(0x7f800000u)",
}
"""The identity element of each reduction of floats, in GLSL."""
LOGIC: Mapping[Kind, Kind] = {"sum": "max", "prod": "min"}
"""The reduction of 0 and 1 that a sum or a product of bools is computed by."""
BEFORE, AFTER = "before_", "after_"  # prefixes of the uniforms of the expressions' constants
NEIGHBOURS = 4  # contiguous results from which on neighbouring lanes read neighbouring results


@dataclass(frozen=True)
class ReductionLoops:
    """Strides of the loops over the operands, along the kept and along the reduced axes."""

    kept: tuple[int, ...]
    """The sizes of the kept axes, merged into as few as possible."""
    reduced: tuple[int, ...]
    """The sizes of the reduced axes, merged likewise."""
    steps: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Each operand's strides along the kept and along the reduced axes."""

    @classmethod
    def create(
        cls, op: Reduce, types: Mapping[str, TensorType], layouts: Mapping[str, Layout]
    ) -> ReductionLoops:
        """Return the loops of `op`. Raises UnsupportedOpError unless operands are row major."""
        shape = types["x0"].shape
        axes = axes_of("reduce", op.axes, len(shape))
        kept_axes = [axis for axis in range(len(shape)) if axis not in axes]
        names = [name for name in types if name != "out"]
        steps = {n: broadcast_strides(shape, types[n].shape, layouts[n]) for n in names}
        kept, kept_strides = collapsed(kept_axes, shape, steps)
        reduced, reduced_strides = collapsed(axes, shape, steps)
        return cls(
            kept, reduced, {name: (kept_strides[name], reduced_strides[name]) for name in names}
        )

    @property
    def columns(self) -> bool:
        """Return True where neighbouring results, not terms, are contiguous and read together."""
        kept_strides, reduced_strides = self.steps["x0"]
        contiguous = not same(reduced_strides[-1], 1) and same(kept_strides[-1], 1)
        return contiguous and self.kept[-1] >= NEIGHBOURS

    @property
    def spread(self) -> tuple[int, ...]:
        """Each operand's stride between the numbers that neighbouring lanes read."""
        return tuple(strides[not self.columns][-1] for strides in self.steps.values())

    @property
    def wide(self) -> bool:
        """Return True where four neighbours are an aligned vec4, or a scalar, in every operand."""
        size = (self.kept if self.columns else self.reduced)[-1]
        if not divides(4, size) or not same(self.spread[0], 1):
            return False
        for spread, strides in zip(self.spread, self.steps.values(), strict=True):
            fast, slow = strides if self.columns else strides[::-1]
            aligned = all(divides(4, step) for step in (*fast[:-1], *slow))
            if not same(spread, 0) and not (same(spread, 1) and aligned):
                return False
        return True

    @property
    def uniforms(self) -> dict[str, Uniform]:
        """The uniforms that describe the loops to the program."""
        operands = self.steps.values()
        return {
            "kept": self.kept,
            "reduced": self.reduced,
            "kept_strides": tuple(step for kept, _ in operands for step in kept),
            "reduced_strides": tuple(step for _, reduced in operands for step in reduced),
            "spread": self.spread,
        }


def generate_reduce(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate a reduction kernel's code and uniforms for `op`: see `Generator.make`."""
    if not isinstance(op, Reduce | ArgReduce):
        raise UnsupportedOpError(f"it computes reductions, no {op.name}")
    on_gpu(types)
    arg = isinstance(op, ArgReduce)
    values = op if isinstance(op, Reduce) else op.values
    loops = ReductionLoops.create(values, types, layouts)
    names, output, extent = list(loops.steps), types["out"].shape, prod(loops.reduced)
    dtypes = [types[name].dtype for name in names]
    number = types_on_gpu(values.prologue, dtypes)[-1]
    finish = values.whole(extent, number)
    types_on_gpu(finish, [number])
    wide = loops.wide and not arg
    known: dict[str, Uniform] = {
        **loops.uniforms,
        "results": prod(output[1:] if values.parts else output),
        "extent": extent,
        "chunk": values.chunk(extent),
        "outputs": prod(output),
        "lines": prod(output) // (4 if wide and loops.columns else 1),
        **uniforms(values.prologue, BEFORE),
        **uniforms(finish, AFTER),
    }
    kind = LOGIC.get(values.kind, values.kind) if number is DType.bool else values.kind
    defines = {
        "KIND": KINDS[kind],
        "OPERANDS": len(names),
        "KEPT": len(loops.kept),
        "REDUCED": len(loops.reduced),
        "COLUMNS": int(loops.columns),
        "WIDE": int(wide),
        "FLOATS": int(types["out"].dtype is DType.float32),
        **({"ARG": 1, "LAST": int(op.last)} if isinstance(op, ArgReduce) else {}),
    }
    fetches = (f"FETCH({n}, {k}, {VECTORS[types[n].dtype.kind]})" for k, n in enumerate(names))
    value = f"prologue({', '.join(fetches)})"
    reads = {n: f"{'rgba' if wide else 'r'}32{_letter(types[n].dtype)}" for n in names}
    return Generated(
        f"{fingerprint(values.prologue, dtypes)}:{fingerprint(finish, [number])}:"
        f"{' '.join(dtype.value for dtype in dtypes)}",
        {
            "operands": lambda: "\n".join(
                [*_numbers(kind, number, arg), *_declared(types, backend, wide)]
            ),
            "prologue": lambda: function(values.prologue, dtypes, "prologue", BEFORE),
            "finish": lambda: function(finish, [number], "finish", AFTER),
            "fetches": lambda: f"    return {f'Extreme(key_of({value}), i)' if arg else value};",
        },
        defines,
        known,
        reads,
    )


def reduce_examples() -> dict[str, tuple[Operator, dict[str, TensorType]]]:
    """Return reductions and operands that cover every variant of the templates."""
    distance = call("sub", Arg(0), Arg(1))
    squares = Reduce("mean", (1, 3), prologue=call("mul", distance, distance))
    shapes: dict[str, tuple[Reduce | ArgReduce, list[Shape]]] = {
        "rows": (Reduce("sum", (-1,)), [(6, 8)]),
        "columns": (Reduce("max", (0,)), [(6, 8)]),
        "uneven_columns": (Reduce("prod", (0, 2)), [(3, 5, 3, 7)]),
        "squares": (squares, [(2, 6, 5, 7), (2, 1, 5, 1)]),
        "place": (ArgReduce("max", -1), [(6, 9)]),
        "last_place": (ArgReduce("min", 0, last=True), [(6, 9)]),
    }
    result: dict[str, tuple[Operator, dict[str, TensorType]]] = {
        name: (op, {f"x{i}": TensorType(shape) for i, shape in enumerate(operand_shapes)})
        for name, (op, operand_shapes) in shapes.items()
    }
    for dtype in (DType.int32, DType.int8, DType.bool):
        result[dtype.value] = Reduce("sum", (-1,)), {"x0": TensorType((6, 8), dtype)}
    result["place_of_int8"] = ArgReduce("max", -1), {"x0": TensorType((6, 9), DType.int8)}
    return result


def _letter(dtype: DType) -> str:
    return "f" if dtype.kind == "float" else "i"


def _numbers(kind: Kind, dtype: DType, arg: bool) -> list[str]:
    """Return the macros for reduced numbers of `dtype`. arg: indices are reduced, no wrapping."""
    identity = FLOATS[kind]
    if dtype.kind != "float":
        limits = np.iinfo(np.uint8 if dtype is DType.bool else dtype.numpy)
        least = f"({limits.min + 1} - 1)"  # there is no literal of the least int
        identity = {"max": least, "min": str(limits.max)}.get(kind, identity.removesuffix(".0"))
    return [
        f"#define NUMBER {STORED[dtype.kind]}",
        f"#define NUMBERS {VECTORS[dtype.kind]}",
        f"#define IDENTITY {identity}",
        f"#define SETTLED(x) ({'x' if arg else WRAPPED.get(dtype, '{}').format('x')})",
    ]


def _declared(types: Mapping[str, TensorType], backend: str, wide: bool) -> list[str]:
    """Return the declarations of operands and result."""
    kinds = {name: one.dtype.kind for name, one in types.items()}
    out = kinds.pop("out")
    if backend != "compute":
        result = [f"uniform highp {name.upper()}_SAMPLER {name};" for name in kinds]
        return [*result, f"#define RESULT {VECTORS[out]}"]
    result = [
        f"#define RESULT {VECTORS[out]}",
        f"layout(std430, binding = 0) buffer Out {{ {STORED[out]} result[]; }};",
    ]
    words = VECTORS if wide else STORED
    for binding, (name, kind) in enumerate(kinds.items(), 1):
        block = f"layout(std430, binding = {binding}) buffer {name.upper()}"
        result.append(f"{block} {{ {words[kind]} {name}[]; }};")
    return result


LONGEST_LINE = 4096  # numbers that each result sums up: for longer lines the host is faster


def generate_cum_sum(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for the templates of shaders/cum_sum: see `Generator.make`."""
    if not isinstance(op, CumSum):
        raise UnsupportedOpError(f"it computes cumulative sums, no {op.name}")
    on_gpu(types)
    shape = types["x"].shape
    axis, extent = op.axis % len(shape), shape[op.axis]
    if backend == "feedback" and extent > LONGEST_LINE:
        raise UnsupportedOpError(f"it takes lines of at most {LONGEST_LINE} numbers, got {extent}")
    dims = layouts["x"].dims(shape)
    steps = broadcast_strides(shape, shape, layouts["x"])
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


def cum_sum_examples() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Return operators that cover every variant of the templates."""
    floats, whole = TensorType((5, 3, 7)), TensorType((5, 3, 7), DType.int32)
    return {
        "rows": (CumSum(-1), {"x": floats}),
        "columns": (CumSum(1, exclusive=True), {"x": whole}),
        "back": (CumSum(0, reverse=True), {"x": floats}),
        "products": (CumSum(-1, multiply=True), {"x": floats}),
    }
