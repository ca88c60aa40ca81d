"""Epilogues of any expression, on kernels that take them."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import evaluate
from glnn.errors import UnsupportedOpError
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.functions import FUNCTIONS, Function
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.source import fingerprint
from glnn.kernels.tuned import problem_class
from glnn.kernels.verdicts import program_key
from tests import oracle
from tests.backends.epilogues import SUMMED
from tests.backends.harness import TOLERANCE, run

# tanh((x e1 - 0.5) e3 + e2) / 2, with a scale and a shift of each channel, and one number.
SEVERAL = Epilogue(
    call(
        "div",
        call("tanh", call("add", call("mul", call("sub", call("mul", Arg(0), Arg(1)), 0.5), Arg(3)),
                          Arg(2))),
        2.0,
    ),
    ("channel", "channel", "one"),
)  # fmt: skip
KERNELS = [
    ("compute", "matmul", "gemm_blocked"),  # four columns at a time
    ("compute", "matmul", "scalar_nt"),
    ("compute", "matmul", "cross_rm_rm"),  # columns down the result's memory
    ("compute", "matmul", "morton_4_2"),
    ("feedback", "matmul", "feedback_4x4"),
    ("feedback", "matmul", "feedback_split_k"),  # by its last stage
    ("compute", "conv2d", "implicit_gemm"),
    ("compute", "conv2d", "direct"),
    ("compute", "conv2d", "winograd_2"),
    ("feedback", "conv2d", "feedback"),
    ("feedback", "conv2d", "feedback_grouped"),
]


def several(
    result: np.ndarray, scale: np.ndarray, shift: np.ndarray, one: np.ndarray
) -> np.ndarray:
    shape = (-1, *(1,) * (result.ndim - 2))
    scale, shift = scale.astype("f8").reshape(shape), shift.astype("f8").reshape(shape)
    return np.tanh((result * scale - 0.5) * float(one[0]) + shift) / 2


@pytest.mark.parametrize(("name", "op", "kernel"), KERNELS)
def test_several_functions_and_operands(opened, rng, name, op, kernel) -> None:
    backend = opened(name)
    if op == "matmul":
        made, operands = Matmul(), {"x": rng((17, 9)), "weight": rng((7, 9))}
        plain = oracle.matmul(*operands.values())
    else:
        made, operands = Conv2d(), {"x": rng((2, 3, 6, 5)), "weight": rng((7, 3, 3, 3))}
        plain = oracle.conv2d(*operands.values())
    given = {**operands, "e1": rng((7,)), "e2": rng((7,)), "e3": rng((1,))}
    shapes = {key: array.shape for key, array in given.items()}
    if reason := backend.why_not(OpSpec.create(made, shapes, {}, SEVERAL), kernel):
        assert "its epilogue has 3 operands, of 4 storage blocks" in reason
        with pytest.raises(UnsupportedOpError, match="storage blocks"):
            evaluate(made, given, backend, kernel, SEVERAL)
        return
    expected = several(plain, given["e1"], given["e2"], given["e3"])
    assert oracle.error(run(backend, made, given, kernel, SEVERAL), expected) <= TOLERANCE


@pytest.mark.parametrize("name", ["compute", "feedback", "cpu"])
def test_a_function_that_is_added_by_one_row(opened, rng, monkeypatch, name) -> None:
    """It needs nothing else; kernels that do not use it are the programs that they were."""
    backend = name if name == "cpu" else opened(name)
    shapes = {"x": (5, 7), "weight": (3, 7)}
    biased = OpSpec.create(Matmul(), {**shapes, "e1": (3,)}, {}, BIASED)
    kernel = next(k for k in kernels_for("matmul", "compute") if k.name == "gemm_blocked")
    before = fingerprint(kernel)
    row = Function("quartic", 1, lambda x: x**4 - x, "a * a * (a * a) - a")
    monkeypatch.setitem(FUNCTIONS, row.name, row)  # type: ignore[arg-type]
    quartic = Epilogue(call("quartic", Arg(0)))
    operands = {key: rng(shape) for key, shape in shapes.items()}
    got = evaluate(Matmul(), operands, backend, epilogue=quartic)
    plain = oracle.matmul(*operands.values())
    assert oracle.error(got, plain**4 - plain) <= TOLERANCE
    if not isinstance(backend, str):
        offers = backend.device.capabilities
        made = OpSpec.create(Matmul(), shapes, {}, quartic)
        other = Function("quartic", 1, row.numpy, "a * a * a * a - a")

        def key(spec: OpSpec) -> str:
            spec.memo.clear()  # in no process does a row change
            return program_key(kernel, spec, offers)

        keys = key(biased), key(made)
        monkeypatch.setitem(FUNCTIONS, row.name, other)  # type: ignore[arg-type]
        assert key(biased) == keys[0]
        assert key(made) != keys[1]
        assert problem_class(made) == problem_class(biased)
    assert fingerprint(kernel) == before


def test_numbers_are_no_part_of_a_program(backend, rng) -> None:
    x, weight = rng((5, 7)), rng((3, 7))
    plain, counts = oracle.matmul(x, weight), []
    for alpha in (2.0, -3.5, float("inf")):
        epilogue = Epilogue(call("mul", alpha, Arg(0)))
        got = evaluate(Matmul(), {"x": x, "weight": weight}, backend, epilogue=epilogue)
        assert oracle.error(got, alpha * plain) <= TOLERANCE
        counts.append(len(backend.device.programs))
    assert len(set(counts)) == 1 or backend.confuses_values()


@pytest.mark.parametrize("opened", ["es31-minimum"], indirect=True)
def test_one_operand_may_lie_in_the_results_memory(opened, rng) -> None:
    """Four storage blocks are those of x, the weights, the result and one operand."""
    backend = opened("compute")
    epilogue = SUMMED.then(Epilogue(call("mul", Arg(0), Arg(1)), ("full",)))
    given = {"x": rng((9, 5)), "weight": rng((7, 5)), "e1": rng((9, 7)), "e2": rng((9, 7))}
    got = run(backend, Matmul(), given, "gemm_blocked", epilogue)
    expected = (oracle.matmul(given["x"], given["weight"]) + given["e1"]) * given["e2"]
    assert oracle.error(got, expected) <= TOLERANCE
    three = epilogue.then(SUMMED)
    shapes = {**{key: array.shape for key, array in given.items()}, "e3": (9, 7)}
    says = "its epilogue has 3 operands, of 4 storage blocks 3 are taken"
    assert says in (
        backend.why_not(OpSpec.create(Matmul(), shapes, {}, three), "gemm_blocked") or ""
    )
