"""Layers of one function of every element: PyTorch's activations, each a formula of FUNCTIONS.

Any other function of the table is `Pointwise`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature
from math import inf
from typing import Any, ClassVar

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.expression import Arg, Call, Expr, Scalar, formula
from glnn.graph.function import Number
from glnn.graph.functions import FUNCTIONS
from glnn.graph.graph import Value
from glnn.layers.arguments import flag, number, with_unusual
from glnn.layers.layer import ANY, Layer
from glnn.layers.read_only import Fixed
from glnn.layers.scope import Scope


class Activation(Layer):
    """A function of every element of x of any shape.

    A subclass says which, and its constructor's arguments with their defaults, `...` where there is
    none: `class ELU(Activation, formula="elu(a, b)", alpha=1.0, inplace=False)`. In the formula
    (see `expression.formula`) a is x, and b, c are the arguments but for `inplace`, which changes
    nothing here, where memory is planned.
    """

    __signature__: ClassVar[Signature]
    formula: ClassVar[str]

    def __init_subclass__(cls, *, formula: str | None = None, **defaults: Any) -> None:
        super().__init_subclass__()
        if formula is None:
            return  # a layer of somebody's own, which computes what the one above does
        cls.formula = formula
        kind = Parameter.POSITIONAL_OR_KEYWORD
        cls.__signature__ = Signature(
            [
                Parameter(name, kind, default=Parameter.empty if default is ... else default)
                for name, default in defaults.items()
            ]
        )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        kind = type(self).__name__
        try:
            bound = self.__signature__.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{kind}() {error}") from None
        bound.apply_defaults()
        numbers: dict[str, float] = {}
        for name, value in bound.arguments.items():
            if name == "inplace":
                self.inplace = flag(f"{kind} inplace", value)
            else:
                numbers[name] = number(f"{kind} {name}", value, -inf)
                setattr(self, name, numbers[name])
        self._numbers = Fixed(numbers)
        given = (Scalar(float(value)) for value in numbers.values())
        super().__init__(operators.Pointwise(formula(self.formula)(Arg(0), *given)))

    def config(self) -> dict[str, Any]:
        if "inplace" not in self.__signature__.parameters:
            return dict(self._numbers)
        return with_unusual(self._numbers, inplace=(self.inplace, False))


class CELU(Activation, formula="celu(a, b)", alpha=1.0, inplace=False):
    """max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)."""


class ELU(Activation, formula="elu(a, b)", alpha=1.0, inplace=False):
    """x where it is positive, alpha (exp(x) - 1) where it is not."""


class Hardshrink(Activation, formula="hardshrink(a, b)", lambd=0.5):
    """0 from -lambd to lambd, x elsewhere."""


class Hardsigmoid(
    Activation, formula="hardsigmoid(a, 0.16666666666666666, 0.5)", inplace=False
):  # 1 / 6
    """x / 6 + 1 / 2, but at least 0 and at most 1."""


class Hardswish(Activation, formula="hardswish(a)", inplace=False):
    """x Hardsigmoid(x)."""


class Hardtanh(Activation, formula="hardtanh(a, b, c)", min_val=-1.0, max_val=1.0, inplace=False):
    """x, but at least min_val and at most max_val."""


class LeakyReLU(Activation, formula="leaky_relu(a, b)", negative_slope=0.01, inplace=False):
    """x where it is positive, negative_slope x where it is not."""


class LogSigmoid(Activation, formula="log_sigmoid(a)"):
    """log(1 / (1 + exp(-x)))."""


class Mish(Activation, formula="mish(a)", inplace=False):
    """x tanh(log(1 + exp(x)))."""


class RReLU(
    Activation,
    formula="leaky_relu(a, 0.5 * (b + c))",
    lower=1 / 8,
    upper=1 / 3,
    inplace=False,
):
    """x where it is positive, else x times the mean of lower and upper, also in training."""


class ReLU(Activation, formula="relu(a)", inplace=False):
    """max(x, 0); NaN stays NaN."""


class ReLU6(Activation, formula="relu6(a)", inplace=False):
    """x, but at least 0 and at most 6."""


class SELU(Activation, formula="selu(a)", inplace=False):
    """ELU with the scale and the alpha of Klambauer et al. 2017, Self-Normalizing Networks."""


class SiLU(Activation, formula="silu(a)", inplace=False):
    """x / (1 + exp(-x))."""


class Sigmoid(Activation, formula="sigmoid(a)"):
    """1 / (1 + exp(-x))."""


class Softplus(Activation, formula="softplus(a, b, c)", beta=1.0, threshold=20.0):
    """log(1 + exp(beta x)) / beta, or x where beta x is above the threshold."""


class Softshrink(Activation, formula="softshrink(a, b)", lambd=0.5):
    """0 from -lambd to lambd, elsewhere x moved towards 0 by lambd."""


class Softsign(Activation, formula="softsign(a)"):
    """x / (1 + |x|)."""


class Tanh(Activation, formula="tanh(a)"):
    """tanh(x)."""


class Tanhshrink(Activation, formula="tanhshrink(a)"):
    """x - tanh(x)."""


class Threshold(Activation, formula="where(a <= b, c, a)", threshold=..., value=..., inplace=False):
    """x where it is above the threshold, `value` where it is not."""


class GELU(Layer):
    """x times the normal distribution's cumulative function of x, any shape.

    approximate: "none", or "tanh" for 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
    """

    def __init__(self, approximate: str = "none") -> None:
        forms = {"none": "gelu(a)", "tanh": "gelu_tanh(a)"}
        if not isinstance(approximate, str) or approximate not in forms:
            raise ShapeError(f"GELU approximate must be none or tanh, got {shown(approximate)}")
        self.approximate = approximate
        super().__init__(operators.Pointwise(formula(forms[approximate])))

    def config(self) -> dict[str, Any]:
        return {"approximate": self.approximate}


class Pointwise(Layer):
    """Any function of FUNCTIONS, by its name, of every element of its inputs, which broadcast.

    arguments: numbers, which are the function's last arguments; the inputs are those before.
    Pointwise("leaky_relu", [0.1]) has one input, Pointwise("maximum") two.
    """

    takes = ANY

    def __init__(self, function: str, arguments: Sequence[Number] = ()) -> None:
        row = FUNCTIONS.get(function) if isinstance(function, str) else None
        if row is None:
            raise ShapeError(f"Pointwise function must be one of FUNCTIONS, got {shown(function)}")
        if not isinstance(arguments, (list, tuple)) or len(arguments) >= row.arity:
            raise ShapeError(
                f"Pointwise arguments must be at most {row.arity - 1} numbers for {function}, "
                f"got {shown(arguments)}"
            )
        self.function = row.name
        self.arguments: tuple[Number, ...] = tuple(
            bool(one)
            if isinstance(one, (bool, np.bool_))
            else number("Pointwise arguments", one, -inf)
            for one in arguments
        )
        self._inputs = row.arity - len(arguments)
        super().__init__(operators.Pointwise(self._expression(False)))

    @property
    def inputs(self) -> int:
        return self._inputs

    def express(self, scope: Scope, *inputs: Value) -> Value:
        floats = inputs[-1].type.dtype.kind == "float"
        return scope.result(operators.Pointwise(self._expression(floats)), *inputs)

    def _expression(self, floats: bool) -> Expr:
        """The call; floats: whether integers among the arguments are floats there."""
        numbers = (
            Scalar(float(one) if floats and type(one) is int else one) for one in self.arguments
        )
        return Call(self.function, (*map(Arg, range(self._inputs)), *numbers))

    def config(self) -> dict[str, Any]:
        return with_unusual({"function": self.function}, arguments=(self.arguments, ()))
