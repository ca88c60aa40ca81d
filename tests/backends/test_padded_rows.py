"""What lies in R4, its padding poisoned, is taken as it comes by kernels that say so."""

from __future__ import annotations

import pytest

from glnn.core.layout import parse
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from tests.backends.harness import run
from tests.doctor_operands import numbers, precise
from tests.oracle import error

OPS = [
    *("pointwise", "softmax", "reduce", "normalize", "concat", "gather", "scatter", "move"),
    *("conv2d", "pool2d", "subsample", "local_response_norm"),
]


@pytest.mark.parametrize(
    "asked", [pytest.param(one, id=f"{op}-{i}") for op in OPS for i, one in enumerate(PROBLEMS[op])]
)
def test_padded_rows_are_taken_as_they_come(backend, rng, asked) -> None:
    op, shapes, *rest = asked
    epilogue = rest[0] if rest else None
    spec = OpSpec.create(op, shapes, {}, epilogue)
    operands = numbers(rng, spec)
    given = dict.fromkeys((n for n in spec.op_shapes if n not in op.parameters), "R4")
    spec = spec.with_layouts(given)
    expected, ran = spec.compute(precise(operands)), []
    for kernel in kernels_for(op.name, backend.name):
        if kernel.stages or backend.why_not(spec, kernel.name):
            continue
        lies = spec.chosen_layouts(spec.adapted(kernel))
        if all(lies[name] == parse("R4").simplify(spec.shape(name)) for name in given):
            got = run(backend, op, operands, kernel.name, epilogue, given)
            assert error(got, expected) <= 1e-5, kernel.name
            ran.append(kernel.name)
    elsewhere = ("softmax", "normalize", "conv2d", "pool2d")  # in stages, in groups of channels
    columns = op.name == "softmax" and spec.op_sizes["inner"] > 1  # of rows as they are
    assert ran or columns or (backend.name == "feedback" and op.name in elsewhere)
