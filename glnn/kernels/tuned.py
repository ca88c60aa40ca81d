"""Kernels and parameters that tuning found to be the fastest on one device, kept in a file."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn.device import Capabilities

if TYPE_CHECKING:
    from glnn.kernels.select import Problem

FORM = 1  # of the file; a file of another is tuned anew


@dataclass(frozen=True)
class TunedChoice:
    """The fastest kernel of a class of problems.

    kernel: its name. parameters: all of its parameters. seconds: of one run when it was tuned.
    default_seconds: of what would have been chosen without tuning; None where that failed.
    """

    kernel: str
    parameters: Mapping[str, int]
    seconds: float
    default_seconds: float | None = None


@dataclass
class Tuned:
    """The choices for one device, by backend and class of problem. path: where they are kept."""

    path: Path
    device: str
    version: str
    choices: dict[str, TunedChoice] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Tuned:
        """What `folder` keeps for `device`; nothing where it keeps nothing.

        version: glnn's; what another version found is not used, since kernels change. A file that
        cannot be read is passed over with a warning: tuning it anew replaces it.
        """
        called = f"{device.vendor} {device.renderer} {device.version_text}"
        if device.minimum:
            called += " es31-minimum"
        name = re.sub(r"[^a-z0-9.]+", "-", called.lower()).strip("-")[:150]
        empty = cls((folder or Path(os.devnull)) / "tuned" / f"{name}.json", called, version)
        if folder is None:
            return empty
        try:
            text = json.loads(empty.path.read_text("utf-8"))
            if text["form"] != FORM or text["device"] != called or text["glnn"] != version:
                return empty
            choices = {key: _choice(value) for key, value in text["choices"].items()}
        except (FileNotFoundError, NotADirectoryError):
            return empty
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(f"{empty.path}: not used, as it is damaged: {error}", stacklevel=2)
            return empty
        return cls(empty.path, called, version, choices)

    def find(self, backend: str, problem: Problem) -> TunedChoice | None:
        """The choice for problems like `problem`."""
        return self.choices.get(f"{backend} {problem_class(problem)}")

    def keep(self, backend: str, problem: Problem, choice: TunedChoice) -> None:
        """Take `choice` for problems like `problem`, and write the file whole or not at all."""
        self.choices[f"{backend} {problem_class(problem)}"] = choice
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all. Raises OSError where it cannot be written."""
        text = json.dumps(
            {
                "form": FORM,
                "device": self.device,
                "glnn": self.version,
                "choices": {key: asdict(value) for key, value in sorted(self.choices.items())},
            },
            indent=1,
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def problem_class(problem: Problem) -> str:
    """The class that `problem` belongs to: sizes to the nearest power of two, attributes as is."""
    sizes = problem.op.sizes(problem.shapes)
    rounded = {name: 2 ** round(log2(size)) if size else 0 for name, size in sizes.items()}
    defines = problem.op.defines(problem.shapes)
    attributes = {name: value for name, value in defines.items() if name != "ACTIVATION"}
    parts = [f"{name}={value}" for name, value in {**rounded, **attributes}.items()]
    first = problem.first_layout
    return " ".join([problem.op.name, first.replace(" ", "_"), *parts])


def _choice(value: Any) -> TunedChoice:
    default = value["default_seconds"]
    return TunedChoice(
        str(value["kernel"]),
        {str(name): int(number) for name, number in value["parameters"].items()},
        float(value["seconds"]),
        None if default is None else float(default),
    )
