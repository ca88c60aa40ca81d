"""Pictures: files, preprocessing, and the names of classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from glnn.images.camera import Camera
from glnn.images.detection import DetectedObject, Detector
from glnn.images.drawing import draw_labels, draw_objects
from glnn.images.files import read_picture, write_picture
from glnn.images.labels import KEY as LABELS
from glnn.images.labels import labels_of, read_labels, text_of
from glnn.images.preprocessing import Preprocessing
from glnn.images.preprocessing_config import (
    KEY,
    PreprocessingChoice,
    described,
    from_config,
    read_preprocessing,
)

__all__ = [
    "Camera",
    "DetectedObject",
    "Detector",
    "Preprocessing",
    "PreprocessingChoice",
    "described",
    "draw_labels",
    "draw_objects",
    "from_config",
    "labels_of",
    "metadata",
    "read_labels",
    "read_picture",
    "read_preprocessing",
    "write_picture",
]


def metadata(
    preprocessing: Preprocessing | None = None,
    labels: Mapping[int, str] | Sequence[str] | None = None,
) -> dict[str, str]:
    """Return metadata about a model's pictures and classes, for `Model(..., metadata=)`.

    labels: names in the order of classes, or by the numbers of classes. Raises ModelError for
    labels that are no names.
    """
    result = {} if preprocessing is None else {KEY: json.dumps(preprocessing.to_json())}
    return result if labels is None else {**result, LABELS: text_of(labels)}
