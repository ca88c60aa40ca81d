"""What was measured of a device, and the sentences that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glnn.doctor.checks import NoVerdict
from glnn.span import duration

GPU_BACKENDS = ("compute", "feedback")
MATMUL, CONV, LENET = "matmul", "conv2d", "lenet"
CHANNELS = 64
"""Of the convolution's image and of its result."""


@dataclass(frozen=True)
class Launching:
    """What launches cost on one backend: the least work, 64 numbers, by the clock on the wall."""

    backend: str
    """Which."""
    alone: float
    """Seconds from asking for one launch to its end, waited for: the median."""
    chained: float
    """Seconds of a launch in a chain of `length`, each of which needs the one before it."""
    length: int
    """How many those are."""


@dataclass(frozen=True)
class Transfer:
    """What moving so many bytes takes: medians by the clock, each waited for."""

    nbytes: int
    """How many."""
    up: float
    """Seconds to the device."""
    down: float
    """Seconds to the host, of what the device wrote."""
    copy: float
    """Seconds within the device's memory."""

    def rate(self, way: str) -> float:
        """Bytes a second; `way` is up, down or copy."""
        seconds: float = getattr(self, way)
        return self.nbytes / max(seconds, 1e-9)


@dataclass(frozen=True)
class Contest:
    """The same work on each backend."""

    what: str
    """`matmul`, `conv2d` or `lenet`."""
    size: int
    """n of a product of n x n, the side of the image of a convolution, the images of LeNet."""
    flops: int
    """Operations that it takes, as plain loops have them; 0 where nobody counted."""
    on_device: Mapping[str, float]
    """Seconds with all operands in place, by backend; `numpy` is NumPy in this process."""
    in_all: Mapping[str, float]
    """Seconds of a session's run, from arrays in the host to arrays there; `cpu` is NumPy, too."""
    left_out: tuple[str, ...] = ()
    """Backends whose runs would have taken too long."""

    def rate(self, backend: str) -> float | None:
        """Operations a second with all operands in place; None where that was not measured."""
        seconds = self.on_device.get(backend)
        return self.flops / seconds if seconds and self.flops else None

    @property
    def gain(self) -> float | None:
        """How many times as fast as the CPU the faster GPU backend is, in all; None: unknown."""
        times = [self.in_all[name] for name in GPU_BACKENDS if name in self.in_all]
        own = self.in_all.get("cpu")
        return own / min(times) if own is not None and times else None


@dataclass(frozen=True)
class Compiling:
    """What the first use of a new shader costs on one backend."""

    backend: str
    """Which."""
    compiled: float
    """Seconds of compiling and linking it, none of it from a cache."""
    first: float
    """Seconds of its first run, in which some drivers do the rest."""


@dataclass(frozen=True)
class Room:
    """What of the device's memory could be used."""

    told: int | None
    """Bytes that are free, as the system tells; None where nobody knows."""
    tried: int
    """Bytes that were asked for, all at once."""
    confirmed: int
    """Bytes of them that kept what was written to them."""
    fault: str | None = None
    """What went wrong with the rest; None where nothing did."""


@dataclass(frozen=True)
class Speed:
    """What was measured of a device."""

    software: str | None
    """What renders on the CPU; None for a GPU."""
    own_memory: bool
    """Whether the GPU is known to have memory of its own."""
    processors: int
    """Those that this process may use."""
    launches: tuple[Launching, ...]
    """By backend."""
    transfers: tuple[Transfer, ...]
    """By size, the least first."""
    contests: tuple[Contest, ...]
    """By work and size."""
    compiling: tuple[Compiling, ...]
    """By backend."""
    room: Room | None
    """Of memory; None where that was not tried."""
    seconds: float
    """What all of this took."""
    waiting: float = 1.0
    """Seconds that a thread which only computes needs for each of its own: above 1, others run."""
    keeps: bool = True
    """Whether programs are kept on disk."""
    failed: tuple[NoVerdict, ...] = ()
    """What could not be measured, as an exception ended it."""

    def of(self, what: str) -> tuple[Contest, ...]:
        """The contests of that work, the smallest first."""
        found = (one for one in self.contests if one.what == what)
        return tuple(sorted(found, key=lambda one: one.size))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The same as text, a line for each measure."""
        found = [
            f"{one.backend}: a launch {duration(one.alone)} waited for, "
            f"{duration(one.chained)} in a chain of {one.length}"
            for one in self.launches
        ]
        found += [
            f"{size(one.nbytes)}: up {rate(one.rate('up'))}, down {rate(one.rate('down'))}, "
            f"copied {rate(one.rate('copy'))}"
            for one in self.transfers
        ]
        measured = (one for one in self.contests if one.on_device or one.in_all)
        found += [self._contest(one) for one in measured]
        found += [
            f"{one.backend}: a new shader {duration(one.compiled)} to compile, "
            f"{duration(one.first)} its first run"
            for one in self.compiling
        ]
        if self.room is not None:
            told = "an unknown amount" if self.room.told is None else size(self.room.told)
            found.append(
                f"memory: {told} free as the system tells, {size(self.room.confirmed)} of "
                f"{size(self.room.tried)} used and right"
            )
        return [*found, f"measured in {duration(self.seconds)} on {self.processors} processors"]

    @staticmethod
    def _contest(one: Contest) -> str:
        inside = ", ".join(
            f"{name} {duration(seconds)}"
            + (f" ({flops / 1e9:.3g} GFLOP/s)" if (flops := one.rate(name)) else "")
            for name, seconds in one.on_device.items()
        )
        whole = ", ".join(f"{name} {duration(seconds)}" for name, seconds in one.in_all.items())
        left = f"; not run, as too slow: {', '.join(one.left_out)}" if one.left_out else ""
        placed = f"operands in place {inside}; " if inside else ""
        return f"{one.what} {one.size}: {placed}in all {whole}{left}"


def rate(bytes_a_second: float) -> str:
    """A rate in GB/s, with three digits."""
    return f"{bytes_a_second / 1e9:.3g} GB/s"


def size(nbytes: int) -> str:
    """Bytes as people read them."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << bits:
            return f"{nbytes / 2**bits:.4g} {unit}"
    return f"{nbytes} B"
