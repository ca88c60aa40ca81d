"""Verdicts: outcomes of comparing kernels' results on one device with NumPy's, kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from glnn.core.types import DType, widened
from glnn.errors import UnsupportedOpError
from glnn.gl import Capabilities
from glnn.gl.device_file import DeviceFile
from glnn.graph.expression import Call, Expr
from glnn.graph.functions import FUNCTIONS
from glnn.graph.operator import upper
from glnn.graph.operators.matmul import Perceptron
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.recurrence import Recurrence, RecurrentStep
from glnn.graph.operators.reductions import Reduce
from glnn.kernels.binding import textures
from glnn.kernels.codegen.expression import (
    function_fingerprint,
    reads_as,
    reads_before,
    types_on_gpu,
)
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.source import fingerprint, known_fingerprint, reads

Called = tuple[str, str]
"""A function's name and the kind of numbers that it is called with: "float", "int" or "bool"."""


def called(spec: OpSpec) -> frozenset[Called]:
    """Return the scalar functions that a GLSL program for `spec` calls."""
    if "called" not in spec.memo:
        by_expression = (_functions_in(expr, types) for expr, types in _expressions(spec))
        spec.memo["called"] = frozenset().union(*by_expression)
    result: frozenset[Called] = spec.memo["called"]
    return result


def _expressions(spec: OpSpec) -> Iterator[tuple[Expr, list[DType]]]:
    """Yield each expression in `spec` with the types of its arguments."""
    op, dtypes = spec.op, [widened(spec.types[name]).dtype for name in spec.op_shapes]
    if isinstance(op, Pointwise):
        yield op.expr, dtypes
    if isinstance(op, Reduce):
        yield op.prologue, dtypes
        yield op.finish, [op.prologue.infer(dtypes)]
    if isinstance(op, RecurrentStep | Recurrence):
        floats = [DType.float32] * max(expr.arity for expr in op.exprs)
        yield from ((expr, floats) for expr in op.exprs)
    if isinstance(op, Perceptron):
        yield from ((expr, [DType.float32]) for expr in op.functions)
    if spec.prologue is not None:
        floats = [DType.float32] * (1 + len(spec.prologue.extents))
        yield spec.prologue.expr, floats
    if spec.epilogue is not None:
        names = spec.epilogue.names
        beside = [widened(spec.types[name]).dtype for name in names]
        for expr in spec.epilogue.exprs:
            yield expr, [widened(spec.results[0]).dtype, *beside]


def _functions_in(expr: Expr, dtypes: Sequence[DType]) -> set[Called]:
    """Return the functions in `expr`, including those that others are composed of (on floats)."""
    try:
        types = iter(types_on_gpu(expr, dtypes))
    except UnsupportedOpError:  # no kernel computes it
        return set()
    called = set[Called]()

    def kind(part: Expr, operands: tuple[str, ...]) -> str:
        if isinstance(part, Call):
            called.add((part.function, operands[-1]))
        return next(types).kind

    expr.expanded.fold(kind)
    return called | {(row.name, "float") for row in expr.functions if row.body}


