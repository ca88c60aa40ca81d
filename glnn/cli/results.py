"""Results of `glnn run`: numbers, classes of samples, objects in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from glnn.cli.model_options import PictureOptions
from glnn.cli.screen import Column, Screen, Table, figures, number
from glnn.cli.sources import Inputs, Picture
from glnn.core.array_functions import softmax
from glnn.core.plural import count_of
from glnn.core.tensor_info import TensorInfo, show
from glnn.core.types import Array, Shape
from glnn.errors import ModelError
from glnn.images.detection import DetectedObject, Detector
from glnn.images.drawing import draw_labels, draw_objects
from glnn.images.labels import Labels, labels_of, read_labels
from glnn.images.preprocessing import DTYPES, ImageInput
from glnn.images.preprocessing_config import UltralyticsExport
from glnn.model import Model

MOST_NOTES = 10


@dataclass(frozen=True)
class OutputSummary:
    """Statistics of one output of one run."""

    name: str
    """The output's."""
    shape: Shape
    """The shape of the array."""
    type: str
    """The dtype, by NumPy's name."""
    least: float | None
    """The least number; None where there are no numbers, as for the next two."""
    mean: float | None
    """The mean of all numbers."""
    greatest: float | None
    """The greatest number."""

    @classmethod
    def from_array(cls, name: str, array: Array) -> OutputSummary:
        """Summarise `array`, the output called `name`."""
        summary = RunningSummary(name)
        summary.add(array)
        return summary.output


@dataclass
class RunningSummary:
    """Statistics of one output over several runs."""

    name: str
    """The output's."""
    shape: Shape | None = None
    """The shape of all arrays concatenated; of the last where they do not fit."""
    type: str = ""
    """The dtype, by NumPy's name."""
    least: float | None = None
    """The least number; None as long as there are no numbers."""
    greatest: float | None = None
    """The greatest number; None as long as there are no numbers."""
    total: float = 0.0
    """The sum of all numbers."""
    count: int = 0
    """The number of numbers."""

    def add(self, array: Array) -> None:
        """Add the array of another run."""
        shape, total = tuple(array.shape), self.shape
        if total is not None and shape and total[1:] == shape[1:]:
            shape = (total[0] + shape[0], *shape[1:])
        self.shape, self.type = shape, array.dtype.name
        if not array.size or array.dtype.kind not in "fiub":
            return
        wide = array.astype(np.float64)
        least, greatest = float(wide.min()), float(wide.max())
        # NumPy's minimum and maximum keep NaN.
        self.least = least if self.least is None else float(np.minimum(self.least, least))
        self.greatest = (
            greatest if self.greatest is None else float(np.maximum(self.greatest, greatest))
        )
        with np.errstate(all="ignore"):
            self.total += float(wide.sum())
        self.count += wide.size

    @property
    def output(self) -> OutputSummary:
        """The statistics as an `OutputSummary`."""
        mean = self.total / self.count if self.count else None
        shape = () if self.shape is None else self.shape
        return OutputSummary(self.name, shape, self.type, self.least, mean, self.greatest)


