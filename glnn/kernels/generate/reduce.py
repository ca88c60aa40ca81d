"""The reducing kernels: how operands are walked, and the expressions for their template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators.reduce import Kind, Reduce, axes_of
from glnn.kernels.generate.expression import fingerprint, function, uniforms
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.kernels.generate.strides import collapsed, strides
from glnn.layout import Layout
from glnn.types import DType, Shape, TensorType

KINDS: Mapping[Kind, int] = {"sum": 0, "mean": 0, "prod": 1, "max": 2, "min": 3}
"""As shaders/reduce/body.glsl has them."""
BEFORE, AFTER = "before_", "after_"  # what the expressions' numbers are called
NEIGHBOURS = 4  # results that lie so many side by side are worth walking side by side


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """What a reducing kernel has of its own for `op` on such operands: see `Generator`."""
    if not isinstance(op, Reduce):
        raise UnsupportedOpError(f"it computes reductions, no {op.name}")
    if wrong := [n for n, one in types.items() if one.dtype is not DType.float32]:
        raise UnsupportedOpError(f"it takes float32, {wrong[0]} is {types[wrong[0]]}")
    names = [name for name in types if name != "out"]
    shape, output = types["x0"].shape, types["out"].shape
    axes = axes_of("reduce", op.axes, len(shape))
    steps = {name: strides(shape, types[name].shape, layouts[name]) for name in names}
    walked, walked_strides = collapsed(axes, shape, steps)
    kept, kept_strides = collapsed([i for i in range(len(shape)) if i not in axes], shape, steps)
    columns = walked_strides["x0"][-1] != 1 and kept_strides["x0"][-1] == 1
    columns &= kept[-1] >= NEIGHBOURS
    padded = layouts["out"].size(output) != prod(output)
    sizes, fast, slow = (
        (kept, kept_strides, walked_strides) if columns else (walked, walked_strides, kept_strides)
    )
    wide = sizes[-1] % 4 == 0 and all(
        fast[name][-1] in (0, 1) and _quads((*fast[name][:-1], *slow[name]), fast[name][-1])
        for name in names
    )
    wide &= fast["x0"][-1] == 1 and not (columns and padded)
    results = prod(output[1:] if op.parts else output)
    finish = op.whole(op.depth({"x0": shape}))
    out_inner = prod(output[1:]) if len(output) > 1 else prod(output)
    known: dict[str, Uniform] = {
        "kept": kept,
        "reduced": walked,
        "kept_strides": tuple(step for name in names for step in kept_strides[name]),
        "reduced_strides": tuple(step for name in names for step in walked_strides[name]),
        "spread": tuple(fast[name][-1] for name in names),
        "results": results,
        "extent": prod(walked),
        "chunk": op.chunk(prod(walked)),
        "outputs": prod(output),
        "lines": prod(output) // (4 if wide and columns else 1),
        "out_inner": out_inner,
        **uniforms(op.prologue, BEFORE),
        **uniforms(finish, AFTER),
    }
    defines = {
        "KIND": KINDS[op.kind],
        "OPERANDS": len(names),
        "KEPT": len(kept),
        "REDUCED": len(walked),
        "COLUMNS": int(columns),
        "WIDE": int(wide),
        "PADDED": int(padded),
    }
    texel = "rgba32f" if wide else "r32f"
    fetches = ", ".join(f"FETCH({name}, {k})" for k, name in enumerate(names))
    floats = [DType.float32] * len(names)
    return Generated(
        f"{fingerprint(op.prologue)}:{fingerprint(finish)}",
        {
            "operands": lambda: "\n".join(_declared(names, backend)),
            "prologue": lambda: function(op.prologue, floats, "prologue", BEFORE),
            "finish": lambda: function(finish, floats[:1], "finish", AFTER),
            "fetches": lambda: f"    return prologue({fetches});",
        },
        defines,
        known,
        dict.fromkeys(names, texel),
    )


def examples() -> dict[str, tuple[Operator, dict[str, TensorType]]]:
    """Reductions and operands that have the templates compiled in every way."""
    distance = call("sub", Arg(0), Arg(1))
    squares = Reduce("mean", (1, 3), prologue=call("mul", distance, distance))
    shapes: dict[str, tuple[Reduce, list[Shape]]] = {
        "rows": (Reduce("sum", (-1,)), [(6, 8)]),
        "columns": (Reduce("max", (0,)), [(6, 8)]),
        "uneven_columns": (Reduce("prod", (0, 2)), [(3, 5, 3, 7)]),
        "squares": (squares, [(2, 6, 5, 7), (2, 1, 5, 1)]),
    }
    return {
        name: (op, {f"x{i}": TensorType(shape) for i, shape in enumerate(own)})
        for name, (op, own) in shapes.items()
    }


def _quads(others: Sequence[int], along: int) -> bool:
    """Whether four numbers begin on a vec4 wherever these strides lead."""
    return along == 0 or all(step % 4 == 0 for step in others)


def _declared(names: Sequence[str], backend: str) -> list[str]:
    """How a program has its operands."""
    if backend != "compute":
        return [f"uniform highp {name.upper()}_SAMPLER {name};" for name in names]
    declared = ["layout(std430, binding = 0) buffer Out { STORED result[]; };"]
    for place, name in enumerate(names, 1):
        block = f"layout(std430, binding = {place}) buffer {name.upper()}"
        declared.append(f"{block} {{ VALUE {name}[]; }};")
    return declared
