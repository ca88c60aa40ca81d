"""Resizing of Pillow's images: torchvision's Resize and CenterCrop, and letterboxing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 1 << 26
FILTERS: Mapping[str, int] = {
    "nearest": 0,
    "lanczos": 1,
    "bilinear": 2,
    "bicubic": 3,
    "box": 4,
    "hamming": 5,
}
"""The interpolations between pixels, and Pillow's numbers for them."""
BILINEAR = FILTERS["bilinear"]


def resize(
    image: Image.Image, size: int | tuple[int, int] | None, filter: int, antialias: bool
) -> Image.Image:
    """Resize an image so that the shorter side has `size` pixels, or to that height and width.

    Raises ShapeError where that is more than MOST_PIXELS.
    """
    if size is None:
        return image
    width, height = image.size
    if isinstance(size, tuple):
        new_height, new_width = size
    elif width <= height:
        new_width, new_height = size, int(size * height / width)
    else:
        new_width, new_height = int(size * width / height), size
    if new_width * new_height > MOST_PIXELS:
        raise ShapeError(
            f"a picture of {width} x {height} would be resized to {new_width} x {new_height}: "
            f"expected at most {MOST_PIXELS} pixels"
        )
    if (new_width, new_height) == (width, height):
        return image
    if antialias or filter != BILINEAR:
        return image.resize((new_width, new_height), filter)
    from PIL import Image

    return Image.fromarray(_interpolate(np.asarray(image), new_height, new_width))


def _interpolate(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Interpolate `pixels`, h x w or h x w x 3, bilinearly at other places."""
    wide = pixels.astype(np.float32)
    for axis, size in enumerate((height, width)):
        count = wide.shape[axis]
        places = (np.arange(size, dtype=np.float64) + 0.5) * (count / size) - 0.5
        places = np.maximum(places, 0)
        before = np.minimum(places.astype(np.int64), count - 1)
        behind = np.minimum(before + 1, count - 1)
        part = (places - before).astype(np.float32)
        part = part.reshape((-1,) + (1,) * (wide.ndim - 1 - axis))
        wide = wide.take(before, axis) * (1 - part) + wide.take(behind, axis) * part
    return np.rint(wide).astype(np.uint8)


def crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the centre of the image, of that height and width, with black where the image ends."""
    width, height = image.size
    tall, wide = size
    left = _start(width, wide)
    top = _start(height, tall)
    return image.crop((left, top, left + wide, top + tall))


def _start(length: int, size: int) -> int:
    """Return the start of the centre; half a pixel is rounded as torchvision rounds it."""
    if size > length:
        return -((size - length) // 2)
    return round((length - size) / 2)


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


def letterbox(
    image: Image.Image, frame: tuple[int, int], border: int, filter: int, antialias: bool
) -> Image.Image:
    """Put the whole image into the middle of a frame of that height and width.

    border: the grey value of what the image leaves. Raises ShapeError where that is too large.
    """
    from PIL import Image

    box = Letterbox.fit((image.height, image.width), frame)
    inner = resize(image, (box.height, box.width), filter, antialias)
    colour = border if image.mode == "L" else (border,) * 3
    whole = Image.new(image.mode, (frame[1], frame[0]), colour)
    whole.paste(inner, (box.left, box.top))
    return whole
