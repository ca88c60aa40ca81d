"""Runs of a model for `glnn run`: of all samples, batch by batch, or of one set of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glnn.cli.classes import Classes
from glnn.cli.detections import Detections
from glnn.cli.drawn import Drawn
from glnn.cli.dump import Dump
from glnn.cli.screen import progress
from glnn.cli.sources import Source
from glnn.images.place import Place
from glnn.images.ultralytics import check_multiples
from glnn.profiling import Trace
from glnn.session import InferenceSession
from glnn.types import Array

FIRST = "first run: auto sees once which backend is the fastest"
"""What the bar says until the first run is done, where a session may have to see that."""


def filled(x: Array, size: Any) -> Array:
    """The samples x (n, ...), repeated where there are fewer than the model takes.

    size: of the input's batch: an integer where the model takes no other.
    """
    if isinstance(size, int) and len(x) < size:
        return np.resize(x, (size, *x.shape[1:]))
    return x


@dataclass
class Running:
    """A session that is opened once its inputs are known, and what it does besides."""

    opened: Callable[[], InferenceSession]
    """Opens it."""
    into: Callable[[int], Dump | None]
    """Where tensors are dumped to, by the number of runs."""
    trace: Trace | None = None
    """What collects events."""
    measures: bool = False
    """Whether the first run may be what `auto` chooses a backend by."""
    stride: int = 1
    """Heights and widths of pictures must be multiples of it."""
    sessions: list[InferenceSession] = field(default_factory=list)
    """The one, once it is opened."""
    dump: Dump | None = None
    """What is dumped, once it is known how many runs there are."""

    @property
    def session(self) -> InferenceSession:
        """The session. Raises IndexError before it is opened."""
        return self.sessions[0]

    def begin(self, runs: int) -> None:
        """Open the session for so many runs. Raises what it does, ModelError for --dump."""
        self.dump = self.into(runs)
        self.sessions.append(self.opened())

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs for `feeds`, by name."""
        for info in self.session.model.inputs if self.stride > 1 else ():
            place = Place.in_shape(info.shape)
            if place is not None and info.name in feeds and feeds[info.name].ndim == 4:
                sides = feeds[info.name].shape[2:] if place.first else feeds[info.name].shape[1:3]
                check_multiples((sides[0], sides[1]), self.stride, f"input {info.name!r}")
        names = self.session.model.outputs
        if self.trace is None:
            results = dict(zip(names, self.session.run(None, feeds), strict=True))
        else:
            shapes = {name: array.shape for name, array in feeds.items()}
            found = self.trace.run(self.session.plan(shapes), feeds)
            results = {name: found[name] for name in names}
        if self.dump is not None:
            self.dump.write(self.session.intermediates(feeds, self.dump.names))
        return results

    def run_all(
        self,
        source: Source,
        batch: int,
        found: Classes | Detections,
        drawn: Drawn | None,
        shown: bool,
    ) -> bool:
        """Run all samples, `batch` at a time, and take the results into `found` and `drawn`.

        shown: whether a progress bar is drawn. Whether it came to the end: not where somebody
        interrupted it after some were done, whose results are there.
        """
        info = self.session.get_inputs()[0]
        with progress(shown) as bar:
            seen = self.trace is not None or self.session.restored
            doing = "classifying" if isinstance(found, Classes) else "detecting"
            first = FIRST if self.measures and not seen else doing
            task = bar.add_task(first, total=source.total)
            try:
                for inputs in source.batches(batch):
                    results = self.run({info.name: filled(inputs.x, info.shape[0])})
                    best: Sequence[Any] = found.add(inputs, results)
                    if drawn is not None:
                        drawn.take(inputs, best, found.draw)
                    done = len(found.names) + len(source.failed)
                    bar.update(task, description=doing, completed=done)
            except KeyboardInterrupt:
                found.trim()
                if not found.names:
                    raise
                return False
        return True
