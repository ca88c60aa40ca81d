"""The preprocessing of pictures before a network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError, shown
from glnn.images.files import flatten, image_of, open_image
from glnn.images.image_input import ImageInput
from glnn.images.resizing import FILTERS, crop, letterbox, resize
from glnn.tensor_info import TensorInfo, show
from glnn.types import DType

COLOURS: Mapping[str, int] = {"RGB": 3, "BGR": 3, "L": 1}
"""The channels of a picture, and their number: red, green and blue in one order or the other,
or grey."""
MOST_SIDE = 1 << 15
Size = int | tuple[int, int]
"""Pixels of the shorter side, or of a square; or height and width."""


@dataclass(frozen=True)
class Preprocessing:
    """The steps from a picture to numbers, as torchvision has them: resize, crop, scale, normalise.

    Each number is (byte * scale / 255 - mean) / std in float32, what Resize, CenterCrop, ToTensor
    and Normalize give for a scale of 1. Raises ModelError for what none of that can be.
    """

    resize: Size | None = None
    """The pixels of the shorter side, or height and width; None: as large as it is."""
    crop: Size | None = None
    """The height and width of the centre that is kept, black where the picture ends; None: all."""
    interpolation: str = "bilinear"
    """Pillow's interpolation: nearest, box, bilinear, hamming, bicubic or lanczos."""
    antialias: bool = True
    """Whether a picture that becomes smaller is averaged over; without, nearest or bilinear
    only."""
    scale: float = 1.0
    """The number for the brightest byte, 255: 1, or 255 where the numbers stay as they are."""
    mean: tuple[float, ...] = ()
    """The number subtracted from each channel, in the model's order; one number is for all."""
    std: tuple[float, ...] = ()
    """The divisor of each channel after that; one number is for all."""
    colours: str = "RGB"
    """The channels: one of COLOURS."""
    letterbox: int | None = None
    """The grey value around the whole picture, its proportions kept, in a frame of `resize`; None:
    there is no frame."""

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
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
            object.__setattr__(self, "resize", _pair(self.resize))
        object.__setattr__(self, "scale", _number("scale", self.scale))
        for name in ("mean", "std"):
            object.__setattr__(self, name, self._numbers(name))
        if not all(np.float32(n) > 0 for n in (self.scale, *self.std)):
            raise ModelError(f"scale and std must be positive, got {self.scale} and {self.std}")

    def _numbers(self, name: str) -> tuple[float, ...]:
        """Return the numbers of the channels."""
        given = getattr(self, name)
        if given is None:
            return ()
        if isinstance(given, (int, float)):
            given = (given,)
        if not isinstance(given, (tuple, list)) or len(given) not in (0, 1, COLOURS[self.colours]):
            wanted = "one number" if self.colours == "L" else "3 numbers, or one for all channels"
            raise ModelError(f"{name}: expected {wanted}, got {shown(given)}")
        return tuple(_number(name, number) for number in given)

    @classmethod
    def imagenet(cls, size: int = 224) -> Preprocessing:
        """Return the preprocessing of torchvision's networks for ImageNet.

        The centre 224 of 256 pixels, or as large a part of other sizes, with the means and
        deviations of ImageNet's colours.
        """
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        return cls(size * 256 // 224, size, mean=mean, std=std)

    @classmethod
    def from_json(cls, document: object) -> Preprocessing:
        """Make a preprocessing of what `to_json` returned, as JSON reads it.

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
        found = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}

    def __str__(self) -> str:
        """Describe the steps in their order."""
        done = []
        if self.resize is not None:
            whole = isinstance(self.resize, tuple)
            framed = "" if self.letterbox is None else f", its proportions kept on {self.letterbox}"
            part = framed if whole else " (the shorter side)"
            done.append(f"resized to {_show_size(self.resize)}{part}")
        if self.crop is not None:
            done.append(f"the centre {_show_size(self.crop)}")
        done.append({"L": "grey"}.get(self.colours, self.colours))
        done.append(f"0..{self.scale:g}")
        done += [f"mean {_join_numbers(self.mean)}"] if self.mean else []
        done += [f"std {_join_numbers(self.std)}"] if self.std else []
        return ", ".join(done)

    def bytes_of(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The picture, H x W, H x W x 3 or H x W x 4, as large as the network takes it: uint8
        h x w x C, the channels in its order. Needs Pillow. Raises ShapeError for other arrays.
        """
        image, _ = flatten(image_of(picture), self.colours == "L")
        how = FILTERS[self.interpolation], self.antialias
        if self.letterbox is not None and self.resize is not None:  # as __post_init__ has it
            image = letterbox(image, _pair(self.resize), self.letterbox, *how)
        else:
            image = resize(image, self.resize, *how)
        pixels = np.asarray(image if self.crop is None else crop(image, _pair(self.crop)))
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        return pixels[..., ::-1] if self.colours == "BGR" else pixels

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The picture, uint8 H x W x 3 in RGB, H x W or H x W x 4, as a network takes it: float32
        (C, h, w). What is transparent is put on white. Needs Pillow. Raises ShapeError for other
        arrays, and where it would become too large.
        """
        numbers = np.ascontiguousarray(self.bytes_of(picture).transpose(2, 0, 1), np.float32)
        if self.scale != 255:  # which leaves them
            numbers /= np.float32(255 / self.scale)
        if self.mean:
            numbers -= np.array(self.mean, np.float32).reshape(-1, 1, 1)
        if self.std:
            numbers /= np.array(self.std, np.float32).reshape(-1, 1, 1)
        return numbers

    def sample(self, picture: NDArray[np.uint8], info: TensorInfo) -> NDArray[Any]:
        """The picture as one sample of the input `info`: (1, C, h, w), or (1, h, w, C) where its
        shape has the channels last; of the input's type, bytes as they are.

        Raises ShapeError where the input takes no such picture.
        """
        place = ImageInput.from_info(info)
        self.check(info)
        found: NDArray[Any]
        if info.dtype is DType.uint8:
            found = self.bytes_of(picture).transpose(2, 0, 1)
        else:
            found = self(picture).astype(info.dtype.numpy, copy=False)
        sizes = found.shape[1:]
        if any(isinstance(n, int) and n != m for n, m in zip(place.size, sizes, strict=True)):
            raise ShapeError(
                f"a picture becomes {sizes[0]} x {sizes[1]}, input {info.name!r} takes "
                f"{show(info.shape)}: expected another resize or crop"
            )
        return np.ascontiguousarray(found if place.first else found.transpose(1, 2, 0))[None]

    def check(self, info: TensorInfo) -> None:
        """Raise ShapeError where the input `info` takes no pictures, or not of these channels."""
        place, count = ImageInput.from_info(info), COLOURS[self.colours]
        if place.channels not in (None, count):
            raise ShapeError(
                f"input {info.name!r} takes {place.channels} channels, {self.colours} has {count}"
            )
        if info.dtype is DType.uint8 and (self.mean or self.std or self.scale not in (1, 255)):
            raise ShapeError(f"input {info.name!r} takes bytes: expected no scale, mean or std")

    def read(self, path: str | os.PathLike[str], info: TensorInfo) -> NDArray[Any]:
        """Read the picture in the file `path` as one sample of the input `info`: see `sample`.

        Upright, as its camera says. Raises ModelError where it cannot be read.
        """
        return self.sample(np.asarray(flatten(open_image(Path(path)))[0]), info)


def _show_size(size: Size) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _join_numbers(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{n:g}" for n in numbers)


def _pair(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _size(name: str, size: object) -> Size | None:
    """Return a size as the dataclass has it: pairs are tuples."""
    sides: list[Any] = list(size) if isinstance(size, (tuple, list)) else [size]
    whole = all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and 0 < n <= MOST_SIDE
        for n in sides
    )
    if size is None:
        return None
    if not whole or len(sides) not in (1, 2):
        wanted = f"1 to {MOST_SIDE} pixels, or height and width"
        raise ModelError(f"{name}: expected {wanted}, got {shown(size)}")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _number(name: str, value: object) -> float:
    fits = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    try:
        found = float(value) if fits else float("nan")  # type: ignore[arg-type]
    except OverflowError:  # an integer that no float is
        found = float("nan")
    if not isfinite(np.float32(found) if abs(found) < 1e38 else float("nan")):
        raise ModelError(f"{name}: expected numbers that float32 has, got {shown(value)}")
    return found
