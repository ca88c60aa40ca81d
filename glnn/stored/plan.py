"""A plan as plain data: what its device is told, and how arrays go in and come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glnn.device.tape import Tape, TapeError
from glnn.layout import parse
from glnn.running.ends import Ends, Input, Output
from glnn.types import DType, Shape, TensorType


@dataclass(frozen=True)
class Place:
    """Where an input or an output lies."""

    name: str
    shape: Shape
    """As it lies there, which may have other dimensions than the array that is given."""
    dtype: DType
    layout: str
    """How: see `glnn.layout`."""
    capacity: int
    """The words that it has there."""
    block: int
    """The block of the tape that it is in."""
    offset: int | None
    """The word that it begins at; None where it has all of the block."""

    def __post_init__(self) -> None:
        counts = self.capacity, self.block, 0 if self.offset is None else self.offset
        if not isinstance(self.name, str) or any(type(n) is not int or n < 0 for n in counts):
            raise TapeError(f"a plan has no tensor {self.name!r} at {counts}")
        type_ = TensorType(self.shape, self.dtype)
        if not self.dtype.on_gpu or parse(self.layout).words(type_) > self.capacity:
            raise TapeError(
                f"a plan has no tensor {self.name!r} of {type_} in {self.capacity} words"
            )


@dataclass(frozen=True)
class StoredPlan:
    """What runs for one set of input shapes. Raises TapeError where the parts do not fit."""

    tape: Tape
    ends: Ends
    places: tuple[Place, ...]
    """Of all inputs, and of the outputs that runs change."""
    nbytes: int
    """Bytes of device memory that it takes at the most while it is made ready."""
    room: int
    """Bytes that a second lane takes; 0 where there can be none."""

    def __post_init__(self) -> None:
        names = {one.name for one in self.places}
        wanted = {one.name for one in self.ends.inputs}
        wanted |= {one.name for one in self.ends.outputs if not one.fixed}
        if wanted - names:
            raise TapeError(f"a plan has no place for {sorted(wanted - names)}")
        if any(one.block >= len(self.tape.blocks) for one in self.places):
            raise TapeError("a plan has a place in no block")
        if type(self.nbytes) is not int or type(self.room) is not int:
            raise TapeError("a plan takes a number of bytes")

    def data(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "tape": self.tape.data(),
            "inputs": [
                [one.name, one.dtype.value, one.shape, one.takes.value, one.small, one.below]
                for one in self.ends.inputs
            ],
            "outputs": [
                [one.name, one.dtype.value, one.shape, one.fixed] for one in self.ends.outputs
            ],
            "places": [[*{**vars(one), "dtype": one.dtype.value}.values()] for one in self.places],
            "nbytes": self.nbytes,
            "room": self.room,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> StoredPlan:
        """What `data` gave, from JSON of which nothing is known. Raises TapeError."""
        try:
            inputs = tuple(
                Input(name, DType(dtype), tuple(shape), DType(takes), small, tuple(below))
                for name, dtype, shape, takes, small, below in data["inputs"]
            )
            outputs = tuple(
                Output(name, DType(dtype), tuple(shape), fixed)
                for name, dtype, shape, fixed in data["outputs"]
            )
            places = tuple(
                Place(name, tuple(shape), DType(dtype), *rest)
                for name, shape, dtype, *rest in data["places"]
            )
            tape, ends = Tape.of(data["tape"]), Ends(inputs, outputs)
            return cls(tape, ends, places, data["nbytes"], data["room"])
        except TapeError:
            raise
        except Exception as error:  # of the wrong types anywhere
            raise TapeError(f"no plan: {error}") from None
