"""The preprocessing of a model's input: from its metadata, overridden by the user, or assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glnn.errors import ModelError, ShapeError
from glnn.images.image_input import ImageInput
from glnn.images.preprocessing import Preprocessing
from glnn.images.preprocessing_config import described
from glnn.images.ultralytics import Shapes, check_multiples, stride_of
from glnn.tensor_info import TensorInfo


@dataclass(frozen=True)
class Chosen:
    """A preprocessing, and where it comes from."""

    how: Preprocessing
    """The preprocessing."""
    assumed: bool = False
    """Whether neither the model nor the user states anything of it."""

    @classmethod
    def of(
        cls,
        info: TensorInfo,
        metadata: Mapping[str, str],
        overrides: Mapping[str, Any] | None = None,
        instead: Preprocessing | None = None,
        outputs: Shapes = (),
    ) -> Chosen:
        """Choose the preprocessing of pictures for the input `info`.

        metadata: the model's, which may describe it. outputs: the shapes of the model's outputs,
        by which some metadata are understood. instead: what is taken in place of that. overrides:
        fields of a Preprocessing that are to be others. What is left open is chosen by the input:
        its size, and grey where it has one channel; where nothing says how large pictures are
        made, the shorter side is as long as the input's, and the centre is kept. Raises ModelError
        for what cannot be, ShapeError where the input takes no such pictures.
        """
        overrides = dict(overrides or {})
        place = ImageInput.from_info(info)
        base = instead or described(metadata, outputs)
        if base is None:
            base = Preprocessing(colours="L" if place.channels == 1 else "RGB")
            assumed = not overrides
        else:
            assumed = False
        if overrides.get("interpolation", base.interpolation) == "nearest":
            overrides.setdefault("antialias", base.antialias)
        if overrides.get("letterbox", base.letterbox) is not None and place.fixed_size is not None:
            overrides.setdefault("resize", place.fixed_size)
        how = replace(base, **overrides)
        how = _fit_size(how, place.fixed_size)
        if isinstance(how.resize, tuple) and how.letterbox is not None:
            check_multiples(how.resize, stride_of(metadata, outputs), "the frame of pictures")
        how.check(info)
        _check_size(how, place.fixed_size)
        return cls(how, assumed)


def _check_size(how: Preprocessing, size: tuple[int, int] | None) -> None:
    """Raise ShapeError where every picture becomes another size than the input's."""
    made = how.resize if how.crop is None else how.crop
    if size is None or made is None:
        return
    found = made if isinstance(made, tuple) else (made, made)
    if found != size:
        raise ShapeError(
            f"pictures become {found[0]} x {found[1]}, the input takes {size[0]} x {size[1]}: "
            "expected another resize or crop"
        )


def _fit_size(how: Preprocessing, size: tuple[int, int] | None) -> Preprocessing:
    """Make pictures as large as the input where the preprocessing does not state a size."""
    if size is None or how.crop is not None or isinstance(how.resize, tuple):
        return how
    square = size[0] if size[0] == size[1] else None
    if how.resize is None:
        return replace(how, resize=square or size, crop=square)
    if how.resize < min(size):
        raise ModelError(
            f"resize {how.resize}: the input takes {size[0]} x {size[1]}: expected no less, "
            "or height and width"
        )
    return replace(how, crop=size)
