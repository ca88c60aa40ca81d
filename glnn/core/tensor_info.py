"""Descriptions of a model's inputs and outputs: names, types, and shapes with open sizes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from glnn.core.types import (
    MOST,
    UNKNOWN,
    UNRANKED,
    Array,
    DType,
    Shape,
    TensorType,
    as_one_of,
    boxed,
)
from glnn.errors import ModelError, ShapeError, shown

TYPES = {
    "tensor(float)": DType.float32,
    "tensor(double)": DType.float64,
    "tensor(int64)": DType.int64,
    "tensor(float16)": DType.float16,
    "tensor(int32)": DType.int32,
    "tensor(uint8)": DType.uint8,
    "tensor(int8)": DType.int8,
    "tensor(bool)": DType.bool,
}
"""Dtypes of tensors that layers accept, by ONNX Runtime's names."""
OTHERS = {
    **{f"tensor({dtype.value})": dtype for dtype in DType if dtype not in TYPES.values()},
    "tensor(string)": DType.object,
}
"""Further dtypes of tensors in an ONNX model."""
NO_TENSORS = ("seq(", "optional(", "map(")
"""Prefixes of the type names of values that are no tensors."""
BATCH = "N"
"""The symbol of an open batch size."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's name, shape and type, one of TYPES.

    One entry of the shape, mostly the first, may be `"N"`, an open batch size. free: True for the
    rules of ONNX models: sizes may be 0, any of them may be a symbol (equal symbols are equal
    sizes, except "?"), and the type may be one of OTHERS or that of a value that is no tensor.
    """

    name: str
    shape: tuple[int | str, ...]
    type: str = "tensor(float)"
    free: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"a tensor's name must be a text, got {shown(self.name)}")
        if not isinstance(self.shape, (tuple, list)):
            raise ModelError(f"tensor {self.name!r}: a shape is a tuple, got {shown(self.shape)}")
        object.__setattr__(self, "shape", tuple(map(_size, self.shape)))
        batch = self.shape.index(BATCH) if BATCH in self.shape else len(self.shape)
        sizes = (*self.shape[:batch], *self.shape[batch + 1 :])
        if self.free:
            _ = TensorType(self.shape)
        elif not self.shape or not all(type(n) is int and n > 0 for n in sizes):
            raise ModelError(
                f"tensor {self.name!r}: a shape must be positive integers, one of them or "
                f'"N" the batch, got {shown(self.shape)}'
            )

        if prod(n for n in sizes if isinstance(n, int)) > MOST:
            what = f"tensor {self.name!r} of shape {show(self.shape)}"
            raise ShapeError(f"{what} would hold more than {MOST} numbers")
        types = {**TYPES, **(OTHERS if self.free else {})}
        prefixes = NO_TENSORS if self.free else ()
        is_text = isinstance(self.type, str)
        if not is_text or not (self.type in types or self.type.startswith(prefixes)):
            raise ModelError(
                f"tensor {self.name!r}: type must be one of {', '.join(types)}, "
                f"got {shown(self.type)}"
            )

    @classmethod
    def from_type(cls, name: str, type: TensorType, free: bool = False) -> TensorInfo:
        """Return the description of a tensor from its name and graph type."""
        names = {dtype: type_name for type_name, dtype in {**TYPES, **OTHERS}.items()}
        return cls(name, type.dims, type.holds or names[type.dtype], free)

    @property
    def dtype(self) -> DType:
        """The type of its numbers; `object` for a value that is no tensor."""
        if self.holds:
            return DType.object
        return TYPES[self.type] if self.type in TYPES else OTHERS[self.type]

    @property
    def holds(self) -> str:
        """The type of a value that is no tensor, as `seq(tensor(float))`; empty for a tensor."""
        return "" if self.type in TYPES or self.type in OTHERS else self.type

    @property
    def tensor_type(self) -> TensorType:
        """The tensor's type as graphs represent it."""
        return TensorType(self.shape, self.dtype, self.holds)

    def array(self, x: object) -> Array:
        """Return `x` as an array of this dtype; int64 is accepted for int32 if all numbers fit.

        Raises ShapeError for anything else.
        """
        if self.holds:
            return x if isinstance(x, np.ndarray) and x.dtype == object else boxed(x)
        if self.dtype is DType.object:
            return _object(x)
        return as_one_of(f"input {self.name!r}", x, (self.dtype,))

    def fitting(self, x: object) -> Array:
        """Return `x` as an array of this dtype and shape. Raises ShapeError for anything else."""
        result = self.array(x)
        self.check(result.shape)
        return result

    def with_batch(self, batch: int) -> Shape:
        """Return the shape with `batch` in the place of symbols."""
        return tuple(batch if isinstance(n, str) else n for n in self.shape)

    def check(self, shape: Shape) -> None:
        """Raise ShapeError unless an array of `shape` can be this tensor."""
        what = f"input {self.name!r}"
        if self.free and self.shape == (UNRANKED,):
            return
        if len(shape) != len(self.shape):
            raise ShapeError(
                f"{what} must have {len(self.shape)} dimensions, {show(self.shape)}, "
                f"got {shape}{self.advice(shape)}"
            )
        if 0 in shape and not self.free:
            raise ShapeError(f"{what} must not be empty, got shape {shape}")
        pairs = zip(self.shape, shape, strict=True)
        if any(not isinstance(n, str) and n != got for n, got in pairs):
            advice = self.advice(shape)
            raise ShapeError(f"{what} must have shape {show(self.shape)}, got {shape}{advice}")

    def advice(self, shape: Shape) -> str:
        """Return a hint for an array whose `shape` does not fit; empty where there is none."""
        sample = self.shape[1:]
        if len(sample) == 3 and shape[-3:] == (*sample[1:], sample[0]):
            return ": channels come first here, (n, c, h, w), where x.transpose puts them"
        return ": a batch of samples is taken, x[None] makes one" if shape == sample else ""


