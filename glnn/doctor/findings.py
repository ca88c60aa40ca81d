"""What was seen of the limits of a device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glnn.device.believed import Broken
from glnn.doctor.checks import NoVerdict


@dataclass(frozen=True)
class LimitFinding:
    """What was seen of one limit."""

    limit: str
    """GL's name, as `Capabilities` has it."""
    axis: int | None
    """Which of three numbers it is; None where there is one."""
    what: str
    """The same for people."""
    said: int
    """What the driver states."""
    holds: int
    """Up to where every number was right; below `said` where it is broken, or was not tried."""
    why: str | None = None
    """What was wrong beyond; None where nothing was."""
    note: str | None = None
    """Why it was not tried to its end; None where it was."""

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen."""
        return self.why is None

    @property
    def outcome(self) -> str:
        """What is to be said of it, in a few words."""
        if self.why is not None:
            return f"taken as {self.holds} from now on: {self.why}"
        if self.note is None:
            return "holds"
        whole = "holds" if self.holds == self.said else f"right up to {self.holds}"
        return f"{whole}: {self.note}"

    @property
    def sentence(self) -> str:
        """What follows where it does not hold."""
        stated = f"The driver states {self.said} {self.what}, and is right"
        if self.holds > self.said:
            return f"{stated} from {self.holds} on only: glnn takes that from now on ({self.why})."
        return f"{stated} up to {self.holds} only: glnn uses no more from now on ({self.why})."

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class Limits:
    """What was seen of a device's limits."""

    findings: tuple[LimitFinding, ...]
    """One for each that was tried."""
    before: dict[str, Broken]
    """Those that were seen broken earlier, and lowered as the device opened."""
    seconds: float
    """What the tries took."""
    failed: tuple[NoVerdict, ...] = ()
    """What there is no verdict on."""

    @property
    def wrong(self) -> tuple[LimitFinding, ...]:
        """Those that do not hold."""
        return tuple(one for one in self.findings if not one.ok)

    @property
    def ok(self) -> bool:
        """Whether all hold, and did before, and none was left without a verdict."""
        return not self.wrong and not self.before and not self.failed

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows, in whole sentences."""
        said = [one.sentence for one in self.wrong]
        said += [
            f"{name} is taken as {one.holds}, not {one.said} as the driver states: {one.why}."
            for name, one in sorted(self.before.items())
        ]
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "seconds": self.seconds,
            "findings": [one.to_json() for one in self.findings],
            "before": {name: asdict(one) for name, one in self.before.items()},
            "no_verdict": [asdict(one) for one in self.failed],
            "sentences": list(self.sentences),
        }

    def lines(self) -> list[str]:
        """The same as text: a line for each limit, then what follows."""
        listed = [f"{one.what}: {one.said}, {one.outcome}" for one in self.findings]
        return [*listed, *self.sentences]
