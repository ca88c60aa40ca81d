"""Every value of every kernel's parameters gives the right result: tuning may choose any."""

from __future__ import annotations

import pytest

from glnn.doctor.problems import PROBLEMS, numbers, precise
from glnn.errors import LimitError
from glnn.kernels import library
from glnn.kernels.admit import fitted, why_not_device
from glnn.kernels.problem import Problem
from tests.backends.harness import TOLERANCE, run_kernel, taken
from tests.oracle import error

TUNED = [(k, name) for k in library() for name, values in k.tune.items() if len(values) > 1]


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(
    ("kernel", "name"), TUNED, ids=[f"{k.op}-{k.name}-{name}" for k, name in TUNED]
)
def test_every_value_of_a_parameter(opened, rng, kernel, name) -> None:
    backend = opened(kernel.backend)
    offers = backend.device.capabilities
    start = fitted(kernel, offers)
    if start is None:
        pytest.skip(str(why_not_device(kernel, offers)))
    ran = 0
    for value in kernel.tune[name]:
        candidate = start.with_parameters(**{name: value})
        if why_not_device(candidate, offers) is not None:
            continue
        for op, shapes, *rest in PROBLEMS[kernel.op]:
            problem = Problem.of(op, shapes, {}, *rest)
            if (one := taken(candidate, problem)) is None:
                continue
            operands = numbers(rng, problem)
            try:
                got = run_kernel(backend, op, operands, one, problem.epilogue)
            except LimitError:  # what the driver alone knows
                continue
            expected = problem.compute(precise(operands))
            assert error(got, expected) <= max(TOLERANCE, kernel.tolerance), (name, value)
            ran += 1
    assert ran, "no value of it was tried"
