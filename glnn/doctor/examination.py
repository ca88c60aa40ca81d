"""Results of examining a device's functions and kernels, and the verdicts that follow from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from glnn.backends.gl import GlBackend
from glnn.backends.opening import GL
from glnn.core.settings import Settings
from glnn.core.types import DType
from glnn.doctor.checks import Checks, NoVerdict
from glnn.doctor.function_accuracy import (
    FunctionCheck,
    FunctionResult,
    check_functions,
    function_checks,
    step_of,
)
from glnn.doctor.kernel_accuracy import Form, KernelDoctor, KernelResult, forms_of, kernels_of
from glnn.errors import DeviceError, GlnnError
from glnn.gl import Capabilities, Device
from glnn.gl.device_file import DeviceFile
from glnn.graph.functions import FUNCTIONS
from glnn.kernels.codegen.expression import function_fingerprint
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.source import known_fingerprint
from glnn.kernels.verdicts import FUNCTION, Verdict, Verdicts, function_key
from glnn.version import VERSION

FORM = 1  # of the file
TABLE = "certificates"


@dataclass(frozen=True)
class Certificate:
    """The record of an examination of one backend."""

    backend: str
    """The backend's name."""
    looked: str
    """The subject: "all", or the ops and functions."""
    when: float
    """Seconds since 1970."""
    kernels: str
    """The fingerprint of all kernels then."""
    functions: str
    """The fingerprint of all functions then."""
    problems: int
    """The number of problems that the kernels computed."""
    wrong: int
    """The number of kernels and functions that are not used, or not for some problems."""

    def __post_init__(self) -> None:
        for name in ("backend", "looked", "kernels", "functions"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}: expected a text, got {getattr(self, name)!r}")
        if min(self.when, self.problems, self.wrong) < 0:
            raise ValueError("expected no number below 0")

    @property
    def date(self) -> str:
        """`when` in UTC, to the minute."""
        return datetime.fromtimestamp(self.when, timezone.utc).strftime("%Y-%m-%d %H:%M")

    @property
    def holds(self) -> bool:
        """True where kernels and functions have not changed since."""
        return (self.kernels, self.functions) == fingerprints(self.backend)

    @property
    def text(self) -> str:
        """The certificate in one sentence."""
        what = "all kernels and functions" if self.looked == "all" else self.looked
        outcome = "nothing wrong" if not self.wrong else f"{self.wrong} of them wrong"
        still = "" if self.holds else "; some have changed since: run glnn doctor again"
        return f"{self.backend}: {what} looked at on {self.date} UTC, {outcome}{still}"


@dataclass
class Certificates:
    """The certificates of one device. file: where they are kept."""

    file: DeviceFile
    found: dict[str, Certificate] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Certificates:
        """Load the certificates of `device` from `folder` that this `version` of glnn wrote."""
        file = DeviceFile.for_device(folder, TABLE, FORM, device, version)
        return cls(file, file.read(_certificate))

    def keep(self, *certificates: Certificate) -> None:
        """Add `certificates`, or replace those of the same backend and subject, and save all.

        Raises OSError where they cannot be saved.
        """
        self.found |= {f"{one.backend} {one.looked}": one for one in certificates}
        self.file.write({key: asdict(one) for key, one in self.found.items()})

    def forget(self) -> None:
        """Drop them, and the file. Raises OSError where it cannot be removed."""
        self.found.clear()
        self.file.remove()


def certificate(
    backend: str,
    ops: Sequence[str] | None,
    functions: Sequence[str] | None,
    problems: int,
    wrong: int,
) -> Certificate:
    """Make a certificate of this moment.

    ops, functions: the examined ones; None for all, unless the other is given.
    """
    names = [*(ops or ()), *(f"{name}()" for name in functions or ())]
    looked = ", ".join(names) or "all"
    return Certificate(backend, looked, time.time(), *fingerprints(backend), problems, wrong)


def fingerprints(backend: str) -> tuple[str, str]:
    """Return the fingerprint of all kernels of `backend`, and that of all functions."""
    kernels = (
        f"{kernel.op} {kernel.name} {known_fingerprint(kernel)}"
        for kernel in declared()
        if kernel.backend == backend
    )
    functions = (f"{name} {function_fingerprint(name)}" for name in FUNCTIONS)
    return _hash(sorted(kernels)), _hash(sorted(functions))


