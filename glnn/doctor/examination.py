"""What was seen of the functions and kernels of one device, and what is done about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from glnn.backends.gl import GlBackend
from glnn.backends.opening import GL
from glnn.device import Device
from glnn.doctor.certificate import Certificates, certificate
from glnn.doctor.checks import Checks, NoVerdict
from glnn.doctor.forms import Form, forms_of, kernels_of
from glnn.doctor.functions import FunctionResult, look_at_functions, step_of
from glnn.doctor.kernels import KernelDoctor, KernelResult
from glnn.doctor.looks import Look, function_looks
from glnn.errors import DeviceError, GlnnError
from glnn.graph.functions import FUNCTIONS
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.verdicts import FUNCTION, Verdict, Verdicts, function_key
from glnn.settings import Settings
from glnn.types import DType
from glnn.version import VERSION

Progress = Callable[[str, int, int], None]
"""Is told what is looked at next, how much was, and of how much in all."""


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Scope:
    """What is to be looked at."""

    backends: tuple[str, ...] = tuple(GL)
    """By these names, as far as they open."""
    ops: tuple[str, ...] | None = None
    """Kernels of these alone; None for all."""
    functions: tuple[str, ...] | None = None
    """These alone; None for all."""
    full: bool = False
    """With every epilogue and layout, and with the kernels that run by name only."""
    quick: bool = False
    """Each kernel in its first form alone, with fewer sizes and in smaller launches."""

    def __post_init__(self) -> None:
        known = {
            "--backend": (self.backends, set(GL)),
            "--op": (self.ops or (), {kernel.op for kernel in declared()}),
            "--function": (self.functions or (), set(FUNCTIONS)),
        }
        for option, (given, names) in known.items():
            for name in given:
                if name not in names:
                    listed = ", ".join(sorted(names))
                    raise GlnnError(f"{option}: expected one of {listed}, got {name!r}")
        if not self.backends:
            raise GlnnError(f"--backend: expected one or more of {', '.join(GL)}, got none")

    @property
    def whole(self) -> bool:
        """Whether a certificate of it is on all kernels and functions."""
        return self.ops is None and self.functions is None


@dataclass(frozen=True)
class Examination:
    """What was seen."""

    scope: Scope
    """Of what."""
    closed: dict[str, str]
    """The backends that do not open, and why."""
    functions: tuple[FunctionResult, ...]
    """Each function on each backend, for each type that it was given."""
    kernels: tuple[KernelResult, ...]
    """Each kernel with its parameters."""
    seconds: float
    """What it took."""
    lost: str | None = None
    """At what the driver reset the context: nothing more was looked at; None where it did not."""
    kept: str | None = None
    """Why nothing is kept of it; None where it is."""
    failed: tuple[NoVerdict, ...] = ()
    """What there is no verdict on."""

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen, and nothing was left without a verdict."""
        wrong = any(one.wrong for one in self.functions) or self.lost is not None
        return not wrong and not self.failed and all(one.ok for one in self.kernels)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "ok": self.ok,
            "scope": asdict(self.scope),
            "closed": self.closed,
            "functions": [{**asdict(one), "wrong": one.wrong} for one in self.functions],
            "kernels": [{**asdict(one), "outcome": one.outcome} for one in self.kernels],
            "seconds": self.seconds,
            "lost": self.lost,
            "not_kept": self.kept,
            "no_verdict": [asdict(one) for one in self.failed],
        }


