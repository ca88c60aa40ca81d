"""Plans on disk: sessions find a model's plans here, and a thread writes new ones."""

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
from itertools import count
from os import urandom
from threading import Thread
from time import perf_counter
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from glnn.core.disk_cache import CacheEntry, DamagedError, DiskCache, Draft, digest
from glnn.core.fileio import OpenedFile
from glnn.core.process import process_lock, processors
from glnn.core.settings import Settings
from glnn.core.tensor_info import ModelInfo
from glnn.core.trace_spans import duration
from glnn.core.types import Array, Shape
from glnn.errors import DeviceError, GlnnError, LimitError, NoRoomError, shown
from glnn.gl import DataTexture, Device
from glnn.gl.block_pool import available
from glnn.gl.command_buffer import FormatError, TextureView
from glnn.gl.device import SHARED
from glnn.gl.program import Program
from glnn.gl.transfer import allocate_buffer
from glnn.runtime.buffer_set import Resources
from glnn.runtime.executable import Executable, ShapeRange
from glnn.runtime.options import Options
from glnn.runtime.runner import Runner
from glnn.runtime.store import OnDevice
from glnn.stored.index import (
    MOST_PLANS,
    PLAIN,
    GlnnFiles,
    Index,
    StoredOutput,
    StoredPlan,
    StoredWeight,
    environment_key,
    options_key,
    source_key,
    stamp_files,
)

LOG = logging.getLogger(__name__)
INDEX = "index"
"""The part of an entry that has the index."""
LEFT = 600.0  # seconds after which weights that no plan names are left over, not being written
PIECE = 32 << 20  # bytes of a part: several threads check the checksums of a large weight
MOST_THREADS = 8
"""The most threads that check checksums: more read no faster than memory."""


class RestoredWeight:
    """A weight on `device`, of packed words: a buffer, copies in textures, or both.

    size: the words of the buffer. content: the words at its beginning; zeros are behind. Only
    inside `Device.perform`.
    """

    def __init__(self, device: Device, size: int, content: NDArray[np.uint32]) -> None:
        self._device, self._size, self._content = device, size, content
        self._buffer: Any = None
        self._textures: WeakValueDictionary[TextureView, DataTexture] = WeakValueDictionary()

    def buffer(self) -> Any:
        """Return the buffer, created on first use."""
        if self._buffer is None:
            self._buffer = self._create_buffer()
        return self._buffer

    def _create_buffer(self) -> Any:
        return allocate_buffer(self._device, self._size, self._content)

    def texture(self, view: TextureView) -> DataTexture:
        """Return the texture of `view`, the same one for equal views."""
        key = TextureView(0, view.first, view.words, view.texel, view.sampler)
        result = self._textures.get(key)
        if result is None:
            if not (isinstance(view.words, int) and isinstance(view.first, int)):
                raise FormatError("a weight is of no known size")
            result = DataTexture(self._device, view.words, view.texel, view.sampler)
            # A copy needs no buffer afterwards.
            keep_buffer = not result.copied or self._buffer is not None
            buffer = self.buffer() if keep_buffer else self._create_buffer()
            result.copy_from(buffer, view.first)
            self._textures[key] = result
        return result


def make_runner(
    executable: Executable,
    device: Device,
    weights: Sequence[RestoredWeight],
    fixed: Mapping[str, Array],
    shapes: Mapping[str, Shape],
) -> Runner:
    """Return a runner of `executable` on `device`, whose `weights` are there.

    fixed: the arrays of the outputs that no command computes. shapes: the shapes of the first run's
    inputs. Only inside `Device.perform`. Raises FormatError where the driver refuses a program, and
    what Runner raises.
    """
    programs = [_program(device, key) for key in executable.commands.programs]
    resources = Resources(
        device, programs, weights, lambda: available(device), checks_free_memory=True
    )
    return Runner(
        executable,
        OnDevice(device),
        resources,
        tuple(shapes[one.input][one.axis] for one in executable.symbols),
        fixed=lambda name, buffers: np.array(fixed[name]),
        nbytes=executable.nbytes,
    )


def _program(device: Device, key: str | None) -> Program:
    """Return a stored program. Programs of an executable are not shared, as each has uniforms."""
    result = None if key is None else Program.load_stored(device, key)
    if result is None:
        raise FormatError(f"there is no program {key}, or the driver does not take it")
    return result


