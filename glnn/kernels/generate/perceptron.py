"""What kernels get that compute two products at once: the functions behind them."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators.perceptron import Perceptron
from glnn.kernels.generate.expression import fingerprint, function, types_on_gpu, uniforms
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.layout import Layout
from glnn.types import DType, TensorType

MOST_HIDDEN = 2048  # numbers that stay in shared memory
FLOATS = [DType.float32]


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """For the template of shaders/perceptron."""
    if not isinstance(op, Perceptron):
        raise UnsupportedOpError(f"it computes two products at once, no {op.name}")
    hidden = types["first"].shape[0]
    if hidden > MOST_HIDDEN:
        raise UnsupportedOpError(f"it has room for {MOST_HIDDEN} hidden numbers, no {hidden}")
    functions = {"inner": op.inner, "outer": op.outer}
    values: dict[str, Uniform] = {}
    for name, expr in functions.items():
        types_on_gpu(expr, FLOATS)
        values |= uniforms(expr, f"{name}_")
    texts = [function(expr, FLOATS, name, f"{name}_") for name, expr in functions.items()]
    return Generated(
        ":".join(map(fingerprint, functions.values())),
        {"functions": lambda: "\n".join(texts)},
        {"MOST_HIDDEN": MOST_HIDDEN},
        values,
    )


def examples() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Operators that have every way of the template compiled."""
    shapes = {"x": (3, 37, 1, 1), "first": (9, 38), "second": (37, 10)}
    op = Perceptron(call("relu", Arg(0)), call("sigmoid", call("mul", Arg(0), 0.5)))
    return {"excitation": (op, {name: TensorType(shape) for name, shape in shapes.items()})}