@dataclass(frozen=True)
class ModelInfo:
    """A model's name, inputs, outputs and metadata."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    """Key-value metadata from the model's file."""
    random_weights: bool = False
    """True where a layer has its initial parameters: none were loaded or trained."""


def _object(x: object) -> Array:
    """Convert `x` to an object array of strings."""
    if isinstance(x, np.ndarray):
        return x.astype(object) if x.dtype.kind in "US" else x
    return np.asarray(x, object)


def _size(n: object) -> Any:
    """Return `n` as an int if it is an integer of any type other than bool, else unchanged."""
    is_integer = isinstance(n, (int, np.integer)) and not isinstance(n, bool)
    return int(n) if is_integer else n  # type: ignore[call-overload]


def show(shape: Sequence[int | str]) -> str:
    """Format a shape: `(N, 1, 28, 28)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def check_names(model: str, inputs: Sequence[TensorInfo], feeds: Mapping[str, object]) -> None:
    """Raise ShapeError unless `feeds` has exactly the `inputs` of `model`."""
    names = dict.fromkeys(info.name for info in inputs)
    if names.keys() == feeds.keys():
        return
    for name in (*names, *feeds):
        if name not in feeds or name not in names:
            fault = "unknown" if name in feeds else "missing"
            got = f", got {', '.join(map(shown, feeds))}" if feeds else ""
            expected = ", ".join(map(repr, names))
            raise ShapeError(f"{fault} input {name!r}: {model} takes {expected}{got}")


def kind_numbers(kinds: Mapping[str, Hashable]) -> dict[str, int]:
    """Number the distinct kinds, and return the number of each name's kind, for fast lookup."""
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(kind, len(numbers)) for name, kind in kinds.items()}


SharedSizes = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""Symbols of several dimensions, with these dimensions: names of inputs, and axes."""


def shared_sizes(inputs: Sequence[TensorInfo]) -> SharedSizes:
    """Return the symbols that several dimensions of the inputs share, with these dimensions."""
    axes_of: dict[str, list[tuple[str, int]]] = {}
    for info in inputs:
        for axis, dim in enumerate(info.shape):
            if isinstance(dim, str) and dim not in (UNKNOWN, UNRANKED):
                axes_of.setdefault(dim, []).append((info.name, axis))
    return tuple((dim, tuple(axes)) for dim, axes in axes_of.items() if len(axes) > 1)


def check_shared_sizes(shared: SharedSizes, shapes: Mapping[str, Shape]) -> None:
    """Raise ShapeError where dimensions with one symbol have different sizes in `shapes`.

    Inputs without elements are ignored: where a branch of a decoder does not read its caches, they
    may be empty, as in ONNX Runtime.
    """
    for dim, axes in shared:
        if len({shapes[name][axis] for name, axis in axes}) == 1:
            continue
        present = [(name, axis) for name, axis in axes if 0 not in shapes[name]]
        for name, other in present[1:]:
            first, axis = present[0]
            size = shapes[first][axis]
            if shapes[name][other] == size:
                continue
            whose = f"input {name!r}" if name == first else f"inputs {first!r} and {name!r}"
            raise ShapeError(
                f"{whose} must have one size {dim}, got {size} and {shapes[name][other]} "
                f"(dimension {axis} of {first!r}, dimension {other} of {name!r})"
            )