@dataclass(frozen=True)
class CacheSlot:
    """The entries in the cache of one model's plans, for a device and options."""

    disk: DiskCache
    """The user's disk cache."""
    key: str
    """The key that identifies it, in hexadecimal digits."""
    device: Device
    """The device of the plans."""
    fresh: bool
    """True where all files that plans depend on are older than this process."""

    @property
    def name(self) -> str:
        """The entry that has the index and the plans."""
        return f"plans/{self.key}"

    @classmethod
    def find(cls, source: object, options: Options, device: Device | None) -> CacheSlot | None:
        """Return the slot of the model that `source` names; None where nothing is to be stored.

        device: None opens, or shares, the device of `options`; also None where it does not open.
        """
        settings = Settings.from_environment()
        disk, model = DiskCache.from_settings(settings), source_key(source)
        auto_cpu = options.backend == "auto" and settings.backends[:1] == ("cpu",)
        on_cpu = options.backend == "cpu" or auto_cpu
        if not disk.keeps or settings.debug or model is None or on_cpu:
            return None
        try:
            opened, files = _open_and_stat(options, settings, device)
        except GlnnError as error:  # which compiling a plan raises again
            LOG.debug("nothing stored is looked for: %s", error)
            return None
        if not files.suited or opened.debug:
            return None
        environment = environment_key(opened, settings, files)
        return cls(disk, digest(*model, *environment, *options_key(options)), opened, files.fresh)

    def index(self) -> tuple[Index, CacheEntry] | None:
        """Return the index on disk and its entry; None without a sound one."""
        entry = self.disk.map(self.name)
        if entry is None:
            return None
        try:
            if not entry.check(INDEX):
                raise DamagedError("a checksum is wrong")
            return Index.from_data(json.loads(bytes(entry.part(INDEX)))), entry
        except Exception as error:  # a damaged file may raise any
            LOG.debug("%s: not used: %s", self.name, error)
            self.disk.remove(self.name)
            return None


def _open_and_stat(
    options: Options, settings: Settings, device: Device | None
) -> tuple[Device, GlnnFiles]:
    """Open the device and stat glnn's files, both at once, as both take long."""
    stats: list[GlnnFiles] = []
    stat_thread = Thread(
        target=lambda: stats.append(GlnnFiles.from_settings(settings)), daemon=True
    )
    try:
        stat_thread.start()
    except RuntimeError:  # the system may allow no further thread
        stat_thread.run()
    try:
        if device is None:
            device = options.device
        if device is None:
            device = SHARED.open(options.gpu, options.limits)
        if not isinstance(device, Device):
            raise DeviceError(f"device must be a glnn.Device, got {shown(device)}")
    finally:
        if stat_thread.ident is not None:
            stat_thread.join()
    return device, stats[0]


class PackedWords(Protocol):
    """A weight on the device, whose packed words are written to disk."""

    def words(self) -> NDArray[np.uint32]:
        """Return its words, without zeros at the end."""

    def current(self) -> bool:
        """Return True where it was not assigned since the plan was compiled."""


@dataclass(frozen=True, eq=False)
class ConstantWords:
    """A constant of an executable's array program, written as a weight."""

    array: Array

    def words(self) -> NDArray[np.uint32]:
        """Return its bytes, padded to whole words."""
        content = np.ascontiguousarray(self.array).tobytes()
        return np.frombuffer(content + bytes(-len(content) % 4), np.uint32)

    def current(self) -> bool:
        """Return True: constants are not assigned."""
        return True


@dataclass(frozen=True, eq=False)
class PlanToWrite:
    """A plan to be written."""

    plan: Executable
    """The plan."""
    weights: tuple[PackedWords, ...]
    """Its weights."""
    fixed: Mapping[str, Array]
    """Its outputs that no command computes."""
    small: bool
    """True where int64 inputs must be small."""


