"""What `glnn run` found: the classes of samples, or what else a model gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glnn.cli.dump import Dump
from glnn.cli.inputs import TAKEN, Inputs
from glnn.cli.screen import Column, Screen, Table, figures, number
from glnn.model import Model
from glnn.profiling import Trace
from glnn.session import InferenceSession
from glnn.tensor_info import show
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Output:
    """What a run gave under a name."""

    name: str
    shape: Shape
    type: str
    """As NumPy calls it."""
    least: float | None
    """None where there are no numbers, as for the next two."""
    mean: float | None
    greatest: float | None

    @classmethod
    def of(cls, name: str, array: Array) -> Output:
        numbers = array.size > 0 and array.dtype.kind in "fiub"
        wide = array.astype(np.float64) if numbers else None
        found = (None,) * 3 if wide is None else (wide.min(), wide.mean(), wide.max())
        least, mean, greatest = (None if n is None else float(n) for n in found)
        return cls(name, array.shape, array.dtype.name, least, mean, greatest)


def classifies(model: Model) -> bool:
    """Whether it gives (n, classes) for samples of one input, which files can hold."""
    first = model.tensors[model.outputs[0]]
    return len(model.inputs) == 1 and model.inputs[0].dtype in TAKEN and len(first.shape) == 2


SHOWN = 10


@dataclass(frozen=True)
class Classes:
    """The best classes of each sample."""

    samples: Inputs
    order: Array
    """(samples, classes to show), the best first."""
    best: Array
    """The scores of these."""
    accuracy: float | None
    """How many first ones are right; None where no labels are known."""

    @classmethod
    def of(cls, samples: Inputs, scores: Array, top: int) -> Classes:
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        known = samples.labels is not None
        accuracy = float((order[:, 0] == samples.labels).mean()) if known else None
        return cls(samples, order, np.take_along_axis(scores, order, axis=1), accuracy)

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
        return {
            "predictions": self.order[:, 0].tolist(),
            "top": [
                [{"class": int(c), "score": float(score)} for c, score in zip(*row, strict=True)]
                for row in zip(self.order, self.best, strict=True)
            ],
            "inputs": list(self.samples.names),
            "accuracy": self.accuracy,
            "notes": list(self.samples.notes),
        }

    def show(self, out: Screen, where: str) -> None:
        """Print the first samples as a table."""
        names, labels = self.samples.names, self.samples.labels
        for note in self.samples.notes:
            out.say(note)
        labelled = [figures("label")] if labels is not None else []
        count = self.order.shape[1]
        ranks = [f"{i + 1}." for i in range(count)] if count > 1 else ["class"]
        heads = [figures(head, i) for i, rank in enumerate(ranks) for head in (rank, "score")]
        rows = Table((Column("input"), *labelled, *heads))
        for i, name in enumerate(names[:SHOWN]):
            cells = [str(labels[i])] if labels is not None else []
            for c, score in zip(self.order[i], self.best[i], strict=True):
                cells += [str(c), f"{score:.4f}"]
            rows.add(name, *cells)
        out.show(rows)
        if len(names) > SHOWN:
            out.say(f"... and {len(names) - SHOWN} more (all of them with --json)")
        out.say(f"{len(names)} samples on {where}")
        if self.accuracy is not None:
            out.say(f"accuracy {100 * self.accuracy:.2f}%")


@dataclass(frozen=True)
class Outputs:
    """What one run gave."""

    outputs: tuple[Output, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
        return {"outputs": [asdict(one) for one in self.outputs]}

    def show(self, out: Screen, where: str) -> None:
        """Print a row for each."""
        numbers = (figures("least"), figures("mean", 1), figures("greatest"))
        rows = Table((Column("output"), Column("shape"), Column("type", 2), *numbers))
        for one in self.outputs:
            values = (number(n) for n in (one.least, one.mean, one.greatest))
            rows.add(one.name, show(one.shape), one.type, *values)
        out.show(rows)
        out.say(f"on {where}")


def run_once(
    session: InferenceSession, feeds: Mapping[str, Array], dump: Dump | None, trace: Trace | None
) -> Outputs:
    """What the model gives for `feeds`, and into `dump` and `trace` what these are for."""
    names = session.model.outputs
    if trace is None:
        results = dict(zip(names, session.run(None, feeds), strict=True))
    else:
        shapes = {name: array.shape for name, array in feeds.items()}
        results = trace.run(session.plan(shapes), feeds)
    if dump is not None:
        dump.write(session.intermediates(feeds, dump.names))
    return Outputs(tuple(Output.of(name, np.asarray(results[name])) for name in names))
