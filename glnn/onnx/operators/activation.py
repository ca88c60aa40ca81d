"""The activations of recurrent layers, by ONNX's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glnn.errors import ShapeError
from glnn.graph.compose.cells import Activation
from glnn.graph.expression import Scalar, formula
from glnn.onnx.operators.call import Call

FORMULAS: Mapping[str, tuple[str, float | None, float | None]] = {
    "affine": ("b * a + c", 1.0, 0.0),
    "elu": ("elu(a, b)", 1.0, None),
    "hardsigmoid": ("hardsigmoid(a, b, c)", 0.2, 0.5),
    "leakyrelu": ("leaky_relu(a, b)", 0.01, None),
    "relu": ("relu(a)", None, None),
    "scaledtanh": ("b * tanh(c * a)", 1.0, 1.0),
    "sigmoid": ("sigmoid(a)", None, None),
    "softplus": ("softplus(a, 1.0, 20.0)", None, None),
    "softsign": ("softsign(a)", None, None),
    "tanh": ("tanh(a)", None, None),
    "thresholdedrelu": ("thresholded_relu(a, b)", 1.0, None),
}
"""Functions of a number, alpha and beta, and the defaults of these, by the name in lower case."""


def activations(call: Call, defaults: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """Return the activation functions of each direction.

    Raises ShapeError for a function that ONNX does not know. One that has an alpha or a beta takes
    the next one that the node has.

    Those that have an alpha or a beta take the next one that the node has.
    """
    names = call.get("activations", defaults * directions)
    if len(names) != len(defaults) * directions:
        wanted = len(defaults) * directions
        raise ShapeError(f"{call.name}: activations must be {wanted}, got {names}")
    none: tuple[float, ...] = ()
    alphas, betas = (
        iter(call.get("activation_alpha", none)),
        iter(call.get("activation_beta", none)),
    )
    found = [_activation(call, name, alphas, betas) for name in names]
    return [found[i : i + len(defaults)] for i in range(0, len(found), len(defaults))]


def _activation(
    call: Call, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    if name.lower() not in FORMULAS:
        raise ShapeError(f"{call.name}: the activation {name!r} is not known")
    text, *defaults = FORMULAS[name.lower()]
    numbers = [
        Scalar(float(next(given, default)))
        for default, given in zip(defaults, (alphas, betas), strict=True)
        if default is not None
    ]
    return lambda x: formula(text)(x, *numbers)
