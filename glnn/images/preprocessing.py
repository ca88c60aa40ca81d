"""Conversion of pictures to inputs of networks: resizing, normalisation, layout; digits, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.plural import count_of
from glnn.core.tensor_info import TensorInfo, show
from glnn.core.types import DType
from glnn.errors import ModelError, ShapeError, shown
from glnn.images.files import flatten, image_of, open_image

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
"""Pillow's numbers of its interpolation filters."""
BILINEAR = FILTERS["bilinear"]


def resize(
    image: Image.Image, size: int | tuple[int, int] | None, filter: int, antialias: bool
) -> Image.Image:
    """Resize an image so that the shorter side has `size` pixels, or to that height and width.

    Raises ShapeError for a result of more than MOST_PIXELS.
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
    """Resize `pixels`, h x w or h x w x 3, by bilinear interpolation without anti-aliasing."""
    result = pixels.astype(np.float32)
    for axis, size in enumerate((height, width)):
        count = result.shape[axis]
        coordinates = (np.arange(size, dtype=np.float64) + 0.5) * (count / size) - 0.5
        coordinates = np.maximum(coordinates, 0)
        before = np.minimum(coordinates.astype(np.int64), count - 1)
        after = np.minimum(before + 1, count - 1)
        weight = (coordinates - before).astype(np.float32)
        weight = weight.reshape((-1,) + (1,) * (result.ndim - 1 - axis))
        result = result.take(before, axis) * (1 - weight) + result.take(after, axis) * weight
    return np.rint(result).astype(np.uint8)


def crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the centre of an image, of `size` (height, width), with black beyond the image."""
    width, height = image.size
    tall, wide = size
    left = _start(width, wide)
    top = _start(height, tall)
    return image.crop((left, top, left + wide, top + tall))


