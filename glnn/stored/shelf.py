"""Where what is stored of a model has its place."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from glnn.device import Device
from glnn.device.context import NoDeviceError
from glnn.device.shared import SHARED
from glnn.disk import Disk, Entry, OddError, digest
from glnn.running.options import Options
from glnn.settings import Settings
from glnn.stored.identity import chosen, named, surroundings
from glnn.stored.index import Index

LOG = logging.getLogger(__name__)
INDEX = "index"
"""The part of an entry that says what there is."""


@dataclass(frozen=True)
class Shelf:
    """Where what is stored of one model, for a device and options, has its place."""

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

        device: None opens, or shares, what `options` ask for; which raises DeviceError.
        """
        settings = Settings.from_environment()
        disk, model = Disk.of(settings), named(source)
        left = options.backend == "auto"
        hosts = options.backend == "cpu" or (left and settings.backends[:1] == ("cpu",))
        if not disk.keeps or settings.debug or model is None or hosts:
            return None
        if device is None:
            try:
                device = options.device or SHARED.open(options.gpu, options.limits)
            except NoDeviceError:
                if left:
                    return None  # the CPU may do, and who opens a backend knows
                raise
        around = surroundings(device, settings)
        if around is None:
            return None
        texts, fresh = around
        return cls(disk, digest(*model, *texts, *chosen(options)), device, fresh)

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
