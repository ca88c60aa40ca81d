"""What was seen of the kernels on one device when their results were held against NumPy's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glnn.device import Capabilities
from glnn.kernels.device_file import DeviceFile
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.source import fingerprint

FORM = 1  # of the file; one of another form is not used


@dataclass(frozen=True)
class Verdict:
    """What a kernel's results were like.

    largest: the largest launch that was right, in vertices of an instance or in workgroups.
    part: the most that one launch may be, where larger ones are wrong; None where none was.
    pace: what it did in a second, in the units of `work`; None where that was not measured.
    wrong: why it is not used; None where it is.
    """

    largest: int = 0
    part: int | None = None
    pace: float | None = None
    wrong: str | None = None

    def __post_init__(self) -> None:
        at_least = {"largest": (self.largest, 0), "part": (self.part, 1), "pace": (self.pace, 0)}
        for name, (value, least) in at_least.items():
            if value is not None and not value >= least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")

    def covers(self, launch: int) -> bool:
        """Whether nothing more need be seen before so large a launch is asked for."""
        return self.wrong is not None or self.part is not None or launch <= self.largest


@dataclass(frozen=True)
class Seen:
    """A `verdict` on the kernel of `backend` called so, with the `attributes` it was seen with."""

    backend: str
    op: str
    kernel: str
    attributes: str
    verdict: Verdict

    @property
    def notable(self) -> str | None:
        """What is to be said of it: that it is not used, or in parts; None where it is right."""
        if self.verdict.wrong is not None:
            return f"not used: {self.verdict.wrong}"
        return None if self.verdict.part is None else f"in launches of {self.verdict.part} at most"


@dataclass
class Verdicts:
    """The verdicts on the kernels of one device, each with the op's attributes it was seen with.

    file: what keeps them.
    """

    file: DeviceFile
    found: dict[str, Verdict] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Verdicts:
        """What `folder` keeps for `device`, found by this `version` of glnn."""
        file = DeviceFile.of(folder, "verdicts", FORM, device, version)
        return cls(file, file.read(_verdict))

    def find(self, kernel: Kernel, problem: Problem, device: Capabilities) -> Verdict:
        """The verdict on `kernel` where it computes problems like `problem`."""
        return self.found.get(verdict_key(kernel, problem, device), Verdict())

    def why_not(self, kernel: Kernel, problem: Problem, device: Capabilities) -> str | None:
        """Why `kernel` is not used for problems like `problem`; None when it is."""
        return self.find(kernel, problem, device).wrong if self.found else None

    def keep(self, found: Mapping[str, Verdict]) -> None:
        """Take the verdicts `found`, and write the file, where it may be written."""
        self.found |= found
        kept = {**self.file.again(_verdict), **self.found}  # another process may have kept some
        with suppress(OSError):  # what is not kept is found again
            self.file.write({key: asdict(verdict) for key, verdict in kept.items()})

    def seen(self) -> Iterator[Seen]:
        """Every verdict, with what it holds for."""
        for key, verdict in sorted(self.found.items()):
            backend, op, kernel, _, *attributes = key.split(" ")
            yield Seen(backend, op, kernel, " ".join(attributes), verdict)


def verdict_key(kernel: Kernel, problem: Problem, device: Capabilities) -> str:
    """What a verdict holds for: a kernel, its parameters, the op's attributes, how it reads."""
    samplers = {
        name: kernel.sampler(name, layout.size(problem.shape(name)), device)
        for name, layout in problem.chosen_layouts(kernel).items()
        if name in kernel.textures
    }
    known = {**kernel.defaults, **problem.defines(), **samplers}
    words = [f"{name}={value}" for name, value in sorted(known.items())]
    return " ".join([kernel.backend, kernel.op, kernel.name, fingerprint(kernel), *words])


def work(problem: Problem) -> int:
    """What computing `problem` takes: its operations and the bytes it touches, added up."""
    cost = problem.op.cost(problem.shapes)
    return cost.flops + cost.bytes


def _verdict(value: Any) -> Verdict:
    wrong = value["wrong"]
    part, pace = value["part"], value["pace"]
    return Verdict(
        int(value["largest"]),
        None if part is None else int(part),
        None if pace is None else float(pace),
        None if wrong is None else str(wrong),
    )
