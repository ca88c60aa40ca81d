"""Tests of the limits that a driver states: each is used to its end, or up to a cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from glnn.core.settings import Settings
from glnn.doctor.checks import Checks, NoVerdict
from glnn.doctor.limit_probes import Probe, probes
from glnn.doctor.scratch_program import ScratchSpace
from glnn.errors import GlnnError, NoRoomError, ShaderError, first_line, raised
from glnn.gl import Capabilities, Device
from glnn.gl.limit_overrides import UPWARD, BrokenLimit, LimitOverrides


@dataclass(frozen=True)
class LimitFinding:
    """The result of testing one limit."""

    limit: str
    """GL's name, as `Capabilities` has it."""
    axis: int | None
    """The axis of a limit of three numbers; None where there is one."""
    what: str
    """The same for people."""
    said: int
    """The number that the driver states."""
    holds: int
    """The value up to which all results were right; below `said` where more is wrong or untried."""
    why: str | None = None
    """The fault beyond `holds`; None where there is none."""
    note: str | None = None
    """The reason why it was not tested to its end; None where it was."""

    @property
    def ok(self) -> bool:
        """True where the limit holds as far as it was tested."""
        return self.why is None

    @property
    def outcome(self) -> str:
        """The result in a few words."""
        if self.why is not None:
            return f"taken as {self.holds} from now on: {self.why}"
        if self.note is None:
            return "holds"
        whole = "holds" if self.holds == self.said else f"right up to {self.holds}"
        return f"{whole}: {self.note}"

    @property
    def sentence(self) -> str:
        """The fault and its consequence in a sentence."""
        stated = f"The driver states {self.said} {self.what}, and is right"
        if self.holds > self.said:
            return f"{stated} from {self.holds} on only: glnn takes that from now on ({self.why})."
        return f"{stated} up to {self.holds} only: glnn uses no more from now on ({self.why})."

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class Limits:
    """The results of testing a device's limits."""

    findings: tuple[LimitFinding, ...]
    """The result of each test."""
    before: dict[str, BrokenLimit]
    """The limits that were found broken earlier, and lowered as the device opened."""
    seconds: float
    """The time that the tests took."""
    failed: tuple[NoVerdict, ...] = ()
    """The checks without a verdict."""

    @property
    def wrong(self) -> tuple[LimitFinding, ...]:
        """The limits that do not hold."""
        return tuple(one for one in self.findings if not one.ok)

    @property
    def ok(self) -> bool:
        """True where all limits hold, and held before, and each has a verdict."""
        return not self.wrong and not self.before and not self.failed

    @property
    def sentences(self) -> tuple[str, ...]:
        """The faults and their consequences in whole sentences."""
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
        """Return the results as text: a line for each limit, then the consequences."""
        listed = [f"{one.what}: {one.said}, {one.outcome}" for one in self.findings]
        return [*listed, *self.sentences]


CAP = 256 << 20
"""Bytes that a test may take without --full."""
WHOLE = 4 << 30
"""Bytes that a test may take with --full; the device may have less."""
PATIENCE = 3.0
"""Seconds after which a test of much memory may skip a part, without --full."""
COARSEST = 4096  # an offset, in bytes, at which every driver lets a block begin


def probe_limits(
    device: Device, full: bool = False, progress: Callable[[str], None] = lambda what: None
) -> Limits:
    """Test every limit of `device` that kernels rely on, and save those that do not hold.

    full: test up to the stated values, else up to 256 MiB of memory and two million workgroups.
    progress: called with the limit that is tested next. The capabilities of the device, and of
    devices that open later, are lowered to what holds. Where the driver resets the context during a
    test, `device` is lost, and the other limits are tested on `device.reopen()`, where that opens.
    A limit whose test raises an exception is left without a verdict.
    """
    folder, start, checks = Settings.from_environment().cache, perf_counter(), Checks()
    overrides = LimitOverrides.load(folder, device.capabilities)
    before, findings = dict(overrides.limits), list[LimitFinding]()
    for probe in probes():
        offers = device.capabilities
        is_available = offers.compute if probe.compute else offers.feedback
        if not is_available or not probe.number(offers):
            continue
        progress(probe.what)
        search = _LimitSearch(device, probe, full)
        finding = checks.run(f"the limit of {probe.what}", search.finding, None)
        if device.lost is not None:
            reopened = checks.run("a new context after a reset", device.reopen, None)
            if reopened is None:
                break
            device = reopened
        if finding is not None:
            findings.append(finding)
        if finding is not None and not finding.ok:
            lower = partial(_lower, device, overrides, finding, offers)
            checks.run(f"lowering the limit of {probe.what}", lower, None)
    return Limits(tuple(findings), before, perf_counter() - start, tuple(checks.failed))


def _lower(
    device: Device, overrides: LimitOverrides, finding: LimitFinding, offers: Capabilities
) -> None:
    """Save a limit that does not hold, and lower the capabilities of `device` to what holds."""
    overrides.add({finding.limit: _broken_limit(finding, offers)})
    device.capabilities = overrides.lowered(device.capabilities)


