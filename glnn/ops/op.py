"""What an op is: attributes, shape rule, cost and NumPy reference. Knows no GL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError

Array = NDArray[Any]
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""The shape of each operand, by the operand's name."""


@dataclass(frozen=True)
class Cost:
    """What one run of an op needs at the least.

    flops: floating-point operations, a multiply-add counting two.
    bytes: float32 bytes, each operand read once and the result written once.
    """

    flops: int
    bytes: int


class Op(ABC):
    """What is computed. Subclasses are frozen dataclasses of the op's attributes.

    `name` is the op's name in every folder. `inputs` are the operands that change from run to run,
    `parameters` those fixed with the model; operands named in `optional` may be absent. A `view`
    moves nothing: its result is its input's memory. The result of an op that `updates` an input
    takes that one's place. Of an op with `samples`, each sample, along the first dimension of its
    inputs and its result, is computed by itself. What is not finite in an operand that is `spoiled`
    shows in every kernel's result where it shows in the reference's. An op that `deepens` can be
    given longer sums (`of_depth`).
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    parameters: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    view: ClassVar[bool] = False
    updates: ClassVar[str | None] = None
    samples: ClassVar[bool] = False
    spoiled: ClassVar[tuple[str, ...]] = ()
    deepens: ClassVar[bool] = False

    @property
    def needed(self) -> tuple[str, ...]:
        """The inputs that must be there."""
        return tuple(name for name in self.inputs if name not in self.optional)

    @abstractmethod
    def infer(self, shapes: Shapes) -> Shape:
        """The result's shape. Raises ShapeError where the operands do not fit."""

    @abstractmethod
    def reference(self, operands: Mapping[str, Array]) -> Array:
        """The result by NumPy, in the dtype of `x` (float32 or float64)."""

    @abstractmethod
    def flops(self, shapes: Shapes) -> int:
        """Floating-point operations, a multiply-add counting two."""

    @abstractmethod
    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """The problem's sizes by name: uniforms, grids and restrictions of kernels use them."""

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """Integers that follow from sizes and attributes, where kernels want them at hand.

        They are used as sizes are and, in capitals, as `#define`s.
        """
        return {}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        """Attributes that a kernel takes as `#define`s: a program is compiled for each set."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Real-valued uniforms."""
        return {}

    def stacks(self, shapes: Shapes) -> tuple[str, ...]:
        """The operands that are stacks of matrices, where a kernel may expect one matrix."""
        return ()

    def along(self, shapes: Shapes) -> tuple[str, ...]:
        """The operands whose first dimension is the result's: each part by itself makes its own."""
        if not self.samples:
            return ()
        n = self.infer(shapes)[0]
        return tuple(name for name in self.inputs if shapes.get(name, ())[:1] == (n,))

    def depth(self, shapes: Shapes) -> int:
        """How many numbers a kernel's loop may walk for one result, where no attribute says so."""
        return 1

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        """Operands of an op that `deepens` for loops of at least `depth`, by the same program.

        few: of fewer results, where that program has them.
        """
        return shapes

    def fixed_layouts(self) -> Mapping[str, str]:
        """The layout of each operand and of `out` where the op itself says so."""
        return {}

    def view_layouts(self, given: str) -> tuple[str, str]:
        """How a view wants its input, which lies in `given`, and how its result then lies."""
        return "R", "R"

    def cost(self, shapes: Shapes) -> Cost:
        elements = sum(prod(s) for s in shapes.values()) + prod(self.infer(shapes))
        return Cost(self.flops(shapes), 4 * elements)

    def check_operands(self, shapes: Shapes) -> None:
        """Raise ShapeError unless `shapes` names this op's operands and nothing else."""
        known = (*self.inputs, *self.parameters)
        needed = [n for n in known if n not in self.optional]
        if any(n not in shapes for n in needed) or any(n not in known for n in shapes):
            raise ShapeError(f"{self.name}: expected operands {known}, got {tuple(shapes)}")


def upper(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def rank(op: str, operand: str, shape: Shape, expected: int, dims: str) -> None:
    """Raise ShapeError unless `shape` has `expected` dimensions, described by `dims`."""
    if len(shape) != expected:
        raise ShapeError(f"{op}: {operand} must have shape {dims}, got {shape}")


def as_float32(name: str, array: object) -> Array:
    """`array`, a float32 NumPy array, as a plain one: subclasses compute otherwise.

    Raises ShapeError for anything else, and for a masked array with a masked value.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
        raise ShapeError(f"{name} must be a float32 NumPy array, got {got}")
    if np.ma.is_masked(array):
        raise ShapeError(f"{name} has masked values, which are no numbers: fill them first")
    return np.asarray(array)


def to_float32(name: str, array: object) -> Array:
    """`as_float32` of `array`, which may be of any real numbers that float32 holds, rounded."""
    if isinstance(array, np.ndarray) and array.dtype.kind in "iuf" and array.dtype != np.float32:
        with np.errstate(over="ignore"):
            found = as_float32(name, array.astype(np.float32))
        if (np.isinf(found) & np.isfinite(np.asarray(array))).any():
            raise ShapeError(f"{name} has numbers that float32 does not hold, got {array.dtype}")
        return found
    return as_float32(name, array)
