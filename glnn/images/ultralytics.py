"""Metadata of exports by Ultralytics: the task of a model, its classes, its pictures' size."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glnn.errors import ShapeError
from glnn.images.labels import Labels, labels_of
from glnn.images.preprocessing import Preprocessing

TASKS = ("detect", "segment", "pose", "classify")
"""Tasks whose outputs are read; others, as oriented boxes (obb), are not."""
FRAME = (640, 640)
"""The size where neither metadata nor the input say it."""
BORDER = 114
"""The grey value around pictures in their frame."""
IMAGENET = Preprocessing.imagenet()
LONGEST = 1 << 16  # characters of an entry
SIDES = (1, 1 << 15)
Shapes = Collection[Sequence[int | str]]
"""The shapes of a model's outputs."""


@dataclass(frozen=True)
class Export:
    """The metadata of an export."""

    task: str | None
    """A name of TASKS or another; None where it is not stated, as by YOLOv5's detectors."""
    labels: Labels
    """Names by the numbers of classes."""
    size: tuple[int, int] | None = None
    """Height and width of the pictures that it was exported for."""
    stride: int = 1
    """Heights and widths must be multiples of it."""
    keypoints: tuple[int, int] = (0, 0)
    """Keypoints of an object, and numbers of each: x, y, and maybe a score."""
    compared: bool | None = None
    """True where the model has compared the boxes (end2end, nms), None where it is not said."""
    yolov5: bool = False
    """Whether it is a classifier of YOLOv5, whose colours are normalised as ImageNet's."""

    @classmethod
    def of(cls, metadata: Mapping[str, str], outputs: Shapes = ()) -> Export | None:
        """Read a model's metadata; None where they are no export's.

        outputs: by which classifiers are told from detectors where the metadata state no task.
        """
        task, labels = metadata.get("task"), labels_of(metadata)
        stride = _value(metadata, "stride")
        known = stride is not None if task is None else task in (*TASKS, "obb")
        if "names" not in metadata or labels is None or not known:
            return None
        size, keypoints = _pair(_value(metadata, "imgsz")), _pair(_value(metadata, "kpt_shape"))
        step = stride if _is_side(stride) else 1
        yolov5 = task is None and _is_scores(outputs, len(labels))
        task = "classify" if yolov5 else task
        return cls(task, labels, size, step, keypoints or (0, 0), _compares_boxes(metadata), yolov5)

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of pictures: letterboxed, except for classifiers."""
        if self.task == "classify":
            square = self.size is not None and self.size[0] == self.size[1]
            resize = self.size[0] if self.size is not None and square else self.size
            if self.yolov5:
                mean, std = IMAGENET.mean, IMAGENET.std
                return Preprocessing(resize, resize, antialias=False, mean=mean, std=std)
            return Preprocessing(resize, resize)
        return Preprocessing(self.size or FRAME, antialias=False, letterbox=BORDER)


def stride_of(metadata: Mapping[str, str], outputs: Shapes = ()) -> int:
    """Return the step of heights and widths, as a model's metadata say; 1 without any."""
    found = Export.of(metadata, outputs)
    return 1 if found is None or found.task == "classify" else found.stride


def check_multiples(size: tuple[int, int], stride: int, what: str) -> None:
    """Raise ShapeError where a side is no multiple of `stride`, with sizes that would do."""
    if not any(side % stride for side in size):
        return
    below = [max(stride, side // stride * stride) for side in size]
    above = [-(-side // stride) * stride for side in size]
    nearest = " or ".join(dict.fromkeys(f"{h} x {w}" for h, w in (below, above)))
    raise ShapeError(
        f"{what} is {size[0]} x {size[1]}: the model takes heights and widths that are multiples "
        f"of {stride}, as {nearest}"
    )


def _is_scores(outputs: Shapes, classes: int) -> bool:
    """Return True where there is one output, scores (n, classes): boxes have other columns."""
    shapes = [tuple(shape) for shape in outputs]
    return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] == classes


def _compares_boxes(metadata: Mapping[str, str]) -> bool | None:
    """Return whether boxes are compared by the model; None where `end2end` is not there: YOLOv10
    has no use for nms, and its exports state that there is none.
    """
    whole, options = _value(metadata, "end2end"), _value(metadata, "args")
    if whole is True or (isinstance(options, dict) and options.get("nms") is True):
        return True
    return False if whole is False else None


def _value(metadata: Mapping[str, str], key: str) -> Any:
    """Parse the literal of an entry; return None for any other text."""
    text = metadata.get(key, "")
    if not 0 < len(text) <= LONGEST:
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _pair(value: object) -> tuple[int, int] | None:
    """Return two sides, where one number stands for both."""
    sides = [value, value] if _is_side(value) else value
    if isinstance(sides, (list, tuple)) and len(sides) == 2 and all(map(_is_side, sides)):
        return int(sides[0]), int(sides[1])
    return None


def _is_side(value: object) -> bool:
    return type(value) is int and SIDES[0] <= value <= SIDES[1]
