"""DiskStorage: finds the stored plans of a model, and makes runners of them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from glnn.device import Device
from glnn.disk import Entry, OddError
from glnn.process import processors
from glnn.runtime.executable import Executable
from glnn.runtime.options import Options
from glnn.runtime.runner import Runner
from glnn.runtime.stored import Loading, Saver, StoredModel
from glnn.span import duration
from glnn.stored.identity import stamps
from glnn.stored.index import Index, Listed, Part
from glnn.stored.restored import PackedWeight, available, restored
from glnn.stored.saver import DiskSaver
from glnn.stored.shelf import Shelf
from glnn.tensor_info import TensorInfo
from glnn.types import Shape

LOG = logging.getLogger(__name__)
MOST_THREADS = 8
"""Threads that look at checksums: more read no faster than memory."""


class TooLittleRoomError(OddError):
    """A plan takes more memory than is free."""


class Shelved:
    """A model's stored plans, found in the cache: see `StoredModel`."""

    def __init__(self, shelf: Shelf, index: Index, entry: Entry) -> None:
        self.name: str = index.name
        self.inputs: tuple[TensorInfo, ...] = index.inputs
        self.outputs: tuple[TensorInfo, ...] = index.outputs
        self.metadata: Mapping[str, str] = index.metadata
        self.backend: str = index.backend
        self.device: Device = shelf.device
        self._shelf, self._index, self._entry = shelf, index, entry
        self._packed: WeakValueDictionary[Part, PackedWeight] = WeakValueDictionary()

    def unchanged(self) -> bool:
        """See `StoredModel`."""
        return self._index.unchanged()

    def refuse(self) -> None:
        """See `StoredModel`."""
        self._shelf.disk.remove(self._entry.name)

    def plan(self, shapes: Mapping[str, Shape], small: bool) -> Runner | None:
        """See `StoredModel`."""
        start = perf_counter()
        try:
            listed = self._index.find(shapes, small)
            if listed is None:
                return None
            found = self._restored(listed, shapes)
        except Exception as error:  # whatever a file may say
            LOG.debug("%s: not restored: %s", self.name, error)
            if not isinstance(error, TooLittleRoomError):
                self.refuse()
            return None
        LOG.info(
            "restored %s for %s on %s: %d bytes, %s",
            self.name,
            ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items()),
            self.backend,
            found.executable.nbytes,
            duration(perf_counter() - start),
        )
        return found

    def _restored(self, listed: Listed, shapes: Mapping[str, Shape]) -> Runner:
        """Return a runner of the plan, bound to `shapes`. Checksums are looked at while it is made.

        Raises what is wrong with it.
        """
        entry, disk = self._entry, self._shelf.disk
        if not all(map(entry.check, listed.parts)):
            raise OddError("a plan's checksum is wrong")
        plan = Executable.of(json.loads(bytes(entry.part(listed.part))))
        fixed = {one.name: one.array(bytes(entry.part(one.part))) for one in listed.fixed}
        if {one.name for one in plan.io.outputs if one.fixed} - fixed.keys():
            raise OddError("an output is missing")
        free = available(self.device)
        there = sum(
            4 * words
            for words, part in zip(plan.weights, listed.weights, strict=True)
            if part in self._packed
        )
        if free is not None and plan.nbytes - there > free:
            raise TooLittleRoomError(f"{plan.nbytes} bytes of device memory are not free")
        entries = {name: disk.map(name) for name in {one.entry for one in listed.weights}}
        weights, checks = [], []
        for words, part in zip(plan.weights, listed.weights, strict=True):
            packed, within = self._packed.get(part), entries[part.entry]
            if within is None:
                raise OddError(f"{part.entry} is not kept any more")
            if packed is None:
                content = np.frombuffer(within.span(part.pieces), np.uint32)
                if len(content) > words:
                    raise OddError(f"{part.entry} has {len(content)} words for {words}")
                packed = PackedWeight(self.device, words, content)
                checks += [(within, piece) for piece in part.pieces]
            weights.append(packed)
        checking = Checking(checks)
        try:
            made = restored(plan, self.device, weights, fixed, shapes)
        finally:
            wrong = checking.wrong()
        for odd in wrong:
            disk.remove(odd)
        if wrong:
            raise OddError("a weight's checksum is wrong")
        self._packed.update(zip(listed.weights, weights, strict=True))
        return made


class Checking:
    """Threads that look at the checksums of parts of entries."""

    def __init__(self, parts: Sequence[tuple[Entry, str]]) -> None:
        self._parts, self._next = parts, count()
        self._wrong: list[str] = []
        most = min(len(parts), max(processors() - 1, 1), MOST_THREADS)
        self._threads = [threading.Thread(target=self._check, daemon=True) for _ in range(most)]
        for thread in self._threads:
            thread.start()

    def _check(self) -> None:
        for number in self._next:
            if number >= len(self._parts):
                return
            entry, part = self._parts[number]
            if not entry.check(part):
                self._wrong.append(entry.name)

    def wrong(self) -> list[str]:
        """The names of the entries in which a part is not as it was written, once all are seen."""
        for thread in self._threads:
            thread.join()
        return self._wrong


class DiskStorage:
    """Stored plans in the user's cache: see `Storage`. Any thread may use it."""

    def __init__(self) -> None:
        self._empty: WeakKeyDictionary[Options, Shelf] = WeakKeyDictionary()  # as they were found

    def find(self, source: object, options: Options) -> StoredModel | None:
        """See `Storage`."""
        shelf = Shelf.of(source, options, None)
        if shelf is None:
            return None
        found = shelf.index()
        if found is not None and found[0].unchanged():
            return Shelved(shelf, *found)
        self._empty[options] = shelf
        return None

    def saver(
        self, source: object, options: Options, device: Device, backend: str, read: Loading
    ) -> Saver | None:
        """See `Storage`."""
        files = stamps(read.files)
        shelf = self._empty.pop(options, None)
        if shelf is None or shelf.device is not device:
            shelf = Shelf.of(source, options, device)
        if shelf is None or not shelf.fresh or files is None:
            return None
        known = read.described
        index = Index(known.name, known.inputs, known.outputs, known.metadata, backend, files)
        return DiskSaver(shelf, index)
