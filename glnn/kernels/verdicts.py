"""What was seen of the kernels on one device when their results were held against NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from glnn.device import Capabilities
from glnn.device.device_file import DeviceFile
from glnn.graph.functions import FUNCTIONS
from glnn.graph.operator import upper
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels.binding import textures
from glnn.kernels.calls import called
from glnn.kernels.generate.epilogue import reads_as
from glnn.kernels.generate.expression import function_fingerprint
from glnn.kernels.generate.prologue import reads_before
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.problem import Problem
from glnn.kernels.source import fingerprint, known_fingerprint, reads

FORM = 4  # of the file; one of another form is not used
ROUNDED = 2e-3  # the error of what is rounded to float16, or to the next one
WORDS = 4  # of a key at least: backend, op, kernel, fingerprint
FUNCTION = "function"  # in the place of the op, where a verdict is on a scalar function
ALWAYS = "depth=any"  # where one holds for sums of any length, or for every program of a kernel
LaunchSize = tuple[int, int, int]
"""The workgroups along x, y and z; or the vertices of an instance, the instances, and 1."""
Launched = tuple[int, int, int, int]
"""A LaunchSize, and the axes, a bit each, along which the last group has less to do than others."""


@dataclass(frozen=True)
class Verdict:
    """What a kernel's results were like.

    right: launches that were right, none of which covers another: those that have no more groups
    along any axis, and whose last groups have less to do along no other axes, are right, too.
    part: the most vertices or workgroups that one launch may have, where larger ones are wrong;
    None where none was. pace: what it did in a second, in the units of `work`; None where that was
    not measured. wrong: why it is not used; None where it is.
    """

    right: tuple[Launched, ...] = ()
    part: int | None = None
    pace: float | None = None
    wrong: str | None = None

    def __post_init__(self) -> None:
        for launch in self.right:
            if len(launch) != 4 or not all(type(n) is int and n >= 0 for n in launch):
                raise ValueError(f"right: expected three counts and the axes, got {launch!r}")
        for name, value, least in (("part", self.part, 1), ("pace", self.pace, 0)):
            if value is not None and not value >= least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")

    @property
    def outcome(self) -> str:
        """What is to be said of it, in a few words."""
        if self.wrong is not None:
            return f"not used: {self.wrong}"
        return "right" if self.part is None else f"in launches of {self.part} at most"

    def covers(self, launch: Launched) -> bool:
        """Whether nothing more need be seen before such a launch is asked for."""
        return self.wrong is not None or any(within(launch, seen) for seen in self.right)

    def and_right(self, launch: Launched) -> Verdict:
        """The same, that launch having been right, too."""
        others = tuple(seen for seen in self.right if not within(seen, launch))
        return replace(self, right=(*others, launch))

    def beside(self, other: Verdict) -> Verdict:
        """What is to be believed where `other` was found of the same: the worse of the two."""
        if self.wrong is not None or other.wrong is not None:
            return self if self.wrong is not None else other
        parts = [part for part in (self.part, other.part) if part is not None]
        found = replace(self, part=min(parts, default=None))
        for launch in other.right:
            found = found if found.covers(launch) else found.and_right(launch)
        return found


def within(launch: Launched, other: Launched) -> bool:
    """Whether `other` is as large along every axis, and cut short along those that `launch` is."""
    *counts, cut = launch
    *most, other_cut = other
    return all(n <= m for n, m in zip(counts, most, strict=True)) and not cut & ~other_cut


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
        right = self.verdict.wrong is None and self.verdict.part is None
        return None if right else self.verdict.outcome


@dataclass
class Verdicts:
    """The verdicts on the kernels of one device, each with the op's attributes it was seen with.

    file: what keeps them. revision: counts the changes of what is not to be used.
    """

    file: DeviceFile
    found: dict[str, Verdict] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Verdicts:
        """What `folder` keeps for `device`, found by this `version` of glnn."""
        file = DeviceFile.of(folder, "verdicts", FORM, device, version)
        kept = file.read(_verdict)
        return cls(file, {key: kept[key] for key in kept if len(key.split(" ")) >= WORDS})

    def find(self, kernel: Kernel, problem: Problem, device: Capabilities) -> Verdict:
        """The verdict on `kernel` where it computes problems like `problem`.

        What was wrong for other sums, with other attributes, or in a function that it calls, may
        be why it is not used.
        """
        if not self.found or kernel.stages:  # no key need be made
            return self.of_kernel(kernel)
        own, *others = _keys(kernel, problem, device)
        for key in others:
            if key in self.found and self.found[key].wrong is not None:
                return self.found[key]
        return self.found.get(own, Verdict())

    def why_not(self, kernel: Kernel, problem: Problem, device: Capabilities) -> str | None:
        """Why `kernel` is not used for problems like `problem`; None when it is."""
        return self.find(kernel, problem, device).wrong

    def of_kernel(self, kernel: Kernel) -> Verdict:
        """The verdict on every program of `kernel`."""
        return self.found.get(kernel_key(kernel), Verdict()) if self.found else Verdict()

    def keep(self, found: Mapping[str, Verdict]) -> None:
        """Take the verdicts `found`, and write the file, where it may be written."""
        self.take(found)
        with suppress(OSError), self.file.locked():  # what is not kept is found again
            others = self.file.again(_verdict)  # another process may have kept some
            both = {key: one.beside(others[key]) for key, one in found.items() if key in others}
            kept = {**others, **self.found, **both}
            self.file.write({key: asdict(verdict) for key, verdict in kept.items()})

    def take(self, found: Mapping[str, Verdict]) -> None:
        """Take the verdicts `found`, which no file has yet."""
        self.found |= found
        self.revision += any(verdict.wrong is not None for verdict in found.values())

    def renew(self, found: Mapping[str, Verdict], dropped: Callable[[str], bool]) -> None:
        """Take the verdicts `found` in the place of those whose key is `dropped`.

        What others saw to be wrong, or right in parts only, stays so: `found` may be of other
        sizes. Raises OSError where the file cannot be written: it is the former one then.
        """
        with self.file.locked():
            kept = {**self.file.again(_verdict), **self.found}
            stay = {key: kept[key] for key in kept if not dropped(key)}
            both = {key: one.beside(stay[key]) for key, one in found.items() if key in stay}
            self.found = {**stay, **found, **both}
            self.revision += 1
            self.file.write({key: asdict(verdict) for key, verdict in self.found.items()})

    def forget(self) -> None:
        """Drop all verdicts, and the file. Raises OSError where it cannot be removed."""
        self.found.clear()
        self.revision += 1
        self.file.remove()

    def seen(self) -> Iterator[Seen]:
        """Every verdict on a kernel or a function as it is now, with what it holds for."""
        kernels = {(one.backend, one.op, one.name): one for one in declared()}
        for key, verdict in sorted(self.found.items()):
            backend, op, name, printed, *attributes = key.split(" ")
            if op == FUNCTION:
                if name in FUNCTIONS and function_fingerprint(name) == printed:
                    yield Seen(backend, op, name, " ".join(attributes), verdict)
                continue
            kernel = kernels.get((backend, op, name))
            if kernel is not None and known_fingerprint(kernel) == printed:
                yield Seen(backend, op, name, " ".join(attributes), verdict)


def _keys(kernel: Kernel, problem: Problem, device: Capabilities) -> tuple[str, ...]:
    """The key of the verdict on `kernel` for `problem`, and those of what may be wrong besides."""
    key = "keys", kernel, device
    if key not in problem.memo:
        problem.memo[key] = (
            verdict_key(kernel, problem, device),
            kernel_key(kernel),
            f"{program_key(kernel, problem, device)} {ALWAYS}",
            *_function_keys(kernel.backend, problem),
            sizes_key(kernel, problem, device),
        )
    found: tuple[str, ...] = problem.memo[key]
    return found


def program_key(kernel: Kernel, problem: Problem, device: Capabilities) -> str:
    """What the program is that `kernel` is for `problem`.

    That is its parameters, the op's attributes, and how it reads.
    """
    problem, key = problem.origin, ("program", kernel, device)
    if key not in problem.memo:
        problem.memo[key] = _program_key(kernel, problem, device)
    found: str = problem.memo[key]
    return found


def _program_key(kernel: Kernel, problem: Problem, device: Capabilities) -> str:
    fetched = textures(kernel, problem.epilogue, problem.halves)
    samplers = {
        name: kernel.sampler(fetched[name], layout.words(problem.types[name]), device)
        for name, layout in problem.chosen_layouts(kernel).items()
        if name in fetched
    }
    made = problem.generated(kernel)
    known = {**kernel.defaults, **problem.defines(kernel), **samplers}
    if made is None:  # what a shader does not read makes no other program
        own = {*problem.op.defines(problem.own), *map(str.upper, problem.op.derived(problem.own))}
        known = {name: known[name] for name in known if name not in own or reads(kernel, name)}
    if kernel.epilogue:
        known["epilogue"] = reads_as(problem.epilogue)
    if kernel.prologue is not None:
        known["prologue"] = reads_before(problem.prologue)
    words = [f"{name}={value}" for name, value in sorted(known.items())]
    words += [] if made is None else [made.structure.replace(" ", "")]
    return " ".join([kernel.backend, kernel.op, kernel.name, fingerprint(kernel), *words])


def verdict_key(kernel: Kernel, problem: Problem, device: Capabilities) -> str:
    """What a verdict holds for: a program, and how long the sums are.

    To the next power of two, where a problem can be made of that: long loops may end early.
    """
    op = problem.op
    depth = op.depth(problem.shapes)
    return f"{program_key(kernel, problem, device)} depth={upper(depth) if op.deepens else depth}"


def sizes_key(kernel: Kernel, problem: Problem, device: Capabilities) -> str:
    """What a verdict holds for that is on a kernel that is wrong: operands of these sizes alone."""
    key = "sizes", kernel, device
    if key not in problem.memo:
        shapes = ",".join(f"{n}:{'x'.join(map(str, dims))}" for n, dims in problem.shapes.items())
        problem.memo[key] = f"{verdict_key(kernel, problem, device)} sizes={shapes}"
    found: str = problem.memo[key]
    return found


def kernel_key(kernel: Kernel) -> str:
    """What a verdict holds for that is on every program of `kernel` with these parameters."""
    own = (f"{name}={value}" for name, value in sorted(kernel.defaults.items()))
    words = kernel.backend, kernel.op, kernel.name, fingerprint(kernel), *own, ALWAYS
    return " ".join(words)


def function_key(backend: str, name: str, kind: str) -> str:
    """What a verdict holds for that is on a function of numbers of that kind."""
    return " ".join((backend, FUNCTION, name, function_fingerprint(name), kind))


def _function_keys(backend: str, problem: Problem) -> tuple[str, ...]:
    """Those of the functions that `problem` needs."""
    key = "functions", backend
    if key not in problem.memo:
        names = sorted(called(problem))
        problem.memo[key] = tuple(function_key(backend, *one) for one in names)
    found: tuple[str, ...] = problem.memo[key]
    return found


def allowed(kernel: Kernel, problem: Problem) -> float:
    """The relative error that the results of `kernel` may have."""
    expressions = [problem.op.expr] if isinstance(problem.op, Pointwise) else []
    expressions += [one.expr for one in (problem.prologue, problem.epilogue) if one]
    rounds = any(row.name == "cast_float16" for expr in expressions for row in expr.functions)
    rounds = rounds or "out" in problem.halves
    return max(kernel.tolerance, ROUNDED) if rounds else kernel.tolerance


def work(problem: Problem) -> int:
    """What computing `problem` takes: its operations and the bytes it touches, added up."""
    cost = problem.cost
    return cost.flops + cost.bytes


def _verdict(value: Any) -> Verdict:
    wrong = value["wrong"]
    part, pace = value["part"], value["pace"]
    return Verdict(
        tuple((x, y, z, cut) for x, y, z, cut in value["right"]),
        None if part is None else int(part),
        None if pace is None else float(pace),
        None if wrong is None else str(wrong),
    )
