"""What a report of a fault says of the machine: no names of users, hosts or folders."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from glnn.device import Device
from glnn.process import processors
from glnn.settings import noted
from glnn.version import VERSION

DRI, DRM = Path("/dev/dri"), Path("/sys/class/drm")
CPU_INFO = Path("/proc/cpuinfo")
NAMED = re.compile(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """A file by which programs reach a GPU."""

    name: str
    """As it is called in /dev/dri."""
    driver: str | None
    """The kernel's driver of it; None where the system does not tell."""
    usable: bool
    """Whether this process may open it."""


@dataclass(frozen=True)
class Machine:
    """The machine, the versions, and what GL says of the device."""

    system: str
    """The operating system, as it calls itself."""
    kernel: str
    """Its kernel's version."""
    architecture: str
    """Of the processor, as the kernel calls it."""
    processor: str | None
    """The processor's name; None where the system does not tell."""
    processors: int
    """How many this process may use."""
    memory: int | None
    """Bytes that the machine has; None where nobody knows."""
    python: str
    """Python's version."""
    glnn: str
    """glnn's."""
    numpy: str
    """NumPy's."""
    blas: str
    """The library of NumPy's products, and its version."""
    moderngl: str
    """moderngl's version."""
    cards: tuple[Card, ...]
    """The GPUs that the kernel offers."""
    environment: Mapping[str, str]
    """What the environment asks of glnn and of GL; paths are left out."""
    vendor: str
    """GL's."""
    renderer: str
    """GL's name of the device."""
    version: str
    """GL's, as the driver writes it."""
    glsl: str
    """The same of its language."""
    platform: str
    """The way by which the context was opened."""
    mesa: str | None
    """Mesa's version; None of other drivers."""
    extensions: tuple[str, ...]
    """GL's, in alphabetical order."""
    limits: Mapping[str, Any]
    """The limits, as glnn takes them."""
    stated: Mapping[str, Any]
    """Those that the driver states otherwise."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The same as text, to be pasted into a report."""
        cards = ", ".join(
            f"{one.name} ({one.driver or 'driver unknown'}{'' if one.usable else ', not allowed'})"
            for one in self.cards
        )
        facts = {
            "system": f"{self.system}, kernel {self.kernel}, {self.architecture}",
            "processor": f"{self.processor or 'unknown'}, {self.processors} for this process",
            "memory": "unknown" if self.memory is None else f"{self.memory / 2**30:.1f} GiB",
            "versions": f"glnn {self.glnn}, Python {self.python}, NumPy {self.numpy} with "
            f"{self.blas}, moderngl {self.moderngl}",
            "GPUs of the kernel": cards or "none",
            "environment": ", ".join(f"{k}={v}" for k, v in self.environment.items()) or "nothing",
            "GL": f"{self.renderer} by {self.vendor}; {self.version}; {self.glsl}; by "
            f"{self.platform}",
            "limits": ", ".join(f"{k} {_number(v)}" for k, v in self.limits.items()),
            "the driver states": ", ".join(f"{k} {_number(v)}" for k, v in self.stated.items()),
            "extensions": " ".join(self.extensions),
        }
        return [f"{name}: {text}" for name, text in facts.items() if text]


def describe_machine(device: Device) -> Machine:
    """The machine, and what GL says of `device`. Raises what `Device.perform` raises."""
    offers = device.capabilities
    limits, stated = offers.limits(), device.stated.limits()
    return Machine(
        system=_system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        processor=_processor(),
        processors=processors(),
        memory=_memory(),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        glnn=VERSION,
        numpy=np.__version__,
        blas=_blas(),
        moderngl=_version("moderngl"),
        cards=tuple(_cards()),
        environment=noted(),
        vendor=offers.vendor,
        renderer=offers.renderer,
        version=offers.version_text,
        glsl=offers.glsl_text,
        platform=offers.platform,
        mesa=mesa(offers.version_text),
        extensions=tuple(sorted(device.perform(lambda: device.context.extensions))),
        limits=limits,
        stated={name: stated[name] for name, value in limits.items() if stated[name] != value},
    )


def mesa(text: str) -> str | None:
    """Mesa's version in GL's `text`; None where there is none."""
    found = re.search(r"\bMesa (\S+)", text)
    return found[1] if found else None


def _system() -> str:
    with suppress(OSError, AttributeError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return f"{platform.system()} {platform.version()}" if platform.system() else "unknown"


def _processor() -> str | None:
    try:
        found = NAMED.search(CPU_INFO.read_text("utf-8", "replace"))
    except OSError:
        return platform.processor() or None
    return found[1].strip() if found else platform.processor() or None


def _memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemTotal:")]
    return 1024 * int(kib[0]) if kib and kib[0].isdigit() else None


def _blas() -> str:
    try:
        known: Any = np.show_config(mode="dicts")
        blas = known["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']}".strip()
    except (KeyError, TypeError, AttributeError):  # NumPy before 1.26 only prints it
        return "a BLAS that is not told"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of no known version"


def _cards() -> Iterator[Card]:
    """The files in /dev/dri, which Linux has, with the drivers that sysfs tells."""
    try:
        names = sorted(path.name for path in DRI.iterdir() if re.match("card|render", path.name))
    except OSError:
        return
    for name in names:
        driver = None
        with suppress(OSError):
            link = DRM / name / "device" / "driver"
            driver = link.resolve(strict=True).name
        yield Card(name, driver, os.access(DRI / name, os.R_OK | os.W_OK))


def _number(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
