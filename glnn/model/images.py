"""Image files: as a model's input, and as pictures."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError, fault, first_line
from glnn.reading import check_file, regular
from glnn.tensor_info import TensorInfo, show
from glnn.types import DType
from glnn.writing import whole

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 1 << 26
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""What is read; Pillow knows more, and starts programs such as Ghostscript for some."""
LIGHT = 127  # a grey value above this is nearer to white than to black


def read_image(path: str | os.PathLike[str], info: TensorInfo) -> tuple[NDArray[Any], list[str]]:
    """The image in the file `path` as the input `info`, and what was done to make it so.

    The result is (1, 1, h, w), white on black, float32 in 0..1 or, where the input is of uint8,
    bytes: a coloured image is turned to grey, one of another size is resized and keeps its
    proportions, one of a light background is inverted. Needs Pillow. Raises ModelError where the
    file is no image of FORMATS or Pillow is missing, ShapeError where the input is no grey image.
    """
    sizes = info.shape[2:]
    if len(info.shape) != 4 or info.shape[1] != 1 or any(isinstance(n, str) for n in sizes):
        raise ShapeError(
            f"input {info.name!r} of shape {show(info.shape)} takes no image: "
            "expected (N, 1, height, width)"
        )
    height, width = (int(n) for n in sizes)
    if height * width > MOST_PIXELS:
        raise ShapeError(f"input {info.name!r}: {height} x {width} pixels are too many for images")
    grey, notes = _grey(Path(path))
    # The background is what most of the border shows.
    pixels = np.asarray(grey)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    background = int(np.median(border))
    if grey.size != (width, height):
        from PIL import ImageOps

        notes.append(f"resized from {grey.width}x{grey.height} to {width}x{height}")
        pixels = np.asarray(ImageOps.pad(grey, (width, height), color=background))
    if background > LIGHT:
        notes.append("inverted, because the background is light")
        pixels = 255 - pixels
    if info.dtype is not DType.uint8:
        pixels = pixels.astype(np.float32) / np.float32(255)
    return pixels.reshape(1, 1, height, width), notes


def _grey(path: Path) -> tuple[Image.Image, list[str]]:
    """The image in 8-bit grey, upright, without transparency; and what was done to it."""
    image = _opened(path)
    notes = []
    if image.has_transparency_data:
        from PIL import Image

        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
        notes.append("put on white where it is transparent")
    if image.mode != "L":
        image = image.convert("L")
        notes.append("turned to grey")
    return image, notes


def read_picture(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The picture in the file `path`, upright: uint8 H x W, or H x W x 3, or 4 with transparency.

    Of 16 bits a channel the upper eight are taken. Needs Pillow. Raises ModelError where the file
    is no image of FORMATS or Pillow is missing.
    """
    image = _opened(Path(path))
    if image.mode not in ("L", "RGB", "RGBA"):
        colours = "RGBA" if image.has_transparency_data else "RGB"
        image = image.convert("L" if image.mode == "1" else colours)
    return np.asarray(image)


def is_picture(path: Path) -> bool:
    """Whether `path` is a file that is called like a picture. Raises ModelError without Pillow."""
    return _format(path) is not None and path.is_file()


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise ModelError where no picture is called like `path`, or Pillow is missing."""
    if _format(Path(path)) is None:
        raise ModelError(f"{path}: expected the name of an image ({', '.join(FORMATS)})")


def write_picture(path: str | os.PathLike[str], picture: NDArray[np.uint8]) -> None:
    """Write `picture`, uint8 H x W, H x W x 3 or H x W x 4, whole or not at all.

    The ending of `path` says in which of FORMATS. Needs Pillow. Raises ModelError where that has
    no such pictures, or the file cannot be written.
    """
    target = Path(path)
    check_picture(target)
    from PIL import Image

    try:
        with whole(target) as stream:
            Image.fromarray(picture).save(stream, format=_format(target))
    except (OSError, ValueError) as error:  # Pillow's own for a mode that a format has not
        raise ModelError(f"{target}: cannot be written: {fault(error)}") from None


def _format(path: Path) -> str | None:
    """Which of FORMATS the ending of `path` stands for. Raises ModelError without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise _missing(path) from None
    found = Image.registered_extensions().get(path.suffix.lower())
    return found if found in FORMATS else None


def _missing(path: Path) -> ModelError:
    return ModelError(f"{path}: reading and writing images needs Pillow: install glnn[images]")


def _opened(path: Path) -> Image.Image:
    """The image, upright, of 8 bits a channel."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise _missing(path) from None
    check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, which is not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with (
                open(path, "rb", opener=regular) as stream,
                Image.open(stream, formats=FORMATS) as file,
            ):
                image: Image.Image = ImageOps.exif_transpose(file)
        if image.mode in ("F", "I"):  # nothing says what its numbers mean
            raise ModelError(f"{path}: expected 8 or 16 bits a channel, got mode {image.mode}")
        if image.mode.startswith("I;16"):  # Pillow would clip, not scale
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    except ModelError:
        raise
    except UnidentifiedImageError:
        raise ModelError(f"{path}: expected an image ({', '.join(FORMATS)})") from None
    except Exception as error:  # a damaged image can raise nearly anything
        raise ModelError(f"{path}: cannot be read as an image: {first_line(error)}") from None
    return image
