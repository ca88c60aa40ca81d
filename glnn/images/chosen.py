"""What is done to the pictures of one input: said by its model, asked for, or assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glnn.errors import ModelError, ShapeError
from glnn.images.described import described
from glnn.images.place import Place
from glnn.images.preprocessing import Preprocessing
from glnn.images.ultralytics import Shapes, check_multiples, stride_of
from glnn.tensor_info import TensorInfo


@dataclass(frozen=True)
class Chosen:
    """A preprocessing, and where it comes from."""

    how: Preprocessing
    """What is done."""
    assumed: bool = False
    """Whether nobody said anything of it."""

    @classmethod
    def of(
        cls,
        info: TensorInfo,
        metadata: Mapping[str, str],
        asked: Mapping[str, Any] | None = None,
        instead: Preprocessing | None = None,
        outputs: Shapes = (),
    ) -> Chosen:
        """What is done to pictures for the input `info`.

        metadata: the model's, which may describe it. outputs: the shapes of the model's outputs,
        by which some metadata are understood. instead: what is taken in place of that. asked:
        fields of a Preprocessing that are to be others. What is left open is chosen by the input:
        its size, and grey where it has one channel; where nothing says how large pictures are
        made, the shorter side is as long as the input's, and the centre is kept. Raises ModelError
        for what cannot be, ShapeError where the input takes no such pictures.
        """
        asked = dict(asked or {})
        place = Place.of(info)
        base = instead or described(metadata, outputs)
        if base is None:
            base = Preprocessing(colours="L" if place.channels == 1 else "RGB")
            assumed = not asked
        else:
            assumed = False
        if asked.get("interpolation", base.interpolation) == "nearest":
            asked.setdefault("antialias", base.antialias)
        if asked.get("letterbox", base.letterbox) is not None and place.known is not None:
            asked.setdefault("resize", place.known)
        how = replace(base, **asked)
        how = _sized(how, place.known)
        if isinstance(how.resize, tuple) and how.letterbox is not None:
            check_multiples(how.resize, stride_of(metadata, outputs), "the frame of pictures")
        how.check(info)
        _check_size(how, place.known)
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


def _sized(how: Preprocessing, size: tuple[int, int] | None) -> Preprocessing:
    """With what it takes to be as large as the input, where that is not said."""
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
