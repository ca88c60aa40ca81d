"""In which forms a kernel is looked at: attributes, operands, layouts, epilogues, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glnn.backends.gl import GlBackend
from glnn.doctor.problems import BIASED_TANH, PROBLEMS, RELU, SUMMED
from glnn.errors import LimitError, ShapeError, UnsupportedOpError
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.operator import Operands, Operator, Shapes
from glnn.graph.operators import (
    Conv2d,
    Conv2dInputGradient,
    Matmul,
    Normalize,
    Pool2d,
    Reduce,
    Softmax,
)
from glnn.kernels.admit import fitted
from glnn.kernels.generate.generators import GENERATORS
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.problem import Problem
from glnn.kernels.select import why_not
from glnn.kernels.verdicts import program_key
from glnn.layout.layout import PACKED
from glnn.types import DType, TensorType

COUNTS, QUICK_COUNTS = (1, 3, 7, 127, 129), (1, 3, 7)
"""Samples, and numbers of a sum: those of a quick look as well."""
LARGE, QUICK_LARGE = 1 << 17, 1 << 15
"""Numbers of a large result; of a quick look at what workgroups compute, which may take long."""
EPILOGUES: Sequence[Epilogue] = (BIASED.then(RELU), RELU, BIASED, SUMMED, BIASED_TANH)
SMALL: Mapping[str, Sequence[tuple[Operator, Operands]]] = {
    "matmul": [
        (Matmul(), {"x": (1, 1), "weight": (1, 1)}),
        (Matmul(), {"x": (3, 7), "weight": (127, 7)}),
        (Matmul(), {"x": (127, 129), "weight": (3, 129)}),
        (Matmul(), {"x": (1, 1031), "weight": (129, 1031)}),
    ],
    "conv2d": [
        (Conv2d(), {"x": (1, 1, 1, 1), "weight": (1, 1, 1, 1)}),
        (Conv2d(), {"x": (1, 3, 7, 13), "weight": (127, 3, 1, 1)}),
        (Conv2d(padding=(1, 1, 1, 1)), {"x": (3, 4, 17, 7), "weight": (8, 4, 3, 3)}),
        (Conv2d(padding=(2, 2, 2, 2)), {"x": (1, 1, 13, 11), "weight": (7, 1, 5, 5)}),
    ],
    "conv2d_input_gradient": [
        (
            Conv2dInputGradient((7, 9), (1, 1), (1, 0, 0, 1)),
            {"dy": (1, 33, 7, 9), "weight": (33, 16, 2, 2)},
        ),
    ],
    "softmax": [(Softmax(), {"x": (3, 1)}), (Softmax(log=True), {"x": (7, 129)})],
    "normalize": [(Normalize(dims=1), {"x": (3, 7), "weight": (7,), "bias": (7,)})],
    "reduce": [
        (Reduce("sum", (1,)), {"x0": (129, 127)}),
        (Reduce("max", (0,)), {"x0": (127, 3)}),
        (Reduce("mean", (2, 3)), {"x0": (3, 7, 13, 11)}),
    ],
    "pool2d": [
        (Pool2d("max", (2, 2), (2, 2)), {"x": (1, 3, 7, 13)}),
        (Pool2d("average", (3, 3), (1, 1)), {"x": (3, 4, 7, 13)}),
    ],
}
"""More problems than PROBLEMS has, of sizes that are awkward: one, primes, one beside a tile's."""


