"""Shelf: where the plans of one model are in the cache."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from threading import Thread

from glnn.device import Device
from glnn.device.shared import SHARED
from glnn.disk import Disk, Entry, OddError, digest
from glnn.errors import DeviceError, GlnnError, shown
from glnn.runtime.options import Options
from glnn.settings import Settings
from glnn.stored.identity import Files, chosen, named, surroundings
from glnn.stored.index import Index

LOG = logging.getLogger(__name__)
INDEX = "index"
"""The part of an entry that says what there is."""


@dataclass(frozen=True)
class Shelf:
    """The place in the cache of one model's plans, for a device and options."""

    disk: Disk
    """The user's."""
    key: str
    """What tells it from all others, in hexadecimal digits."""
    device: Device
    """On which it runs."""
    fresh: bool
    """Whether all that plans are made by is older than this process."""

    @property
    def name(self) -> str:
        """The entry that has the index and the plans."""
        return f"plans/{self.key}"

    @classmethod
    def of(cls, source: object, options: Options, device: Device | None) -> Shelf | None:
        """That of the model that `source` names; None where nothing is to be stored of it.

        device: None opens, or shares, what `options` ask for; None where that cannot be had, too.
        """
        settings = Settings.from_environment()
        disk, model = Disk.of(settings), named(source)
        left = options.backend == "auto"
        hosts = options.backend == "cpu" or (left and settings.backends[:1] == ("cpu",))
        if not disk.keeps or settings.debug or model is None or hosts:
            return None
        try:
            found, files = _both(options, settings, device)
        except GlnnError as error:  # which whoever makes a plan meets again
            LOG.debug("nothing stored is looked for: %s", error)
            return None
        if not files.suited or found.debug:
            return None
        around = surroundings(found, settings, files)
        return cls(disk, digest(*model, *around, *chosen(options)), found, files.fresh)

    def index(self) -> tuple[Index, Entry] | None:
        """Return the index on disk and its entry; None where there is none that is sound."""
        entry = self.disk.map(self.name)
        if entry is None:
            return None
        try:
            if not entry.check(INDEX):
                raise OddError("a checksum is wrong")
            return Index.of(json.loads(bytes(entry.part(INDEX)))), entry
        except Exception as error:  # whatever a file may say
            LOG.debug("%s: not used: %s", self.name, error)
            self.disk.remove(self.name)
            return None


def _both(options: Options, settings: Settings, device: Device | None) -> tuple[Device, Files]:
    """The device, and glnn's files, which are looked at while it is opened: both take long."""
    found: list[Files] = []
    looking = Thread(target=lambda: found.append(Files.of(settings)), daemon=True)
    try:
        looking.start()
    except RuntimeError:  # there may be no threads to be had
        looking.run()
    try:
        if device is None:
            given = options.device
            device = given if given is not None else SHARED.open(options.gpu, options.limits)
        if not isinstance(device, Device):
            raise DeviceError(f"device must be a glnn.Device, got {shown(device)}")
    finally:
        if looking.ident is not None:
            looking.join()
    return device, found[0]
