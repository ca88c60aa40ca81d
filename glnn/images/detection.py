"""Detection of objects in pictures, from outputs of YOLOv5, v8, v10, 11 and similar detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.array_functions import suppress_overlaps
from glnn.core.cached_property import cached_property
from glnn.core.types import Array, Shape
from glnn.errors import ModelError, shown
from glnn.images.labels import Labels
from glnn.images.preprocessing import Letterbox
from glnn.images.preprocessing_config import UltralyticsExport

CONFIDENCE, OVERLAP = 0.25, 0.7
"""The least score of an object, and the most overlap (IoU) with a better one of its class."""
MOST = 300
"""The default limit on the objects of a picture."""
MOST_CANDIDATES = 30000
"""The number of best candidates that non-maximum suppression compares."""

YOLOV5, YOLOV8, NMS = "yolov5", "yolov8", "nms"
LAYOUTS = (YOLOV5, YOLOV8, NMS)
"""Layouts of outputs with boxes, of one picture: (n, 5 + classes + more), whose fifth number is the
objectness; (4 + classes + more, n), of YOLOv8 and 11; (n, 6 + more), corners, score and class, of
YOLOv10 and of exports with nms, whose models contain the suppression."""
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
"""Strides of the detection grids: the usual ones, and those of P6, P2 and tiny networks."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Mask:
    """The pixels of an object within its box. top, left: the box's corner in the picture."""

    top: int
    left: int
    inside: NDArray[np.bool_]

    @property
    def area(self) -> int:
        """The number of pixels that the object covers."""
        return int(np.count_nonzero(self.inside))


@dataclass(frozen=True)
class DetectedObject:
    """An object in a picture. Coordinates are in the picture's pixels."""

    number: int
    """The number of its class."""
    label: str
    score: float
    box: tuple[float, float, float, float]
    """Left, top, right, bottom."""
    mask: Mask | None = None
    keypoints: tuple[tuple[float, ...], ...] = ()
    """x and y of each, and its score if the model has one."""

    def to_json(self) -> dict[str, Any]:
        """Return the object as plain dicts, lists and numbers; area: pixels of the mask."""
        result: dict[str, Any] = {"class": self.number, "label": self.label, "score": self.score}
        result["box"] = list(self.box)
        if self.mask is not None:
            result["area"] = self.mask.area
        if self.keypoints:
            result["keypoints"] = [list(point) for point in self.keypoints]
        return result


@dataclass(frozen=True)
class Candidates:
    """Boxes before suppression: (n, 4) left, top, right, bottom in the frame; their scores and
    classes (n,), and m further numbers of each (n, m). final: whether the model suppressed them.
    """

    boxes: Floats
    scores: Floats
    classes: NDArray[np.int64]
    more: Floats
    final: bool

    def select(self, index: NDArray[Any]) -> Candidates:
        """Return the candidates at an index array or a mask."""
        boxes, scores = self.boxes[index], self.scores[index]
        return Candidates(boxes, scores, self.classes[index], self.more[index], self.final)


