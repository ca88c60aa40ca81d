"""Kernels and parameters that tuning found to be the fastest on one device, kept in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite, log2
from pathlib import Path
from typing import Any

from glnn.core.types import DType
from glnn.gl import Capabilities
from glnn.gl.device_file import DeviceFile
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.source import fingerprint

FORM = 3  # of the file; a file of another is tuned anew: 2 had other names of kernels


@dataclass(frozen=True)
class TunedChoice:
    """The fastest kernel of a class of specs.

    kernel: the kernel's name. parameters: all of its parameters. seconds: time of one run when it
    was tuned. default_seconds: time of the kernel chosen without tuning; None where that failed.
    source: the fingerprint of the tuned kernel.
    """

    kernel: str
    parameters: Mapping[str, int]
    seconds: float
    default_seconds: float | None
    source: str

    @classmethod
    def from_kernel(
        cls, kernel: Kernel, seconds: float, default_seconds: float | None
    ) -> TunedChoice:
        """Return the choice of `kernel` with its default parameters."""
        return cls(kernel.name, kernel.defaults, seconds, default_seconds, fingerprint(kernel))

    def apply(self, kernel: Kernel) -> Kernel | None:
        """Return `kernel` with the tuned parameters; None where another kernel was tuned.

        A file is not trusted: parameters that are not declared may give a wrong result, or worse.
        """
        if kernel.name != self.kernel or kernel.document:
            return None
        if set(self.parameters) != set(kernel.tune):
            return None
        for name, value in self.parameters.items():
            rows = (row for rows in kernel.architectures.rows.values() for row in rows)
            if value not in (*kernel.tune[name], *(row.parameters.get(name) for row in rows)):
                return None
        if fingerprint(kernel) != self.source:
            return None
        return kernel.with_parameters(**self.parameters)


@dataclass
class Tuned:
    """The choices for one device, by backend and class of spec.

    file: the file that stores them. revision: counts the changes.
    """

    file: DeviceFile
    choices: dict[str, TunedChoice] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Tuned:
        """Load the choices that this `version` of glnn stored for `device` in `folder`."""
        file = DeviceFile.for_device(folder, "choices", FORM, device, version)
        return cls(file, file.read(_choice))

    @property
    def path(self) -> Path | None:
        """The file that stores the choices; None where nothing is stored."""
        return self.file.path

    @property
    def device(self) -> str:
        """The device's name as the driver reports it."""
        return self.file.device

    def find(self, backend: str, spec: OpSpec) -> TunedChoice | None:
        """Return the choice for specs like `spec`; None without one."""
        return self.choices.get(f"{backend} {problem_class(spec)}")

    def kernel(self, kernels: Iterable[Kernel], spec: OpSpec) -> Kernel | None:
        """Return the one of `kernels` that was the fastest for specs like `spec`, or None."""
        if not self.choices:
            return None
        for kernel in kernels:
            choice = self.find(kernel.backend, spec)
            if choice and (result := choice.apply(kernel)):
                return result
        return None

    def keep(self, backend: str, spec: OpSpec, choice: TunedChoice) -> None:
        """Store `choice` for specs like `spec`; the file is written atomically.

        Raises OSError where it cannot be written.
        """
        if self.path is not None:
            self.choices = self.file.reread(_choice)  # another process may have kept something
        self.choices[f"{backend} {problem_class(spec)}"] = choice
        self.revision += 1
        self.file.write({key: asdict(value) for key, value in self.choices.items()})

    def forget(self) -> None:
        """Drop all choices, and the file. Raises OSError where it cannot be removed."""
        self.choices.clear()
        self.revision += 1
        self.file.remove()

    def probe(self) -> None:
        """Raise OSError where nothing could be written."""
        self.file.probe()


def problem_class(spec: OpSpec) -> str:
    """Return the tuning class of `spec`, as text.

    Sizes are rounded to the nearest power of two; attributes and types are exact.
    """
    sizes = spec.op.sizes(spec.shapes)
    rounded = {name: 2 ** round(log2(size)) if size else 0 for name, size in sizes.items()}
    defines = spec.op.defines(spec.shapes)
    parts = [f"{name}={value}" for name, value in {**rounded, **defines}.items()]
    types = spec.operands
    parts += [f"{n}={one.dtype.value}" for n, one in types if one.dtype is not DType.float32]
    changing = [name for name in spec.op.parameters if name in spec.layouts]
    parts += [f"{name}={spec.layouts[name].replace(' ', '_')}" for name in changing]
    first = spec.first_layout
    return " ".join([spec.op.name, first.replace(" ", "_"), *parts])


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
