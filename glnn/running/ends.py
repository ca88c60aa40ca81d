"""What goes into a plan and comes out of it: plain data, which can be kept as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glnn.errors import ModelError, shown
from glnn.types import DType, Shape, TensorType


@dataclass(frozen=True)
class Input:
    """An input: what is given, and as what it goes to the device."""

    name: str
    dtype: DType
    """Of the array that is given."""
    shape: Shape
    """Of that array."""
    takes: DType
    """Of the store that it is put to: int32 for int64 that is narrowed; float16 goes to float32."""
    small: bool = False
    """Whether its numbers, of int64, must be small (`arrays.check_small`)."""
    below: tuple[int, ...] = ()
    """Sizes of the tables that it has indices for (`arrays.check_indices`)."""
    called: str = ""
    """Name in errors about its indices, where a part of a graph reads what another part passed on
    of the model's input; `input 'name'` if empty."""

    def __post_init__(self) -> None:
        _check("input", self.name, self.dtype, self.shape)
        if not isinstance(self.takes, DType):
            raise ModelError(f"input {self.name!r} takes a DType, got {shown(self.takes)}")
        if any(type(size) is not int or size < 1 for size in self.below):
            raise ModelError(f"input {self.name!r} is below sizes of tables, got {self.below}")

    @property
    def narrowed(self) -> bool:
        """Whether int64 numbers become int32's, where all of them are."""
        return self.dtype is DType.int64 and self.takes is DType.int32


@dataclass(frozen=True)
class Output:
    """An output: what is given back. What is float32 on the device is rounded to float16."""

    name: str
    dtype: DType
    """Of the array that is given back."""
    shape: Shape
    """Of that array."""
    fixed: bool = False
    """Whether no run changes it: then the plan has its array (`Runner.fixed`)."""

    def __post_init__(self) -> None:
        _check("output", self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class Ends:
    """The inputs and outputs of a plan. Raises ModelError where two inputs share a name."""

    inputs: tuple[Input, ...]
    """What a run is given, in the order in which it is uploaded."""
    outputs: tuple[Output, ...]
    """What a run may be asked for; the same one may be there twice."""

    def __post_init__(self) -> None:
        names = [one.name for one in self.inputs]
        if len(set(names)) < len(names):
            raise ModelError(f"the inputs of a plan need names of their own, got {names}")

    def fixed(self) -> Iterable[str]:
        """The names of the outputs that no run changes."""
        return dict.fromkeys(one.name for one in self.outputs if one.fixed)


def _check(what: str, name: object, dtype: object, shape: Shape) -> None:
    """Raise ModelError or ShapeError unless these are a name, a dtype and a shape."""
    if not isinstance(name, str) or not isinstance(dtype, DType):
        got = f"{shown(name)} of {shown(dtype)}"
        raise ModelError(f"an {what} of a plan needs a name and a DType, got {got}")
    _ = TensorType(shape).shape
