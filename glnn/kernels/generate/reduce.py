"""The reducing kernels: how operands are walked, and the expressions for their template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Walk:
    """How the numbers of operands are walked, along what is kept and along what is reduced."""

    kept: tuple[int, ...]
    """The sizes of the axes that are kept, as few as can be."""
    walked: tuple[int, ...]
    """Of those that are reduced."""
    steps: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Each operand's strides along both."""

    @classmethod
    def of(cls, op: Reduce, types: Mapping[str, TensorType], layouts: Mapping[str, Layout]) -> Walk:
        """That of `op` on such operands. Raises UnsupportedOpError unless they are row major."""
        shape = types["x0"].shape
        axes = axes_of("reduce", op.axes, len(shape))
        rest = [axis for axis in range(len(shape)) if axis not in axes]
        names = [name for name in types if name != "out"]
        steps = {name: strides(shape, types[name].shape, layouts[name]) for name in names}
        kept, along_kept = collapsed(rest, shape, steps)
        walked, along_walked = collapsed(axes, shape, steps)
        both = {name: (along_kept[name], along_walked[name]) for name in names}
        return cls(kept, walked, both)

    @property
    def columns(self) -> bool:
        """Whether neighbouring results are walked side by side."""
        along_kept, along_walked = self.steps["x0"]
        return along_walked[-1] != 1 and along_kept[-1] == 1 and self.kept[-1] >= NEIGHBOURS

    @property
    def spread(self) -> tuple[int, ...]:
        """How far apart each operand's numbers lie that are walked side by side."""
        return tuple(own[not self.columns][-1] for own in self.steps.values())

    @property
    def wide(self) -> bool:
        """Whether four neighbours are a vec4, or one number, in every operand."""
        size = (self.kept if self.columns else self.walked)[-1]
        if size % 4 or self.spread[0] != 1:
            return False
        for apart, own in zip(self.spread, self.steps.values(), strict=True):
            fast, slow = own if self.columns else own[::-1]
            if apart and (apart != 1 or any(step % 4 for step in (*fast[:-1], *slow))):
                return False
        return True

    @property
    def uniforms(self) -> dict[str, Uniform]:
        """What a program is given of it."""
        both = self.steps.values()
        return {
            "kept": self.kept,
            "reduced": self.walked,
            "kept_strides": tuple(step for own in both for step in own[0]),
            "reduced_strides": tuple(step for own in both for step in own[1]),
            "spread": self.spread,
        }


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """What a reducing kernel has of its own for `op` on such operands: see `Generator`."""
    if not isinstance(op, Reduce):
        raise UnsupportedOpError(f"it computes reductions, no {op.name}")
    if wrong := [n for n, one in types.items() if one.dtype is not DType.float32]:
        raise UnsupportedOpError(f"it takes float32, {wrong[0]} is {types[wrong[0]]}")
    walk = Walk.of(op, types, layouts)
    names, output, extent = list(walk.steps), types["out"].shape, prod(walk.walked)
    finish = op.whole(extent)
    known: dict[str, Uniform] = {
        **walk.uniforms,
        "results": prod(output[1:] if op.parts else output),
        "extent": extent,
        "chunk": op.chunk(extent),
        "outputs": prod(output),
        "lines": prod(output) // (4 if walk.wide and walk.columns else 1),
        **uniforms(op.prologue, BEFORE),
        **uniforms(finish, AFTER),
    }
    defines = {
        "KIND": KINDS[op.kind],
        "OPERANDS": len(names),
        "KEPT": len(walk.kept),
        "REDUCED": len(walk.walked),
        "COLUMNS": int(walk.columns),
        "WIDE": int(walk.wide),
    }
    texel = "rgba32f" if walk.wide else "r32f"
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


def _declared(names: Sequence[str], backend: str) -> list[str]:
    """How a program has its operands."""
    if backend != "compute":
        return [f"uniform highp {name.upper()}_SAMPLER {name};" for name in names]
    declared = ["layout(std430, binding = 0) buffer Out { STORED result[]; };"]
    for place, name in enumerate(names, 1):
        block = f"layout(std430, binding = {place}) buffer {name.upper()}"
        declared.append(f"{block} {{ VALUE {name}[]; }};")
    return declared
