"""What a model says of its tensors: names and shapes, the batch left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glnn.errors import ModelError, ShapeError
from glnn.ops.op import Shape

BATCH = "N"
"""What stands in a shape for a batch of any size."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's name and shape; the shape's first entry may be `"N"`, a batch of any size."""

    name: str
    shape: tuple[int | str, ...]
    type: str = "tensor(float)"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"a tensor's name must be a text, got {self.name!r}")
        sizes = self.shape[1:] if self.shape[:1] == (BATCH,) else self.shape
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes)
        if not self.shape or not whole:
            raise ModelError(
                f"tensor {self.name!r}: a shape must be positive integers, the first of them or "
                f'"N" the batch, got {self.shape}'
            )

    def with_batch(self, batch: int) -> Shape:
        """The shape for a batch of a given size."""
        return tuple(batch if isinstance(n, str) else n for n in self.shape)

    def check(self, shape: Shape) -> None:
        """Raise ShapeError unless an array of `shape` can be this tensor."""
        what = f"input {self.name!r}"
        if len(shape) != len(self.shape):
            raise ShapeError(
                f"{what} must have {len(self.shape)} dimensions, {show(self.shape)}, got {shape}"
            )
        if 0 in shape:
            raise ShapeError(f"{what} must not be empty, got shape {shape}")
        if any(n != BATCH and n != given for n, given in zip(self.shape, shape, strict=True)):
            raise ShapeError(f"{what} must have shape {show(self.shape)}, got {shape}")


def show(shape: Sequence[int | str]) -> str:
    """A shape as people write it: `(N, 1, 28, 28)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