def _hash(lines: Sequence[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def _certificate(value: Any) -> Certificate:
    return Certificate(
        value["backend"],
        value["looked"],
        float(value["when"]),
        value["kernels"],
        value["functions"],
        int(value["problems"]),
        int(value["wrong"]),
    )


Progress = Callable[[str, int, int], None]
"""A function of the next check, the number of checks done, and their total."""


def silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class ExaminationScope:
    """The backends, kernels and functions to examine."""

    backends: tuple[str, ...] = tuple(GL)
    """The backends' names; those that do not open are left out."""
    ops: tuple[str, ...] | None = None
    """Kernels of these alone; None for all."""
    functions: tuple[str, ...] | None = None
    """The functions to examine; None for all."""
    full: bool = False
    """Whether every epilogue and layout is tested, and kernels that run by name only."""
    quick: bool = False
    """Whether each kernel is tested in its first form alone, with fewer sizes and smaller
    launches."""

    def __post_init__(self) -> None:
        known = {
            "--backend": (self.backends, set(GL)),
            "--op": (self.ops or (), {kernel.op for kernel in declared()}),
            "--function": (self.functions or (), set(FUNCTIONS)),
        }
        for option, (chosen, names) in known.items():
            for name in chosen:
                if name not in names:
                    listed = ", ".join(sorted(names))
                    raise GlnnError(f"{option}: expected one of {listed}, got {name!r}")
        if not self.backends:
            raise GlnnError(f"--backend: expected one or more of {', '.join(GL)}, got none")

    @property
    def whole(self) -> bool:
        """True where all kernels and functions are in it."""
        return self.ops is None and self.functions is None


@dataclass(frozen=True)
class Examination:
    """The result of an examination."""

    scope: ExaminationScope
    """The backends, kernels and functions that were examined."""
    closed: dict[str, str]
    """The backends that do not open, and why."""
    functions: tuple[FunctionResult, ...]
    """The result of each function on each backend, for each type of its arguments."""
    kernels: tuple[KernelResult, ...]
    """The result of each kernel with its parameters."""
    seconds: float
    """The time that it took."""
    lost: str | None = None
    """The check at which the driver reset the context, which ended it; None where it did not."""
    not_kept: str | None = None
    """Why it was not saved; None where it was."""
    failed: tuple[NoVerdict, ...] = ()
    """The checks without a verdict."""

    @property
    def ok(self) -> bool:
        """True where everything has a verdict, and nothing is wrong."""
        wrong = any(one.wrong for one in self.functions) or self.lost is not None
        return not wrong and not self.failed and all(one.ok for one in self.kernels)

    def to_json(self) -> dict[str, Any]:
        """Return the examination as plain dicts, lists and numbers."""
        return {
            "ok": self.ok,
            "scope": asdict(self.scope),
            "closed": self.closed,
            "functions": [{**asdict(one), "wrong": one.wrong} for one in self.functions],
            "kernels": [{**asdict(one), "outcome": one.outcome} for one in self.kernels],
            "seconds": self.seconds,
            "lost": self.lost,
            "not_kept": self.not_kept,
            "no_verdict": [asdict(one) for one in self.failed],
        }


def examine_device(
    device: Device, scope: ExaminationScope | None = None, progress: Progress = silent
) -> Examination:
    """Examine the functions and kernels of `device`, and save the verdicts and a certificate.

    scope: everything unless given. Nothing is saved before the end. A check that raises an
    exception is left without a verdict. Raises DeviceError where no backend opens.
    """
    start, scope, checks = time.perf_counter(), scope or ExaminationScope(), Checks(device)
    opened, closed = _open_backends(device, scope, checks)
    programs: list[list[FunctionCheck]] = []
    if scope.ops is None or scope.functions is not None:
        programs = checks.run(
            "the functions to look at", partial(function_checks, scope.functions), []
        )
    forms = {backend.name: _forms(backend, scope, checks) for backend in opened}
    total, done = len(opened) * len(programs) + sum(map(len, forms.values())), 0
    functions: list[FunctionResult] = []
    doctors: list[KernelDoctor] = []
    for backend in opened:
        name, results = backend.name, list[FunctionResult]()
        for cases in programs:
            progress(f"functions on {name}", done, total)
            check = partial(device.perform, partial(check_functions, backend, cases, checks))
            results += checks.run(step_of(cases, name), check, [])
            done += 1
            if device.lost is not None:
                break
        functions += results
        verdicts = _verdicts(results, device)
        doctor = checks.run(f"verdicts on {name}", partial(KernelDoctor, backend, verdicts), None)
        if doctor is None:
            continue
        doctors.append(doctor)
        for form in forms[name]:
            if device.lost is not None:
                break
            step = f"{form.what} on {name}"
            progress(step, done, total)
            checks.run(step, partial(device.perform, partial(doctor.look, form)), None)
            done += 1
        if device.lost is not None:
            break
    progress("", total, total)
    lost = None if checks.lost_at is None else f"{checks.lost_at}: {device.lost}"
    kernels = tuple(one for doctor in doctors for one in doctor.results.values())
    seconds, failed = time.perf_counter() - start, tuple(checks.failed)
    examination = Examination(
        scope, closed, tuple(functions), kernels, seconds, lost, failed=failed
    )
    examination = checks.run(
        "keeping what was seen", partial(_save, examination, device, doctors), examination
    )
    return replace(examination, failed=tuple(checks.failed))


def _forms(backend: GlBackend, scope: ExaminationScope, checks: Checks) -> list[Form]:
    """Return the forms of the kernels in `scope`."""
    if scope.functions is not None and scope.ops is None:
        return []
    name, forms = backend.name, list[Form]()
    listed = partial(kernels_of, backend, scope.ops, scope.full)
    for kernel in checks.run(f"the kernels of {name}", listed, []):
        step = f"{kernel.op} by {kernel.name} on {name}, what it may compute"
        forms += checks.run(step, partial(forms_of, backend, kernel, scope.full), [])
    return one_of_each(forms) if scope.quick else forms


def one_of_each(forms: Sequence[Form]) -> list[Form]:
    """Return, for a quick examination, the form of each kernel that is tested in most sizes."""
    selected: dict[tuple[Kernel, str | None], Form] = {}
    for form in forms:
        key = form.kernel, form.name
        if key not in selected or (form.first and not selected[key].first):
            selected[key] = form
    return [replace(form, quick=True) for form in selected.values()]


def _open_backends(
    device: Device, scope: ExaminationScope, checks: Checks
) -> tuple[list[GlBackend], dict[str, str]]:
    """Open the backends, and return those that open, with the reasons why others do not.

    Raises DeviceError where none does, and each says why.
    """
    opened: list[GlBackend] = []
    closed: dict[str, str] = {}

    def open_(name: str) -> None:
        why = GL[name].why_not_device(device)
        if why is None:
            opened.append(GL[name](device))
        else:
            closed[name] = why

    for name in scope.backends:
        checks.run(f"opening {name}", partial(open_, name), None)
    if not opened and not checks.failed:
        raise DeviceError("; ".join(f"{name}: {why}" for name, why in closed.items()))
    return opened, closed


def _verdicts(results: Iterable[FunctionResult], device: Device) -> dict[str, Verdict]:
    """Return the verdicts on the functions that are wrong."""
    renderer = device.capabilities.renderer
    return {
        function_key(one.backend, one.name, DType(one.dtype).kind): Verdict(
            wrong=f"{one.name} of {one.dtype} is wrong on {renderer}: {one.wrong}"
        )
        for one in results
        if one.wrong
    }


def _save(examination: Examination, device: Device, doctors: Sequence[KernelDoctor]) -> Examination:
    """Save a certificate and the verdicts, which replace former ones on the same.

    Returns `examination`, with the reason in `not_kept` where it cannot be saved.
    """
    folder, offers = Settings.from_environment().cache, device.capabilities
    if folder is None:
        return replace(examination, not_kept="GLNN_CACHE is empty, so nothing is kept")
    verdicts = Verdicts.load(folder, offers, VERSION)
    new_verdicts: dict[str, Verdict] = {}
    for doctor in doctors:
        new_verdicts |= doctor.backend.verdicts.found
    names = {doctor.backend.name for doctor in doctors}
    functions = {(one.backend, one.name, DType(one.dtype).kind) for one in examination.functions}
    # Where the device was lost, kernels may be examined in part: their former verdicts stay.
    looked = set[str]() if examination.lost else set[str]().union(*(one.looked for one in doctors))

    def is_superseded(key: str) -> bool:
        """Return True where the verdict `key` is on a kernel or function that was examined now."""
        backend, op, name, *_, kind = key.split(" ")
        return (backend, name, kind) in functions if op == FUNCTION else key in looked

    try:
        verdicts.renew(new_verdicts, is_superseded)
        certificates = []
        whole = examination.lost is None and not examination.failed and not examination.scope.quick
        for name in names if whole else ():
            kernels = [one for one in examination.kernels if one.backend == name]
            wrong = sum(bool(one.wrong) for one in kernels)
            wrong += sum(bool(one.wrong) for one in examination.functions if one.backend == name)
            problems = sum(one.problems for one in kernels)
            scope = examination.scope.ops, examination.scope.functions
            certificates.append(certificate(name, *scope, problems, wrong))
        Certificates.load(folder, offers, VERSION).keep(*certificates)
    except OSError as error:
        return replace(examination, not_kept=f"{folder} cannot be written: {error.strerror}")
    return examination
