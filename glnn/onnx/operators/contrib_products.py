"""Matrix products and convolutions of ONNX Runtime's operator set, with fused activations."""

from __future__ import annotations

from functools import partial

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Transpose
from glnn.onnx.operators.call import (
    FLOAT,
    INTS,
    MICROSOFT,
    Attribute,
    Attributes,
    Converter,
    OperatorCall,
    Signature,
)
from glnn.onnx.operators.products import gemm, product
from glnn.onnx.operators.windows import conv, max_pool

ACTIVATIONS = {
    "": ("", 0),
    "Relu": ("relu(a)", 0),
    "Tanh": ("tanh(a)", 0),
    "Sigmoid": ("sigmoid(a)", 0),
    "Softplus": ("softplus(a, 1.0, 20.0)", 0),
    "Softsign": ("softsign(a)", 0),
    "LeakyRelu": ("where(a > 0.0, a, b * a)", 1),
    "ThresholdedRelu": ("where(a > b, a, 0.0)", 1),
    "Elu": ("elu(a, b)", 1),
    "HardSigmoid": ("clip(b * a + c, 0.0, 1.0)", 2),
    "ParametricSoftplus": ("b * softplus(c * a, 1.0, 20.0)", 2),
    "ScaledTanh": ("b * tanh(c * a)", 2),
    "Clip": ("clip(a, b, c)", 2),
}
"""The formula of each fused activation, and the number of its parameters."""


def _activation(call: OperatorCall) -> tuple[str, int]:
    """Return the formula of the node's activation and the number of its parameters."""
    name = call.need("activation")
    if name not in ACTIVATIONS:
        raise ShapeError(f"{call.name}: activation {name!r} is not known")
    return ACTIVATIONS[name]


def _activate(call: OperatorCall, y: Value, parameters: tuple[float, ...]) -> Value:
    """Apply the node's activation. parameters: ignored where the activation has none."""
    expression, count = _activation(call)
    if count and len(parameters) != count:
        raise ShapeError(
            f"{call.name}: activation {call.need('activation')!r} takes {count} parameters, got "
            f"{len(parameters)}"
        )
    return call.pointwise(expression, y, *map(float, parameters[:count])) if expression else y


def _fused_matmul(call: OperatorCall, a: Value, b: Value) -> Value:
    """Return alpha a b, with a and b transposed as attributes say."""
    a = _move_dimensions(call, a, bool(call.get("transBatchA", 0)), bool(call.need("transA")))
    transposed = bool(call.need("transB")) and len(b.type.dims) > 1
    b = _move_dimensions(call, b, bool(call.get("transBatchB", 0)), False)
    y, alpha = product(call, a, b, transposed=transposed), float(call.need("alpha"))
    return y if alpha == 1.0 else call.pointwise("a * b", y, alpha)


def _move_dimensions(call: OperatorCall, x: Value, batch: bool, matrices: bool) -> Value:
    """Return x transposed: `batch` moves the first dimension before the last, then `matrices`
    exchanges the last two.
    """
    order = list(range(len(x.type.dims)))
    if batch and len(order) > 2:
        order = [*order[1:-1], 0, order[-1]]
    if matrices and len(order) > 1:
        order[-2:] = order[:-3:-1]
    return x if order == sorted(order) else call(Transpose(tuple(order)), x)


def _fused_gemm(call: OperatorCall, a: Value, b: Value, c: Value | None = None) -> Value:
    names = ("activation_alpha", "activation_beta")[: _activation(call)[1]]
    missing = [name for name in names if name not in call.attributes]
    if missing:
        activation = call.need("activation")
        raise ShapeError(f"{call.name}: activation {activation!r} needs {' and '.join(missing)}")
    parameters = tuple(call.attributes[name] for name in names)
    return _activate(call, gemm(call, a, b, c), parameters)


def _fused_conv(
    call: OperatorCall,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    z: Value | None = None,
) -> Value:
    """Return the activation of a convolution plus z."""
    y = conv(call, x, weight, bias)
    if z is not None:
        if z.type.shape != y.type.shape:
            raise ShapeError(f"{call.name}: Z must be as the result, {y.type}, got {z.type}")
        y = call.pointwise("a + b", y, z)
    return _activate(call, y, call.get("activation_params", ()))


def _channels_first(call: OperatorCall, x: Value) -> Value:
    if len(x.type.dims) < 3:
        raise ShapeError(f"{call.name}: x must be (n, ..., c), got {x.type}")
    return call.channels_first(x)


def _nhwc_conv(call: OperatorCall, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Convolve x (n, ..., c) with weights (filters, channels, ...)."""
    return call.channels_last(conv(call, _channels_first(call, x), weight, bias))


def _nhwc_max_pool(call: OperatorCall, x: Value) -> Value:
    return call.channels_last(max_pool(call, _channels_first(call, x))[0])


_WINDOWS: Attributes = {
    "auto_pad": "NOTSET",
    "dilations": INTS,
    "kernel_shape": INTS,
    "pads": INTS,
    "strides": INTS,
}
_PRODUCT_ATTRIBUTES: Attributes = {"alpha": 1.0, "transA": 0, "transB": 0}
_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row(
        "FusedMatMul",
        convert=_fused_matmul,
        signature=Signature(
            (2, 2), attributes={**_PRODUCT_ATTRIBUTES, "transBatchA": 0, "transBatchB": 0}
        ),
    ),
    _row(
        "TransposeMatMul",
        convert=_fused_matmul,
        signature=Signature((2, 2), attributes=_PRODUCT_ATTRIBUTES),
    ),
    _row(
        "FusedGemm",
        convert=_fused_gemm,
        signature=Signature(
            (2, 3),
            attributes={
                **_PRODUCT_ATTRIBUTES,
                "beta": 1.0,
                "activation": "",
                "activation_alpha": FLOAT,
                "activation_beta": FLOAT,
                "activation_gamma": FLOAT,
            },
        ),
    ),
    _row(
        "FusedConv",
        convert=_fused_conv,
        signature=Signature(
            (2, 4),
            attributes={
                **_WINDOWS,
                "group": 1,
                "activation": "",
                "activation_params": Attribute("FLOATS"),
            },
        ),
    ),
    _row(
        "NhwcConv",
        convert=_nhwc_conv,
        signature=Signature((2, 3), attributes={**_WINDOWS, "group": 1}),
    ),
    _row(
        "NhwcMaxPool",
        convert=_nhwc_max_pool,
        signature=Signature(
            (1, 1),
            attributes={
                **_WINDOWS,
                "ceil_mode": 0,
                "kernel_shape": Attribute("INTS", required=True),
            },
        ),
    ),
)
