"""Image files: reading and writing them by Pillow."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glnn.core.fileio import atomic_write, check_file, open_regular
from glnn.errors import ModelError, ShapeError, extra, fault, first_line

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""The formats that glnn reads; Pillow has more, and runs programs such as Ghostscript for some."""


def read_picture(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Read the picture in the file `path`: uint8 H x W, H x W x 3, or H x W x 4 with transparency.

    It is rotated by its EXIF orientation. Channels of 16 bits are reduced to their upper eight.
    Needs Pillow. Raises ModelError where the file is no image of FORMATS or Pillow is missing.
    """
    image = open_image(Path(path))
    if image.mode not in ("L", "RGB", "RGBA"):
        colours = "RGBA" if image.has_transparency_data else "RGB"
        image = image.convert("L" if image.mode == "1" else colours)
    return np.asarray(image)


def image_of(picture: NDArray[np.uint8]) -> Image.Image:
    """Convert a picture, uint8 H x W, H x W x 3 or H x W x 4, to Pillow's image.

    Raises ShapeError for other arrays, ModelError without Pillow.
    """
    try:
        from PIL import Image
    except ImportError:
        raise _missing("a picture") from None
    is_bytes = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.size
    if not is_bytes or not (
        picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] in (3, 4))
    ):
        got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else picture
        raise ShapeError(f"a picture is uint8 H x W, H x W x 3 or H x W x 4, got {got!s:.60}")
    return Image.fromarray(picture)


def flatten(image: Image.Image, grey: bool = False) -> tuple[Image.Image, list[str]]:
    """Convert an image to 8-bit RGB, or grey, without transparency; return it and notes of the
    conversions.
    """
    notes = []
    if image.has_transparency_data:
        from PIL import Image

        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
        notes.append("put on white where it is transparent")
    if image.mode != ("L" if grey else "RGB"):
        image = image.convert("L" if grey else "RGB")
        notes += ["turned to grey"] if grey else []
    return image, notes


def is_picture(path: Path) -> bool:
    """Return True where `path` is a file with the name of a picture.

    Raises ModelError without Pillow.
    """
    return has_picture_name(path) and path.is_file()


def has_picture_name(path: Path) -> bool:
    """Return True where `path` has the name of a picture. Raises ModelError without Pillow."""
    return _format(path) is not None


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise ModelError where `path` has no name of a picture, or Pillow is missing."""
    if _format(Path(path)) is None:
        raise ModelError(f"{path}: expected the name of an image ({', '.join(FORMATS)})")


def write_picture(path: str | os.PathLike[str], picture: NDArray[np.uint8]) -> None:
    """Write `picture`, uint8 H x W, H x W x 3 or H x W x 4, atomically.

    The extension of `path` decides the format. Needs Pillow. Raises ModelError where the format has
    no such pictures, or the file cannot be written.
    """
    target = Path(path)
    check_picture(target)
    from PIL import Image

    try:
        with atomic_write(target) as stream:
            Image.fromarray(picture).save(stream, format=_format(target))
    except (OSError, ValueError) as error:  # Pillow's, for a mode that the format lacks
        raise ModelError(f"{target}: cannot be written: {fault(error)}") from None


def _format(path: Path) -> str | None:
    """Return the format, one of FORMATS, of the extension of `path`, or None. Raises ModelError
    without Pillow.
    """
    try:
        from PIL import Image
    except ImportError:
        raise _missing(path) from None
    match = Image.registered_extensions().get(path.suffix.lower())
    return match if match in FORMATS else None


def check_pillow() -> None:
    """Raise ModelError where Pillow is missing."""
    try:
        from PIL import Image

        Image.init()  # not thread-safe: before threads start
    except ImportError:
        raise ModelError(f"reading and writing images needs Pillow: {extra('images')}") from None


def _missing(path: Path | str) -> ModelError:
    return ModelError(f"{path}: reading and writing images needs Pillow: {extra('images')}")


def open_image(path: Path) -> Image.Image:
    """Open an image with 8 bits a channel, rotated by its EXIF orientation."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise _missing(path) from None
    check_file(path)
    try:
        with (
            QUIET,
            open(path, "rb", opener=open_regular) as stream,
            Image.open(stream, formats=FORMATS) as file,
        ):
            image: Image.Image = ImageOps.exif_transpose(file)
        if image.mode in ("F", "I"):  # the range of its numbers is unknown
            raise ModelError(f"{path}: expected 8 or 16 bits a channel, got mode {image.mode}")
        if image.mode.startswith("I;16"):  # Pillow would clip the numbers instead of scaling them
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    except ModelError:
        raise
    except UnidentifiedImageError:
        raise ModelError(f"{path}: expected an image ({', '.join(FORMATS)})") from None
    except Exception as error:  # a damaged image can raise nearly anything
        raise ModelError(f"{path}: cannot be read as an image: {first_line(error)}") from None
    return image


class Quiet:
    """Context that ignores warnings about odd metadata, but raises those of too large pictures.

    Python's warning filters are global: the first thread that enters sets them, and the last that
    leaves restores them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        from PIL import Image

        with self._lock:
            if not self._inside:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.__exit__(kind, error, trace)


QUIET = Quiet()
"""The instance of this process, whose warning filters are global."""
