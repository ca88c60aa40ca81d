"""File of the fastest backend for each model on one device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from glnn.core.process import processors
from glnn.gl import Capabilities
from glnn.gl.device_file import DeviceFile
from glnn.runtime.options import BackendChoice

LOG = logging.getLogger(__name__)
FORM = 2  # of the file; a file of another form is ignored: form 1 timed first runs
MOST = 2000  # choices in the file, the latest


@dataclass(frozen=True)
class CachedChoice:
    """A remembered choice of a backend, and the model it was made for."""

    choice: BackendChoice
    """The choice of a backend."""
    model: str
    """The name of the graph, for people."""
    shapes: str
    """The class of its inputs' shapes, as `x=1x4x32x32`."""
    at: int
    """The time of the choice, in seconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as dicts, strings and numbers for JSON."""
        return {"model": self.model, "shapes": self.shapes, "at": self.at} | self.choice.to_json()


@dataclass
class BackendChoiceCache:
    """The choices of backends for one device and the host's processors, by `key`.

    file: the file that stores them; without a path they last as long as this object.
    """

    file: DeviceFile
    found: dict[str, CachedChoice] = field(default_factory=dict)
    warned: bool = False
    """True once a warning was given that the device is a software renderer."""

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> BackendChoiceCache:
        """Load the choices that this `version` of glnn stored for `device` in `folder`."""
        file = DeviceFile.for_device(folder, "fastest", FORM, device, version)
        return cls(file, file.read(_cached_choice))

    @staticmethod
    def key(fingerprint: str, shapes: str) -> str:
        """Return the key of an entry. fingerprint: hash of the graph and the options."""
        return f"{fingerprint} {shapes} NumPy {np.__version__} on {processors()}"

    def find(self, key: str) -> BackendChoice | None:
        """Return the remembered choice; None without one."""
        entry = self.found.get(key)
        return None if entry is None else replace(entry.choice, remembered=True)

    def keep(self, key: str, choice: BackendChoice, model: str, shapes: str) -> None:
        """Remember `choice`, and write the file where that is possible."""
        if self.file.path is not None:
            self.found = self.file.reread(_cached_choice)  # another process may have written it
        self.found[key] = CachedChoice(choice, model, shapes, int(time()))
        latest = sorted(self.found, key=lambda name: self.found[name].at)[-MOST:]
        self.found = {name: self.found[name] for name in latest}
        try:
            self.file.write({name: entry.to_json() for name, entry in self.found.items()})
        except OSError as error:
            LOG.debug("which backend is the fastest is not kept: %s", error)


def _cached_choice(value: Any) -> CachedChoice:
    seconds: Mapping[str, float] = {str(k): float(v) for k, v in value["seconds"].items()}
    why = {str(k): str(v) for k, v in value["why"].items()}
    choice = BackendChoice(str(value["backend"]), seconds, why)
    return CachedChoice(choice, str(value["model"]), str(value["shapes"]), int(value["at"]))
