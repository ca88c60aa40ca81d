"""Views: the same memory with another shape, or as it is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.core.types import Array, Dim, TensorType
from glnn.errors import ShapeError
from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Types
from glnn.graph.operators.move import normalize_axes, whole_numbers


class View(Operator):
    """A view of x, of any dtype, in another shape of as many numbers. x must be contiguous."""

    name: ClassVar[str] = "reshape"
    view: ClassVar[bool] = True
    passes: ClassVar[tuple[str, ...]] = ("x",)
    moves: ClassVar[bool] = True

    @abstractmethod
    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        """The result's dimensions."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        return (TensorType(self.dims(x), x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        (result,) = self.infer([TensorType.from_array(x)])
        return (x.reshape(result.shape),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class Reshape(View):
    """x as `shape`, in which -1, at most once, is what is left and 0 the size that x has there."""

    shape: tuple[int, ...]
    allow_zero: bool = False
    """True where 0 is a size instead."""

    def __post_init__(self) -> None:
        whole_numbers("reshape", "shape", self.shape, -1)
        if self.shape.count(-1) > 1:
            raise ShapeError(f"reshape: shape must have -1 at most once, got {self.shape}")

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        kept: list[Dim] = []
        for i, size in enumerate(self.shape):
            if size == 0 and not self.allow_zero:
                if i >= len(x.dims):
                    raise ShapeError(f"reshape: {x} has no size for the 0 at {i} of {self.shape}")
                kept.append(x.dims[i])
            else:
                kept.append(size)
        # A symbol that is kept stands on both sides, and tells nothing about what is left.
        before, after = list(x.dims), [dim for dim in kept if dim != -1]
        for dim in list(after):
            if isinstance(dim, str) and dim in before:
                before.remove(dim)
                after.remove(dim)
        total = prod(TensorType(tuple(before)).shape)
        rest = prod(dim for dim in after if not isinstance(dim, str))
        if -1 in kept and (not rest or total % rest):
            raise ShapeError(f"reshape: {x} is no multiple of {self.shape}")
        if -1 not in kept and total != rest:
            raise ShapeError(f"reshape: {x} has other numbers than {self.shape}")
        return tuple(total // rest if dim == -1 else dim for dim in kept)


@dataclass(frozen=True)
class Flatten(View):
    """x with its dimensions from `start` to `end` as one; negative ones count from the end."""

    name: ClassVar[str] = "flatten"
    start: int = 1
    end: int = -1

    def __post_init__(self) -> None:
        whole_numbers("flatten", "start and end", (self.start, self.end))

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        rank = len(x.dims)
        start, end = (i + rank if i < 0 else i for i in (self.start, self.end))
        if not 0 <= start <= end < rank:
            raise ShapeError(f"flatten: {x} has no dimensions from {self.start} to {self.end}")
        return (*x.dims[:start], prod(x.shape[start : end + 1]), *x.dims[end + 1 :])


@dataclass(frozen=True)
class Unflatten(View):
    """x with its dimension `axis` as several; a negative axis counts from the end."""

    name: ClassVar[str] = "unflatten"
    axis: int
    into: tuple[int, ...]
    """Sizes of the new dimensions, in which -1, at most once, is inferred."""

    def __post_init__(self) -> None:
        whole_numbers("unflatten", "axis", (self.axis,))
        whole_numbers("unflatten", "into", self.into, -1)
        if self.into.count(-1) > 1:
            raise ShapeError(f"unflatten: into must have -1 at most once, got {self.into}")

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        (axis,) = normalize_axes("unflatten", (self.axis,), len(x.dims))
        size, known = x.shape[axis], prod(n for n in self.into if n != -1)
        if (not known or size % known) if -1 in self.into else size != known:
            raise ShapeError(f"unflatten: dimension {axis} of {x} is not {self.into}")
        sizes = (size // known if n == -1 else n for n in self.into)
        return (*x.dims[:axis], *sizes, *x.dims[axis + 1 :])


@dataclass(frozen=True)
class Squeeze(View):
    """x without the dimensions `axes`, of size 1 each; without all such where there are none."""

    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.axes is not None:
            whole_numbers("squeeze", "axes", self.axes)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        if self.axes is None:
            return tuple(dim for dim in x.shape if dim != 1)
        axes = normalize_axes("squeeze", self.axes, len(x.dims))
        if wrong := [axis for axis in axes if x.dims[axis] != 1]:
            raise ShapeError(f"squeeze: dimension {wrong[0]} of {x} is not 1")
        return tuple(dim for i, dim in enumerate(x.dims) if i not in axes)


@dataclass(frozen=True)
class Unsqueeze(View):
    """x with new dimensions of size 1, which are the result's `axes`."""

    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers("unsqueeze", "axes", self.axes)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        rank = len(x.dims) + len(self.axes)
        axes = normalize_axes("unsqueeze", self.axes, rank)
        kept = iter(x.dims)
        return tuple(1 if i in axes else next(kept) for i in range(rank))


@dataclass(frozen=True)
class Identity(Operator):
    """The identity: x, of any shape and dtype. A view: no kernel runs."""

    name: ClassVar[str] = "identity"
    view: ClassVar[bool] = True
    passes: ClassVar[tuple[str, ...]] = ("x",)
    moves: ClassVar[bool] = True

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (self.named(types)["x"],)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.named(arrays)["x"],)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)

    def view_layouts(self, layout: str) -> tuple[str, str]:
        return layout, layout


@dataclass(frozen=True)
class Within(Identity):
    """The identity on x with the assertion that its numbers lie within an interval."""

    lies: Interval

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (self.lies,)


@dataclass(frozen=True)
class Detached(Identity):
    """The identity on x that stops gradients: torch.Tensor.detach."""