def _broken_limit(finding: LimitFinding, offers: Capabilities) -> BrokenLimit:
    """Return the record of a limit that does not hold."""
    said, why = getattr(offers, finding.limit), finding.why or ""
    if finding.axis is None:
        return BrokenLimit(said, finding.holds, why)
    x, y, z = (finding.holds if i == finding.axis else n for i, n in enumerate(said))
    return BrokenLimit(said, (x, y, z), why)


class _LimitSearch:
    """The search for the largest value of a limit with right results."""

    def __init__(self, device: Device, probe: Probe, full: bool) -> None:
        self._device, self._probe, self._full = device, probe, full
        self._stated = probe.number(device.capabilities)
        self._skipped: str | None = None  # the part that the last test skipped

    def finding(self) -> LimitFinding:
        """Test the limit by bisection, and return the result."""
        probe = self._probe
        if probe.limit in UPWARD:
            return self._upward()
        most, note = self._greatest()
        while True:
            try:
                why = self._try(most)
                break
            except NoRoomError:
                most, note = self._round_down(most // 2), "there is no memory for more"
                if not most:
                    return self._finding(0, None, note)
        if why is None:
            return self._finding(most, None, note if most < self._stated else self._skipped)
        right, wrong = 0, most
        for likely in (probe.guaranteed, probe.grain):  # what GL guarantees is likeliest to hold
            if right < likely < wrong:
                if (fault := self._try_in_memory(likely)) is None:
                    right = likely
                    break
                wrong, why = likely, fault
        while self._round_down((right + wrong) // 2) > right:
            middle = self._round_down((right + wrong) // 2)
            fault = self._try_in_memory(middle)
            if fault is None:
                right = middle
            else:
                wrong, why = middle, fault
        return self._finding(right, why, None)

    def _upward(self) -> LimitFinding:
        """Test a limit whose larger values are easier to meet, as an alignment."""
        fault, number = self._try_in_memory(self._stated), max(self._stated, 4)
        why = fault
        while why is not None and number < COARSEST:
            number *= 2
            why = self._try_in_memory(number)
        return self._finding(number if fault else self._stated, fault, None)

    def _greatest(self) -> tuple[int, str | None]:
        """Return the greatest value to test, and why no greater one is tested."""
        probe, offers = self._probe, self._device.capabilities
        most, note = self._stated, None
        if probe.limit == "max_compute_work_group_size":
            if most > offers.max_compute_work_group_invocations:
                most, note = offers.max_compute_work_group_invocations, "a workgroup has no more"
            return most, note
        free = self._device.perform(
            lambda: ScratchSpace(self._device, WHOLE if self._full else CAP).most
        )
        if probe.compute and probe.limit != "max_shader_storage_block_size":
            free = min(free, offers.max_shader_storage_block_size)  # results are in a storage block
        room = int(free / (probe.nbytes or 1))
        if probe.nbytes and most > room:
            most, note = room, "more memory was not tried" if self._full else "--full tries more"
        if probe.most is not None and most > probe.most and not (self._full and probe.nbytes):
            most, note = probe.most, "--full tries more" if probe.nbytes else "kernels need no more"
        return (most, note) if most == self._stated else (self._round_down(most), note)

    def _round_down(self, number: int) -> int:
        return number // self._probe.grain * self._probe.grain

    def _try_in_memory(self, number: int) -> str | None:
        """Return why `number` cannot be used; also where memory is short."""
        try:
            return self._try(number)
        except NoRoomError as error:
            return first_line(error)

    def _try(self, number: int) -> str | None:
        """Return why `number` cannot be used, None where it can. Raises NoRoomError."""
        device = self._device
        try:
            return device.perform(lambda: self._run_probe(number))
        except NoRoomError:
            raise
        except GlnnError as error:
            if device.lost is not None:
                self._device = device.reopen()
            return _explain(error)
        except MemoryError:
            raise NoRoomError("there is not enough memory to try it") from None
        except (
            Exception
        ) as error:  # a driver may fail at anything: a value that raises cannot be used
            if device.lost is not None:
                self._device = device.reopen()
            return raised(error)

    def _run_probe(self, number: int) -> str | None:
        scratch = ScratchSpace(self._device, WHOLE, inf if self._full else PATIENCE)
        fault = self._probe.work(scratch, number)
        self._skipped = scratch.note
        return fault

    def _finding(self, holds: int, why: str | None, note: str | None) -> LimitFinding:
        one = self._probe
        return LimitFinding(one.limit, one.axis, one.what, self._stated, holds, why, note)


def _explain(error: GlnnError) -> str:
    """Explain an error in one line: for a shader that is refused, the driver's message."""
    if not isinstance(error, ShaderError):
        return first_line(error)
    lines = (line.strip() for line in str(error).splitlines()[1:])
    message = next(filter(None, lines), "")
    return f"the driver refuses the shader{f': {message}' if message else ''}"