@dataclass(frozen=True)
class Form:
    """A kernel, and a problem that it is looked at with."""

    kernel: Kernel
    """With the parameters that it would run with."""
    problem: Problem
    """Which."""
    plain: bool = False
    """Whether the kernel cannot be used at all where this is wrong: no epilogue, all are floats."""
    first: bool = False
    """Whether it is the one that is looked at in many sizes, and in a large launch."""
    name: str | None = None
    """Of a kernel made of stages: what runs it."""
    quick: bool = False
    """Whether it is seen with fewer sizes, and in smaller launches."""

    @property
    def what(self) -> str:
        """The kernel and the sizes, for people."""
        sizes = " ".join(str(shape) for shape in self.problem.shapes.values())
        return f"{self.kernel.op} by {self.kernel.name} of {sizes}"

    def others(self, backend: GlBackend) -> Iterator[Problem]:
        """The problem itself, and those of awkward sizes that the same program computes."""
        yield self.problem
        known, offers = {self.problem}, backend.device.capabilities
        program = program_key(self.kernel, self.problem, offers)
        counts = QUICK_COUNTS if self.quick else COUNTS
        for problem in _resized(self.problem, counts) if self.first else ():
            if problem in known or why_not(self.kernel, problem, offers) is not None:
                continue
            known.add(problem)
            if program_key(self.kernel, problem, offers) == program:
                yield problem

    def large(self, backend: GlBackend) -> Problem:
        """The same of as many samples as a large result has; itself where none would have it."""
        op, output = self.problem.op, self.problem.output
        if not (self.first and op.samples and self.problem.along) or 0 in output:
            return self.problem
        large = QUICK_LARGE if self.quick and backend.name == "compute" else LARGE
        count = max(large // max(self.each, 1), output[0])
        found = self.problem.of_samples(count)
        offers = backend.device.capabilities
        able = why_not(self.kernel, found, offers) is None
        same = able and program_key(self.kernel, found, offers) == program_key(
            self.kernel, self.problem, offers
        )
        return found if same else self.problem

    @cached_property
    def each(self) -> int:
        """The numbers of a sample's result."""
        size = 1
        for extent in self.problem.output[1:]:
            size *= extent
        return size


def forms(backend: GlBackend, ops: Sequence[str] | None = None, full: bool = False) -> list[Form]:
    """What there is to look at on `backend`, kernels that are chosen first before others.

    ops: of these alone. full: with every epilogue, and those kernels that run by name only.
    """
    kernels = kernels_of(backend, ops, full)
    return [form for kernel in kernels for form in forms_of(backend, kernel, full)]


def kernels_of(
    backend: GlBackend, ops: Sequence[str] | None = None, full: bool = False
) -> list[Kernel]:
    """Return the kernels of `backend`, those that are chosen first before others; as `forms`."""
    kernels = [k for k in declared() if k.backend == backend.name and (full or not k.document)]
    kernels = [k for k in kernels if ops is None or k.op in ops]
    return sorted(kernels, key=lambda k: (k.op, -k.priority))


def forms_of(backend: GlBackend, kernel: Kernel, full: bool = False) -> list[Form]:
    """Return the forms of one kernel, with each set of parameters that it may have here."""
    return [form for one in _versions(backend, kernel) for form in _of(backend, one, full)]


def _versions(backend: GlBackend, kernel: Kernel) -> list[Kernel]:
    """`kernel` with the parameters that this device may have it run with."""
    offers = backend.device.capabilities
    own = fitted(kernel, offers)
    if own is None:
        return []
    made = [choice.made(kernel) for choice in backend.tuned.choices.values()]
    tuned = [one for one in made if one is not None and one.defaults != own.defaults]
    return [own, *dict.fromkeys(tuned)]


def _of(backend: GlBackend, kernel: Kernel, full: bool) -> Iterator[Form]:
    """The forms of `kernel`, the simplest first, each program once for its way to read operands."""
    offers, known, first = backend.device.capabilities, set[object](), True
    for problem in _problems(kernel, full):
        try:
            adapted = problem.adapted(kernel)
        except UnsupportedOpError:
            continue
        if why_not(adapted, problem, offers) is not None:
            continue
        plain = problem.epilogue is None and not problem.halves and not problem.bytes
        if kernel.stages:
            if problem not in known:
                yield Form(adapted, problem, plain, name=kernel.name)
            known.add(problem)
            continue
        try:
            key = program_key(adapted, problem, offers), problem.given
        except LimitError:
            continue
        sized = key if first or not plain else (*key, problem.operands)
        if sized not in known:
            yield Form(adapted, problem, plain, first)
            first = False
        known |= {key, sized}


def _problems(kernel: Kernel, full: bool) -> Iterator[Problem]:
    """What `kernel` may compute, the simplest first."""
    given = [(op, own) for op, own, *_ in PROBLEMS.get(kernel.op, ())]
    given += SMALL.get(kernel.op, ())
    if kernel.generate:
        examples = GENERATORS[kernel.generate].examples().values()
        given = [(op, types) for op, types in examples if op.name == kernel.op] + given
    bare = []
    for op, operands in given:
        own = {name: one for name, one in operands.items() if name in op.names(len(operands))}
        types = {n: o if isinstance(o, TensorType) else TensorType(o) for n, o in own.items()}
        narrow = [name for name, one in types.items() if one.dtype.narrow]
        bare.append(Problem.of(op, types, dict.fromkeys(narrow, PACKED.name)))
    yield from bare
    for problem in bare if full else bare[:1]:
        yield from _lying(kernel, problem)
        smaller = [(name, DType.float16) for name in kernel.halves]
        for name, dtype in (*smaller, *((name, DType.int8) for name in kernel.bytes)):
            if name in problem.types and problem.types[name].dtype is DType.float32:
                yield problem.stored({name}, dtype)
    if kernel.epilogue:
        for problem in bare if full else bare[:1]:
            for epilogue in EPILOGUES if full else EPILOGUES[:2]:
                if made := _finished(problem, epilogue):
                    yield made


def _finished(problem: Problem, epilogue: Epilogue) -> Problem | None:
    """`problem` with that epilogue; None where it can have none such."""
    try:
        extra = {name: TensorType(s) for name, s in epilogue.shapes(problem.output).items()}
        types = {**dict(problem.operands), **extra}
        return Problem.of(problem.op, types, problem.layouts, epilogue)
    except (ShapeError, IndexError):
        return None


def _lying(kernel: Kernel, problem: Problem) -> Iterator[Problem]:
    """`problem` with each operand that is computed in every layout that `kernel` takes it in."""
    for name in problem.own:
        texts = kernel.layouts.get(name, ())
        for text in texts if len(texts) > 1 and name not in problem.op.parameters else ():
            yield problem.lying({**problem.layouts, name: text})


def _resized(problem: Problem, counts: Sequence[int]) -> Iterator[Problem]:
    """`problem` with these counts of samples, and with sums of as many numbers."""
    for count in counts:
        if problem.op.samples and problem.along:
            yield problem.of_samples(count)
        if problem.op.deepens:
            shapes: Shapes = problem.op.of_depth(problem.shapes, count)
            yield problem.resized(shapes)