class PlanWriter:
    """Writes plans of one model, one after the other, in a thread that ends with the last one.

    slot: the entries to write. index: the model, without plans. A plan that the disk refuses is not
    stored, which is no error. The process's exit waits for the thread.
    """

    def __init__(self, slot: CacheSlot, index: Index) -> None:
        self._slot, self._index = slot, index
        self._lock = process_lock()
        self._jobs: deque[PlanToWrite] = deque()
        self._count = 0  # of weights that were written
        self._mapped: dict[StoredWeight, NDArray[np.uint32]] = {}
        """The weights on disk and their mapped words, while a plan is written."""
        self._thread: threading.Thread | None = None
        self._written: WeakKeyDictionary[PackedWords, StoredWeight] = WeakKeyDictionary()

    def save(
        self,
        plan: Executable,
        weights: Sequence[PackedWords],
        fixed: Mapping[str, Array],
        small: bool,
    ) -> None:
        """Write an executable to disk, in the writer's thread.

        fixed: its outputs that no command computes. small: True where int64 inputs are `all_small`.
        """
        with self._lock:
            constants = map(ConstantWords, plan.array_program.constants)
            self._jobs.append(PlanToWrite(plan, (*weights, *constants), fixed, small))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="glnn saves")
                try:
                    self._thread.start()
                except RuntimeError:  # the system may allow no thread, or the process ends
                    self._jobs.clear()

    def wait(self) -> None:
        """Wait until all plans are written."""
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
                LOG.debug("%s: a plan is not kept: %s", self._index.info.name, error)
            except Exception:  # an error must not reach the user, who did not ask for the plan
                LOG.debug("%s: a plan is not kept", self._index.info.name, exc_info=True)
            self._mapped = {}  # closes the files

    def _write(self, job: PlanToWrite) -> None:
        """Write a plan: first its weights, then the index with the plan."""
        stored_index = self._slot.index()
        index, entry = self._index, None
        if stored_index is not None and stored_index[0].files == index.files:
            index, entry = stored_index
        elif stored_index is not None:  # an index of files that have changed
            for name in {one.entry for stored in stored_index[0].plans for one in stored.weights}:
                self._slot.disk.remove(name)
        shapes = job.plan.range
        self._map_weights(index)
        if self._is_stored(index, shapes, job.small):
            return  # another process was faster
        weights = self._weights(job)
        number = 1 + max((int(one.part.removeprefix("plan")) for one in index.plans), default=-1)
        part = f"plan{number}"
        fixed, contents = self._fixed(job, part)
        text = json.dumps(job.plan.data(), separators=(",", ":"))
        stored = StoredPlan(shapes, job.small, part, weights, fixed)
        others = [
            one for one in index.plans if one.small != job.small or not shapes.includes(one.range)
        ][1 - MOST_PLANS :]
        if entry is not None:
            others = [one for one in others if all(map(entry.check, one.parts))]
            contents |= {name: entry.part(name) for one in others for name in one.parts}
        index = replace(index, plans=(*others, stored))
        parts: dict[str, Any] = {INDEX: json.dumps(index.data()).encode(), part: text.encode()}
        if self._slot.device.lost is not None:
            raise ValueError("the device was lost")
        if self._slot.disk.write(self._slot.name, {**parts, **contents}, **self._about()):
            self._sweep(index)

    def _is_stored(self, index: Index, shapes: ShapeRange, small: bool) -> bool:
        """Return True where a plan for `shapes` is on disk with all its weights."""
        plan = next((one for one in index.plans if one.key == (shapes, small)), None)
        return plan is not None and set(plan.weights) <= self._mapped.keys()

    def _sweep(self, index: Index) -> None:
        """Remove the model's weights that no plan of `index` uses, as of another process."""
        disk, used = self._slot.disk, {one.entry for each in index.plans for one in each.weights}
        for one in disk.entries():
            is_of_model = one.name.startswith(f"weights/{self._slot.key[:32]}-")
            if is_of_model and one.name not in used and time.time() - one.used > LEFT:
                disk.remove(one.name)

    def _about(self) -> dict[str, str]:
        """Return the description of an entry that `glnn cache` shows."""
        return {"device": self._slot.device.capabilities.renderer, "model": self._index.info.name}

    def _fixed(
        self, job: PlanToWrite, part: str
    ) -> tuple[tuple[StoredOutput, ...], dict[str, Any]]:
        """Return the outputs that no command computes, and the parts with their arrays."""
        outputs: list[StoredOutput] = []
        contents: dict[str, Any] = {}
        for i, (name, array) in enumerate(job.fixed.items()):
            if array.dtype.kind not in PLAIN:
                raise ValueError(f"output {name!r} has numbers of {array.dtype}")
            outputs.append(StoredOutput(name, f"{part}-{i}", array.dtype.str, array.shape))
            contents[f"{part}-{i}"] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return tuple(outputs), contents

    def _map_weights(self, index: Index) -> None:
        """Map the weights that the plans of `index` have on disk."""
        names = {one.entry for stored in index.plans for one in stored.weights}
        entries = {name: self._slot.disk.map(name) for name in names}
        for one in dict.fromkeys(one for stored in index.plans for one in stored.weights):
            entry = entries[one.entry]
            with suppress(KeyError, DamagedError):  # it is damaged
                if entry is not None:
                    self._mapped[one] = np.frombuffer(entry.span(one.pieces), np.uint32)

    def _weights(self, job: PlanToWrite) -> tuple[StoredWeight, ...]:
        """Write the weights of a plan that are not on disk; return all of them."""
        entry_name = f"weights/{self._slot.key[:32]}-{urandom(8).hex()}"
        weights: list[StoredWeight] = []
        with self._slot.disk.writer(entry_name, **self._about()) as draft:
            for weight in job.weights:
                part = self._written.get(weight)
                if part is None or part not in self._mapped:
                    part = self._append(draft, entry_name, weight.words())
                self._written[weight] = part
                weights.append(part)
            if not all(weight.current() for weight in job.weights):
                raise ValueError("a weight was assigned anew")
            if any(part.entry == entry_name for part in weights) and not draft.commit():
                raise ValueError("the disk refuses its weights")
        return tuple(weights)

    def _append(self, draft: Draft, entry: str, words: NDArray[np.uint32]) -> StoredWeight:
        """Return a weight on disk with these words; without one write them to `draft`."""
        if not threading.main_thread().is_alive() and _interrupted():
            raise InterruptedError("the process was interrupted")
        for part, stored_words in self._mapped.items():
            if len(stored_words) == len(words) and _same(stored_words, words):
                return part
        name = f"weight{self._count}"
        self._count += 1
        offsets = range(0, max(words.nbytes, 1), PIECE)
        pieces = tuple(f"{name}.{i}" for i in range(len(offsets)))
        for piece, first in zip(pieces, offsets, strict=True):
            if not draft.append(piece, words[first // 4 : (first + PIECE) // 4]):
                raise ValueError("the disk refuses its weights")
        return StoredWeight(entry, pieces)


def _same(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> bool:
    """Return True for equal words; most others differ in the first ones, which is faster."""
    return np.array_equal(first[:64], second[:64]) and np.array_equal(first, second)


def _interrupted() -> bool:
    """Return True where the process ends by Ctrl-C."""
    kind = getattr(sys, "last_type", None)
    return kind is not None and issubclass(kind, KeyboardInterrupt)


class StoredModel:
    """The plans of a model on disk, for a device and options.

    No size in them depends on the numbers of an input.
    """

    def __init__(self, slot: CacheSlot, index: Index, entry: CacheEntry) -> None:
        self.info = index.info
        self.backend = index.backend
        """The name of the backend that compiled its plans."""
        self.device = slot.device
        """The device that the plans run on."""
        self._slot, self._index, self._entry = slot, index, entry
        self._weights: WeakValueDictionary[StoredWeight, RestoredWeight] = WeakValueDictionary()
        """The weights on the device, which plans share."""

    def unchanged(self) -> bool:
        """Return True where the model's files have not changed."""
        return self._index.unchanged()

    def refuse(self) -> None:
        """Remove its plans from disk, as one of them cannot be run."""
        self._slot.disk.remove(self._entry.name)

    def plan(self, shapes: Mapping[str, Shape], small: bool) -> Runner | None:
        """Return a runner of a stored plan for inputs of `shapes`; None without a usable one.

        small: True where int64 inputs are `all_small`. Only inside `Device.perform`.
        """
        start = perf_counter()
        try:
            stored = self._index.find(shapes, small)
            if stored is None:
                return None
            result = self._make_runner(stored, shapes)
        except Exception as error:  # a damaged file may raise any
            LOG.debug("%s: not restored: %s", self.info.name, error)
            if not isinstance(error, (LimitError, MemoryError)):
                self.refuse()
            return None
        LOG.info(
            "restored %s for %s on %s: %d bytes, %s",
            self.info.name,
            ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items()),
            self.backend,
            result.executable.nbytes,
            duration(perf_counter() - start),
        )
        return result

    def _make_runner(self, stored: StoredPlan, shapes: Mapping[str, Shape]) -> Runner:
        """Return a runner of the plan, bound to `shapes`, while threads check its checksums.

        Raises an exception of any kind for a damaged plan.
        """
        entry, disk = self._entry, self._slot.disk
        if not all(map(entry.check, stored.parts)):
            raise DamagedError("a plan's checksum is wrong")
        data = json.loads(bytes(entry.part(stored.part)))
        entries = {name: disk.map(name) for name in {one.entry for one in stored.weights}}
        contents = [_content(entries[one.entry], one) for one in stored.weights]
        sources = stored.weights[: len(data["weights"])]  # the others are constants
        plan = Executable.from_data(data, [content for _, content in contents[len(sources) :]])
        if plan.range != stored.range:
            raise DamagedError("a plan is of other shapes")
        fixed = {one.name: one.array(bytes(entry.part(one.part))) for one in stored.fixed}
        if {one.name for one in plan.io.outputs if one.fixed} - fixed.keys():
            raise DamagedError("an output is missing")
        free = available(self.device)
        resident_bytes = sum(
            4 * words
            for words, source in zip(plan.weights, sources, strict=True)
            if source in self._weights
        )
        if free is not None and plan.nbytes - resident_bytes > free:
            raise NoRoomError(f"{plan.nbytes} bytes of device memory are not free")
        weights, unchecked_parts = [], []
        pairs = zip(stored.weights, contents, strict=True)
        for i, (source, (weight_entry, content)) in enumerate(pairs):
            resident = self._weights.get(source) if i < len(sources) else None
            if resident is None:
                unchecked_parts += [(weight_entry, piece) for piece in source.pieces]
            if i < len(sources):
                if len(content) > plan.weights[i]:
                    raise DamagedError(f"{source.entry} has too many words: {len(content)}")
                weights.append(resident or RestoredWeight(self.device, plan.weights[i], content))
        checksums = ChecksumThreads(unchecked_parts)
        try:
            runner = make_runner(plan, self.device, weights, fixed, shapes)
        finally:
            damaged = checksums.wrong()
        for name in damaged:
            disk.remove(name)
        if damaged:
            raise DamagedError("a weight's checksum is wrong")
        self._weights.update(zip(sources, weights, strict=True))
        return runner


def _content(
    entry: CacheEntry | None, weight: StoredWeight
) -> tuple[CacheEntry, NDArray[np.uint32]]:
    """Return the entry of a weight, and its words. Raises DamagedError without an entry."""
    if entry is None:
        raise DamagedError(f"{weight.entry} is not kept any more")
    return entry, np.frombuffer(entry.span(weight.pieces), np.uint32)


class ChecksumThreads:
    """Threads that check the checksums of parts of entries."""

    def __init__(self, parts: Sequence[tuple[CacheEntry, str]]) -> None:
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
        """Wait for the threads, and return the names of entries with a wrong checksum."""
        for thread in self._threads:
            thread.join()
        return self._wrong


class PlanCache:
    """The user's cache of plans. Any thread may use it."""

    def __init__(self) -> None:
        self._empty: WeakKeyDictionary[Options, CacheSlot] = WeakKeyDictionary()
        """The slots in which `find` found no plans, for `writer`."""

    def find(self, source: object, options: Options) -> StoredModel | None:
        """Return the stored plans of the model `source`; None without any."""
        slot = CacheSlot.find(source, options, None)
        if slot is None:
            return None
        stored = slot.index()
        if stored is not None and stored[0].unchanged():
            return StoredModel(slot, *stored)
        self._empty[options] = slot
        return None

    def writer(
        self,
        source: object,
        options: Options,
        device: Device,
        backend: str,
        info: ModelInfo,
        read: Sequence[OpenedFile],
    ) -> PlanWriter | None:
        """Return a writer of the model's plans, as it was loaded to run on `backend` of `device`.

        read: the files that the model was read from. Return None where nothing is to be stored.
        """
        files = stamp_files(read)
        slot = self._empty.pop(options, None)
        if slot is None or slot.device is not device:
            slot = CacheSlot.find(source, options, device)
        if slot is None or not slot.fresh or files is None:
            return None
        return PlanWriter(slot, Index(info, backend, files))
