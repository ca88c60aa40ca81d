"""Pictures in a frame of a fixed size, their proportions kept: as detectors take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glnn.images.resizing import resized

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Letterbox:
    """The place of a whole picture in a frame: as large as fits, in the middle.

    picture: its height and width. top, left, height, width: of the part of the frame that it
    takes, in the frame's pixels.
    """

    picture: tuple[int, int]
    top: int
    left: int
    height: int
    width: int

    @classmethod
    def fit(cls, picture: tuple[int, int], frame: tuple[int, int]) -> Letterbox:
        """Fit a picture of a height and width into a frame; half a pixel goes to the far side."""
        scale = min(frame[0] / picture[0], frame[1] / picture[1])
        height, width = (max(1, round(side * scale)) for side in picture)
        top, left = (
            int((side - taken) / 2) for side, taken in zip(frame, (height, width), strict=True)
        )
        return cls(picture, top, left, height, width)

    def to_picture(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map points (..., 2), x and y in the frame, to the picture's pixels."""
        scale = np.array((self.picture[1] / self.width, self.picture[0] / self.height), np.float32)
        return (points - np.array((self.left, self.top), np.float32)) * scale


def letterboxed(
    image: Image.Image, frame: tuple[int, int], border: int, filter: int, antialias: bool
) -> Image.Image:
    """Put the whole image into the middle of a frame of that height and width.

    border: the grey value of what the image leaves. Raises ShapeError where that is too large.
    """
    from PIL import Image

    box = Letterbox.fit((image.height, image.width), frame)
    inner = resized(image, (box.height, box.width), filter, antialias)
    colour = border if image.mode == "L" else (border,) * 3
    whole = Image.new(image.mode, (frame[1], frame[0]), colour)
    whole.paste(inner, (box.left, box.top))
    return whole
