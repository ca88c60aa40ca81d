"""Activation layers: PyTorch's, softmaxes and gates.

Most apply one function to every element; the function's row in FUNCTIONS names the layer. The layer
`Pointwise` applies any function.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from inspect import Signature
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from glnn.core.types import Array
from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.expression import Arg, Call, Expr, Scalar, call, formula
from glnn.graph.function import Number
from glnn.graph.functions import FUNCTIONS
from glnn.graph.graph import Value
from glnn.layers.arguments import flag, index, integer, number, plain, with_unusual
from glnn.layers.layer import ANY, Fixed, Layer, Parameter, Scope

_FORMULAS = {row.layer: row.call for row in FUNCTIONS.values() if row.layer}


class Activation(Layer):
    """A function of every element of x, which has any shape.

    A subclass declares its constructor's arguments with their defaults, `...` where there is none:
    `class ELU(Activation, alpha=1.0, inplace=False)`. It computes the function whose row names it
    (`Function.layer`), or its own `formula` (see `expression.formula`), in which a is x, and b and
    c are the arguments except `inplace`. `inplace` has no effect: memory is planned.
    """

    __signature__: ClassVar[Signature]
    formula: ClassVar[str]

    def __init_subclass__(cls, *, formula: str | None = None, **defaults: Any) -> None:
        super().__init_subclass__()
        if formula is None and cls.__base__ is Activation:
            formula = _FORMULAS.get(cls.__name__)
        if formula is None:
            return  # a user's subclass, which computes what its base class does
        cls.formula = formula
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        cls.__signature__ = Signature(
            [
                inspect.Parameter(
                    name, kind, default=inspect.Parameter.empty if default is ... else default
                )
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
        scalars = (Scalar(float(value)) for value in numbers.values())
        super().__init__(operators.Pointwise(formula(self.formula)(Arg(0), *scalars)))

    def config(self) -> dict[str, Any]:
        if "inplace" not in self.__signature__.parameters:
            return dict(self._numbers)
        return with_unusual(self._numbers, inplace=(self.inplace, False))


class CELU(Activation, alpha=1.0, inplace=False):
    """max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)."""


class ELU(Activation, alpha=1.0, inplace=False):
    """x where it is positive, alpha (exp(x) - 1) where it is not."""


class Hardshrink(Activation, lambd=0.5):
    """0 from -lambd to lambd, x elsewhere."""


class Hardsigmoid(
    Activation, formula="hardsigmoid(a, 0.16666666666666666, 0.5)", inplace=False
):  # 1 / 6
    """x / 6 + 1 / 2, clamped to [0, 1]."""


class Hardswish(Activation, inplace=False):
    """x Hardsigmoid(x)."""


class Hardtanh(Activation, min_val=-1.0, max_val=1.0, inplace=False):
    """x clamped to [min_val, max_val]."""


class LeakyReLU(Activation, negative_slope=0.01, inplace=False):
    """x where it is positive, negative_slope x where it is not."""


class LogSigmoid(Activation):
    """log(1 / (1 + exp(-x)))."""


class Mish(Activation, inplace=False):
    """x tanh(log(1 + exp(x)))."""


class RReLU(
    Activation,
    formula="leaky_relu(a, 0.5 * (b + c))",
    lower=1 / 8,
    upper=1 / 3,
    inplace=False,
):
    """x where it is positive, else x times the mean of lower and upper, also in training."""


class ReLU(Activation, inplace=False):
    """max(x, 0); NaN stays NaN."""


class ReLU6(Activation, inplace=False):
    """x clamped to [0, 6]."""


class SELU(Activation, inplace=False):
    """ELU with the scale and the alpha of Klambauer et al. 2017, Self-Normalizing Networks."""


class SiLU(Activation, inplace=False):
    """x / (1 + exp(-x))."""


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""


class Softplus(Activation, beta=1.0, threshold=20.0):
    """log(1 + exp(beta x)) / beta, or x where beta x is above the threshold."""


class Softshrink(Activation, lambd=0.5):
    """0 from -lambd to lambd, elsewhere x moved towards 0 by lambd."""


class Softsign(Activation):
    """x / (1 + |x|)."""


class Tanh(Activation):
    """tanh(x)."""


class Tanhshrink(Activation):
    """x - tanh(x)."""


class Threshold(Activation, formula="where(a <= b, c, a)", threshold=..., value=..., inplace=False):
    """x where it is above the threshold, `value` where it is not."""


class GELU(Layer):
    """x times the normal distribution's cumulative function at x; x has any shape.

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
    """A function of FUNCTIONS, by name, applied to every element of the inputs, which broadcast.

    arguments: numbers for the function's last arguments; its first ones are the inputs.
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
        """Return the function call. floats: whether integer arguments become floats."""
        numbers = (
            Scalar(float(one) if floats and type(one) is int else one) for one in self.arguments
        )
        return Call(self.function, (*map(Arg, range(self._inputs)), *numbers))

    def config(self) -> dict[str, Any]:
        return with_unusual({"function": self.function}, arguments=(self.arguments, ()))


class GLU(Layer):
    """The first half of x along `dim` times the sigmoid of the second half.

    dim: a dimension of even size; a negative one counts from the end. Dauphin et al. 2017, Language
    Modeling with Gated Convolutional Networks.
    """

    def __init__(self, dim: int = -1) -> None:
        self.dim = index("GLU dim", dim)
        super().__init__(operators.Identity())

    def half(self, dims: tuple[int | str, ...]) -> int:
        """Return half the size along `dim` of x of `dims`. Raises ShapeError unless it is even."""
        rank = len(dims)
        size = dims[self.dim] if -rank <= self.dim < rank else None
        if not isinstance(size, int) or size % 2:
            raise ShapeError(f"GLU: x must have an even size along {self.dim}, got {dims}")
        return size // 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        half, axis = self.half(x.type.dims), self.dim
        value = scope.add(operators.Slice((0,), (half,), (axis,), (1,)), x)
        gate = scope.add(operators.Slice((half,), (2 * half,), (axis,), (1,)), x)
        return scope.result(operators.Pointwise(formula("a * sigmoid(b)")), value, gate)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}


class PReLU(Layer):
    """x where it is positive, weight x where it is not.

    x: any shape where num_parameters is 1, else (n, num_parameters, ...). weight:
    (num_parameters,), initially `init`. device: None. dtype: None or float32.
    """

    weight = Parameter[Array]()

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("PReLU", device, dtype)
        self.num_parameters = integer("PReLU num_parameters", num_parameters)
        self.init = number("PReLU init", init, -inf)
        op = operators.Pointwise(call("leaky_relu", Arg(0), Arg(1)))
        super().__init__(op, {"weight": (self.num_parameters,)})

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], self.init, np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,), weight = inputs, self.variable(scope, "weight")
        if self.num_parameters > 1:
            if len(x.type.dims) < 2:
                raise ShapeError(f"PReLU: x must have shape (n, c, ...), got {x.type.dims}")
            weight = scope.channels(weight, x)
        return scope.result(self.op, x, weight)

    def config(self) -> dict[str, Any]:
        return {"num_parameters": self.num_parameters, "init": self.init}


class Softmax(Layer):
    """exp(x), scaled to sum to 1 along `dim`; a negative dim counts from the end.

    dim: None is 1, or 0 where x has one dimension, as in PyTorch. For x of three dimensions, where
    PyTorch takes dimension 0, the batch, `dim` must not be None.
    """

    log: ClassVar[bool] = False

    def __init__(self, dim: int | None = None) -> None:
        self.dim = None if dim is None else index(f"{type(self).__name__} dim", dim)
        axis = 1 if self.dim is None else self.dim
        super().__init__(operators.Softmax(axis=axis, log=self.log))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if self.dim is None and len(dims) == 3:
            kind = type(self).__name__
            raise ShapeError(f"{kind} dim must be given, 1 or 2, for x of shape {dims}")
        if self.dim is None and len(dims) == 1:
            return scope.result(operators.Softmax(axis=0, log=self.log), *inputs)
        return scope.result(self.op, *inputs)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}


class LogSoftmax(Softmax):
    """The logarithm of Softmax, with the same arguments."""

    log = True


class Softmin(Softmax):
    """Softmax of -x, with the same arguments."""

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        return super().express(scope, scope.add(operators.Pointwise(formula("-a")), x))


class Softmax2d(Layer):
    """Softmax along the channels of images: x has shape (n, c, h, w) or (c, h, w)."""

    def __init__(self) -> None:
        super().__init__(operators.Softmax(axis=-3))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if len(dims) not in (3, 4):
            raise ShapeError(f"Softmax2d: x must have shape (n, c, h, w) or (c, h, w), got {dims}")
        return super().express(scope, *inputs)

    def config(self) -> dict[str, Any]:
        return {}
