"""The doctor's report: sentences on a device, and a text to paste into a bug report."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from glnn.core.plural import count_of
from glnn.core.process import processors
from glnn.core.redaction import redact, redact_texts
from glnn.core.settings import describe_environment
from glnn.core.trace_spans import duration
from glnn.doctor.checks import NoVerdict
from glnn.doctor.examination import Examination
from glnn.doctor.function_accuracy import FunctionResult
from glnn.doctor.kernel_accuracy import KernelResult
from glnn.doctor.limits import Limits
from glnn.doctor.speed import (
    CHANNELS,
    CONV,
    GPU_BACKENDS,
    LENET,
    MATMUL,
    BackendComparison,
    Speed,
    rate,
    size,
)
from glnn.gl import Device
from glnn.version import VERSION

DRI, DRM = Path("/dev/dri"), Path("/sys/class/drm")
CPU_INFO = Path("/proc/cpuinfo")
NAMED = re.compile(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """A file by which programs reach a GPU."""

    name: str
    """The name in /dev/dri."""
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
    """The kernel's version."""
    architecture: str
    """The processor's architecture, as the kernel names it."""
    processor: str | None
    """The processor's name; None where the system does not tell."""
    processors: int
    """The number of processors that this process may use."""
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
    """The environment's settings of glnn and of GL, without paths."""
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
    """The limits that the driver states otherwise."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the machine as text, to be pasted into a report."""
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
    """Describe the machine and GL's `device`. Raises what `Device.perform` raises."""
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
        environment=describe_environment(),
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
    """Return Mesa's version in GL's `text`; None where there is none."""
    match = re.search(r"\bMesa (\S+)", text)
    return match[1] if match else None


