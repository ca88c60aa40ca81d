"""Pictures of other sizes: as torchvision's Resize and CenterCrop have them, on Pillow's images."""

from __future__ import annotations

from collections.abc import Mapping
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
"""How pixels between pixels are made up, and Pillow's numbers for it."""
BILINEAR = FILTERS["bilinear"]


def resized(
    image: Image.Image, size: int | tuple[int, int] | None, filter: int, antialias: bool
) -> Image.Image:
    """The image with a shorter side of `size` pixels, or of that height and width.

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

    return Image.fromarray(_between(np.asarray(image), new_height, new_width))


def _between(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """`pixels`, h x w or h x w x 3, at other places between the four nearest."""
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


def cropped(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The centre of the image, of that height and width, with black where the image ends."""
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
