"""Writers of pointwise layers: an expression becomes one node for each function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glnn.core.types import DType
from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, formula
from glnn.graph.function import NUMBERS, Number, kind_of
from glnn.graph.functions import FUNCTIONS
from glnn.graph.operators import Pointwise
from glnn.layers import PReLU
from glnn.onnx.export.writer import LayerWriter
from glnn.onnx.operators.dtypes import CODES

LARGE = 20.0  # from here on softplus(x) is x in float32


@dataclass(frozen=True)
class ExportedTensor:
    """A tensor or a number of an expression."""

    dtype: DType | str
    """The dtype of a tensor, or the kind of a number."""
    name: str = ""
    """The tensor's name."""
    value: Number | None = None
    """The number, None for a tensor."""


def expression(out: LayerWriter, *inputs: str) -> str:
    """Write the layer's expression of its inputs."""
    assert isinstance(out.layer.op, Pointwise)
    operands = [
        ExportedTensor(type.dtype, name) for type, name in zip(out.types, inputs, strict=True)
    ]
    return _write_expression(out, out.layer.op.expr, *operands).name


def prelu(out: LayerWriter, x: str) -> str:
    assert isinstance(out.layer, PReLU)
    single = out.layer.num_parameters == 1
    return out("PRelu", x, out.parameter("weight") if single else out.channels("weight"))


def _write_expression(out: LayerWriter, expr: Expr, *operands: ExportedTensor) -> ExportedTensor:
    last = operands[-1].dtype
    floats = (last.kind if isinstance(last, DType) else last) == "float"

    def write_part(part: Expr, arguments: tuple[ExportedTensor, ...]) -> ExportedTensor:
        if isinstance(part, Arg):
            return operands[part.index]
        if isinstance(part, Scalar | Constant):
            value = float(part.value) if floats and type(part.value) is int else part.value
            return ExportedTensor(kind_of(value), value=value)
        assert isinstance(part, Call)
        return _call(out, part.function, arguments)

    return expr.fold(write_part)[-1]


def _call(out: LayerWriter, function: str, operands: tuple[ExportedTensor, ...]) -> ExportedTensor:
    row = FUNCTIONS[function]
    numbers = [one.value for one in operands if one.value is not None]
    result_dtype = row.infer(tuple(one.dtype for one in operands)) if row.body is None else ""
    if len(numbers) == len(operands):
        value = Call(function, tuple(map(Scalar, numbers))).evaluate().item()
        return ExportedTensor(result_dtype or "float", value=value)
    first, parameters = operands[0], [one.value for one in operands[1:]]
    if row.onnx and row.attributes and first.name and None not in parameters:
        names = row.attributes
        floats = {name: float(value or 0) for name, value in zip(names, parameters, strict=True)}
        return ExportedTensor(first.dtype, out(row.onnx.name, first.name, **floats))
    if function in WRITERS and (name := WRITERS[function](out, *operands)):
        return ExportedTensor(first.dtype, name)
    if body := row.onnx_formula or row.body:
        return _write_expression(out, formula(body), *operands)
    dtype = result_dtype if isinstance(result_dtype, DType) else DType(result_dtype)
    if function.startswith("cast_"):
        return ExportedTensor(dtype, out("Cast", first.name, to=CODES[dtype]))
    if row.onnx is None:
        raise UnsupportedOpError(f"ONNX has no operator for {function}")
    return ExportedTensor(dtype, out(row.onnx.name, *_tensors(out, operands)))


def _tensors(out: LayerWriter, operands: tuple[ExportedTensor, ...]) -> list[str]:
    """Return the names of `operands`; numbers become constants of the other operands' dtype."""
    dtypes = [o.dtype for o in operands if isinstance(o.dtype, DType)]

    def type_of(number: ExportedTensor) -> DType:
        same_kind = [dtype for dtype in dtypes if dtype.kind == number.dtype]
        return same_kind[0] if same_kind else NUMBERS[str(number.dtype)]

    return [
        one.name if one.value is None else out.constant(one.value, type_of(one).numpy)
        for one in operands
    ]


def _clip(
    out: LayerWriter, x: ExportedTensor, low: ExportedTensor, high: ExportedTensor
) -> str | None:
    if low.value is not None and high.value is not None and low.value <= high.value:
        return out("Clip", *_tensors(out, (x, low, high)))
    bounded = out("Max", *_tensors(out, (x, low)))
    return out("Min", *_tensors(out, (ExportedTensor(x.dtype, bounded), high)))


def _softplus(
    out: LayerWriter, x: ExportedTensor, beta: ExportedTensor, threshold: ExportedTensor
) -> str | None:
    """Write log(1 + exp(beta x)) / beta, or x where beta x is above the threshold."""
    scaled = x.name
    if beta.value != 1:
        scaled = out("Mul", *_tensors(out, (x, beta)))
    result = out("Softplus", scaled)
    if beta.value != 1:
        result = out("Div", *_tensors(out, (ExportedTensor(x.dtype, result), beta)))
    if threshold.value is not None and threshold.value >= LARGE:
        return result
    above = out("Greater", *_tensors(out, (ExportedTensor(x.dtype, scaled), threshold)))
    return out("Where", above, x.name, result)


def _hardshrink(out: LayerWriter, x: ExportedTensor, lambd: ExportedTensor) -> str | None:
    if not x.name or lambd.value is None:
        return None
    return out("Shrink", x.name, lambd=float(lambd.value))


def _softshrink(out: LayerWriter, x: ExportedTensor, lambd: ExportedTensor) -> str | None:
    if lambd.value is None or lambd.value < 0:
        return None
    return out("Shrink", x.name, bias=float(lambd.value), lambd=float(lambd.value))


def _remainder(out: LayerWriter, x: ExportedTensor, y: ExportedTensor) -> str | None:
    if x.dtype is not DType.float32 and y.dtype is not DType.float32:
        return out("Mod", *_tensors(out, (x, y)))
    return _write_expression(out, formula("a - floor(a / b) * b"), x, y).name


def _fmod(out: LayerWriter, x: ExportedTensor, y: ExportedTensor) -> str | None:
    return out("Mod", *_tensors(out, (x, y)), fmod=1)


def _gelu_tanh(out: LayerWriter, x: ExportedTensor) -> str | None:
    return out("Gelu", x.name, approximate="tanh")


WRITERS: Mapping[str, Callable[..., str | None]] = {
    "clip": _clip,
    "softplus": _softplus,
    "hardshrink": _hardshrink,
    "softshrink": _softshrink,
    "remainder": _remainder,
    "fmod": _fmod,
    "gelu_tanh": _gelu_tanh,
}
"""Writers of functions that need more than one operator, or attributes. Where one returns None, the
function is written by its formula.
"""
