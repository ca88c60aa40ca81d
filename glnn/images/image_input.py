"""The layout of pictures in a model's input: channels first or last, height and width."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.errors import ShapeError
from glnn.tensor_info import TensorInfo, show
from glnn.types import DType

TAKEN = (DType.float32, DType.float16, DType.uint8)


@dataclass(frozen=True)
class ImageInput:
    """The layout of an input of (N, C, h, w) or (N, h, w, C)."""

    first: bool
    """Whether the channels come first."""
    channels: int | None
    """1 or 3; None where the model leaves it open."""
    size: tuple[int | str, int | str]
    """Height and width; a symbol for one that is open."""

    @classmethod
    def from_info(cls, info: TensorInfo) -> ImageInput:
        """Return the layout of the input `info`. Raises ShapeError where it takes no pictures."""
        shape = info.shape
        if info.dtype in TAKEN and (place := cls.in_shape(shape)) is not None:
            return place
        raise ShapeError(
            f"input {info.name!r} of shape {show(shape)} and {info.dtype.value} takes no image: "
            "expected (N, 3, height, width) or (N, height, width, 3), or 1 for 3, "
            "of float32, float16 or uint8"
        )

    @classmethod
    def in_shape(cls, shape: tuple[int | str, ...]) -> ImageInput | None:
        """Return that of an input of this shape, of any type; None where it takes no pictures."""
        if len(shape) == 4:
            if shape[1] in (1, 3) or (isinstance(shape[1], str) and shape[3] not in (1, 3)):
                count = shape[1] if isinstance(shape[1], int) else None
                return cls(True, count, (shape[2], shape[3]))
            if shape[3] in (1, 3):
                return cls(False, int(shape[3]), (shape[1], shape[2]))
        return None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """The height and width where both are numbers; None otherwise."""
        height, width = self.size
        is_fixed = isinstance(height, int) and isinstance(width, int)
        return (height, width) if is_fixed else None  # type: ignore[return-value]
