"""What was seen of a device in sentences, and as a text to paste into a report of a fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from glnn.doctor.advice import advice
from glnn.doctor.checks import NoVerdict
from glnn.doctor.examination import Examination
from glnn.doctor.findings import Limits
from glnn.doctor.functions import FunctionResult
from glnn.doctor.kernels import KernelResult
from glnn.doctor.machine import Machine
from glnn.doctor.measured import Speed

UNSEEN = "not looked at"
UNITS = {"compute": ("workgroups", "dispatch"), "feedback": ("vertices", "draw")}


@dataclass(frozen=True)
class Report:
    """All that a doctor has to say."""

    machine: Machine | None
    """On what; None where there is no verdict on that."""
    examination: Examination
    """What was seen of functions and kernels."""
    limits: Limits | None
    """What was seen of limits; None where they were not tried."""
    speed: Speed | None
    """What was measured; None where nothing was."""
    others: tuple[NoVerdict, ...] = ()
    """What there is no verdict on beside what those say themselves."""

    @property
    def failed(self) -> tuple[NoVerdict, ...]:
        """All that there is no verdict on."""
        limits = self.limits.failed if self.limits else ()
        speed = self.speed.failed if self.speed else ()
        return (*self.others, *limits, *self.examination.failed, *speed)

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen, and there is a verdict on everything."""
        limits = self.limits is None or self.limits.ok
        return self.examination.ok and limits and not self.failed

    @property
    def sentences(self) -> tuple[str, ...]:
        """What matters, the worst first."""
        found = [*faults(self.examination)]
        found += self.limits.sentences if self.limits else ()
        found += [f"{one.text}." for one in self.failed]
        found += summary(self.examination)
        found += advice(self.speed) if self.speed else ()
        return (*found, self.verdict)

    @property
    def verdict(self) -> str:
        """Whether anything is wrong, in one sentence."""
        seen, limits = self.examination, self.limits
        if self.ok:
            looked = "here" if seen.scope.whole else "in what was looked at"
            return f"Nothing is wrong {looked}."
        counts = {
            "function": len({(one.backend, one.name) for one in seen.functions if one.wrong}),
            "kernel": sum(bool(one.wrong) for one in seen.kernels),
            "kernel in large launches": sum(
                one.part is not None and not one.wrong for one in seen.kernels
            ),
            "limit": len(limits.wrong) + len(limits.before) if limits else 0,
            "reset of the context": seen.lost is not None,
        }
        said = ", ".join(_counted(int(n), what) for what, n in counts.items() if n)
        unknown = f"there is no verdict on {_counted(len(self.failed), 'check')}"
        if not said:
            return f"Nothing wrong was seen, but {unknown}."
        wrong = f"Wrong here: {said}. None of it is used as it is."
        return f"{wrong} And {unknown}." if self.failed else wrong

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            **self.examination.to_json(),
            "ok": self.ok,
            "sentences": list(self.sentences),
            "machine": self.machine.to_json() if self.machine else None,
            "no_verdict": [asdict(one) for one in self.failed],
            "limits": self.limits.to_json() if self.limits else None,
            "speed": self.speed.to_json() if self.speed else None,
        }

    def text(self) -> str:
        """What is to be pasted where a fault is reported."""
        seen, lines = self.examination, ["glnn doctor", ""]
        lines += self.machine.lines() if self.machine else ["(no verdict)"]
        lines += ["", "What follows", ""]
        lines += self.sentences
        lines += ["", "Kernels", ""]
        lines += [_line(*row) for row in rows(seen)]
        wrong = [*_wrong(seen)]
        if wrong:
            lines += ["", "What is wrong", "", *wrong]
        if self.limits is not None:
            lines += ["", "Limits", "", *self.limits.lines()]
        if self.speed is not None:
            lines += ["", "Speed", "", *self.speed.lines()]
        return "\n".join(lines) + "\n"


def rows(seen: Examination) -> list[tuple[str, ...]]:
    """Op, backend, how many kernels are right, in parts, not used or so for some, and why.

    Functions are counted once, whatever types they take.
    """
    found: list[tuple[str, ...]] = []
    for backend in seen.scope.backends:
        own = [one for one in seen.functions if one.backend == backend]
        if own:
            wrong = [f"{one.name} of {one.dtype}" for one in own if one.wrong]
            bad = len({one.name for one in own if one.wrong})
            right = str(len(_right(own)))
            found.append(("functions", backend, right, "", _count(bad), ", ".join(wrong)))
    ops = dict.fromkeys((one.op, one.backend) for one in seen.kernels)
    for op, backend in sorted(ops):
        some = [one for one in seen.kernels if (one.op, one.backend) == (op, backend)]
        fine = sum(one.ok and bool(one.problems) for one in some)
        parts = [one for one in some if one.part is not None and not one.wrong]
        wrong = [f"{one.kernel}: {one.reason}" for one in some if one.wrong]
        wrong += [f"{one.kernel} was not looked at" for one in some if one.outcome == UNSEEN]
        counts = str(fine), _count(len(parts)), _count(sum(bool(one.wrong) for one in some))
        found.append((op, backend, *counts, "; ".join(wrong)))
    return found


