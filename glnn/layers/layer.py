"""What a layer is: an op together with its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError, shown
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Contraction, as_float32
from glnn.graph.operators.windows import MOST
from glnn.layers.arguments import index
from glnn.types import Shape

Array = NDArray[Any]


class Layer(ABC):
    """What a user composes. Subclasses give their op and the shapes of their parameters.

    op: what the layer computes. shapes: the shape of each parameter that the layer has.
    fan_in: inputs that reach one output; initial parameters are uniform within 1/sqrt(fan_in), as
    PyTorch's are, and 0 where it is 0. seed: of the initial parameters; layers of one shape and
    one seed begin alike.
    revision: counts assignments to parameters, so that sessions notice them.
    """

    def __init__(
        self,
        op: Contraction,
        shapes: Mapping[str, Shape] | None = None,
        *,
        fan_in: int = 0,
        seed: int = 0,
    ) -> None:
        self.op = op
        self.shapes: Mapping[str, Shape] = dict(shapes or {})
        for name, shape in self.shapes.items():
            if prod(shape) > MOST:
                what = f"{type(self).__name__} {name} of shape {shape}"
                raise ShapeError(f"{what} would hold more than {MOST} numbers")
        self.revision = 0
        what, bounds = f"{type(self).__name__} seed", " of at least 0"
        self._fan_in, self._seed = fan_in, index(what, seed, bounds)
        if self._seed < 0:
            raise ShapeError(f"{what} must be an integer{bounds}, got {shown(seed)}")

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The constructor's arguments by name, such as JSON can hold."""

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters by name, float32; those that the layer was made without are left out."""
        return {name: getattr(self, name) for name in self.shapes}

    @property
    def operands(self) -> dict[str, Array]:
        """What the op takes besides its inputs: the parameters, unless a layer prepares them."""
        return self.parameters

    @property
    def epilogue(self) -> Epilogue | None:
        """What is done to the op's result; its operands are among `operands`."""
        return None

    @property
    def operand_shapes(self) -> Mapping[str, Shape]:
        """The shape of each of `operands`."""
        return self.shapes

    def initial(self, name: str) -> Array:
        """The values that the parameter called `name` has until it is assigned."""
        shape = self.shapes[name]
        if not self._fan_in:
            return np.zeros(shape, np.float32)
        bound = np.float32(1 / sqrt(self._fan_in))
        generator = np.random.default_rng([self._seed, list(self.shapes).index(name)])
        values: Array = (2 * generator.random(shape, np.float32) - 1) * bound
        return values

    def infer(self, *shapes: Shape) -> Shape:
        """The result's shape for inputs of `shapes`. Raises ShapeError where they do not fit."""
        inputs = dict(zip(self.op.needed_inputs, shapes, strict=True))
        return self.op.shape_of({**inputs, **self.operand_shapes})

    def __call__(self, *inputs: Array, backend: str = "auto") -> Array:
        """The layer's result for its inputs, float32 arrays, computed by `backend`.

        Raises ShapeError where they do not fit, DeviceError where the backend does not open.
        """
        from glnn.compile import evaluate

        names = self.op.needed_inputs
        if len(inputs) != len(names):
            kind = type(self).__name__
            raise ShapeError(f"{kind} takes {len(names)} inputs, got {len(inputs)}")
        given = {name: as_float32(name, x) for name, x in zip(names, inputs, strict=True)}
        self.infer(*(x.shape for x in given.values()))
        operands = {**given, **self.operands}
        return evaluate(self.op, operands, backend=backend, epilogue=self.epilogue)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.config().items())
        return f"{type(self).__name__}({arguments})"