@dataclass(frozen=True)
class RunOutputs:
    """The outputs of one run."""

    outputs: tuple[OutputSummary, ...]
    """The outputs in the model's order."""
    notes: tuple[str, ...] = ()
    """Notes on how the samples were converted."""

    @classmethod
    def from_results(cls, results: Mapping[str, Array], notes: Sequence[str] = ()) -> RunOutputs:
        """Summarise the outputs of a run, by their names."""
        result = tuple(
            OutputSummary.from_array(name, np.asarray(array)) for name, array in results.items()
        )
        return cls(result, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """Return outputs and notes as plain dicts, lists and numbers."""
        return {"outputs": [asdict(one) for one in self.outputs], "notes": list(self.notes)}

    def show(self, out: Screen, where: str) -> None:
        """Print a row for each."""
        show_notes(out, self.notes)
        show_outputs(out, self.outputs)
        out.say(f"on {where}")


def show_notes(out: Screen, notes: Sequence[str]) -> None:
    """Print the first notes on samples."""
    for note in notes[:MOST_NOTES]:
        out.say(note)
    if len(notes) > MOST_NOTES:
        out.say(f"... and {len(notes) - MOST_NOTES} more notes (all of them with --json)")


def show_outputs(out: Screen, outputs: Sequence[OutputSummary]) -> None:
    """Print a row for each."""
    numbers = (figures("least"), figures("mean", 1), figures("greatest"))
    rows = Table((Column("output"), Column("shape"), Column("type", 2), *numbers))
    for one in outputs:
        values = (number(n) for n in (one.least, one.mean, one.greatest))
        rows.add(one.name, show(one.shape), one.type, *values)
    out.show(rows)


SHOWN = 10
NEAR = 1e-3
"""The tolerance of the sum of probabilities, which those of float16 keep."""


def probabilities(scores: Array) -> Array:
    """Convert scores (n, classes) to probabilities in float64: rows that sum to 1 without negative
    numbers stay, others take softmax.
    """
    wide = scores.astype(np.float64)
    with np.errstate(all="ignore"):
        soft = softmax(wide)
        are_probabilities = (wide >= 0).all(axis=1) & (abs(wide.sum(axis=1) - 1) <= NEAR)
    return np.where(are_probabilities[:, None], wide, soft)


@dataclass(frozen=True)
class RankedClass:
    """A class that a sample may belong to, with its score."""

    number: int
    """The class's number."""
    score: float
    """The model's score."""
    probability: float
    """The probability of this class among all."""
    label: str | None = None
    """The class's name."""

    @property
    def name(self) -> str:
        """The name of the class, or its number where it has no name."""
        return str(self.number) if self.label is None else self.label

    def to_json(self) -> dict[str, Any]:
        """Return the class as a plain dict."""
        result = {"class": self.number, "score": self.score, "probability": self.probability}
        return result if self.label is None else {**result, "label": self.label}


def class_names(
    file: str | None, metadata: Mapping[str, str], classes: int | str
) -> tuple[Labels | None, list[str]]:
    """Return the names of a model's classes, and notes on them.

    file: the file of the names; None for those in the model's metadata, which are ignored where
    they do not fit the number of classes. Raises ModelError for a file that does not fit.
    """
    result = labels_of(metadata) if file is None else read_labels(file)
    if result is None or not isinstance(classes, int):
        return result, []
    listed = set(result) == set(range(len(result)))
    if max(result) < classes and not (listed and len(result) < classes):
        return result, []
    mismatch = f"{count_of(len(result), 'name')}, the model has {count_of(classes, 'class')}"
    if file is None:
        return None, [f"labels in the model's metadata are not taken: {mismatch}"]
    raise ModelError(f"{file}: {mismatch}")


def best_classes(scores: Array, top: int, labels: Labels | None = None) -> list[list[RankedClass]]:
    """Return the `top` best classes of each row of scores (n, classes), the best first.

    Raises ModelError where `labels` have a class that the model has not.
    """
    if labels is not None and max(labels) >= scores.shape[1]:
        raise ModelError(
            f"labels: there is a name of class {max(labels)}, the model has {scores.shape[1]}"
        )
    signed = scores.astype(np.float64)  # unsigned integers and bools cannot be negated
    order = np.argsort(-signed, axis=1, kind="stable")[:, :top]
    chances = probabilities(scores)
    names = {} if labels is None else labels
    return [
        [RankedClass(int(c), float(row[c]), float(chance[c]), names.get(int(c))) for c in numbers]
        for row, chance, numbers in zip(scores, chances, order, strict=True)
    ]


def class_count(shape: Sequence[int | str]) -> int | str | None:
    """Return the number of classes of an output of `shape`: (n, classes), or (n, classes, 1, 1) as
    convolutions give it; None for other shapes.
    """
    if len(shape) < 2 or any(n != 1 for n in shape[2:]):
        return None
    return None if len(shape) > 2 and shape[1] == 1 else shape[1]


def takes_samples(model: Model) -> bool:
    """Return True where the model has one input, and files can hold samples of it."""
    return len(model.inputs) == 1 and model.inputs[0].dtype in DTYPES


def classifier_output(model: Model) -> str | None:
    """Return the first output that is (n, classes) for samples that files can hold; None without
    any.
    """
    if not takes_samples(model):
        return None
    shapes = {name: model.tensors[name].shape for name in model.outputs}
    return next((name for name, shape in shapes.items() if class_count(shape) is not None), None)


def classes_of(model: Model, output: str) -> int | str:
    """Return the number of classes that `output` gives, or the name of an open size."""
    classes = class_count(model.tensors[output].shape)
    assert classes is not None
    return classes


def describe_outputs(model: Model) -> str:
    """Return the outputs' names and shapes."""
    return ", ".join(f"{name} {show(model.tensors[name].shape)}" for name in model.outputs)


def refuse_class_option(option: str, name: str, model: Model) -> NoReturn:
    """Raise ModelError for an option of classes or objects, as `model` gives neither.

    name: the model's on the command line.
    """
    gives = f"{name} gives {describe_outputs(model)}"
    raise ModelError(f"{option} is for classes, (N, classes), or objects: {gives}")


def select_scores(results: Mapping[str, Array], output: str, count: int) -> Array:
    """Return the scores of the first `count` samples in `output`, (count, classes).

    results: of the run, by the outputs' names. Raises ModelError where it is of another shape.
    """
    scores = np.asarray(results[output])[:count]
    if not class_count(scores.shape) or len(scores) != count:
        raise ModelError(f"output {output!r} gives no classes, but {scores.shape}")
    return scores.reshape(count, -1)


@dataclass
class Classes:
    """The best classes of the samples so far."""

    output: str
    """The output that gives them."""
    top: int
    """The number of classes kept for each sample."""
    labels: Labels | None = None
    """The classes' names."""
    names: list[str] = field(default_factory=list)
    """The samples' names."""
    best: list[list[RankedClass]] = field(default_factory=list)
    """The classes of each sample, the best first."""
    true_labels: list[Any] = field(default_factory=list)
    """The right class of each; None where it is unknown."""
    notes: list[str] = field(default_factory=list)
    """Notes on how the samples were converted."""
    others: dict[str, RunningSummary] = field(default_factory=dict)
    """The model's other outputs, by name."""
    scored: bool = False
    """Whether the scores are no probabilities."""

    def add(self, inputs: Inputs, results: dict[str, Array]) -> list[list[RankedClass]]:
        """Add the results of a run, and return the best classes of its samples.

        results: by the outputs' names; samples beyond `len(inputs.x)` are padding. Raises
        ModelError where the output of the classes is not (n, classes).
        """
        count = len(inputs.x)
        result = best_classes(select_scores(results, self.output, count), self.top, self.labels)
        self.best += result
        self.names += inputs.names
        self.notes += inputs.notes
        self.true_labels += [None] * count if inputs.labels is None else list(inputs.labels)
        self.scored |= any(one.score != one.probability for row in result for one in row)
        for name, array in results.items():
            if name != self.output:
                batch = np.asarray(array)
                batched = batch.ndim > 0 and len(batch) > count
                summary = self.others.setdefault(name, RunningSummary(name))
                summary.add(batch[:count] if batched else batch)
        return result

    def draw(self, picture: NDArray[np.uint8], best: Sequence[RankedClass]) -> NDArray[np.uint8]:
        """Write the classes of a picture on a copy of it."""
        return draw_labels(picture, [(one.name, one.probability) for one in best])

    def trim(self) -> None:
        """Drop samples that an interrupted `add` has added in part."""
        count = min(len(self.names), len(self.best), len(self.true_labels))
        for column in (self.names, self.best, self.true_labels):
            del column[count:]

    @property
    def accuracy(self) -> float | None:
        """The fraction of samples whose best class is right; None where a label is unknown."""
        if not self.true_labels or any(label is None for label in self.true_labels):
            return None
        pairs = zip(self.best, self.true_labels, strict=True)
        return float(np.mean([best[0].number == label for best, label in pairs]))

    def to_json(self) -> dict[str, Any]:
        """Return the classes as plain dicts, lists and numbers."""
        others = [asdict(one.output) for one in self.others.values()]
        return {
            "predictions": [row[0].number for row in self.best],
            "top": [[one.to_json() for one in row] for row in self.best],
            "inputs": list(self.names),
            "accuracy": self.accuracy,
            "notes": list(self.notes),
            **({"outputs": others} if others else {}),
        }

    def show(self, out: Screen, where: str) -> None:
        """Print the first samples as a table, and the model's other outputs as another."""
        show_notes(out, self.notes)
        out.show(self._table())
        if len(self.names) > SHOWN:
            out.say(f"... and {len(self.names) - SHOWN} more (all of them with --json)")
        if self.others:
            show_outputs(out, [one.output for one in self.others.values()])
        count = len(self.names)
        out.say(f"{count} sample{'' if count == 1 else 's'} on {where}")
        if (accuracy := self.accuracy) is not None:
            out.say(f"accuracy {100 * accuracy:.2f}%")

    def _table(self) -> Table:
        labelled = all(label is not None for label in self.true_labels)
        count = max(len(row) for row in self.best)
        ranks = [f"{i + 1}." for i in range(count)] if count > 1 else ["class"]
        value = "probability" if self.scored else "score"
        heads = [_head(head, i, self.labels is None) for i, head in enumerate(ranks)]
        pairs = [column for i, head in enumerate(heads) for column in (head, figures(value, i))]
        first = [figures("label")] if labelled else []
        rows = Table((Column("input"), *first, *pairs))
        for name, right, best in list(zip(self.names, self.true_labels, self.best, strict=True))[
            :SHOWN
        ]:
            cells = [str(right)] if labelled else []
            for one in best:
                cells += [one.name, f"{one.probability if self.scored else one.score:.4f}"]
            rows.add(name, *cells)
        return rows


def _head(text: str, rank: int, numbered: bool) -> Column:
    return figures(text, rank) if numbered else Column(text, rank)


MOST_ROWS = 40  # objects in a table


def make_detector(
    model: Model, pictures: PictureOptions, top: int | None = None
) -> Detector | None:
    """Make the detector of `model` with the options of the command line; None where the model is no
    detector.

    top: the most objects of a picture; None for the detector's default. Raises ModelError for
    options of detectors where it is none, and for --labels with another number of classes.
    """
    takes_pictures = takes_samples(model) and len(model.inputs[0].shape) == 4
    result = Detector.from_metadata(model.output_shapes, model.metadata) if takes_pictures else None
    limits = {
        "confidence": pictures.confidence,
        "overlap": pictures.overlap,
        "boxes": pictures.boxes,
    }
    changes: dict[str, Any] = {name: part for name, part in limits.items() if part is not None}
    if result is None:
        if changes:
            why = (*explain_undecoded(model), f"{model.name} does not say that it is one")[0]
            raise ModelError(f"--{next(iter(changes))} is for detectors: {why}")
        return None
    if pictures.labels is not None:
        labels = read_labels(pictures.labels)
        if max(labels) >= result.classes:
            mismatch = (
                f"{count_of(max(labels) + 1, 'name')}, the model has "
                f"{count_of(result.classes, 'class')}"
            )
            raise ModelError(f"{pictures.labels}: {mismatch}")
        result = replace(result, labels=labels)
    if pictures.boxes is not None:
        changes["layout"] = changes.pop("boxes")
    if top is not None:
        changes["most"] = top
    return replace(result, **changes)


def explain_undecoded(model: Model) -> list[str]:
    """Say why the objects of `model`, of which no detector can be made, are not decoded.

    Empty where its metadata speak of none.
    """
    export = UltralyticsExport.from_metadata(model.metadata, model.output_shapes.values())
    if export is None or export.task == "classify":
        return []
    if export.task == "obb":
        return ["oriented boxes (task obb) are not decoded: the outputs are those of the model"]
    task = export.task or "detect"
    lacks = "one input of pictures of float32, float16 or uint8, and an output of boxes"
    return [f"objects (task {task}) are not decoded: expected {lacks} (N, rows, columns)"]


def frame_size(x: Array, info: TensorInfo) -> tuple[int, int]:
    """Return height and width of samples `x` of an input."""
    sides = x.shape[2:4] if ImageInput.from_info(info).first else x.shape[1:3]
    return sides[0], sides[1]


@dataclass
class Detections:
    """The objects in the samples so far."""

    detector: Detector
    """The detector that reads the model's outputs."""
    info: TensorInfo
    """The model's input."""
    names: list[str] = field(default_factory=list)
    """The samples' names."""
    objects: list[list[DetectedObject]] = field(default_factory=list)
    """The objects in each sample, the best first."""
    notes: list[str] = field(default_factory=list)
    """Notes on how the samples were converted."""

    def add(self, inputs: Inputs, results: Mapping[str, Array]) -> list[list[DetectedObject]]:
        """Add the results of a run, and return the objects in its samples.

        Raises ModelError where the outputs are not those of a detector.
        """
        sizes = inputs.sizes or (None,) * len(inputs.x)
        result = self.detector.detect(results, frame_size(inputs.x, self.info), sizes)
        self.objects += result
        self.names += inputs.names
        self.notes += inputs.notes
        return result

    def draw(self, picture: Picture, objects: Sequence[DetectedObject]) -> Picture:
        """Draw the objects of a picture on a copy of it."""
        return draw_objects(picture, objects)

    def trim(self) -> None:
        """Drop samples that an interrupted `add` has added in part."""
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
        samples, objects = len(self.names), sum(map(len, self.objects))
        count = f"{objects} object{'' if objects == 1 else 's'} in {samples} "
        out.say(f"{count}sample{'' if samples == 1 else 's'} on {where}")


def _cells(one: DetectedObject, masks: bool, points: bool) -> list[str]:
    cells = [one.label, f"{one.score:.4f}", *(f"{side:.1f}" for side in one.box)]
    cells += [str(one.mask.area) if one.mask else "-"] if masks else []
    return cells + ([str(len(one.keypoints))] if points else [])
