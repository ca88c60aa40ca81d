"""What was seen of the functions and kernels of one device, and what is done about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from glnn import __version__
from glnn.backends.gl import GlBackend
from glnn.backends.opening import GL
from glnn.device import Device
from glnn.doctor.certificate import Certificates, certificate
from glnn.doctor.forms import Form, forms
from glnn.doctor.functions import FunctionResult, look_at_functions
from glnn.doctor.kernels import KernelDoctor, KernelResult
from glnn.doctor.looks import Look, function_looks
from glnn.errors import DeviceError, GlnnError
from glnn.graph.functions import FUNCTIONS
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.verdicts import FUNCTION, Verdict, Verdicts, function_key
from glnn.settings import Settings
from glnn.types import DType

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
    """Each kernel in its first form alone."""

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

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen."""
        wrong = any(one.wrong for one in self.functions)
        return not wrong and self.lost is None and all(one.ok for one in self.kernels)

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
        }


def examine_device(
    device: Device, scope: Scope | None = None, progress: Progress = silent
) -> Examination:
    """Look at the functions and kernels of `device`, and keep what was seen, with a certificate.

    scope: all of it unless given. Nothing is kept before all was looked at. Raises DeviceError
    where no backend opens.
    """
    start, scope = time.perf_counter(), scope or Scope()
    opened, closed = _opened(device, scope)
    looks = (
        [] if scope.ops is not None and scope.functions is None else function_looks(scope.functions)
    )
    skipped = scope.functions is not None and scope.ops is None
    asked = {b.name: [] if skipped else forms(b, scope.ops, scope.full) for b in opened}
    if scope.quick:
        asked = {name: one_of_each(some) for name, some in asked.items()}
    total, done = len(opened) * len(looks) + sum(map(len, asked.values())), 0
    functions: list[FunctionResult] = []
    doctors: list[KernelDoctor] = []
    lost: str | None = None
    for backend in opened:
        seen: list[FunctionResult] = []
        for some in looks:
            progress(f"functions on {backend.name}", done, total)
            seen += device.perform(partial(look_at_functions, backend, some))
            done += 1
        functions += seen
        doctor = KernelDoctor(backend, _verdicts(seen, device))
        doctors.append(doctor)
        for form in asked[backend.name]:
            progress(f"{form.what} on {backend.name}", done, total)
            lost = _looked(doctor, form)
            done += 1
            if lost:
                break
        if lost:
            break
    progress("", total, total)
    results = tuple(one for doctor in doctors for one in doctor.results.values())
    seconds = time.perf_counter() - start
    found = Examination(scope, closed, tuple(functions), results, seconds, lost)
    return _kept(found, device, doctors, looks)


def one_of_each(some: Sequence[Form]) -> list[Form]:
    """Return one form of each kernel and its parameters: the one that is looked at most closely."""
    found: dict[tuple[Kernel, str | None], Form] = {}
    for form in some:
        key = form.kernel, form.name
        if key not in found or (form.first and not found[key].first):
            found[key] = form
    return list(found.values())


def _opened(device: Device, scope: Scope) -> tuple[list[GlBackend], dict[str, str]]:
    """The backends that open, and why the others do not. Raises DeviceError where none does."""
    closed = {name: GL[name].why_not_device(device) for name in scope.backends}
    opened = [GL[name](device) for name, why in closed.items() if why is None]
    if not opened:
        raise DeviceError("; ".join(f"{name}: {why}" for name, why in closed.items()))
    return opened, {name: why for name, why in closed.items() if why is not None}


def _looked(doctor: KernelDoctor, form: Form) -> str | None:
    """Look at `form`; what it was where the device is lost by it."""
    try:
        doctor.backend.device.perform(partial(doctor.look, form))
    except DeviceError as error:
        if doctor.backend.device.lost is None:
            raise
        return f"{form.what}: {error}"
    return None


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


def _kept(
    found: Examination, device: Device, doctors: Sequence[KernelDoctor], looks: Sequence[list[Look]]
) -> Examination:
    """`found`, and whether it was kept: its verdicts in the place of former ones, a certificate."""
    folder, offers = Settings.from_environment().cache, device.capabilities
    if folder is None:
        return replace(found, kept="GLNN_CACHE is empty, so nothing is kept")
    verdicts = Verdicts.load(folder, offers, __version__)
    mine: dict[str, Verdict] = {}
    for doctor in doctors:
        mine |= doctor.backend.verdicts.found
    names = {doctor.backend.name for doctor in doctors}
    known = {look.name for some in looks for look in some}
    # Of a kernel that was looked at in part, as the driver gave up, the former verdict stays.
    looked = set[str]() if found.lost else set[str]().union(*(one.looked for one in doctors))

    def dropped(key: str) -> bool:
        """Whether a former verdict of a doctor is on what was looked at anew."""
        backend, op, name, *_ = key.split(" ")
        return backend in names and name in known if op == FUNCTION else key in looked

    try:
        verdicts.renew(mine, dropped)
        given = []
        for name in names if found.lost is None and not found.scope.quick else ():
            kernels = [one for one in found.kernels if one.backend == name]
            wrong = sum(bool(one.wrong) for one in kernels)
            wrong += sum(bool(one.wrong) for one in found.functions if one.backend == name)
            problems = sum(one.problems for one in kernels)
            own = found.scope.ops, found.scope.functions
            given.append(certificate(name, *own, problems, wrong))
        Certificates.load(folder, offers, __version__).keep(*given)
    except OSError as error:
        return replace(found, kept=f"{folder} cannot be written: {error.strerror}")
    return found
