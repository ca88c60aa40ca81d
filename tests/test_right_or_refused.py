"""Whatever the driver is: a result is right, or it is refused with the reason.

`make check-softpipe` runs this on a driver that is wrong in silence, with GLNN_EXHAUSTIVE=1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.compiler import Plan, evaluate
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.errors import DeviceError, UnsupportedOpError
from glnn.graph.epilogue import BIASED
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Pool2d, Softmax
from glnn.kernels.library import declared
from glnn.kernels.op_spec import OpSpec
from tests.backends.harness import TOLERANCE
from tests.doctor_operands import numbers, precise
from tests.oracle import error
from tests.random_models import random_model
from tests.references import results

EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
MODELS = 300 if EXHAUSTIVE else 6
SCALE = 1 if EXHAUSTIVE else 40  # results of up to 10 million numbers, or of fewer
SIGMOID = Pointwise(call("sigmoid", Arg(0)))
LARGE: dict[str, OpSpec] = {
    "matmul 1000 x 400 x 120": OpSpec.create(
        Matmul(), {"x": (1000, 400), "weight": (120, 400)}, {}
    ),
    "matmul": OpSpec.create(
        Matmul(), {"x": (10_000 // SCALE, 20), "weight": (1000, 20), "e1": (1000,)}, {}, BIASED
    ),
    "softmax": OpSpec.create(Softmax(), {"x": (25_000 // SCALE, 400)}, {}),
    "pointwise": OpSpec.create(SIGMOID, {"x0": (10_000 // SCALE, 1000)}, {}),
    "pool2d": OpSpec.create(Pool2d("max", (2, 2), (1, 1)), {"x": (1, 10, 1001 // SCALE, 1001)}, {}),
    "conv2d": OpSpec.create(
        Conv2d(padding=(1, 1, 1, 1)),
        {"x": (1, 3, 1000 // SCALE, 625), "weight": (16, 3, 3, 3), "e1": (16,)},
        {},
        BIASED,
    ),
}


@pytest.fixture(scope="module", params=["compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> Iterator[GlBackend]:
    """A backend that looks at its kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLNN_TRUST", "0")
        patch.setenv("GLNN_DEBUG", "0")
        try:
            with glnn.Device() as device:
                opened = open_backend(request.param, device)
                assert isinstance(opened, GlBackend)
                yield opened
        except DeviceError as closed:
            pytest.skip(str(closed))


def _refused(error: UnsupportedOpError) -> None:
    """That a result is refused must have a reason: here nothing is too large for a device."""
    assert "are wrong, off by" in str(error), str(error)


@pytest.mark.parametrize("seed", range(MODELS))
def test_random_models(backend, seed) -> None:
    model = random_model(seed)
    (info,) = model.inputs
    x = np.random.default_rng(seed).standard_normal(info.with_batch(2), np.float32)
    try:
        got = Plan(model.graph, backend, {"input": x.shape}).run({"input": x})
    except UnsupportedOpError as refused:
        return _refused(refused)
    for name, expected in results(model.graph, {"input": x}).items():
        assert expected.dtype == np.float64
        assert error(got[name], expected) <= 1e-5


def test_every_operator_of_a_kernel_has_problems() -> None:
    """Of all kernels: the one in eight that is run below finds it by chance."""
    assert {kernel.op for kernel in declared()} == set(PROBLEMS)


NAMED = [k for i, k in enumerate(declared()) if EXHAUSTIVE or i % 8 == 0]


@pytest.mark.parametrize("kernel", NAMED, ids=[f"{k.op}-{k.name}" for k in NAMED])
def test_kernels_by_name(backend, rng, kernel) -> None:
    if kernel.backend != backend.name:
        pytest.skip("a kernel of the other backend")
    for op, shapes, *rest in PROBLEMS[kernel.op]:
        spec = OpSpec.create(op, shapes, {}, *rest)
        if backend.why_not(spec, kernel.name) is not None:
            continue
        operands = numbers(rng, spec)
        try:
            got = evaluate(op, operands, backend, kernel.name, spec.epilogue)
        except UnsupportedOpError as refused:
            _refused(refused)
            continue
        expected = spec.compute(precise(operands))
        assert error(got, expected) <= max(TOLERANCE, kernel.tolerance)


@pytest.mark.parametrize("name", LARGE)
def test_large_results(backend, rng, name) -> None:
    spec = LARGE[name]
    operands = {operand: rng(shape) for operand, shape in spec.shapes.items()}
    try:
        got = evaluate(spec.op, operands, backend, epilogue=spec.epilogue)
    except UnsupportedOpError as refused:
        return _refused(refused)
    assert error(got, spec.compute(operands)) <= 1e-5


@pytest.mark.parametrize(
    "verb",
    [
        ["run", "lenet"],
        ["bench", "lenet", "--batch", "100", "--repeat", "1", "--backends", "{}"],
        ["verify", "lenet", "--batch", "100"],
        ["plan", "lenet", "--batch", "100"],
        ["info"],
        ["kernels"],
    ],
    ids=lambda verb: verb[0],
)
@pytest.mark.timeout(3000)
def test_verbs(backend, tmp_path, verb) -> None:
    words = [word.format(backend.name) for word in verb]
    if verb[0] in ("run", "verify", "plan"):
        words += ["--backend", backend.name]
    package = str(Path(glnn.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    known = {"PYTHONPATH": path, "GLNN_TRUST": "0", "GLNN_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "glnn", *words, "--json"]
    done = subprocess.run(command, env={**os.environ, **known}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if verb[0] == "run":
        assert report["accuracy"] == pytest.approx(0.991)
    if verb[0] == "verify":
        assert report["worst"] <= 1e-5


def test_a_driver_that_is_wrong_in_silence(python) -> None:
    """softpipe captures wrongly from the 4,097th vertex of a draw on; another Mesa's may not."""
    code = """
import numpy as np, glnn

x = np.random.default_rng(0).standard_normal((1000, 400)).astype("f4")
y = np.random.default_rng(1).standard_normal((400, 120)).astype("f4")
got = glnn.ops.matmul(x, y, backend="feedback")
print(np.linalg.norm(got - x @ y) / np.linalg.norm(x @ y) < 1e-5)
"""
    done = python(code, GALLIUM_DRIVER="softpipe", LIBGL_ALWAYS_SOFTWARE="1", GLNN_TRUST="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]
