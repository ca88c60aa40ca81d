"""Generator of kernels of consecutive dense layers: the activation functions between them."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.core.layout import Layout
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators.matmul import Perceptron
from glnn.kernels.codegen.expression import fingerprint, function, types_on_gpu, uniforms
from glnn.kernels.codegen.generated import Generated, Uniform

MOST_HIDDEN = 2048  # numbers that stay in shared memory
MOST_LAYERS = 8  # of one program: a layer takes a branch and a uniform
FLOATS = [DType.float32]


def generate_perceptron(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for the template of shaders/perceptron: see `Generator.make`."""
    if not isinstance(op, Perceptron):
        raise UnsupportedOpError(f"it computes layers one behind another, no {op.name}")
    count = len(op.widths)
    if count > MOST_LAYERS:
        raise UnsupportedOpError(f"it computes {MOST_LAYERS} layers at the most, no {count}")
    room, hidden = MOST_HIDDEN // (2 if count > 2 else 1), max((0, *op.widths[:-1]))
    if hidden > room:  # what a layer reads stays while it makes what the next one does
        raise UnsupportedOpError(f"it has room for {room} hidden numbers of a layer, no {hidden}")
    values: dict[str, Uniform] = {"widths": (types["x"].shape[1], *op.widths)}
    for i, expr in enumerate(op.functions):
        types_on_gpu(expr, FLOATS)
        values |= uniforms(expr, f"scalar_{i}_")
    return Generated(
        ":".join(map(fingerprint, op.functions)),
        {"layers": lambda: _layers(op)},
        {"MOST_HIDDEN": room, "LAYERS": count},
        values,
    )


def _layers(op: Perceptron) -> str:
    """Return the GLSL activations, and `finished`, which applies a layer's to four sums."""
    names = [f"function_{i}" for i in range(len(op.functions))]
    parts = [
        function(expr, FLOATS, name, f"scalar_{i}_")
        for i, (name, expr) in enumerate(zip(names, op.functions, strict=True))
    ]
    *others, last = names
    cases = [f"    if (layer == {i}) return {name}(sum);" for i, name in enumerate(others)]
    body = ["vec4 finished(int layer, vec4 sum) {", *cases, f"    return {last}(sum);", "}"]
    return "\n".join(parts + body)


def perceptron_examples() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Return operators that cover every variant of the template."""
    gate = call("sigmoid", call("mul", Arg(0), 0.5))
    result: dict[str, tuple[Operator, dict[str, TensorType]]] = {}
    for name, op, x in (
        ("excitation", Perceptron((9, 37), (call("relu", Arg(0)), gate)), (3, 37, 1, 1)),
        ("layers", Perceptron((9, 7, 5), (call("tanh", Arg(0)), gate, Arg(0))), (3, 37)),
    ):
        shapes = {"x": x, **op.sides(x[1])}
        result[name] = op, {name: TensorType(shape) for name, shape in shapes.items()}
    return result
