"""Objects that `glnn run` finds by a detector: in pictures, batch by batch, or in a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glnn.cli.outputs import show_notes
from glnn.cli.picture_options import Asked
from glnn.cli.reader import Picture
from glnn.cli.screen import Column, Screen, Table, figures
from glnn.cli.sources import Inputs
from glnn.errors import ModelError
from glnn.images.detection import DetectedObject, Detector
from glnn.images.drawing import outlined
from glnn.images.labels import read_labels
from glnn.images.place import TAKEN, Place
from glnn.images.ultralytics import Export
from glnn.model import Model
from glnn.tensor_info import TensorInfo
from glnn.types import Array

MOST_ROWS = 40  # objects in a table


def detector_of(model: Model, asked: Asked) -> Detector | None:
    """Make the detector that `model` is, as it was asked for; None where it is none.

    Raises ModelError where something was asked for that only detectors have, or for --labels with
    another number of classes.
    """
    takes = len(model.inputs) == 1 and model.inputs[0].dtype in TAKEN
    takes = takes and len(model.inputs[0].shape) == 4
    found = Detector.of(model.output_shapes, model.metadata) if takes else None
    limits = {"confidence": asked.confidence, "overlap": asked.overlap, "boxes": asked.boxes}
    given: dict[str, Any] = {name: part for name, part in limits.items() if part is not None}
    if found is None:
        if given:
            why = (*undecoded(model), f"{model.name} does not say that it is one")[0]
            raise ModelError(f"--{next(iter(given))} is for detectors: {why}")
        return None
    if asked.labels is not None:
        labels = read_labels(asked.labels)
        if max(labels) >= found.classes:
            said = f"{max(labels) + 1} names, the model has {found.classes} classes"
            raise ModelError(f"{asked.labels}: {said}")
        found = replace(found, labels=labels)
    if asked.boxes is not None:
        given["layout"] = given.pop("boxes")
    return replace(found, **given)


def undecoded(model: Model) -> list[str]:
    """Say why the objects of `model`, of which no detector can be made, are not decoded.

    Empty where its metadata speak of none.
    """
    export = Export.of(model.metadata, model.output_shapes.values())
    if export is None or export.task == "classify":
        return []
    if export.task == "obb":
        return ["oriented boxes (task obb) are not decoded: the outputs are those of the model"]
    task = export.task or "detect"
    lacks = "one input of pictures of float32, float16 or uint8, and an output of boxes"
    return [f"objects (task {task}) are not decoded: expected {lacks} (N, rows, columns)"]


def frame_of(x: Array, info: TensorInfo) -> tuple[int, int]:
    """Height and width of samples `x` of an input."""
    sides = x.shape[2:4] if Place.of(info).first else x.shape[1:3]
    return sides[0], sides[1]


@dataclass
class Detections:
    """Objects in the samples so far."""

    detector: Detector
    """What reads the model's outputs."""
    info: TensorInfo
    """The model's input."""
    names: list[str] = field(default_factory=list)
    """What the samples are called."""
    objects: list[list[DetectedObject]] = field(default_factory=list)
    """Those of each sample, the best first."""
    notes: list[str] = field(default_factory=list)
    """What was done to the samples."""

    def add(self, inputs: Inputs, results: Mapping[str, Array]) -> list[list[DetectedObject]]:
        """Take the results of a run, and return the objects in its samples.

        Raises ModelError where the outputs are not those of a detector.
        """
        sizes = inputs.sizes or (None,) * len(inputs.x)
        found = self.detector.detect(results, frame_of(inputs.x, self.info), sizes)
        self.objects += found
        self.names += inputs.names
        self.notes += inputs.notes
        return found

    def draw(self, picture: Picture, found: Sequence[DetectedObject]) -> Picture:
        """Draw the objects of a picture on a copy of it."""
        return outlined(picture, found)

    def trim(self) -> None:
        """Forget samples of which not all was taken, as somebody interrupted it."""
        count = min(len(self.names), len(self.objects))
        del self.names[count:], self.objects[count:]

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain dicts, lists and numbers."""
        return {
            "task": self.detector.export.task or "detect",
            "inputs": list(self.names),
            "objects": [[one.to_json() for one in row] for row in self.objects],
            "confidence": self.detector.confidence,
            "overlap": self.detector.overlap,
            "notes": list(self.notes),
        }

    def show(self, out: Screen, where: str) -> None:
        """Print a row for each object of the first samples."""
        show_notes(out, self.notes)
        masks = any(one.mask for row in self.objects for one in row)
        points = any(one.keypoints for row in self.objects for one in row)
        box = (figures(head) for head in ("left", "top", "right", "bottom"))
        more = [figures("area", 1)] if masks else []
        more += [figures("keypoints", 1)] if points else []
        table = Table((Column("input"), Column("class"), figures("score"), *box, *more))
        rows = [
            (name, one)
            for name, objects in zip(self.names, self.objects, strict=True)
            for one in objects or (None,)
        ]
        for name, one in rows[:MOST_ROWS]:
            table.add(name, *(("nothing",) if one is None else _cells(one, masks, points)))
        out.show(table)
        if len(rows) > MOST_ROWS:
            out.say(f"... and {len(rows) - MOST_ROWS} more (all of them with --json)")
        samples, found = len(self.names), sum(map(len, self.objects))
        count = f"{found} object{'' if found == 1 else 's'} in {samples} "
        out.say(f"{count}sample{'' if samples == 1 else 's'} on {where}")


def _cells(one: DetectedObject, masks: bool, points: bool) -> list[str]:
    cells = [one.label, f"{one.score:.4f}", *(f"{side:.1f}" for side in one.box)]
    cells += [str(one.mask.area) if one.mask else "-"] if masks else []
    return cells + ([str(len(one.keypoints))] if points else [])
