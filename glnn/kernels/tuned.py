"""Kernels and parameters that tuning found to be the fastest on one device, kept in a file."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import isfinite, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn import reading
from glnn.device import Capabilities
from glnn.errors import printable
from glnn.kernels.kernel import Kernel
from glnn.kernels.source import fingerprint

if TYPE_CHECKING:
    from glnn.kernels.select import Problem

FORM = 2  # of the file; a file of another is tuned anew
MOST = 4 << 20  # bytes of the file: some 10,000 choices


@dataclass(frozen=True)
class TunedChoice:
    """The fastest kernel of a class of problems.

    kernel: its name. parameters: all of its parameters. seconds: of one run when it was tuned.
    default_seconds: of what would have been chosen without tuning; None where that failed.
    source: the fingerprint of the kernel that was tuned.
    """

    kernel: str
    parameters: Mapping[str, int]
    seconds: float
    default_seconds: float | None
    source: str

    @classmethod
    def of(cls, kernel: Kernel, seconds: float, default_seconds: float | None) -> TunedChoice:
        """The choice of `kernel` with its defaults."""
        return cls(kernel.name, kernel.defaults, seconds, default_seconds, fingerprint(kernel))

    def made(self, kernel: Kernel) -> Kernel | None:
        """`kernel` with these parameters; None where another one was tuned.

        A file is not trusted: parameters that are not declared may give a wrong result, or worse.
        """
        if kernel.name != self.kernel or kernel.halves or set(self.parameters) != set(kernel.tune):
            return None
        for name, value in self.parameters.items():
            familiar = [values[name] for values in kernel.families.values() if name in values]
            if value not in (*kernel.tune[name], *familiar):
                return None
        if fingerprint(kernel) != self.source:
            return None
        return kernel.with_parameters(**self.parameters)


@dataclass
class Tuned:
    """The choices for one device, by backend and class of problem.

    path: the file that keeps them; None where nothing is kept.
    """

    path: Path | None
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
        path = folder / "tuned" / f"{name}.json" if folder else None
        found = cls(path, called, version)
        found.choices = found._read()
        return found

    def _read(self) -> dict[str, TunedChoice]:
        """What the file keeps."""
        if self.path is None:
            return {}
        try:
            text = json.loads(reading.read(self.path, MOST))
            if (text["form"], text["device"], text["glnn"]) != (FORM, self.device, self.version):
                return {}
            return {key: _choice(value) for key, value in text["choices"].items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except Exception as error:  # damage can raise nearly anything: RecursionError, KeyError
            fault = printable(f"{self.path}: not used, as it is damaged: {error!s:.200}")
            warnings.warn(fault, stacklevel=3)
            return {}

    def find(self, backend: str, problem: Problem) -> TunedChoice | None:
        """The choice for problems like `problem`."""
        return self.choices.get(f"{backend} {problem_class(problem)}")

    def kernel(self, kernels: Iterable[Kernel], problem: Problem) -> Kernel | None:
        """The one of `kernels` that was the fastest for problems like `problem`."""
        for kernel in kernels:
            choice = self.find(kernel.backend, problem)
            if choice and (found := choice.made(kernel)):
                return found
        return None

    def keep(self, backend: str, problem: Problem, choice: TunedChoice) -> None:
        """Take `choice` for problems like `problem`, and write the file whole or not at all.

        Raises OSError where it cannot be written.
        """
        if self.path is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a damaged file was warned of when it was loaded
                self.choices = self._read()  # another process may have kept something
        self.choices[f"{backend} {problem_class(problem)}"] = choice
        if self.path is not None:
            self._write(self.path)

    def forget(self) -> None:
        """Drop all choices, and the file. Raises OSError where it cannot be removed."""
        self.choices.clear()
        if self.path is not None:
            with suppress(NotADirectoryError):  # then it keeps nothing
                self.path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Raise OSError where nothing could be written."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{self.path.name} is a folder")
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass

    def _write(self, path: Path) -> None:
        text = json.dumps(
            {
                "form": FORM,
                "device": self.device,
                "glnn": self.version,
                "choices": {key: asdict(value) for key, value in sorted(self.choices.items())},
            },
            indent=1,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
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
    for name, number in value["parameters"].items():
        if type(number) is not int:
            raise ValueError(f"{name}: expected an integer, got {number!r}")
    return TunedChoice(
        str(value["kernel"]),
        dict(value["parameters"]),
        _seconds(value["seconds"]),
        None if default is None else _seconds(default),
        str(value["source"]),
    )


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"expected seconds above 0, got {value!r}")
    return seconds
