"""The table of scalar functions: a row says what one is to NumPy, to a shader and to a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """A function of scalars.

    arity: how many arguments it takes. numpy: what it is to NumPy, in the precision of its
    arguments. glsl: an expression of the arguments a, b, c, scalars of GLSL. source: the file of
    `shaders/functions` that has what `glsl` calls, where GLSL itself has it not.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    glsl: str
    source: str | None = None

    def evaluate(self, *arguments: Any) -> Any:
        """The value by NumPy; what overflows or is not defined is inf or NaN, and no warning."""
        with np.errstate(all="ignore"):
            return self.numpy(*arguments)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


_ROWS = (
    Function("add", 2, np.add, "a + b"),
    Function("sub", 2, np.subtract, "a - b"),
    Function("mul", 2, np.multiply, "a * b"),
    Function("div", 2, np.divide, "a / b"),
    Function("sqrt", 1, np.sqrt, "sqrt(a)"),
    Function("relu", 1, lambda x: np.maximum(x, 0), "greater(a, 0.0)", "nan"),
    Function("sigmoid", 1, _sigmoid, "sigmoid(a)", "sigmoid"),
    Function("tanh", 1, np.tanh, "hyperbolic_tangent(a)", "tanh"),
)

FUNCTIONS: Mapping[str, Function] = {row.name: row for row in _ROWS}
"""Every function by its name."""
