"""Writing plans and their weights to disk, beside the runs that go on."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import urandom
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from glnn.disk import Draft, OddError
from glnn.errors import GlnnError
from glnn.process import ProcessLock
from glnn.runtime.executable import Executable, ShapeRange
from glnn.stored.index import MOST_PLANS, PLAIN, Fixed, Index, Listed, Part
from glnn.stored.shelf import INDEX, Shelf
from glnn.types import Array

LOG = logging.getLogger(__name__)
LEFT = 600.0  # seconds after which weights that no plan names are not being written any more
PIECE = 32 << 20  # bytes of a part: several threads look at a large weight's checksums


class Words(Protocol):
    """A weight on the device, whose packed words are written."""

    def words(self) -> NDArray[np.uint32]:
        """Return its words, without zeros at the end."""

    def current(self) -> bool:
        """Return True where it was not assigned since the plan was made."""


@dataclass(frozen=True, eq=False)
class Job:
    """A plan to be written."""

    plan: Executable
    """It."""
    weights: tuple[Words, ...]
    """Its weights."""
    fixed: Mapping[str, Array]
    """Its outputs that no run changes."""
    small: bool
    """Whether inputs of int64 must be small."""


class DiskSaver:
    """Writes plans of one model, one after the other, in a thread that is there meanwhile.

    shelf: where. index: the model, without plans. What the disk refuses is not kept; nothing of
    that is an error. The process's end waits for what is being written.
    """

    def __init__(self, shelf: Shelf, index: Index) -> None:
        self._shelf, self._index = shelf, index
        self._lock = ProcessLock()
        self._jobs: deque[Job] = deque()
        self._count = 0  # of weights that were written
        self._there: dict[Part, NDArray[np.uint32]] = {}  # while a plan is being written
        self._thread: threading.Thread | None = None
        self._written: WeakKeyDictionary[Words, Part] = WeakKeyDictionary()

    def save(
        self,
        plan: Executable,
        weights: Sequence[Words],
        fixed: Mapping[str, Array],
        small: bool,
    ) -> None:
        """See `glnn.runtime.stored.Saver`."""
        with self._lock:
            self._jobs.append(Job(plan, tuple(weights), fixed, small))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="glnn saves")
                try:
                    self._thread.start()
                except RuntimeError:  # there may be none to be had, or the process ends
                    self._jobs.clear()

    def wait(self) -> None:
        """Wait until all is written."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                self._write(job)
            except (ValueError, GlnnError, MemoryError, InterruptedError) as error:
                LOG.debug("%s: a plan is not kept: %s", self._index.name, error)
            except Exception:  # nobody asked for this: it must not be an error of theirs
                LOG.debug("%s: a plan is not kept", self._index.name, exc_info=True)
            self._there = {}  # which keeps the files open

    def _write(self, job: Job) -> None:
        """Write a plan: first its weights, then that it is there."""
        found = self._shelf.index()
        index, entry = self._index, None
        if found is not None and found[0].files == index.files:
            index, entry = found
        elif found is not None:  # of files that are no more
            for name in {one.entry for listed in found[0].plans for one in listed.weights}:
                self._shelf.disk.remove(name)
        shapes = job.plan.range
        self._known(index)
        if self._kept(index, shapes, job.small):
            return  # another process was faster
        weights = self._weights(job)
        number = 1 + max((int(one.part.removeprefix("plan")) for one in index.plans), default=-1)
        part = f"plan{number}"
        fixed, contents = self._fixed(job, part)
        text = json.dumps(job.plan.data(), separators=(",", ":"))
        listed = Listed(shapes, job.small, part, weights, fixed)
        others = [one for one in index.plans if one.key != listed.key][1 - MOST_PLANS :]
        if entry is not None:
            others = [one for one in others if all(map(entry.check, one.parts))]
            contents |= {name: entry.part(name) for one in others for name in one.parts}
        index = replace(index, plans=(*others, listed))
        parts: dict[str, Any] = {INDEX: json.dumps(index.data()).encode(), part: text.encode()}
        if self._shelf.device.lost is not None:
            raise ValueError("the device was lost")
        if self._shelf.disk.write(self._shelf.name, {**parts, **contents}, **self._about()):
            self._sweep(index)

    def _kept(self, index: Index, shapes: ShapeRange, small: bool) -> bool:
        """Return True where such a plan is on disk with all its weights."""
        found = next((one for one in index.plans if one.key == (shapes, small)), None)
        return found is not None and set(found.weights) <= self._there.keys()

    def _sweep(self, index: Index) -> None:
        """Remove what several processes wrote of the same weights, but for those of `index`."""
        disk, used = self._shelf.disk, {one.entry for each in index.plans for one in each.weights}
        for one in disk.entries():
            own = one.name.startswith(f"weights/{self._shelf.key[:32]}-")
            if own and one.name not in used and time.time() - one.used > LEFT:
                disk.remove(one.name)

    def _about(self) -> dict[str, str]:
        """Return what `glnn cache` shows of an entry."""
        return {"device": self._shelf.device.capabilities.renderer, "model": self._index.name}

    def _fixed(self, job: Job, part: str) -> tuple[tuple[Fixed, ...], dict[str, Any]]:
        """Return the outputs that no run changes, and the parts with their arrays."""
        found: list[Fixed] = []
        contents: dict[str, Any] = {}
        for i, (name, array) in enumerate(job.fixed.items()):
            if array.dtype.kind not in PLAIN:
                raise ValueError(f"output {name!r} has numbers of {array.dtype}")
            found.append(Fixed(name, f"{part}-{i}", array.dtype.str, array.shape))
            contents[f"{part}-{i}"] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return tuple(found), contents

    def _known(self, index: Index) -> None:
        """Map the weights that the plans of `index` have on disk."""
        names = {one.entry for listed in index.plans for one in listed.weights}
        entries = {name: self._shelf.disk.map(name) for name in names}
        for one in dict.fromkeys(one for listed in index.plans for one in listed.weights):
            entry = entries[one.entry]
            with suppress(KeyError, OddError):  # it is damaged
                if entry is not None:
                    self._there[one] = np.frombuffer(entry.span(one.pieces), np.uint32)

    def _weights(self, job: Job) -> tuple[Part, ...]:
        """Return where the weights of a plan are on disk; those that are not there are written."""
        entry = f"weights/{self._shelf.key[:32]}-{urandom(8).hex()}"
        found: list[Part] = []
        with self._shelf.disk.writer(entry, **self._about()) as draft:
            for weight in job.weights:
                part = self._written.get(weight)
                if part is None or part not in self._there:
                    part = self._append(draft, entry, weight.words())
                self._written[weight] = part
                found.append(part)
            if not all(weight.current() for weight in job.weights):
                raise ValueError("a weight was assigned anew")
            if any(part.entry == entry for part in found) and not draft.commit():
                raise ValueError("the disk refuses its weights")
        return tuple(found)

    def _append(self, draft: Draft, entry: str, words: NDArray[np.uint32]) -> Part:
        """Return where a weight is on disk; it is written to `draft` if it is not there."""
        if not threading.main_thread().is_alive() and _interrupted():
            raise InterruptedError("the process was interrupted")
        for part, known in self._there.items():
            if len(known) == len(words) and _same(known, words):
                return part
        name = f"weight{self._count}"
        self._count += 1
        cuts = range(0, max(words.nbytes, 1), PIECE)
        pieces = tuple(f"{name}.{i}" for i in range(len(cuts)))
        for piece, first in zip(pieces, cuts, strict=True):
            if not draft.append(piece, words[first // 4 : (first + PIECE) // 4]):
                raise ValueError("the disk refuses its weights")
        return Part(entry, pieces)


def _same(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> bool:
    """Return True where these words are equal; most that are not differ at the beginning."""
    return np.array_equal(one[:64], other[:64]) and np.array_equal(one, other)


def _interrupted() -> bool:
    """Return True where the process ends by Ctrl-C."""
    kind = getattr(sys, "last_type", None)
    return kind is not None and issubclass(kind, KeyboardInterrupt)