FORM = 5  # version of the file format; files of other versions are not used
SLOWEST = 4e9  # units of `work` a second, assumed of a kernel that was not measured
ROUNDED = 2e-3  # relative error allowed for results that are rounded to float16
WORDS = 4  # least words of a key: backend, op, kernel, fingerprint
FUNCTION = "function"  # replaces the op in the key of a verdict on a scalar function
ALWAYS = "depth=any"  # in keys of verdicts for sums of any length, or for all programs of a kernel
LaunchSize = tuple[int, int, int]
"""The workgroups along x, y and z; or the vertices of an instance, the instances, and 1."""
Launched = tuple[int, int, int, int]
"""A LaunchSize, and a bit for each axis along which the last group is partly filled."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of comparing a kernel's results with NumPy's.

    right: launches whose results were right, none of which covers another. A launch with no more
    groups along any axis, and partly filled last groups along no other axes, counts as right, too.
    part: the most vertices or workgroups of one launch, where larger launches are wrong; None
    without such a limit. pace: throughput a second, in the units of `work`; None where it was not
    measured. wrong: the reason why the kernel is not used; None where it is used.
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
        """The verdict in a few words, for people."""
        if self.wrong is not None:
            return f"not used: {self.wrong}"
        return "right" if self.part is None else f"in launches of {self.part} at most"

    def covers(self, launch: Launched) -> bool:
        """Return True where `launch` needs no further comparison before it runs."""
        return self.wrong is not None or any(is_no_larger(launch, right) for right in self.right)

    def and_right(self, launch: Launched) -> Verdict:
        """Return this verdict with `launch` added to those that were right."""
        others = tuple(right for right in self.right if not is_no_larger(right, launch))
        return replace(self, right=(*others, launch))

    def merge(self, verdict: Verdict) -> Verdict:
        """Merge with `verdict`, a verdict on the same program: the worse of the two holds."""
        if self.wrong is not None or verdict.wrong is not None:
            return self if self.wrong is not None else verdict
        parts = [part for part in (self.part, verdict.part) if part is not None]
        result = replace(self, part=min(parts, default=None))
        for launch in verdict.right:
            result = result if result.covers(launch) else result.and_right(launch)
        return result


def is_no_larger(launch: Launched, larger: Launched) -> bool:
    """Return True where `larger` has as many groups along all axes, and partly filled ones, too."""
    *counts, partial_axes = launch
    *larger_counts, larger_partial_axes = larger
    fits = all(n <= m for n, m in zip(counts, larger_counts, strict=True))
    return fits and not partial_axes & ~larger_partial_axes


@dataclass(frozen=True)
class VerdictRecord:
    """A `verdict` on a kernel of `backend`, by name, with the `attributes` it was compared with."""

    backend: str
    op: str
    kernel: str
    attributes: str
    verdict: Verdict

    @property
    def notable(self) -> str | None:
        """The outcome where the kernel is not used, or in parts only; None where it is right."""
        right = self.verdict.wrong is None and self.verdict.part is None
        return None if right else self.verdict.outcome


@dataclass
class Verdicts:
    """The verdicts on the kernels of one device, by program and attributes of the op.

    file: the file that stores them. revision: counts changes to which kernels are not used.
    """

    file: DeviceFile
    found: dict[str, Verdict] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Verdicts:
        """Load the verdicts that this `version` of glnn stored for `device` in `folder`."""
        file = DeviceFile.for_device(folder, "verdicts", FORM, device, version)
        stored = file.read(_verdict)
        return cls(file, {key: stored[key] for key in stored if len(key.split(" ")) >= WORDS})

    def find(self, kernel: Kernel, spec: OpSpec, device: Capabilities) -> Verdict:
        """Return the verdict on `kernel` for specs like `spec`.

        A wrong result for another depth of sums, on other attributes, or in a function that the
        kernel calls, may rule it out as well.
        """
        if not self.found or kernel.stages:  # saves computing the keys
            return self.of_kernel(kernel)
        first, *others = _keys(kernel, spec, device)
        for key in others:
            if key in self.found and self.found[key].wrong is not None:
                return self.found[key]
        return self.found.get(first, Verdict())

    def why_not(self, kernel: Kernel, spec: OpSpec, device: Capabilities) -> str | None:
        """Return why `kernel` is not used for specs like `spec`; None where it is used."""
        return self.find(kernel, spec, device).wrong

    def of_kernel(self, kernel: Kernel) -> Verdict:
        """Return the verdict that holds for every program of `kernel`."""
        return self.found.get(kernel_key(kernel), Verdict()) if self.found else Verdict()

    def keep(self, verdicts: Mapping[str, Verdict]) -> None:
        """Add `verdicts`, and write the file where that is possible."""
        self.take(verdicts)
        with suppress(OSError), self.file.locked():  # a kernel without a verdict is compared again
            stored = self.file.reread(_verdict)  # another process may have added some
            merged = {key: one.merge(stored[key]) for key, one in verdicts.items() if key in stored}
            updated = {**stored, **self.found, **merged}
            self.file.write({key: asdict(verdict) for key, verdict in updated.items()})

    def take(self, verdicts: Mapping[str, Verdict]) -> None:
        """Add `verdicts` in memory, without writing the file."""
        self.found |= verdicts
        self.revision += any(verdict.wrong is not None for verdict in verdicts.values())

    def renew(self, verdicts: Mapping[str, Verdict], dropped: Callable[[str], bool]) -> None:
        """Replace the verdicts whose key is `dropped` by `verdicts`.

        Remaining verdicts of wrong results, or of right ones in parts only, still hold: `verdicts`
        may be of other sizes. Raises OSError where the file cannot be written; the former file
        stays then.
        """
        with self.file.locked():
            known = {**self.file.reread(_verdict), **self.found}
            remaining = {key: verdict for key, verdict in known.items() if not dropped(key)}
            merged = {
                key: verdict.merge(remaining[key])
                for key, verdict in verdicts.items()
                if key in remaining
            }
            self.found = {**remaining, **verdicts, **merged}
            self.revision += 1
            self.file.write({key: asdict(verdict) for key, verdict in self.found.items()})

    def forget(self) -> None:
        """Drop all verdicts, and the file. Raises OSError where it cannot be removed."""
        self.found.clear()
        self.revision += 1
        self.file.remove()

    def seen(self) -> Iterator[VerdictRecord]:
        """Yield the verdicts on kernels and functions whose source has not changed since."""
        kernels = {(one.backend, one.op, one.name): one for one in declared()}
        for key, verdict in sorted(self.found.items()):
            backend, op, name, printed, *attributes = key.split(" ")
            if op == FUNCTION:
                if name in FUNCTIONS and function_fingerprint(name) == printed:
                    yield VerdictRecord(backend, op, name, " ".join(attributes), verdict)
                continue
            kernel = kernels.get((backend, op, name))
            if kernel is not None and known_fingerprint(kernel) == printed:
                yield VerdictRecord(backend, op, name, " ".join(attributes), verdict)


def _keys(kernel: Kernel, spec: OpSpec, device: Capabilities) -> tuple[str, ...]:
    """Return the key of the verdict on `kernel` for `spec`, then those that may rule it out."""
    key = "keys", kernel, device
    if key not in spec.memo:
        spec.memo[key] = (
            verdict_key(kernel, spec, device),
            kernel_key(kernel),
            f"{program_key(kernel, spec, device)} {ALWAYS}",
            *_function_keys(kernel.backend, spec),
            sizes_key(kernel, spec, device),
        )
    result: tuple[str, ...] = spec.memo[key]
    return result


def program_key(kernel: Kernel, spec: OpSpec, device: Capabilities) -> str:
    """Return the key of the program that `kernel` compiles to for `spec`.

    The key holds the parameters, the op's attributes, and a fingerprint of the source.
    """
    spec, key = spec.origin, ("program", kernel, device)
    if key not in spec.memo:
        spec.memo[key] = _program_key(kernel, spec, device)
    result: str = spec.memo[key]
    return result


def _program_key(kernel: Kernel, spec: OpSpec, device: Capabilities) -> str:
    fetched = textures(kernel, spec.epilogue, spec.fp16_operands)
    samplers = {
        name: kernel.sampler(fetched[name], layout.words(spec.types[name]), device)
        for name, layout in spec.chosen_layouts(kernel).items()
        if name in fetched
    }
    generated = spec.generated(kernel)
    known = {**kernel.defaults, **spec.defines(kernel), **samplers}
    if generated is None:  # macros that a shader does not contain do not change its program
        named = {
            *spec.op.defines(spec.op_shapes),
            *map(str.upper, spec.op.derived_sizes(spec.op_shapes)),
            "HAS_EPILOGUE",
        }
        known = {name: known[name] for name in known if name not in named or reads(kernel, name)}
    if kernel.epilogue:
        known["epilogue"] = reads_as(spec.epilogue)
        integers = [n for n in spec.extents if spec.types[n].dtype is DType.int32]
        known |= {"integers": ",".join(integers)} if integers else {}
    if kernel.prologue is not None:
        known["prologue"] = reads_before(spec.prologue)
    words = [f"{name}={value}" for name, value in sorted(known.items())]
    words += [] if generated is None else [generated.structure.replace(" ", "")]
    return " ".join([kernel.backend, kernel.op, kernel.name, fingerprint(kernel), *words])


def verdict_key(kernel: Kernel, spec: OpSpec, device: Capabilities) -> str:
    """Return the key of a verdict: a program and the depth (terms) of its sums.

    The depth is rounded up to a power of two where the op allows it: long loops may end early.
    """
    op = spec.op
    depth = op.depth(spec.shapes)
    return f"{program_key(kernel, spec, device)} depth={upper(depth) if op.has_depth else depth}"


def sizes_key(kernel: Kernel, spec: OpSpec, device: Capabilities) -> str:
    """Return the key of a verdict that holds for operands of exactly these sizes."""
    key = "sizes", kernel, device
    if key not in spec.memo:
        shapes = ",".join(f"{n}:{'x'.join(map(str, dims))}" for n, dims in spec.shapes.items())
        spec.memo[key] = f"{verdict_key(kernel, spec, device)} sizes={shapes}"
    result: str = spec.memo[key]
    return result


def kernel_key(kernel: Kernel) -> str:
    """Return the key of a verdict on every program of `kernel` with these parameters."""
    parameters = (f"{name}={value}" for name, value in sorted(kernel.defaults.items()))
    words = kernel.backend, kernel.op, kernel.name, fingerprint(kernel), *parameters, ALWAYS
    return " ".join(words)


def function_key(backend: str, name: str, kind: str) -> str:
    """Return the key of a verdict on a scalar function of numbers of that kind."""
    return " ".join((backend, FUNCTION, name, function_fingerprint(name), kind))


def _function_keys(backend: str, spec: OpSpec) -> tuple[str, ...]:
    """Return the keys of the verdicts on the scalar functions that `spec` calls."""
    key = "functions", backend
    if key not in spec.memo:
        names = sorted(called(spec))
        spec.memo[key] = tuple(function_key(backend, *one) for one in names)
    result: tuple[str, ...] = spec.memo[key]
    return result


def allowed(kernel: Kernel, spec: OpSpec) -> float:
    """Return the relative error that the results of `kernel` may have."""
    expressions = [spec.op.expr] if isinstance(spec.op, Pointwise) else []
    expressions += [] if spec.prologue is None else [spec.prologue.expr]
    expressions += [] if spec.epilogue is None else spec.epilogue.exprs
    rounds = any(row.name == "cast_float16" for expr in expressions for row in expr.functions)
    rounds = rounds or "out" in spec.fp16_operands
    return max(kernel.tolerance, ROUNDED) if rounds else kernel.tolerance


def work(spec: OpSpec) -> int:
    """Return the work of `spec`: its operations plus the bytes it touches."""
    cost = spec.cost
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
