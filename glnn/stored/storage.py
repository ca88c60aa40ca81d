"""Finding what was stored of a model, and making plans of it that run."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from weakref import WeakValueDictionary

import numpy as np

from glnn.device import Device
from glnn.device.played import Packed
from glnn.device.shared import SHARED
from glnn.device.tape import TapeError
from glnn.disk import Disk, Entry, OddError, digest
from glnn.errors import GlnnError
from glnn.process import processors
from glnn.running.options import Options
from glnn.running.stored import StoredModel
from glnn.settings import Settings
from glnn.stored.identity import chosen, named, surroundings
from glnn.stored.index import Index, Listed, Part
from glnn.stored.plan import StoredPlan
from glnn.stored.restored import Restored, available
from glnn.tensor_info import TensorInfo
from glnn.types import Shape

LOG = logging.getLogger(__name__)
INDEX = "index"
"""The part of an entry that says what there is."""
MOST_THREADS = 8
"""That look at checksums: they read no faster than memory."""


@dataclass(frozen=True)
class Shelf:
    """Where what is stored of one model, for a device and options, has its place."""

    disk: Disk
    """The user's."""
    key: str
    """What tells it from all others, in hexadecimal digits."""
    device: Device
    """On which it runs."""

    @property
    def name(self) -> str:
        """The entry that has the index and the plans."""
        return f"plans/{self.key}"

    @classmethod
    def of(cls, source: object, options: Options, device: Device | None) -> Shelf | None:
        """That of the model that `source` names; None where nothing is to be stored of it.

        device: None opens, or shares, what `options` ask for; which raises DeviceError.
        """
        settings = Settings.from_environment()
        disk, model = Disk.of(settings), named(source)
        if not disk.keeps or settings.debug or model is None or options.backend == "cpu":
            return None
        if device is None:
            device = options.device or SHARED.open(options.gpu, options.limits)
        around = surroundings(device, settings)
        if around is None:
            return None
        return cls(disk, digest(*model, *around, *chosen(options)), device)

    def index(self) -> tuple[Index, Entry] | None:
        """What there is by now."""
        entry = self.disk.map(self.name)
        if entry is None:
            return None
        try:
            if not entry.check(INDEX):
                raise OddError("a checksum is wrong")
            return Index.of(json.loads(bytes(entry.part(INDEX)))), entry
        except (KeyError, ValueError, OddError) as error:
            LOG.debug("%s: not used: %s", self.name, error)
            self.disk.remove(self.name)
            return None


class Shelved:
    """What is stored of a model: see `StoredModel`."""

    def __init__(self, shelf: Shelf, index: Index, entry: Entry) -> None:
        self.name: str = index.name
        self.inputs: tuple[TensorInfo, ...] = index.inputs
        self.outputs: tuple[TensorInfo, ...] = index.outputs
        self.metadata: Mapping[str, str] = index.metadata
        self.backend: str = index.backend
        self.device: Device = shelf.device
        self._shelf, self._index, self._entry = shelf, index, entry
        self._packed: WeakValueDictionary[Part, Packed] = WeakValueDictionary()

    def unchanged(self) -> bool:
        """See `StoredModel`."""
        return all(one.unchanged() for one in self._index.files)

    def plan(self, shapes: Mapping[str, Shape], small: bool) -> Restored | None:
        """See `StoredModel`."""
        listed = self._index.find(shapes, small)
        if listed is None:
            return None
        start = perf_counter()
        try:
            found = self._restored(listed)
        except (TapeError, OddError, ValueError, KeyError, GlnnError, MemoryError) as error:
            LOG.debug("%s: not restored: %s", self.name, error)
            return None
        LOG.info(
            "restored %s for %s on %s: %d bytes, %.3f s",
            self.name,
            ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items()),
            self.backend,
            found.plan.nbytes,
            perf_counter() - start,
        )
        return found

    def _restored(self, listed: Listed) -> Restored:
        """The plan, whose parts are looked at while it is made. Raises what is wrong with it."""
        entry, disk = self._entry, self._shelf.disk
        own = [listed.part, *(one.part for one in listed.fixed)]
        if not all(map(entry.check, own)):
            disk.remove(entry.name)
            raise OddError("a plan's checksum is wrong")
        plan = StoredPlan.of(json.loads(bytes(entry.part(listed.part))))
        fixed = {one.name: one.array(bytes(entry.part(one.part))) for one in listed.fixed}
        if {one.name for one in plan.ends.outputs if one.fixed} - fixed.keys():
            raise OddError("an output is missing")
        free = available(self.device)
        there = sum(
            4 * words
            for words, part in zip(plan.tape.weights, listed.weights, strict=True)
            if part in self._packed
        )
        if free is not None and plan.nbytes - there > free:
            raise OddError(f"{plan.nbytes} bytes of device memory are not free")
        entries = {name: disk.map(name) for name in {one.entry for one in listed.weights}}
        weights, checks = [], []
        for words, part in zip(plan.tape.weights, listed.weights, strict=True):
            packed, within = self._packed.get(part), entries[part.entry]
            if within is None:
                raise OddError(f"{part.entry} is not kept any more")
            if packed is None:
                content = np.frombuffer(within.span(part.pieces), np.uint32)
                if len(content) > words:
                    raise OddError(f"{part.entry} has {len(content)} words for {words}")
                packed = Packed(self.device, words, content)
                checks += [(within, piece) for piece in part.pieces]
            weights.append(packed)
        checking = Checking(checks)
        try:
            made = Restored(plan, self.device, weights, fixed)
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
    """What is stored in the user's cache: see `Storage`."""

    def find(self, source: object, options: Options) -> StoredModel | None:
        """See `Storage`. Raises DeviceError where no device opens."""
        shelf = Shelf.of(source, options, None)
        found = None if shelf is None else shelf.index()
        if shelf is None or found is None:
            return None
        stored = Shelved(shelf, *found)
        return stored if stored.unchanged() else None