def _system() -> str:
    with suppress(OSError, AttributeError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return f"{platform.system()} {platform.version()}" if platform.system() else "unknown"


def _processor() -> str | None:
    try:
        match = NAMED.search(CPU_INFO.read_text("utf-8", "replace"))
    except OSError:
        return platform.processor() or None
    return match[1].strip() if match else platform.processor() or None


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
    """List the files in /dev/dri, which Linux has, with their drivers of sysfs."""
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


ALIKE = 1.1
"""Times that differ by a smaller factor count as equal: repeated measurements differ as much."""
SLOW_BUS = 0.1
"""The part of the rate of the device's own copies below which a transfer is slow."""
SLOW_RATE = 1e9
"""Bytes a second: a slower transfer is slow whatever the rate of the device's own copies."""
LONG_LAUNCH = 20e-6
"""Seconds of a launch in a chain: above, small steps cost more than their computation."""
LONG_WAIT = 10.0
"""The ratio of a launch that is waited for to one in a chain, above which it is reported."""
LONG_COMPILE = 0.05
"""Seconds of a new shader above which it is reported."""

BUSY = 1.25
"""Wall seconds for each second that a thread computes: above, other programs are reported."""

Rule = Callable[[Speed], Iterator[str]]


def advice(speed: Speed) -> tuple[str, ...]:
    """Return advice that follows from `speed` in whole sentences, the most important first."""
    return tuple(sentence for rule in RULES for sentence in rule(speed))


def software(speed: Speed) -> Iterator[str]:
    """Yield a sentence where the device is a software renderer."""
    if speed.software:
        yield f"{speed.software} computes on the CPU: no GPU is used here."


def busy(speed: Speed) -> Iterator[str]:
    """Yield a sentence where other programs disturbed the measurement."""
    if speed.waiting > BUSY:
        yield (
            "Other programs keep the processors busy (what takes 1 s takes "
            f"{speed.waiting:.1f} s): measure again when they are done (glnn doctor)."
        )


def network(speed: Speed) -> Iterator[str]:
    """Yield the fastest backend for LeNet by the number of images."""
    for one in speed.comparisons(LENET):
        images = "one image" if one.size == 1 else f"{one.size} images at once"
        if one.in_all:
            yield f"For LeNet, {images}: {_ranking(one)}."


def _ranking(one: BackendComparison) -> str:
    """Name the fastest backends, and the times of the others."""
    first, *others = sorted(one.in_all, key=lambda name: one.in_all[name])
    least = one.in_all[first]
    alike = [name for name in others if one.in_all[name] < ALIKE * least]
    rest = ", ".join(f"{_display_name(name)} {duration(one.in_all[name])}" for name in others)
    named = " or ".join(_display_name(name) for name in [first, *alike])
    late = f"{' and '.join(map(_display_name, one.left_out))} would take too long"
    beside = "".join(f"; {text}" for text in (rest, late if one.left_out else "") if text)
    return f"{named} ({duration(least)}{beside})"


def products(speed: Speed) -> Iterator[str]:
    """Yield the size from which on the GPU is faster."""
    contests = [one for one in speed.comparisons(MATMUL) if one.gain is not None]
    if not contests:
        slow = [one for one in speed.comparisons(MATMUL) if one.left_out and "cpu" in one.in_all]
        if slow:
            yield (
                f"The CPU is faster for products of n x n: those of n = {slow[0].size} would take "
                f"{' and '.join(slow[0].left_out)} too long to be measured."
            )
        return
    wins, gpu = _winning(contests), _device_name(speed, "The")
    what = "products of n x n, from host to host"
    largest, gain = contests[-1], contests[-1].gain or 1
    if not wins and gain > 1 / ALIKE:
        yield f"{gpu} and the CPU are alike for {what}, at n = {largest.size}."
    elif not wins:
        yield (
            f"The CPU is faster for {what}, up to n = {largest.size}, the largest that was measured"
            f" ({_times(1 / gain)} there)."
        )
    elif wins[0] is contests[0]:
        yield (
            f"{gpu} is faster for {what}, from n = {wins[0].size} on, the smallest that was "
            f"measured ({_times(gain)} at {largest.size})."
        )
    else:
        yield (
            f"The CPU is faster for {what}, or as fast, below n = {wins[0].size}; from there on "
            f"{_device_name(speed)} is faster ({_times(gain)} at {largest.size})."
        )


def _winning(contests: list[BackendComparison]) -> list[BackendComparison]:
    """Return the largest of `contests`, down to the last size at which the GPU is not yet
    faster.
    """
    for i in reversed(range(len(contests))):
        if (contests[i].gain or 0) < ALIKE:
            return contests[i + 1 :]
    return contests


def convolutions(speed: Speed) -> Iterator[str]:
    """Yield the fastest backend for each convolution."""
    for one in speed.comparisons(CONV):
        if one.gain is not None:
            what = f"{CHANNELS} channels of {one.size} x {one.size}"
            yield f"For a convolution of {what}: {_ranking(one)}."


def backends(speed: Speed) -> Iterator[str]:
    """Yield a comparison of the two GPU backends, by the largest product that both computed."""
    both = [one for one in speed.comparisons(MATMUL) if set(GPU_BACKENDS) <= set(one.on_device)]
    if not both:
        return
    first, second = (both[-1].on_device[name] for name in GPU_BACKENDS)
    if max(first, second) < ALIKE * min(first, second):
        yield f"compute and feedback are alike for products of {both[-1].size}."
        return
    fast, slow = GPU_BACKENDS if first < second else reversed(GPU_BACKENDS)
    times = max(first, second) / min(first, second)
    yield f"{slow} takes {times:.1f} times as long as {fast} for products of {both[-1].size}."


def transfers(speed: Speed) -> Iterator[str]:
    """Yield a sentence for each direction of transfer that is slow."""
    if not speed.transfers:
        return
    largest = speed.transfers[-1]
    copies = largest.rate("copy")
    for way, subject, remedy in (
        ("up", "Uploads", "keep inputs on the device, and give it bytes rather than floats"),
        ("down", "Downloads", "ask for no more outputs than are needed"),
    ):
        rate_of = largest.rate(way)
        if rate_of < SLOW_RATE or rate_of < SLOW_BUS * copies:
            yield (
                f"{subject} are slow ({rate(rate_of)} for {size(largest.nbytes)}; the device "
                f"copies {rate(copies)}): {remedy}."
            )


def launches(speed: Speed) -> Iterator[str]:
    """Yield a sentence where launches are slow, in a chain or waited for."""
    for one in speed.launches:
        if one.chained > LONG_LAUNCH:
            yield (
                f"A launch by {one.backend} costs {duration(one.chained)}: few large steps, and "
                "several samples at once, are better than many small ones."
            )
        if one.alone > LONG_WAIT * one.chained:
            yield (
                f"Waiting for {one.backend} costs {duration(one.alone)}: let several requests be "
                "under way (run_async)."
            )


def compiling(speed: Speed) -> Iterator[str]:
    """Yield a sentence where shaders take long to compile."""
    keep = "" if speed.keeps else "let glnn keep programs (GLNN_CACHE names a folder), and "
    for one in speed.compiling:
        if one.compiled + one.first > LONG_COMPILE:
            took = duration(one.compiled + one.first)
            yield (
                f"A new shader takes {one.backend} {took}: {keep}run a model once before it is "
                "needed."
            )


def memory(speed: Speed) -> Iterator[str]:
    """Yield a sentence where less memory is usable than the system states."""
    room = speed.room
    if room is None or room.fault is None:
        return
    told = "" if room.told is None else f", of {size(room.told)} that are free as the system tells"
    yield f"Only {size(room.confirmed)} of memory could be used{told}: {room.fault}."


RULES: tuple[Rule, ...] = (
    busy,
    software,
    memory,
    network,
    products,
    convolutions,
    backends,
    transfers,
    launches,
    compiling,
)


def _device_name(speed: Speed, article: str = "the") -> str:
    """Name the device as sentences do: a software renderer is no GPU."""
    return speed.software or f"{article} GPU"


def _display_name(name: str) -> str:
    return "CPU" if name == "cpu" else name


def _times(gain: float) -> str:
    return f"{gain:.1f} times as fast"


UNSEEN = "not looked at"
UNITS = {"compute": ("workgroups", "dispatch"), "feedback": ("vertices", "draw")}


@dataclass(frozen=True)
class Report:
    """The doctor's report on a device."""

    machine: Machine | None
    """The machine; None where it could not be described."""
    examination: Examination
    """The results of functions and kernels."""
    limits: Limits | None
    """The results of limits; None where they were not tested."""
    speed: Speed | None
    """The measurements; None where there are none."""
    others: tuple[NoVerdict, ...] = ()
    """Checks without a verdict besides those in the other results."""

    @property
    def failed(self) -> tuple[NoVerdict, ...]:
        """All checks without a verdict."""
        limits = self.limits.failed if self.limits else ()
        speed = self.speed.failed if self.speed else ()
        return (*self.others, *limits, *self.examination.failed, *speed)

    @property
    def ok(self) -> bool:
        """True where everything has a verdict, and nothing is wrong."""
        limits = self.limits is None or self.limits.ok
        return self.examination.ok and limits and not self.failed

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in whole sentences, the worst first."""
        said = [*faults(self.examination)]
        said += self.limits.sentences if self.limits else ()
        said += [f"{one.text}." for one in self.failed]
        said += summary(self.examination)
        said += advice(self.speed) if self.speed else ()
        return (*said, self.verdict)

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        examination, limits = self.examination, self.limits
        if self.ok:
            looked = "here" if examination.scope.whole else "in what was looked at"
            return f"Nothing is wrong {looked}."
        counts = {
            "function": len(
                {(one.backend, one.name) for one in examination.functions if one.wrong}
            ),
            "kernel": sum(bool(one.wrong) for one in examination.kernels),
            "kernel in large launches": sum(
                one.part is not None and not one.wrong for one in examination.kernels
            ),
            "limit": len(limits.wrong) + len(limits.before) if limits else 0,
            "reset of the context": examination.lost is not None,
        }
        said = ", ".join(count_of(int(n), what) for what, n in counts.items() if n)
        unknown = f"there is no verdict on {count_of(len(self.failed), 'check')}"
        if not said:
            return f"Nothing wrong was seen, but {unknown}."
        wrong = f"Wrong here: {said}. None of it is used as it is."
        return f"{wrong} And {unknown}." if self.failed else wrong

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists and numbers, without names and paths."""
        found = {
            **self.examination.to_json(),
            "ok": self.ok,
            "sentences": list(self.sentences),
            "no_verdict": [asdict(one) for one in self.failed],
            "limits": self.limits.to_json() if self.limits else None,
            "speed": self.speed.to_json() if self.speed else None,
        }
        return {
            **redact_texts(found),
            "machine": self.machine.to_json() if self.machine else None,
        }

    def text(self) -> str:
        """The text to paste where a fault is reported, without names and paths."""
        about = self.machine.lines() if self.machine else ["(no verdict)"]
        examination, lines = self.examination, ["What follows", ""]
        lines += self.sentences
        lines += ["", "Kernels", ""]
        lines += [_line(*row) for row in rows(examination)]
        wrong = [*_wrong(examination)]
        if wrong:
            lines += ["", "What is wrong", "", *wrong]
        if self.limits is not None:
            lines += ["", "Limits", "", *self.limits.lines()]
        if self.speed is not None:
            lines += ["", "Speed", "", *self.speed.lines()]
        return "\n".join(["glnn doctor", "", *about, "", redact("\n".join(lines))]) + "\n"


def rows(examination: Examination) -> list[tuple[str, ...]]:
    """Return the table of ops: backend, number of kernels that are right, split, unused or partly
    used, and why.

    Functions are counted once, whatever types they take.
    """
    result: list[tuple[str, ...]] = []
    for backend in examination.scope.backends:
        of_backend = [one for one in examination.functions if one.backend == backend]
        if of_backend:
            wrong = [f"{one.name} of {one.dtype}" for one in of_backend if one.wrong]
            bad = len({one.name for one in of_backend if one.wrong})
            right = str(len(_right(of_backend)))
            result.append(("functions", backend, right, "", _count(bad), ", ".join(wrong)))
    ops = dict.fromkeys((one.op, one.backend) for one in examination.kernels)
    for op, backend in sorted(ops):
        kernels = [one for one in examination.kernels if (one.op, one.backend) == (op, backend)]
        right_kernels = sum(one.ok and bool(one.problems) for one in kernels)
        parts = [one for one in kernels if one.part is not None and not one.wrong]
        wrong = [f"{one.kernel}: {one.reason}" for one in kernels if one.wrong]
        wrong += [f"{one.kernel} was not looked at" for one in kernels if one.outcome == UNSEEN]
        wrong_kernels = sum(bool(one.wrong) for one in kernels)
        counts = str(right_kernels), _count(len(parts)), _count(wrong_kernels)
        result.append((op, backend, *counts, "; ".join(wrong)))
    return result


def faults(examination: Examination) -> Iterator[str]:
    """Yield the faults and their consequences."""
    if examination.lost is not None:
        yield f"The driver reset the context at {examination.lost}; what follows was not looked at."
    for one in examination.functions:
        if one.wrong:
            yield (
                f"{one.backend}: {one.name} of {one.dtype} is wrong: {one.wrong}. No kernel that "
                "calls it is used there: another backend or the host computes it, or it is refused."
            )
    for kernel in examination.kernels:
        if kernel.wrong:
            which = "It is" if kernel.whole else f"{len(kernel.wrong)} of its forms are"
            yield (
                f"{kernel.backend}: {kernel.op} by {kernel.kernel} is wrong: {kernel.reason}. "
                f"{which} not used here."
            )
    yield from _split_launches(examination.kernels)


def _split_launches(kernels: Sequence[KernelResult]) -> Iterator[str]:
    """Yield the size up to which launches are right, where larger ones are wrong."""
    for backend, (units, launch) in UNITS.items():
        of_backend = [one for one in kernels if one.backend == backend and one.problems]
        parts = sorted(one.part for one in of_backend if one.part is not None)
        if parts:
            least, most = parts[0], parts[-1]
            bound = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            verb = "captures wrongly" if backend == "feedback" else "is wrong"
            yield (
                f"{backend} {verb} beyond about {bound} {units} a {launch}, in {len(parts)} of "
                f"{len(of_backend)} kernels: larger ones are made in parts of at most that many, "
                "which are right, and slower."
            )


def summary(examination: Examination) -> Iterator[str]:
    """Yield what is right, and where drivers differ as GL allows."""
    for backend in examination.scope.backends:
        if backend in examination.closed:
            yield f"{backend} does not open: {examination.closed[backend]}."
            continue
        functions = [one for one in examination.functions if one.backend == backend]
        kernels = [one for one in examination.kernels if one.backend == backend and one.problems]
        fine = sum(not one.wrong for one in functions)
        right = sum(not one.wrong for one in kernels)
        problems = sum(one.problems for one in kernels)
        typed = f" ({fine} by the types of their arguments)"
        said = [f"functions that are right: {len(_right(functions))}{typed}"] if functions else []
        said += (
            [f"kernels: {right}, which computed {count_of(problems, 'problem')}"] if kernels else []
        )
        if said:
            yield f"{backend}: {'; '.join(said)}."
        yield from _freedoms(backend, functions)
    if examination.not_kept:
        yield f"Nothing of this is kept: {examination.not_kept}."


def _right(functions: Sequence[FunctionResult]) -> set[str]:
    """Return the names of the functions that are right for every type."""
    wrong = {one.name for one in functions if one.wrong}
    return {one.name for one in functions} - wrong


def _freedoms(backend: str, functions: Sequence[FunctionResult]) -> Iterator[str]:
    """Yield how the driver differs from others within what GL allows."""
    if flushing := {one.name for one in functions if one.flushes}:
        names = count_of(len(flushing), "function")
        yield f"{backend}: numbers below 1.2e-38 are 0 to {names}, as GL allows."
    for one in functions:
        if one.imprecise:
            yield (
                f"{backend}: {one.name} is off by up to {one.ulps:.0f} units in the last place, "
                f"elsewhere {one.allowed:g}; within 1e-5, as GL allows."
            )


def _wrong(examination: Examination) -> Iterator[str]:
    """Yield each wrong result, and how to reproduce it."""
    for one in examination.functions:
        if one.wrong:
            yield f"{one.backend}, function {one.name} of {one.dtype}: {one.wrong}"
            yield f"    glnn doctor --function {one.name} --backend {one.backend}"
    for kernel in examination.kernels:
        if kernel.wrong:
            parameters = " ".join(f"{name}={value}" for name, value in kernel.parameters.items())
            yield f"{kernel.backend}, {kernel.op} by {kernel.kernel} {parameters}".rstrip()
            yield from (f"    {what}: {why}" for what, why in kernel.wrong.items())
        if kernel.part is not None:
            yield f"{kernel.backend}, {kernel.op} by {kernel.kernel}: {kernel.outcome}"
        if not kernel.ok:
            yield f"    glnn doctor --op {kernel.op} --backend {kernel.backend}"


def _line(op: str, backend: str, right: str, parts: str, wrong: str, why: str) -> str:
    """Format a row of the table in words."""
    said = [f"{right} right", parts and f"{parts} in parts", wrong and f"{wrong} not used"]
    return f"{op} by {backend}: {', '.join(filter(None, said))}{why and f' ({why})'}"


def _count(number: int) -> str:
    return str(number) if number else ""
