"""Every kernel that a backend may choose, held against NumPy in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from glnn.backends.examine import examine, wrong_again
from glnn.backends.gl import GlBackend
from glnn.backends.trial import Fault, Trial
from glnn.compile import evaluate
from glnn.doctor.forms import Form
from glnn.errors import DeviceError, LimitError, ShaderError, first_line, raised
from glnn.graph.error import relative_error
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.verdicts import (
    ALWAYS,
    Verdict,
    Verdicts,
    allowed,
    kernel_key,
    program_key,
    sizes_key,
    verdict_key,
)
from glnn.types import Array


@dataclass
class KernelResult:
    """What was seen of a kernel on one backend."""

    backend: str
    """Which."""
    op: str
    """What it computes."""
    kernel: str
    """Its name."""
    parameters: Mapping[str, int]
    """What it ran with."""
    problems: int = 0
    """How many it computed."""
    part: int | None = None
    """The most vertices or workgroups of one launch that is right; None where any is."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Of what is not used, by the problem that showed it, what was wrong."""
    whole: bool = False
    """Whether no program of the kernel is used: it was wrong in its simplest form."""
    left: dict[str, str] = field(default_factory=dict)
    """What could not be looked at, and why."""

    @property
    def reason(self) -> str:
        """What was wrong first; nothing where nothing was."""
        return next(iter(self.wrong.values()), "")

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen."""
        return not self.wrong and self.part is None

    @property
    def outcome(self) -> str:
        """What is to be said of it, in a few words."""
        if self.whole:
            return "not used"
        if self.wrong:
            return "not used for some"
        if self.part is not None:
            return f"in parts of {self.part}"
        return "right" if self.problems else "not looked at"


class KernelDoctor:
    """Looks at the kernels of `backend`, and collects the verdicts on them.

    The backend begins with those verdicts only that are on functions, and keeps none on disk.
    """

    def __init__(self, backend: GlBackend, functions: Mapping[str, Verdict]) -> None:
        self.backend = backend
        file = backend.verdicts.file
        backend.verdicts = Verdicts(replace(file, path=None), dict(functions))
        self.results: dict[str, KernelResult] = {}
        self.looked: set[str] = set()  # the keys of verdicts on all that was looked at to its end

    def look(self, form: Form) -> None:
        """See whether `form` is right, in launches of any size; the verdict is the backend's.

        Only in the thread that opened the device. Raises DeviceError and MemoryError, which say
        nothing of the kernel: there is no verdict on it then. Nor is there where the device is
        lost, whatever was raised.
        """
        kernel, problem, device = form.kernel, form.problem, self.backend.device
        result = self._result(kernel)
        known = self.backend.verdicts.find(kernel, problem, device.capabilities)
        if known.wrong is not None:  # a function of it, or all of the kernel
            if not result.whole:
                result.left[form.what] = known.wrong
            return
        try:
            wrong = self._stages(form) if form.name else self._whole(form, result)
        except Exception as error:  # glnn's fault or the driver's: a kernel that raises is not used
            if device.lost is not None or isinstance(error, (DeviceError, MemoryError)):
                result.left[form.what] = raised(error)
                raise
            if isinstance(error, LimitError):
                result.left[form.what] = str(error)
                return
            refused = isinstance(error, ShaderError)
            wrong = f"it does not compile: {first_line(error)}" if refused else raised(error)
        if device.lost is not None:
            result.left[form.what] = device.lost
            raise DeviceError(device.lost)
        self.looked |= {kernel_key(kernel)} if form.name else {kernel_key(kernel), self._key(form)}
        if wrong is not None:
            result.wrong[form.what] = wrong
            self._doubt(form, wrong)

    def _key(self, form: Form) -> str:
        """Of a verdict on the program of `form`."""
        return (
            f"{program_key(form.kernel, form.problem, self.backend.device.capabilities)} {ALWAYS}"
        )

    def _result(self, kernel: Kernel) -> KernelResult:
        key = kernel_key(kernel)
        own = kernel.backend, kernel.op, kernel.name, dict(kernel.defaults)
        return self.results.setdefault(key, KernelResult(*own))

    def _whole(self, form: Form, result: KernelResult) -> str | None:
        """What is wrong with a kernel that is one program."""
        backend, offers = self.backend, self.backend.device.capabilities
        kernel, large = form.kernel, form.large(backend)
        told: list[Fault] = []
        wrong = examine(backend, [(kernel, large)], lambda *of: told.append(of[2]))
        verdict = backend.verdicts.find(kernel, large, offers)
        if wrong or verdict.wrong is not None:
            # In its place comes one on all of the program: see `_doubt`.
            for key in (verdict_key, sizes_key):
                backend.verdicts.found.pop(key(kernel, large, offers), None)
            return told[-1].text if told else verdict.wrong
        if verdict.part is not None:
            result.part = min(verdict.part, result.part or verdict.part)
        for other in form.others(backend):
            trial = Trial(backend, kernel, other, spoiled=False, whole=True)
            trial.look(verdict.part, verdict.pace)
            result.problems += 1
            fault = trial.fault
            del trial  # its memory is free for the next
            if fault is not None and wrong_again(
                backend, kernel, other, False, verdict.part, verdict.pace
            ):
                return fault.text
        return None

    def _stages(self, form: Form) -> str | None:
        """What is wrong with the result of a kernel that is made of stages."""
        operands = numbers(form.problem)
        op, epilogue = form.problem.op, form.problem.epilogue
        got = evaluate(op, operands, self.backend, form.name, epilogue)
        precise = {
            name: array.astype(np.float64) if array.dtype.kind == "f" else array
            for name, array in operands.items()
        }
        expected = form.problem.compute(precise)
        error = relative_error(got.astype(np.float64), expected.astype(np.float64))
        self._result(form.kernel).problems += 1
        most = allowed(form.kernel, form.problem)
        return None if error <= most else f"its stages together are off by {error:.1e}"

    def _doubt(self, form: Form, why: str) -> None:
        """Have what was wrong not used: the kernel, or that program of it."""
        verdicts, offers = self.backend.verdicts, self.backend.device.capabilities
        whole = form.plain and not form.kernel.generate
        self._result(form.kernel).whole |= whole
        key = kernel_key(form.kernel) if whole or form.name else self._key(form)
        verdicts.keep({key: Verdict(wrong=f"its results on {offers.renderer} are wrong: {why}")})


def numbers(problem: Problem) -> dict[str, Array]:
    """Random operands of `problem`: floats of about 1, and small integers."""
    generator = np.random.default_rng(11)
    found: dict[str, Array] = {}
    for name, one in problem.operands:
        if one.dtype.kind == "float":
            array: Array = generator.standard_normal(one.shape).astype(one.dtype.numpy)
        else:
            array = generator.integers(0, 2, one.shape).astype(one.dtype.numpy)
        found[name] = problem.op.trial(name, array, problem.own)
    return found