def layout_of(
    shape: tuple[int, ...],
    classes: int,
    more: int,
    export: UltralyticsExport,
    frame: tuple[int, int],
    layout: str | None = None,
) -> str:
    """Return which of LAYOUTS an output has: by its shape, and by the metadata where several fit.

    Args:
        shape: The shape of the output for one picture.
        classes: The number of classes.
        more: The number of a box's further numbers: coefficients of masks, keypoints.
        export: The model's metadata.
        frame: Height and width of the model's input.
        layout: The layout, if the user specifies it.

    Raises:
        ModelError: No layout fits, or several do.
    """
    rows, columns = shape
    counts = {YOLOV8: 4 + classes + more, YOLOV5: 5 + classes + more, NMS: 6 + more}
    fits = [
        name for name, count in counts.items() if (rows if name == YOLOV8 else columns) == count
    ]
    if layout is not None:
        fits = [name for name in fits if name == layout]
    if not fits:
        sizes = {YOLOV8: f"({counts[YOLOV8]}, n)"}
        sizes |= {name: f"(n, {counts[name]})" for name in (YOLOV5, NMS)}
        listed = sizes.get(layout or "") or f"{sizes[YOLOV8]}, {sizes[YOLOV5]} or {sizes[NMS]}"
        raise ModelError(
            f"boxes of {classes} classes: expected an output of {listed} for each picture, "
            f"got {shape}"
        )
    if len(fits) == 1:
        return fits[0]
    likely, other = (YOLOV5, YOLOV8) if export.task is None else (YOLOV8, YOLOV5)
    if NMS in fits and export.compared is not None:
        fits = [name for name in fits if (name == NMS) == export.compared]
    if likely in fits and other in fits:
        fits.remove(other)
    if len(fits) == 1:
        return fits[0]
    cells = {sum((frame[0] // s) * (frame[1] // s) for s in strides) for strides in STRIDES}
    has_all_cells = columns in cells if fits[0] == YOLOV8 else rows in {3 * n for n in cells}
    if fits[0] == likely and has_all_cells:
        return likely
    if fits[0] == YOLOV5 and export.task is not None and not has_all_cells:
        return NMS  # exports of YOLOv5 state no task
    raise ModelError(
        f"boxes of {classes} classes: an output of {shape} for each picture may be of "
        f"{' or '.join(fits)}, and the metadata do not say: expected that as the detector's layout "
        "(--boxes)"
    )


def decode(output: Floats, layout: str, classes: int, more: int, confidence: float) -> Candidates:
    """Return the boxes of one picture whose score is at least `confidence`.

    Args:
        output: The output for the picture.
        layout: Its layout, one of LAYOUTS.
        classes: The number of classes.
        more: The number of a box's further numbers: coefficients of masks, keypoints.
        confidence: The least score.
    """
    if layout == NMS:
        rows = output[output[:, 4] >= confidence]
        numbers = np.clip(np.nan_to_num(rows[:, 5]), 0, 1 << 30).astype(np.int64)
        return _finite(Candidates(rows[:, :4], rows[:, 4], numbers, rows[:, 6:], True))
    if layout == YOLOV8:
        boxes, scores, rest = _split(output.T, 4, classes)
    else:
        boxes, scores, rest = _split(output, 5, classes)
        scores = scores * output[:, 4:5]
    best = scores.argmax(1)
    score = np.take_along_axis(scores, best[:, None], 1)[:, 0]
    likely = score >= confidence
    centre, half = boxes[likely, :2], boxes[likely, 2:4] / np.float32(2)
    corners = np.concatenate((centre - half, centre + half), 1)
    return _finite(Candidates(corners, score[likely], best[likely], rest[likely], False))


def _split(rows: Floats, start: int, classes: int) -> tuple[Floats, Floats, Floats]:
    return rows[:, :4], rows[:, start : start + classes], rows[:, start + classes :]


def _finite(candidates: Candidates) -> Candidates:
    return candidates.select(np.isfinite(candidates.boxes).all(1) & np.isfinite(candidates.scores))


def suppress(candidates: Candidates, overlap: float, most: int = MOST) -> Candidates:
    """Return the best boxes without those that overlap a better one of their class by more than
    `overlap` (IoU).
    """
    order = np.argsort(-candidates.scores, kind="stable")[:MOST_CANDIDATES]
    if candidates.final:
        return candidates.select(order[:most])
    boxes = candidates.boxes[order].astype(np.float64).T
    areas = np.prod(np.maximum(boxes[2:] - boxes[:2], 0), 0)
    corners = np.concatenate((boxes, areas[None]))
    return candidates.select(
        order[suppress_overlaps(corners, overlap, most, candidates.classes[order])]
    )


def masks_of(
    coefficients: Floats,
    prototypes: Floats,
    boxes: Floats,
    place: Letterbox,
    frame: tuple[int, int],
) -> list[Mask]:
    """Return the mask of each box in the picture's pixels.

    Args:
        coefficients: (n, m), the coefficients of each box.
        prototypes: (m, h, w), covering the frame.
        boxes: (n, 4), in the picture's pixels.
        place: The place of the picture in the frame.
        frame: Height and width of the frame.
    """
    count, tall, wide = prototypes.shape
    sums = (coefficients @ prototypes.reshape(count, -1)).reshape(-1, tall, wide)
    result = []
    for logits, box in zip(sums, boxes, strict=True):
        left, top = (int(n) for n in np.floor(box[:2]))
        right, bottom = (int(n) for n in np.ceil(box[2:]))
        ys = (np.arange(top, bottom) + 0.5) * (place.height / place.picture[0]) + place.top
        xs = (np.arange(left, right) + 0.5) * (place.width / place.picture[1]) + place.left
        rows = _interpolate(logits, ys * (tall / frame[0]) - 0.5, 0)
        result.append(Mask(top, left, _interpolate(rows, xs * (wide / frame[1]) - 0.5, 1) > 0))
    return result


def _interpolate(values: NDArray[Any], coordinates: NDArray[Any], axis: int) -> NDArray[Any]:
    """Interpolate `values` linearly at `coordinates` along an axis; coordinates are clamped."""
    coordinates = np.clip(coordinates, 0, values.shape[axis] - 1)
    before = np.floor(coordinates).astype(np.int64)
    after = np.minimum(before + 1, values.shape[axis] - 1)
    weight = (coordinates - before).reshape((-1, 1) if axis == 0 else (1, -1))
    result: NDArray[Any] = values.take(before, axis) * (1 - weight)
    result += values.take(after, axis) * weight
    return result


@dataclass(frozen=True)
class Detector:
    """The way to find objects in the outputs of a model."""

    export: UltralyticsExport
    """The model's metadata."""
    boxes: str
    """The output with boxes, (N, rows, columns)."""
    prototypes: str | None = None
    """The output with masks' prototypes, (N, m, h, w)."""
    confidence: float = CONFIDENCE
    """The least score of an object."""
    overlap: float = OVERLAP
    """The most overlap (IoU) with a better object of the same class."""
    labels: Labels = field(default_factory=dict)
    """Names of classes that replace the export's."""
    layout: str | None = None
    """The layout of the boxes, one of LAYOUTS; None derives it from shapes and metadata."""
    most: int = MOST
    """The most objects of a picture; the best are returned."""

    def __post_init__(self) -> None:
        if self.layout is not None and self.layout not in LAYOUTS:
            known = ", ".join(LAYOUTS)
            raise ModelError(f"layout: expected {known}, got {shown(self.layout)}")
        if type(self.most) is not int or self.most < 1:
            raise ModelError(f"most: expected a positive int, got {shown(self.most)}")

    @classmethod
    def from_metadata(
        cls, outputs: Mapping[str, Shape | Sequence[int | str]], metadata: Mapping[str, str]
    ) -> Detector | None:
        """Return the detector for a model; None where the model is none by its metadata.

        outputs: the shapes of the model's outputs by name, in the model's order.
        """
        export = UltralyticsExport.from_metadata(metadata, outputs.values())
        if export is None or export.task not in (None, "detect", "segment", "pose"):
            return None
        boxes = next((name for name, shape in outputs.items() if len(shape) == 3), None)
        masks = next((name for name, shape in outputs.items() if len(shape) == 4), None)
        if boxes is None:
            return None
        return cls(export, boxes, masks if export.task in (None, "segment") else None)

    @cached_property
    def classes(self) -> int:
        """The number of classes."""
        return max(self.export.labels) + 1

    def detect(
        self,
        results: Mapping[str, Array],
        frame: tuple[int, int],
        pictures: Sequence[tuple[int, int] | None],
    ) -> list[list[DetectedObject]]:
        """Return the objects in each picture, the best first.

        Args:
            results: The outputs of a run by name; samples after those of `pictures` are ignored.
            frame: Height and width of the model's input.
            pictures: Height and width of each picture; None where it is as large as the frame.

        Raises:
            ModelError: An output has another shape than a detector's.
        """
        output = np.asarray(results[self.boxes])
        masks = None if self.prototypes is None else np.asarray(results[self.prototypes])
        if output.ndim != 3 or len(output) < len(pictures):
            raise ModelError(f"output {self.boxes!r} gives no boxes, but {output.shape}")
        if masks is not None and (masks.ndim != 4 or len(masks) < len(pictures)):
            raise ModelError(f"output {self.prototypes!r} gives no masks, but {masks.shape}")
        return [
            self._objects(
                output[i].astype(np.float32),
                None if masks is None else masks[i].astype(np.float32),
                frame,
                picture or frame,
            )
            for i, picture in enumerate(pictures)
        ]

    def _objects(
        self,
        output: Floats,
        prototypes: Floats | None,
        frame: tuple[int, int],
        picture: tuple[int, int],
    ) -> list[DetectedObject]:
        count, numbers = self.export.keypoints if self.export.task == "pose" else (0, 0)
        more = count * numbers if prototypes is None else len(prototypes)
        layout = layout_of(output.shape, self.classes, more, self.export, frame, self.layout)
        result = decode(output, layout, self.classes, more, self.confidence)
        # More than `most`, as boxes outside the picture are dropped below.
        result = suppress(result, self.overlap, max(self.most, MOST))
        place = Letterbox.fit(picture, frame)
        boxes = place.to_picture(result.boxes.reshape(-1, 2, 2))
        boxes = np.clip(boxes, 0, np.array((picture[1], picture[0]), np.float32)).reshape(-1, 4)
        visible = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(1))[: self.most]
        result, boxes = result.select(visible), boxes[visible]
        masks: Sequence[Mask | None] = [None] * len(boxes)
        if prototypes is not None:
            masks = masks_of(result.more, prototypes, boxes, place, frame)
        points = result.more[:, : count * numbers].reshape(len(boxes), count, numbers).copy()
        if count:
            points[..., :2] = place.to_picture(points[..., :2])
        return [
            DetectedObject(
                number,
                self._name(number),
                score,
                (box[0], box[1], box[2], box[3]),
                mask,
                tuple(map(tuple, keypoints)),
            )
            for number, score, box, mask, keypoints in zip(
                result.classes.tolist(),
                result.scores.tolist(),
                boxes.tolist(),
                masks,
                points.tolist(),
                strict=True,
            )
        ]

    def _name(self, number: int) -> str:
        return self.labels.get(number, self.export.labels.get(number, str(number)))