def faults(seen: Examination) -> Iterator[str]:
    """What is wrong, and what follows from it."""
    if seen.lost is not None:
        yield f"The driver reset the context at {seen.lost}; what follows was not looked at."
    for one in seen.functions:
        if one.wrong:
            yield (
                f"{one.backend}: {one.name} of {one.dtype} is wrong: {one.wrong}. No kernel that "
                "calls it is used there: another backend or the host computes it, or it is refused."
            )
    for kernel in seen.kernels:
        if kernel.wrong:
            which = "It is" if kernel.whole else f"{len(kernel.wrong)} of its forms are"
            yield (
                f"{kernel.backend}: {kernel.op} by {kernel.kernel} is wrong: {kernel.reason}. "
                f"{which} not used here."
            )
    yield from _in_parts(seen.kernels)


def _in_parts(kernels: Sequence[KernelResult]) -> Iterator[str]:
    """What launches are right up to."""
    for backend, (units, launch) in UNITS.items():
        own = [one for one in kernels if one.backend == backend and one.problems]
        parts = sorted(one.part for one in own if one.part is not None)
        if parts:
            least, most = parts[0], parts[-1]
            bound = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            verb = "captures wrongly" if backend == "feedback" else "is wrong"
            yield (
                f"{backend} {verb} beyond about {bound} {units} a {launch}, in {len(parts)} of "
                f"{len(own)} kernels: larger ones are made in parts of at most that many, which "
                "are right, and slower."
            )


def summary(seen: Examination) -> Iterator[str]:
    """What is right, and what GL leaves to drivers."""
    for backend in seen.scope.backends:
        if backend in seen.closed:
            yield f"{backend} does not open: {seen.closed[backend]}."
            continue
        functions = [one for one in seen.functions if one.backend == backend]
        kernels = [one for one in seen.kernels if one.backend == backend and one.problems]
        fine = sum(not one.wrong for one in functions)
        right = sum(not one.wrong for one in kernels)
        problems = sum(one.problems for one in kernels)
        typed = f" ({fine} by the types of their arguments)"
        said = [f"functions that are right: {len(_right(functions))}{typed}"] if functions else []
        said += (
            [f"kernels: {right}, which computed {_counted(problems, 'problem')}"] if kernels else []
        )
        if said:
            yield f"{backend}: {'; '.join(said)}."
        yield from _freedoms(backend, functions)
    if seen.kept:
        yield f"Nothing of this is kept: {seen.kept}."


def _right(functions: Sequence[FunctionResult]) -> set[str]:
    """The names of those that are right of every type."""
    wrong = {one.name for one in functions if one.wrong}
    return {one.name for one in functions} - wrong


def _freedoms(backend: str, functions: Sequence[FunctionResult]) -> Iterator[str]:
    """What differs from other drivers, as GL allows."""
    if flushing := {one.name for one in functions if one.flushes}:
        names = _counted(len(flushing), "function")
        yield f"{backend}: numbers below 1.2e-38 are 0 to {names}, as GL allows."
    for one in functions:
        if one.imprecise:
            yield (
                f"{backend}: {one.name} is off by up to {one.ulps:.0f} units in the last place, "
                f"elsewhere {one.allowed:g}; within 1e-5, as GL allows."
            )


def _wrong(seen: Examination) -> Iterator[str]:
    """Each result that is wrong, and how to see it again."""
    for one in seen.functions:
        if one.wrong:
            yield f"{one.backend}, function {one.name} of {one.dtype}: {one.wrong}"
            yield f"    glnn doctor --function {one.name} --backend {one.backend}"
    for kernel in seen.kernels:
        if kernel.wrong:
            own = " ".join(f"{name}={value}" for name, value in kernel.parameters.items())
            yield f"{kernel.backend}, {kernel.op} by {kernel.kernel} {own}".rstrip()
            yield from (f"    {what}: {why}" for what, why in kernel.wrong.items())
        if kernel.part is not None:
            yield f"{kernel.backend}, {kernel.op} by {kernel.kernel}: {kernel.outcome}"
        if not kernel.ok:
            yield f"    glnn doctor --op {kernel.op} --backend {kernel.backend}"


def _line(op: str, backend: str, right: str, parts: str, wrong: str, why: str) -> str:
    """A row of the table in words."""
    said = [f"{right} right", parts and f"{parts} in parts", wrong and f"{wrong} not used"]
    return f"{op} by {backend}: {', '.join(filter(None, said))}{why and f' ({why})'}"


def _counted(number: int, what: str) -> str:
    """A number of things; the first word is what there are more of."""
    word, *more = what.split(" ")
    return " ".join([str(number), f"{word}{'' if number == 1 else 's'}", *more])


def _count(number: int) -> str:
    return str(number) if number else ""
