"""What `glnn run` found of a classifier: the best classes of each sample, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.cli.outputs import Summary, show_notes, show_outputs
from glnn.cli.screen import Column, Screen, Table, figures
from glnn.cli.sources import Inputs
from glnn.errors import ModelError
from glnn.images.drawing import labelled
from glnn.images.labels import Labels, labels_of, read_labels
from glnn.types import Array

SHOWN = 10
NEAR = 1e-3
"""By how much probabilities may not add up to 1: those of float16 do not by less."""


def probabilities(scores: Array) -> Array:
    """Scores (n, classes) as probabilities in float64: themselves where a row has no negative
    number and adds up to 1, else their softmax.
    """
    wide = scores.astype(np.float64)
    with np.errstate(all="ignore"):
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        soft = powers / powers.sum(axis=1, keepdims=True)
        are = (wide >= 0).all(axis=1) & (abs(wide.sum(axis=1) - 1) <= NEAR)
    return np.where(are[:, None], wide, soft)


@dataclass(frozen=True)
class Best:
    """A class that a sample may be of."""

    number: int
    """The class's."""
    score: float
    """What the model gave."""
    probability: float
    """Of this class among all."""
    label: str | None = None
    """The class's name."""

    @property
    def name(self) -> str:
        """What it is called: by its number where nothing else is known."""
        return str(self.number) if self.label is None else self.label

    def to_json(self) -> dict[str, Any]:
        """The same as a plain dict."""
        said = {"class": self.number, "score": self.score, "probability": self.probability}
        return said if self.label is None else {**said, "label": self.label}


def named(
    file: str | None, metadata: Mapping[str, str], classes: int | str
) -> tuple[Labels | None, list[str]]:
    """The names of a model's classes, and what is to be said of them.

    file: where they are; None: in the model's metadata, if anywhere; where they do not fit the
    number of classes there, they are not taken. Raises ModelError for a file that does not.
    """
    found = labels_of(metadata) if file is None else read_labels(file)
    if found is None or not isinstance(classes, int):
        return found, []
    listed = set(found) == set(range(len(found)))
    if max(found) < classes and not (listed and len(found) < classes):
        return found, []
    said = f"{len(found)} names, the model has {classes} classes"
    if file is None:
        return None, [f"labels in the model's metadata are not taken: {said}"]
    raise ModelError(f"{file}: {said}")


def best_of(scores: Array, top: int, labels: Labels | None = None) -> list[list[Best]]:
    """The `top` best classes of each row of scores (n, classes), the best first.

    Raises ModelError where `labels` have a class that the model has not.
    """
    if labels is not None and max(labels) >= scores.shape[1]:
        raise ModelError(
            f"labels: there is a name of class {max(labels)}, the model has {scores.shape[1]}"
        )
    signed = scores.astype(np.float64)  # less than nothing is much to a byte, and no bool
    order = np.argsort(-signed, axis=1, kind="stable")[:, :top]
    chances = probabilities(scores)
    names = {} if labels is None else labels
    return [
        [Best(int(c), float(row[c]), float(chance[c]), names.get(int(c))) for c in numbers]
        for row, chance, numbers in zip(scores, chances, order, strict=True)
    ]


def scores_of(results: Mapping[str, Array], output: str, count: int) -> Array:
    """What `output` gives for the first `count` samples of a run: (count, classes).

    results: of the run, by the outputs' names. Raises ModelError where it is of another shape.
    """
    scores = np.asarray(results[output])[:count]
    if scores.ndim != 2 or len(scores) != count or not scores.shape[1]:
        raise ModelError(f"output {output!r} gives no classes, but {scores.shape}")
    return scores


@dataclass
class Classes:
    """The best classes of the samples so far."""

    output: str
    """The output that gives them."""
    top: int
    """How many of each are kept."""
    labels: Labels | None = None
    """The classes' names."""
    names: list[str] = field(default_factory=list)
    """What the samples are called."""
    best: list[list[Best]] = field(default_factory=list)
    """Of each sample, the best first."""
    known: list[Any] = field(default_factory=list)
    """The right class of each; None where it is not known."""
    notes: list[str] = field(default_factory=list)
    """What was done to the samples."""
    others: dict[str, Summary] = field(default_factory=dict)
    """What the model gave besides, by the names of its outputs."""
    scored: bool = False
    """Whether the scores are no probabilities."""

    def add(self, inputs: Inputs, results: dict[str, Array]) -> list[list[Best]]:
        """Take the results of a run, and say what the best classes of its samples are.

        results: by the outputs' names, the first `len(inputs.x)` samples of which count. Raises
        ModelError where the output of the classes is not (n, classes).
        """
        count = len(inputs.x)
        found = best_of(scores_of(results, self.output, count), self.top, self.labels)
        self.best += found
        self.names += inputs.names
        self.notes += inputs.notes
        self.known += [None] * count if inputs.labels is None else list(inputs.labels)
        self.scored |= any(one.score != one.probability for row in found for one in row)
        for name, array in results.items():
            if name != self.output:
                batch = np.asarray(array)
                batched = batch.ndim > 0 and len(batch) > count
                summary = self.others.setdefault(name, Summary(name))
                summary.add(batch[:count] if batched else batch)
        return found

    def draw(self, picture: NDArray[np.uint8], best: Sequence[Best]) -> NDArray[np.uint8]:
        """Write the classes of a picture on a copy of it."""
        return labelled(picture, [(one.name, one.probability) for one in best])

    def trim(self) -> None:
        """Forget samples of which not all was taken, as somebody interrupted it."""
        count = min(len(self.names), len(self.best), len(self.known))
        for one in (self.names, self.best, self.known):
            del one[count:]

    @property
    def accuracy(self) -> float | None:
        """How many first ones are right; None where not all are known."""
        if not self.known or any(label is None for label in self.known):
            return None
        pairs = zip(self.best, self.known, strict=True)
        return float(np.mean([best[0].number == label for best, label in pairs]))

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
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
        """Print the first samples as a table, and what the model gave besides as another."""
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
        labelled = all(label is not None for label in self.known)
        count = max(len(row) for row in self.best)
        ranks = [f"{i + 1}." for i in range(count)] if count > 1 else ["class"]
        value = "probability" if self.scored else "score"
        heads = [_head(head, i, self.labels is None) for i, head in enumerate(ranks)]
        pairs = [column for i, head in enumerate(heads) for column in (head, figures(value, i))]
        first = [figures("label")] if labelled else []
        rows = Table((Column("input"), *first, *pairs))
        for name, right, best in list(zip(self.names, self.known, self.best, strict=True))[:SHOWN]:
            cells = [str(right)] if labelled else []
            for one in best:
                cells += [one.name, f"{one.probability if self.scored else one.score:.4f}"]
            rows.add(name, *cells)
        return rows


def _head(text: str, rank: int, numbered: bool) -> Column:
    return figures(text, rank) if numbered else Column(text, rank)
