"""Linear layers, and layers that combine several inputs."""

from __future__ import annotations

from math import prod
from typing import Any

from numpy.typing import DTypeLike

from glnn.core.types import Array, Dim, Shape
from glnn.errors import ShapeError
from glnn.graph import operators
from glnn.graph.compose.node_adder import merge_dims, split_dim
from glnn.graph.expression import SUM, Arg, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import Flatten, Matmul, Pointwise, Reduce, Squeeze, Transpose, Unsqueeze
from glnn.graph.operators.concat import MOST_INPUTS
from glnn.layers.arguments import flag, index, integer, number, plain
from glnn.layers.layer import ANY, Layer, Parameter, Scope


class Linear(Layer):
    """x @ weight.T + bias, for x of shape (..., in_features).

    weight: (out_features, in_features). bias: (out_features,), or None with `bias=False`. device:
    None. dtype: None or float32.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        plain("Linear", device, dtype)
        self.in_features = integer("Linear in_features", in_features)
        self.out_features = integer("Linear out_features", out_features)
        shapes: dict[str, tuple[int, ...]] = {"weight": (self.out_features, self.in_features)}
        if flag("Linear bias", bias):
            shapes["bias"] = (self.out_features,)
        super().__init__(Matmul(), shapes, fan_in=self.in_features, seed=seed)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        self._check(x.type.dims)
        *before, _ = x.type.dims
        if len(before) != 1:
            rows = merge_dims(scope.add, x, 0, len(before))
            result = self._product(scope, rows, is_result=False)
            if before:
                return scope.named(split_dim(scope.add, result, 0, *before))
            return scope.result(Squeeze((0,)), result)
        return self._product(scope, x, is_result=True)

    def _product(self, scope: Scope, x: Value, *, is_result: bool) -> Value:
        """Return the product of the matrix x, plus the bias. is_result: as the layer's result."""
        add = scope.result if is_result else scope.add
        operands = x, self.variable(scope, "weight")
        if "bias" not in self.shapes:
            return add(self.op, *operands)
        bias = self.variable(scope, "bias")
        return add(Pointwise(SUM), scope.add(self.op, *operands), bias)

    def _check(self, x: tuple[Dim, ...]) -> None:
        """Raise ShapeError, with a hint, unless x has in_features columns."""
        if x[-1:] == (self.in_features,):
            return
        features, hint = prod(n for n in x[1:] if isinstance(n, int)), ""
        if len(x) > 2:
            hint = ": put a Flatten before it"
            hint += "" if features == self.in_features else f", and in_features must be {features}"
        raise ShapeError(f"Linear: x must have shape (..., {self.in_features}), got {x}{hint}")

    def config(self) -> dict[str, Any]:
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": "bias" in self.shapes,
        }


class Bilinear(Layer):
    """x^T weight[k] y + bias[k] for each k, for x (..., in1_features) and y (..., in2_features).

    weight: (out_features, in1_features, in2_features). bias: (out_features,), or None with
    `bias=False`. device: None. dtype: None or float32.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        plain("Bilinear", device, dtype)
        self.in1_features = integer("Bilinear in1_features", in1_features)
        self.in2_features = integer("Bilinear in2_features", in2_features)
        self.out_features = integer("Bilinear out_features", out_features)
        sizes = self.out_features, self.in1_features, self.in2_features
        shapes: dict[str, Shape] = {"weight": sizes}
        if flag("Bilinear bias", bias):
            shapes["bias"] = (self.out_features,)
        super().__init__(Matmul(), shapes, fan_in=self.in1_features, seed=seed)

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x, y), add = inputs, scope.add
        before = x.type.dims[:-1]
        wanted = (*before, self.in1_features), (*before, self.in2_features)
        if not x.type.dims or (x.type.dims, y.type.dims) != wanted:
            got = f"{x.type.dims} and {y.type.dims}"
            sizes = f"(..., {self.in1_features}) and (..., {self.in2_features})"
            raise ShapeError(f"Bilinear: x and y must have shapes {sizes}, got {got}")
        x, y = (merge_dims(add, one, 0, len(before)) for one in (x, y))
        # The weight as a matrix (out * in2, in1): its product with x is (rows, out, in2).
        weight = add(Flatten(0, 1), add(Transpose((0, 2, 1)), self.variable(scope, "weight")))
        product = split_dim(add, add(self.op, x, weight), 1, self.out_features, self.in2_features)
        dot = Reduce("sum", (2,), False, formula("a * b"))
        result = add(dot, product, add(Unsqueeze((1,)), y))
        if "bias" in self.shapes:
            result = add(Pointwise(SUM), result, self.variable(scope, "bias"))
        if before:
            return scope.named(split_dim(add, result, 0, *before))
        return scope.named(add(Flatten(0, 1), result))

    def config(self) -> dict[str, Any]:
        return {
            "in1_features": self.in1_features,
            "in2_features": self.in2_features,
            "out_features": self.out_features,
            "bias": "bias" in self.shapes,
        }


class Bias(Layer):
    """x + bias, for x of shape (n, features, ...). bias: (features,), initially 0."""

    bias = Parameter[Array]()

    def __init__(self, features: int) -> None:
        self.features = integer("Bias features", features)
        super().__init__(Pointwise(SUM), {"bias": (self.features,)})

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        bias = scope.channels(self.variable(scope, "bias"), x)
        return scope.result(self.op, x, bias)

    def config(self) -> dict[str, Any]:
        return {"features": self.features}


class Identity(Layer):
    """x of any shape, unchanged. Arguments are ignored, as in PyTorch."""

    takes = ANY

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(operators.Identity())

    def config(self) -> dict[str, Any]:
        return {}


class Add(Layer):
    """x + y, for two inputs of the same shape."""

    def __init__(self) -> None:
        super().__init__(Pointwise(SUM))

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        x, y = inputs
        if x.type != y.type:
            raise ShapeError(f"Add: y must have the shape of x, {x.type.dims}, got {y.type.dims}")
        return scope.result(self.op, x, y)

    def config(self) -> dict[str, Any]:
        return {}


class Concat(Layer):
    """The concatenation along channels of `count` inputs (n, c, ...); only c may differ."""

    takes = ANY

    def __init__(self, count: int = 2) -> None:
        self.count = integer("Concat count", count, least=2)
        if self.count > MOST_INPUTS:
            raise ShapeError(f"Concat count must be at most {MOST_INPUTS}, got {self.count}")
        super().__init__(operators.Concat())

    @property
    def inputs(self) -> int:
        return self.count

    def config(self) -> dict[str, Any]:
        return {"count": self.count}


class CosineSimilarity(Layer):
    """The cosine of the angle between x and y, two inputs of the same shape, reduced along `dim`.

    eps: the least norm of each, which prevents division by 0.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim = index("CosineSimilarity dim", dim)
        self.eps = number("CosineSimilarity eps", eps, 0)
        super().__init__(operators.Identity())

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        x, y = inputs
        if x.type != y.type:
            got = f"{x.type.dims} and {y.type.dims}"
            raise ShapeError(f"CosineSimilarity: x and y must have one shape, got {got}")
        axes = (self.dim,)
        squares = Reduce("sum", axes, False, formula("square(a)"))
        product = scope.add(Reduce("sum", axes, False, formula("a * b")), x, y)
        norms = (call("maximum", call("sqrt", Arg(1 + i)), float(self.eps)) for i in range(2))
        cosine = call("div", Arg(0), call("mul", *norms))
        squared_norms = (scope.add(squares, one) for one in (x, y))
        return scope.result(Pointwise(cosine), product, *squared_norms)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "eps": self.eps}