def _start(length: int, size: int) -> int:
    """Return the start of the centre, rounded as torchvision rounds it."""
    if size > length:
        return -((size - length) // 2)
    return round((length - size) / 2)


@dataclass(frozen=True)
class Letterbox:
    """The place of a whole picture in a frame: as large as fits, centred.

    picture: its height and width. top, left, height, width: the part of the frame that it takes, in
    the frame's pixels.
    """

    picture: tuple[int, int]
    top: int
    left: int
    height: int
    width: int

    @classmethod
    def fit(cls, picture: tuple[int, int], frame: tuple[int, int]) -> Letterbox:
        """Fit a picture into a frame, both (height, width); an odd pixel goes below or right."""
        scale = min(frame[0] / picture[0], frame[1] / picture[1])
        height, width = (max(1, round(side * scale)) for side in picture)
        top, left = int((frame[0] - height) / 2), int((frame[1] - width) / 2)
        return cls(picture, top, left, height, width)

    def to_picture(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert points (..., 2), x and y, from the frame's pixels to the picture's."""
        scale = np.array((self.picture[1] / self.width, self.picture[0] / self.height), np.float32)
        return (points - np.array((self.left, self.top), np.float32)) * scale


def letterbox(
    image: Image.Image, frame: tuple[int, int], border: int, filter: int, antialias: bool
) -> Image.Image:
    """Fit the whole image into the centre of a frame, (height, width).

    border: the grey value of the rest of the frame. Raises ShapeError for too many pixels.
    """
    from PIL import Image

    box = Letterbox.fit((image.height, image.width), frame)
    inner = resize(image, (box.height, box.width), filter, antialias)
    colour = border if image.mode == "L" else (border,) * 3
    result = Image.new(image.mode, (frame[1], frame[0]), colour)
    result.paste(inner, (box.left, box.top))
    return result


DTYPES = (DType.float32, DType.float16, DType.uint8)


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
        if info.dtype in DTYPES and (place := cls.in_shape(shape)) is not None:
            return place
        raise ShapeError(
            f"input {info.name!r} of shape {show(shape)} and {info.dtype.value} takes no image: "
            "expected (N, 3, height, width) or (N, height, width, 3), or 1 for 3, "
            "of float32, float16 or uint8"
        )

    @classmethod
    def in_shape(cls, shape: tuple[int | str, ...]) -> ImageInput | None:
        """Return the layout of an input of `shape`; None where it takes no pictures."""
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


COLOURS: Mapping[str, int] = {"RGB": 3, "BGR": 3, "L": 1}
"""The number of channels, by their order: RGB, BGR, or grey (L)."""
MOST_SIDE = 1 << 15
Size = int | tuple[int, int]
"""The shorter side, or the side of a square, in pixels; or height and width."""


@dataclass(frozen=True)
class Preprocessing:
    """The conversion of a picture to numbers, as torchvision's: resize, crop, scale, normalise.

    Each number is (byte * scale / 255 - mean) / std in float32; for a scale of 1 that is the result
    of Resize, CenterCrop, ToTensor and Normalize. Raises ModelError for wrong arguments.
    """

    resize: Size | None = None
    """The shorter side in pixels, or height and width; None: not resized."""
    crop: Size | None = None
    """The height and width of the centre, with black beyond the picture; None: not cropped."""
    interpolation: str = "bilinear"
    """Pillow's interpolation: nearest, box, bilinear, hamming, bicubic or lanczos."""
    antialias: bool = True
    """Whether shrinking averages over pixels; False only for nearest and bilinear."""
    scale: float = 1.0
    """The number for the greatest byte, 255: 1, or 255 to leave numbers unscaled."""
    mean: tuple[float, ...] = ()
    """The numbers subtracted from the channels, in the model's order, or one number for all."""
    std: tuple[float, ...] = ()
    """The divisors of the channels after that, or one number for all."""
    colours: str = "RGB"
    """The channels: one of COLOURS."""
    letterbox: int | None = None
    """The grey value around the whole picture, which keeps its proportions, in a frame of the size
    `resize`; None: no frame."""

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            object.__setattr__(self, name, _check_size(name, getattr(self, name)))
        if not isinstance(self.interpolation, str) or self.interpolation not in FILTERS:
            known = ", ".join(FILTERS)
            raise ModelError(f"interpolation: expected {known}, got {shown(self.interpolation)}")
        if not isinstance(self.antialias, bool):
            raise ModelError(f"antialias: expected a bool, got {shown(self.antialias)}")
        if not self.antialias and self.interpolation not in ("nearest", "bilinear"):
            raise ModelError(f"{self.interpolation} is always antialiased: expected antialias=True")
        if not isinstance(self.colours, str) or self.colours not in COLOURS:
            raise ModelError(f"colours: expected {', '.join(COLOURS)}, got {shown(self.colours)}")
        if self.letterbox is not None:
            if type(self.letterbox) is not int or not 0 <= self.letterbox <= 255:
                raise ModelError(f"letterbox: expected 0 to 255, got {shown(self.letterbox)}")
            if self.crop is not None:
                raise ModelError("crop: a letterboxed picture is kept whole: expected none")
            if self.resize is None:
                raise ModelError("letterbox: expected resize, too, the size of the frame, got None")
            object.__setattr__(self, "resize", _height_and_width(self.resize))
        object.__setattr__(self, "scale", _check_number("scale", self.scale))
        for name in ("mean", "std"):
            object.__setattr__(self, name, self._numbers(name))
        if not all(np.float32(n) > 0 for n in (self.scale, *self.std)):
            raise ModelError(f"scale and std must be positive, got {self.scale} and {self.std}")

    def _numbers(self, name: str) -> tuple[float, ...]:
        """Return the field `name`, checked, as a tuple of numbers."""
        numbers = getattr(self, name)
        if numbers is None:
            return ()
        if isinstance(numbers, (int, float)):
            numbers = (numbers,)
        if not isinstance(numbers, (tuple, list)) or len(numbers) not in (
            0,
            1,
            COLOURS[self.colours],
        ):
            wanted = "one number" if self.colours == "L" else "3 numbers, or one for all channels"
            raise ModelError(f"{name}: expected {wanted}, got {shown(numbers)}")
        return tuple(_check_number(name, number) for number in numbers)

    @classmethod
    def imagenet(cls, size: Size | TensorInfo = 224) -> Preprocessing:
        """Return the preprocessing of torchvision's networks for ImageNet.

        Pictures are resized to 256/224 of the size and cropped to it, with the means and standard
        deviations of ImageNet's colours.

        size: the side of a square in pixels, or height and width; or the input whose size it is,
        224 where that is open. Raises ShapeError for an input that takes no pictures.
        """
        if isinstance(size, TensorInfo):
            size = ImageInput.from_info(size).fixed_size or 224
        height, width = _height_and_width(size)
        crop = height if height == width else (height, width)
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        return cls(max(height, width) * 256 // 224, crop, mean=mean, std=std)

    @classmethod
    def from_json(cls, document: object) -> Preprocessing:
        """Return the preprocessing that `to_json` converted.

        Raises ModelError for anything else.
        """
        if not isinstance(document, dict):
            raise ModelError(f"a preprocessing is a JSON object, got {shown(document)}")
        known = {one.name for one in fields(cls)}
        if unknown := [key for key in document if key not in known]:
            listed = ", ".join(sorted(known))
            raise ModelError(f"a preprocessing has no {shown(unknown[0])}, it has {listed}")
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain dicts, lists and numbers."""
        result = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in result.items()}

    def __str__(self) -> str:
        """Describe the operations in order."""
        done = []
        if self.resize is not None:
            is_full_size = isinstance(self.resize, tuple)
            frame = "" if self.letterbox is None else f", its proportions kept on {self.letterbox}"
            detail = frame if is_full_size else " (the shorter side)"
            done.append(f"resized to {_show_size(self.resize)}{detail}")
        if self.crop is not None:
            done.append(f"the centre {_show_size(self.crop)}")
        done.append({"L": "grey"}.get(self.colours, self.colours))
        done.append(f"0..{self.scale:g}")
        done += [f"mean {_join_numbers(self.mean)}"] if self.mean else []
        done += [f"std {_join_numbers(self.std)}"] if self.std else []
        return ", ".join(done)

    def bytes_of(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize and crop a picture to bytes: uint8 h x w x C, the channels in the model's order.

        picture: uint8 H x W, H x W x 3 or H x W x 4. Needs Pillow. Raises ShapeError for other
        arrays.
        """
        image, _ = flatten(image_of(picture), self.colours == "L")
        options = FILTERS[self.interpolation], self.antialias
        if self.letterbox is not None and self.resize is not None:  # both or none: __post_init__
            image = letterbox(image, _height_and_width(self.resize), self.letterbox, *options)
        else:
            image = resize(image, self.resize, *options)
        pixels = np.asarray(
            image if self.crop is None else crop(image, _height_and_width(self.crop))
        )
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        return pixels[..., ::-1] if self.colours == "BGR" else pixels

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Convert a picture to a network's input: float32 (C, h, w).

        picture: uint8 H x W x 3 in RGB, H x W or H x W x 4; transparency shows white. Needs Pillow.
        Raises ShapeError for other arrays, and where the result would be too large.
        """
        numbers = np.ascontiguousarray(self.bytes_of(picture).transpose(2, 0, 1), np.float32)
        if self.scale != 255:  # 255 leaves bytes unscaled
            numbers /= np.float32(255 / self.scale)
        if self.mean:
            numbers -= np.array(self.mean, np.float32).reshape(-1, 1, 1)
        if self.std:
            numbers /= np.array(self.std, np.float32).reshape(-1, 1, 1)
        return numbers

    def sample(self, picture: NDArray[np.uint8], info: TensorInfo) -> NDArray[Any]:
        """Convert a picture to one sample of the input `info`: (1, C, h, w), or (1, h, w, C) where
        the input has the channels last, in its dtype. An input of uint8 gets unscaled bytes.

        Raises ShapeError where the input takes no such picture.
        """
        place = ImageInput.from_info(info)
        self.check(info)
        result: NDArray[Any]
        if info.dtype is DType.uint8:
            result = self.bytes_of(picture).transpose(2, 0, 1)
        else:
            result = self(picture).astype(info.dtype.numpy, copy=False)
        sizes = result.shape[1:]
        if any(isinstance(n, int) and n != m for n, m in zip(place.size, sizes, strict=True)):
            raise ShapeError(
                f"a picture becomes {sizes[0]} x {sizes[1]}, input {info.name!r} takes "
                f"{show(info.shape)}: expected another resize or crop"
            )
        return np.ascontiguousarray(result if place.first else result.transpose(1, 2, 0))[None]

    def check(self, info: TensorInfo) -> None:
        """Raise ShapeError where the input `info` takes no pictures, or other channels."""
        place, count = ImageInput.from_info(info), COLOURS[self.colours]
        if place.channels not in (None, count):
            raise ShapeError(
                f"input {info.name!r} takes {count_of(place.channels, 'channel')}, "
                f"{self.colours} has {count}"
            )
        if info.dtype is DType.uint8 and (self.mean or self.std or self.scale not in (1, 255)):
            raise ShapeError(f"input {info.name!r} takes bytes: expected no scale, mean or std")

    def read(self, path: str | os.PathLike[str], info: TensorInfo) -> NDArray[Any]:
        """Read the picture in the file `path` as one sample of the input `info`: see `sample`.

        It is rotated by its EXIF orientation. Raises ModelError where it cannot be read.
        """
        return self.sample(np.asarray(flatten(open_image(Path(path)))[0]), info)


def _show_size(size: Size) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _join_numbers(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{n:g}" for n in numbers)


def _height_and_width(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _check_size(name: str, size: object) -> Size | None:
    """Return `size` checked, a pair as a tuple."""
    sides: list[Any] = list(size) if isinstance(size, (tuple, list)) else [size]
    are_valid = all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and 0 < n <= MOST_SIDE
        for n in sides
    )
    if size is None:
        return None
    if not are_valid or len(sides) not in (1, 2):
        wanted = f"1 to {MOST_SIDE} pixels, or height and width"
        raise ModelError(f"{name}: expected {wanted}, got {shown(size)}")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _check_number(name: str, value: object) -> float:
    is_number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    try:
        result = float(value) if is_number else float("nan")  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond the range of floats
        result = float("nan")
    if not isfinite(np.float32(result) if abs(result) < 1e38 else float("nan")):
        raise ModelError(f"{name}: expected numbers that float32 has, got {shown(value)}")
    return result


LIGHT = 127  # grey values above it are nearer to white than to black


def read_image(
    path: str | os.PathLike[str], info: TensorInfo, invert: bool = True
) -> tuple[NDArray[Any], list[str]]:
    """Read the image in the file `path` as the input `info`; return it and notes of conversions.

    The result is (1, 1, h, w), white on black, floats from 0 to 1, or bytes for an input of uint8.
    A coloured image becomes grey, one of another size is resized with its proportions, and one with
    a light background is inverted unless `invert` is False. Needs Pillow. Raises ModelError where
    the file is no image of FORMATS or Pillow is missing, ShapeError where the input is no grey
    image.
    """
    _picture_size(info)
    return digit_of(open_image(Path(path)), info, invert)


def digit_of(
    image: Image.Image, info: TensorInfo, invert: bool = True
) -> tuple[NDArray[Any], list[str]]:
    """Convert an image as `read_image` does. Raises ShapeError where the input is no grey image."""
    height, width = _picture_size(info)
    grey, notes = flatten(image, grey=True)
    # The background is the median of the border.
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


def _picture_size(info: TensorInfo) -> tuple[int, int]:
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