def examine_device(
    device: Device, scope: Scope | None = None, progress: Progress = silent
) -> Examination:
    """Look at the functions and kernels of `device`, and keep what was seen, with a certificate.

    scope: all of it unless given. Nothing is kept before all was looked at. What raises an
    exception is left without a verdict. Raises DeviceError where no backend opens.
    """
    start, scope, checks = time.perf_counter(), scope or Scope(), Checks(device)
    opened, closed = _opened(device, scope, checks)
    looks: list[list[Look]] = []
    if scope.ops is None or scope.functions is not None:
        looks = checks.run("the functions to look at", partial(function_looks, scope.functions), [])
    asked = {backend.name: _forms(backend, scope, checks) for backend in opened}
    total, done = len(opened) * len(looks) + sum(map(len, asked.values())), 0
    functions: list[FunctionResult] = []
    doctors: list[KernelDoctor] = []
    for backend in opened:
        name, seen = backend.name, list[FunctionResult]()
        for some in looks:
            progress(f"functions on {name}", done, total)
            look = partial(device.perform, partial(look_at_functions, backend, some, checks))
            seen += checks.run(step_of(some, name), look, [])
            done += 1
            if device.lost is not None:
                break
        functions += seen
        verdicts = _verdicts(seen, device)
        doctor = checks.run(f"verdicts on {name}", partial(KernelDoctor, backend, verdicts), None)
        if doctor is None:
            continue
        doctors.append(doctor)
        for form in asked[name]:
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
    results = tuple(one for doctor in doctors for one in doctor.results.values())
    seconds, failed = time.perf_counter() - start, tuple(checks.failed)
    found = Examination(scope, closed, tuple(functions), results, seconds, lost, failed=failed)
    found = checks.run("keeping what was seen", partial(_kept, found, device, doctors), found)
    return replace(found, failed=tuple(checks.failed))


def _forms(backend: GlBackend, scope: Scope, checks: Checks) -> list[Form]:
    """Return the forms of the kernels in `scope`."""
    if scope.functions is not None and scope.ops is None:
        return []
    name, found = backend.name, list[Form]()
    listed = partial(kernels_of, backend, scope.ops, scope.full)
    for kernel in checks.run(f"the kernels of {name}", listed, []):
        step = f"{kernel.op} by {kernel.name} on {name}, what it may compute"
        found += checks.run(step, partial(forms_of, backend, kernel, scope.full), [])
    return one_of_each(found) if scope.quick else found


def one_of_each(some: Sequence[Form]) -> list[Form]:
    """Return a form of each kernel and its parameters for a quick look.

    It is the one that is looked at most closely.
    """
    found: dict[tuple[Kernel, str | None], Form] = {}
    for form in some:
        key = form.kernel, form.name
        if key not in found or (form.first and not found[key].first):
            found[key] = form
    return [replace(form, quick=True) for form in found.values()]


def _opened(device: Device, scope: Scope, checks: Checks) -> tuple[list[GlBackend], dict[str, str]]:
    """The backends that open, and why the others do not.

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


def _verdicts(seen: Iterable[FunctionResult], device: Device) -> dict[str, Verdict]:
    """Those on functions that are wrong."""
    where = device.capabilities.renderer
    return {
        function_key(one.backend, one.name, DType(one.dtype).kind): Verdict(
            wrong=f"{one.name} of {one.dtype} is wrong on {where}: {one.wrong}"
        )
        for one in seen
        if one.wrong
    }


def _kept(found: Examination, device: Device, doctors: Sequence[KernelDoctor]) -> Examination:
    """`found`, and whether it was kept: its verdicts in the place of former ones, a certificate."""
    folder, offers = Settings.from_environment().cache, device.capabilities
    if folder is None:
        return replace(found, kept="GLNN_CACHE is empty, so nothing is kept")
    verdicts = Verdicts.load(folder, offers, VERSION)
    mine: dict[str, Verdict] = {}
    for doctor in doctors:
        mine |= doctor.backend.verdicts.found
    names = {doctor.backend.name for doctor in doctors}
    functions = {(one.backend, one.name, DType(one.dtype).kind) for one in found.functions}
    # Of a kernel that was looked at in part, as the driver gave up, the former verdict stays.
    looked = set[str]() if found.lost else set[str]().union(*(one.looked for one in doctors))

    def dropped(key: str) -> bool:
        """Whether a former verdict of a doctor is on what was looked at anew."""
        backend, op, name, *_, kind = key.split(" ")
        return (backend, name, kind) in functions if op == FUNCTION else key in looked

    try:
        verdicts.renew(mine, dropped)
        given = []
        whole = found.lost is None and not found.failed and not found.scope.quick
        for name in names if whole else ():
            kernels = [one for one in found.kernels if one.backend == name]
            wrong = sum(bool(one.wrong) for one in kernels)
            wrong += sum(bool(one.wrong) for one in found.functions if one.backend == name)
            problems = sum(one.problems for one in kernels)
            own = found.scope.ops, found.scope.functions
            given.append(certificate(name, *own, problems, wrong))
        Certificates.load(folder, offers, VERSION).keep(*given)
    except OSError as error:
        return replace(found, kept=f"{folder} cannot be written: {error.strerror}")
    return found
