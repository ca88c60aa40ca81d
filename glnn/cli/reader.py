"""Pictures as samples of a model's input: as digits, or as the model or the user says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.images.chosen import Chosen
from glnn.images.described import described, read_preprocessing
from glnn.images.digits import digit_of, read_image
from glnn.images.files import check_pillow, flattened, image_of, opened
from glnn.images.place import Place
from glnn.model import Model
from glnn.tensor_info import TensorInfo
from glnn.types import DType

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Reader:
    """What makes samples of pictures."""

    info: TensorInfo
    """The input."""
    chosen: Chosen | None
    """What is done to them; None: they are digits, white on black."""
    invert: bool = True
    """Whether digits on a light background are inverted."""

    @classmethod
    def of(cls, model: Model, asked: Mapping[str, Any], instead: str | None) -> Reader:
        """For the only input of `model`.

        asked: fields of a Preprocessing that are to be others, and `invert`. instead: what is taken
        in place of the model's own, as `read_preprocessing` takes it. A model that says nothing,
        and takes grey pictures of one size, gets digits where nobody asks for anything else.
        Raises ModelError without Pillow and for what cannot be, ShapeError where the input takes
        no pictures.
        """
        check_pillow()
        info = model.inputs[0]
        place = Place.of(info)
        outputs = model.output_shapes.values()
        fields = {name: value for name, value in asked.items() if name != "invert"}
        plain = not fields and instead is None and described(model.metadata, outputs) is None
        if plain and place.channels == 1 and place.first and place.known is not None:
            return cls(info, None, asked.get("invert", True))
        taken = None if instead is None else read_preprocessing(instead)
        return cls(info, Chosen.of(info, model.metadata, fields, taken, outputs))

    def read(self, path: Path, keep: bool) -> tuple[NDArray[Any], list[str], Picture | None]:
        """Read the picture in the file `path`: as a sample (1, ...), what is to be said of it, and
        itself, H x W x 3; None of a digit's unless asked to `keep` it. Raises ModelError or
        ShapeError where it cannot be one.
        """
        if self.chosen is None:
            sample, notes = read_image(path, self.info, self.invert)
            return sample, notes, np.asarray(flattened(opened(path))[0]) if keep else None
        image, notes = flattened(opened(path))
        pixels = np.asarray(image)
        return self.chosen.how.sample(pixels, self.info), notes, pixels

    def sample(self, picture: Picture) -> NDArray[Any]:
        """A picture, uint8 H x W x 3, as a sample (1, ...). Raises ShapeError as `read`."""
        if self.chosen is None:
            return digit_of(image_of(picture), self.info, self.invert)[0]
        return self.chosen.how.sample(picture, self.info)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said once, of all pictures."""
        if self.chosen is None or not self.chosen.assumed:
            return ()
        how = self.chosen.how
        how = replace(how, scale=255.0) if self.info.dtype is DType.uint8 else how
        return (f"the model says nothing of pictures, taken are: {how}",)

    def to_json(self) -> dict[str, Any]:
        """What is done to pictures, as plain dicts; empty for digits."""
        return {} if self.chosen is None else {"preprocessing": self.chosen.how.to_json()}
