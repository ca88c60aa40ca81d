"""Every value of every kernel's parameters gives the right result: tuning may choose any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glnn.backends.gl import GlBackend
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.errors import LimitError
from glnn.kernels import library
from glnn.kernels.capability_check import fitted_rows, why_not_device
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from tests.backends.harness import TOLERANCE, run_kernel, taken
from tests.doctor_operands import numbers, precise
from tests.oracle import error

EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
OF_NVIDIA = [
    row for k in library() if "NVIDIA" in k.architectures.rows for row in k.rows_for("NVIDIA")
]
if not EXHAUSTIVE:
    OF_NVIDIA = OF_NVIDIA[2::3]  # large tiles take llvmpipe half a minute to compile


def tuned() -> dict[tuple[Path, str], list[Kernel]]:
    """The kernels of each shader that have several values of a parameter, by its file and name."""
    found: dict[tuple[Path, str], list[Kernel]] = {}
    for kernel in library():
        for name, values in kernel.tune.items():
            if len(values) > 1:
                found.setdefault((kernel.path, name), []).append(kernel)
    return found


TUNED = tuned()


def computed(backend: GlBackend, rng, kernel: Kernel, turn: int) -> int:
    """How many of the doctor's problems `kernel` can compute; each must be right.

    One is enough, unless GLNN_EXHAUSTIVE asks for all: in each turn another is the first.
    """
    assert kernel.op in PROBLEMS, f"add {kernel.op} to PROBLEMS of glnn/doctor/kernel_accuracy.py"
    ran, specs = 0, PROBLEMS[kernel.op]
    for place in range(len(specs)):
        op, shapes, *rest = specs[(turn + place) % len(specs)]
        spec = OpSpec.create(op, shapes, {}, *rest)
        if (one := taken(kernel, spec)) is None:
            continue
        operands = numbers(rng, spec)
        try:
            got = run_kernel(backend, op, operands, one, spec.epilogue)
        except LimitError:  # what the driver alone knows
            continue
        expected = spec.compute(precise(operands))
        assert error(got, expected) <= max(TOLERANCE, kernel.tolerance), kernel.defaults
        ran += 1
        if not EXHAUSTIVE:
            break
    return ran


@pytest.mark.whole
@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(
    ("path", "name"), TUNED, ids=[f"{path.parent.name}-{path.name}-{name}" for path, name in TUNED]
)
def test_every_value_of_a_parameter(opened, rng, path, name) -> None:
    """By one of a shader's kernels, in each turn another, unless GLNN_EXHAUSTIVE asks for all.

    The other parameters are those of the first row, else the defaults, with which this value
    compiles.
    """
    kernels = TUNED[path, name]
    backend = opened(kernels[0].backend)
    offers = backend.device.capabilities
    if not any(fitted_rows(kernel, offers) for kernel in kernels):
        pytest.skip(str(why_not_device(kernels[0], offers)))
    ran = 0
    for turn, value in enumerate(sorted({v for k in kernels for v in k.tune[name]})):
        for place in range(len(kernels)):
            kernel = kernels[(turn + place) % len(kernels)]
            if value not in kernel.tune[name]:
                continue
            changed = (
                row.with_parameters(**{name: value})
                for row in (*fitted_rows(kernel, offers), kernel)
            )
            candidate = next((k for k in changed if why_not_device(k, offers) is None), None)
            if candidate is not None:
                ran += (here := computed(backend, rng, candidate, turn))
                if here and not EXHAUSTIVE:
                    break
    assert ran, "no value of it was tried"


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("kernel", OF_NVIDIA, ids=[f"{k.op}-{k.name}" for k in OF_NVIDIA])
def test_the_parameters_of_nvidia(opened, rng, kernel) -> None:
    """All at once, as the GPUs take them that most tests do not run on."""
    backend = opened(kernel.backend)
    if reason := why_not_device(kernel, backend.device.capabilities):
        pytest.skip(reason)
    if not computed(backend, rng, kernel, OF_NVIDIA.index(kernel)):
        pytest.skip("the driver has no room for it")
