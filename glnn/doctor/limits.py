"""Whether what a driver states of its limits holds: each is used to its end, or to a cap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from time import perf_counter

from glnn.device import Capabilities, Device
from glnn.device.believed import UPWARD, Broken, BrokenLimits
from glnn.doctor.checks import Checks
from glnn.doctor.findings import LimitFinding, Limits
from glnn.doctor.ground import Ground
from glnn.doctor.probes import Probe, probes
from glnn.errors import GlnnError, NoRoomError, ShaderError, first_line, raised
from glnn.settings import Settings

CAP = 256 << 20
"""Bytes that a try may take, unless all is asked for."""
WHOLE = 4 << 30
"""Bytes that a try may take where all is asked for; the device may have less."""
PATIENCE = 3.0
"""Seconds after which a try of much memory is content with less, unless all is asked for."""
COARSEST = 4096  # bytes at which every driver lets a block begin


def probe_limits(
    device: Device, full: bool = False, progress: Callable[[str], None] = lambda what: None
) -> Limits:
    """Try every limit of `device` that kernels rely on, and keep which do not hold.

    full: up to what the driver states, else to 256 MiB of memory and two million workgroups.
    progress: called with what is tried next. The device's capabilities are lowered to what holds,
    those of devices that open later as well. Where the driver resets the context for a try,
    `device` is lost, and the rest is tried on `device.renewed()`, where that opens. A limit whose
    search raises an exception is left without a verdict.
    """
    folder, start, checks = Settings.from_environment().cache, perf_counter(), Checks()
    kept = BrokenLimits.load(folder, device.capabilities)
    before, found = dict(kept.found), list[LimitFinding]()
    for probe in probes():
        offers = device.capabilities
        there = offers.compute if probe.compute else offers.feedback
        if not there or not probe.number(offers):
            continue
        progress(probe.what)
        search = _Search(device, probe, full)
        finding = checks.run(f"the limit of {probe.what}", search.finding, None)
        if device.lost is not None:
            again = checks.run("a new context after a reset", device.renewed, None)
            if again is None:
                break
            device = again
        if finding is not None:
            found.append(finding)
        if finding is not None and not finding.ok:
            lower = partial(_lower, device, kept, finding, offers)
            checks.run(f"lowering the limit of {probe.what}", lower, None)
    return Limits(tuple(found), before, perf_counter() - start, tuple(checks.failed))


def _lower(device: Device, kept: BrokenLimits, finding: LimitFinding, offers: Capabilities) -> None:
    """Keep a limit that does not hold, and have `device` take what does."""
    kept.keep({finding.limit: _broken(finding, offers)})
    device.capabilities = kept.lowered(device.capabilities)


def _broken(finding: LimitFinding, offers: Capabilities) -> Broken:
    """What is kept of a limit that does not hold."""
    said, why = getattr(offers, finding.limit), finding.why or ""
    if finding.axis is None:
        return Broken(said, finding.holds, why)
    x, y, z = (finding.holds if i == finding.axis else n for i, n in enumerate(said))
    return Broken(said, (x, y, z), why)


class _Search:
    """The search for the most of a limit that is right."""

    def __init__(self, device: Device, probe: Probe, full: bool) -> None:
        self._device, self._probe, self._full = device, probe, full
        self._said = probe.number(device.capabilities)
        self._left: str | None = None  # what the last try left out

    def finding(self) -> LimitFinding:
        """What is found, with as few tries as halving needs."""
        probe = self._probe
        if probe.limit in UPWARD:
            return self._upward()
        most, note = self._most()
        while True:
            try:
                why = self._try(most)
                break
            except NoRoomError:
                most, note = self._grained(most // 2), "there is no memory for more"
                if not most:
                    return self._found(0, None, note)
        if why is None:
            return self._found(most, None, note if most < self._said else self._left)
        right, wrong = 0, most
        for likely in (probe.guaranteed, probe.grain):  # most of all, what GL guarantees holds
            if right < likely < wrong:
                if (fault := self._again(likely)) is None:
                    right = likely
                    break
                wrong, why = likely, fault
        while self._grained((right + wrong) // 2) > right:
            middle = self._grained((right + wrong) // 2)
            fault = self._again(middle)
            if fault is None:
                right = middle
            else:
                wrong, why = middle, fault
        return self._found(right, why, None)

    def _upward(self) -> LimitFinding:
        """The same where a larger number asks for less."""
        why, number = self._again(self._said), max(self._said, 4)
        first = why
        while why is not None and number < COARSEST:
            number *= 2
            why = self._again(number)
        return self._found(number if first else self._said, first, None)

    def _most(self) -> tuple[int, str | None]:
        """The most that is tried, and why that is not all."""
        probe, offers = self._probe, self._device.capabilities
        most, note = self._said, None
        if probe.limit == "max_compute_work_group_size":
            if most > offers.max_compute_work_group_invocations:
                most, note = offers.max_compute_work_group_invocations, "a workgroup has no more"
            return most, note
        free = self._device.perform(lambda: Ground(self._device, WHOLE if self._full else CAP).most)
        if probe.compute and probe.limit != "max_shader_storage_block_size":
            free = min(free, offers.max_shader_storage_block_size)  # its numbers are in a block
        room = int(free / (probe.nbytes or 1))
        if probe.nbytes and most > room:
            most, note = room, "more memory was not tried" if self._full else "--full tries more"
        if probe.most is not None and most > probe.most and not (self._full and probe.nbytes):
            most, note = probe.most, "--full tries more" if probe.nbytes else "kernels need no more"
        return (most, note) if most == self._said else (self._grained(most), note)

    def _grained(self, number: int) -> int:
        return number // self._probe.grain * self._probe.grain

    def _again(self, number: int) -> str | None:
        """Why so much cannot be had; also where there is no memory for it."""
        try:
            return self._try(number)
        except NoRoomError as error:
            return first_line(error)

    def _try(self, number: int) -> str | None:
        """Why so much cannot be had, None where it can. Raises NoRoomError."""
        device = self._device
        try:
            return device.perform(lambda: self._worked(number))
        except NoRoomError:
            raise
        except GlnnError as error:
            if device.lost is not None:
                self._device = device.renewed()
            return _reason(error)
        except MemoryError:
            raise NoRoomError("there is not enough memory to try it") from None
        except Exception as error:  # a driver may fail at anything: what raises is not had
            if device.lost is not None:
                self._device = device.renewed()
            return raised(error)

    def _worked(self, number: int) -> str | None:
        ground = Ground(self._device, WHOLE, inf if self._full else PATIENCE)
        fault = self._probe.work(ground, number)
        self._left = ground.note
        return fault

    def _found(self, holds: int, why: str | None, note: str | None) -> LimitFinding:
        one = self._probe
        return LimitFinding(one.limit, one.axis, one.what, self._said, holds, why, note)


def _reason(error: GlnnError) -> str:
    """What went wrong, in one line: of a shader that is refused, what the driver says."""
    if not isinstance(error, ShaderError):
        return first_line(error)
    said = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), "")
    return f"the driver refuses the shader{f': {said}' if said else ''}"
