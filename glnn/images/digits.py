"""Images of digits: grey, white on black, as networks of handwriting take them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError
from glnn.images.files import flatten, open_image
from glnn.images.resizing import MOST_PIXELS
from glnn.tensor_info import TensorInfo, show
from glnn.types import DType

if TYPE_CHECKING:
    from PIL import Image

LIGHT = 127  # a grey value above this is nearer to white than to black


def read_image(
    path: str | os.PathLike[str], info: TensorInfo, invert: bool = True
) -> tuple[NDArray[Any], list[str]]:
    """Read the image in the file `path` as the input `info`, and describe how it was converted.

    The result is (1, 1, h, w), white on black, floats in 0..1 or, where the input is of uint8,
    bytes: a coloured image is turned to grey, one of another size is resized and keeps its
    proportions, one of a light background is inverted unless `invert` is False. Needs Pillow.
    Raises ModelError where the file is no image of FORMATS or Pillow is missing, ShapeError where
    the input is no grey image.
    """
    _sizes(info)
    return digit_of(open_image(Path(path)), info, invert)


def digit_of(
    image: Image.Image, info: TensorInfo, invert: bool = True
) -> tuple[NDArray[Any], list[str]]:
    """Convert an image as `read_image` does. Raises ShapeError where the input is no grey image."""
    height, width = _sizes(info)
    grey, notes = flatten(image, grey=True)
    # The background is what most of the border shows.
    pixels = np.asarray(grey)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    background = int(np.median(border))
    if grey.size != (width, height):
        from PIL import ImageOps

        notes.append(f"resized from {grey.width}x{grey.height} to {width}x{height}")
        pixels = np.asarray(ImageOps.pad(grey, (width, height), color=background))
    if invert and background > LIGHT:
        notes.append("inverted, because the background is light")
        pixels = 255 - pixels
    if info.dtype is not DType.uint8:
        pixels = (pixels.astype(np.float32) / np.float32(255)).astype(info.dtype.numpy)
    return pixels.reshape(1, 1, height, width), notes


def _sizes(info: TensorInfo) -> tuple[int, int]:
    """Return height and width of the input `info`. Raises ShapeError where it is no grey image."""
    sizes = info.shape[2:]
    if len(info.shape) != 4 or info.shape[1] != 1 or any(isinstance(n, str) for n in sizes):
        raise ShapeError(
            f"input {info.name!r} of shape {show(info.shape)} takes no image: "
            "expected (N, 1, height, width)"
        )
    height, width = (int(n) for n in sizes)
    if height * width > MOST_PIXELS:
        raise ShapeError(f"input {info.name!r}: {height} x {width} pixels are too many for images")
    return height, width
