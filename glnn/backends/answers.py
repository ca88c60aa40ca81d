"""Which backend was the fastest for a model on one device, kept in a file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from glnn.choice import Choice
from glnn.device import Capabilities
from glnn.device.device_file import DeviceFile
from glnn.process import processors

LOG = logging.getLogger(__name__)
FORM = 2  # of the file; what one of another form says is measured anew: 1 judged by first runs
MOST = 2000  # answers that are kept, the latest


@dataclass(frozen=True)
class Answer:
    """A choice that was made, and for what."""

    choice: Choice
    """It."""
    model: str
    """What the graph is called, for people."""
    shapes: str
    """The class of its inputs' shapes, as `x=1x4x32x32`."""
    at: int
    """When, in seconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, texts and numbers."""
        return {"model": self.model, "shapes": self.shapes, "at": self.at} | self.choice.to_json()


@dataclass
class Answers:
    """The answers for one device and the processors beside it, by what `key` gives.

    file: what keeps them; where that has no path, they live as long as this does.
    """

    file: DeviceFile
    found: dict[str, Answer] = field(default_factory=dict)
    warned: bool = False
    """Whether somebody was told that the device is a software renderer."""

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Answers:
        """What `folder` keeps for `device`, found by this `version` of glnn."""
        file = DeviceFile.of(folder, "fastest", FORM, device, version)
        return cls(file, file.read(_answer))

    @staticmethod
    def key(fingerprint: str, shapes: str) -> str:
        """By what an answer is kept. fingerprint: of what is computed, and by which options."""
        return f"{fingerprint} {shapes} NumPy {np.__version__} on {processors()}"

    def find(self, key: str) -> Choice | None:
        """The choice that was made, if it was."""
        answer = self.found.get(key)
        return None if answer is None else replace(answer.choice, remembered=True)

    def keep(self, key: str, choice: Choice, model: str, shapes: str) -> None:
        """Take `choice` from now on, and write the file where that can be written."""
        if self.file.path is not None:
            self.found = self.file.again(_answer)  # another process may have kept something
        self.found[key] = Answer(choice, model, shapes, int(time()))
        latest = sorted(self.found, key=lambda name: self.found[name].at)[-MOST:]
        self.found = {name: self.found[name] for name in latest}
        try:
            self.file.write({name: answer.to_json() for name, answer in self.found.items()})
        except OSError as error:
            LOG.debug("which backend is the fastest is not kept: %s", error)


def _answer(value: Any) -> Answer:
    seconds: Mapping[str, float] = {str(k): float(v) for k, v in value["seconds"].items()}
    why = {str(k): str(v) for k, v in value["why"].items()}
    choice = Choice(str(value["backend"]), seconds, why)
    return Answer(choice, str(value["model"]), str(value["shapes"]), int(value["at"]))
