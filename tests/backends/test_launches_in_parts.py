"""Launches made in parts, as drivers want them that get large ones wrong or end long ones."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest

from glnn.backends.compute import Compute, split_dispatch
from glnn.backends.feedback import Feedback, draws_of
from glnn.core.settings import Settings
from glnn.core.symint import ShapeEnv, Substitution
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.errors import GlnnError
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Matmul, Pointwise
from glnn.kernels import library
from glnn.kernels.capability_check import fitted_rows, why_not_device
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import Verdict
from tests.backends.harness import BACKENDS, TOLERANCE, run_kernel, taken
from tests.doctor_operands import numbers, precise
from tests.oracle import error

pytestmark = pytest.mark.usefixtures("by_methods")

SHADERS = [kernel for kernel in library() if not kernel.stages]


@pytest.mark.parametrize("kernel", SHADERS, ids=[f"{k.op}-{k.name}" for k in SHADERS])
def test_every_kernel_in_parts(opened, rng, kernel, monkeypatch) -> None:
    """With the first parameters whose tiles are small enough for a launch of several workgroups."""
    backend = opened(kernel.backend)
    offers = backend.device.capabilities
    rows = fitted_rows(kernel, offers)
    if not rows:
        pytest.skip(str(why_not_device(kernel, offers)))
    monkeypatch.setattr(
        type(backend), "part", lambda self, k, p: max(prod(self.launch_size(k, p)) * 2 // 5, 1)
    )
    in_parts = (_in_parts(backend, rng, row) for row in rows)
    assert any(in_parts), "no launch was large enough to be made in parts"


def _in_parts(backend, rng, kernel) -> int:
    """How many of the doctor's problems `kernel` computes in several parts; each must be right."""
    parts = 0
    for op, shapes, *rest in PROBLEMS[kernel.op]:
        spec = OpSpec.create(op, shapes, {}, *rest)
        one = taken(kernel, spec)
        if one is None or why_not_device(one, backend.device.capabilities) is not None:
            continue  # with its operands' bindings
        operands = numbers(rng, spec)
        got = run_kernel(backend, op, operands, one, spec.epilogue)
        expected = spec.compute(precise(operands))
        assert error(got, expected) <= max(TOLERANCE, kernel.tolerance)
        parts += prod(backend.launch_size(one, spec)) > 1
    return parts


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_an_open_launch_are_right_for_every_size(seed) -> None:
    """Each has no more than is right, and together they have every group once."""
    draw, trace = random.Random(seed), ShapeEnv()
    ends = draw.randrange(1, 4), draw.randrange(5, 9)
    n = trace.symbol("n", draw.randint(*ends), ends)
    axes: list[Any] = [n, n // 3 + 1, draw.randrange(1, 4), 9 - n, n * 2]
    groups = tuple(draw.sample(axes, 3))
    most = draw.choice((1, 2, 7, 30))
    dispatches = list(split_dispatch([], {"first_group": (0, 0, 0)}, groups, most))
    draws = list(draws_of(*groups[:2], most, 4))
    for size in range(ends[0], ends[1] + 1):
        at = Substitution.by_sizes({"n": size})
        seen = np.zeros(at(groups), int)
        for one in dispatches:
            part = at(one.groups)
            assert prod(part) <= most
            first = at(one.uniforms["first_group"])
            seen[tuple(slice(a, a + b) for a, b in zip(first, part, strict=True))] += 1
        assert (seen == 1).all()
        captured = list[int]()
        for draw_ in draws:
            assert at(draw_.vertices * draw_.instances) <= most
            count, start = at(draw_.vertices * draw_.instances), at(draw_.offset) // 4
            captured += range(start, start + count)
        assert sorted(captured) == list(range(prod(at(groups[:2]))))


def _launches(backend, monkeypatch) -> list[int]:
    """The size of each launch from now on."""
    from glnn.gl import Program

    sizes: list[int] = []
    dispatch, capture = Program.dispatch, Program.capture

    def dispatched(self, groups):
        sizes.append(prod(groups))
        dispatch(self, groups)

    def captured(self, array, vertices, *rest):
        sizes.append(vertices)
        capture(self, array, vertices, *rest)

    monkeypatch.setattr(Program, "dispatch", dispatched)
    monkeypatch.setattr(Program, "capture", captured)
    return sizes


def test_what_would_take_long_goes_in_parts(backend, rng, monkeypatch) -> None:
    other = _opened(backend, monkeypatch, "1e-4")  # 0.4 million operations at the slowest pace
    op, operands = Matmul(), {"x": rng((150, 64)), "weight": rng((200, 64))}
    shapes = {name: array.shape for name, array in operands.items()}
    kernel = other.choose(OpSpec.create(op, shapes, {}))
    spec = OpSpec.create(op, shapes, {})
    whole = prod(other.launch_size(kernel, spec))
    sizes = _launches(other, monkeypatch)
    got = run_kernel(other, op, operands, kernel)
    assert len(sizes) > 3 and max(sizes) < whole and sum(sizes) == whole
    assert error(got, operands["x"].astype("f8") @ operands["weight"].T) <= 1e-5
    assert other.part(kernel, OpSpec.create(op, {"x": (3, 8), "weight": (5, 8)}, {})) is None


def test_a_pace_that_was_measured_tells_how_long_it_takes(backend, monkeypatch) -> None:
    other = _opened(backend, monkeypatch, "1e-4")
    op, shapes = Matmul(), {"x": (150, 64), "weight": (200, 64)}
    kernel, spec = other.choose(OpSpec.create(op, shapes, {})), OpSpec.create(op, shapes, {})
    assert other.part(kernel, spec) is not None
    monkeypatch.setattr(other.verdicts, "find", lambda *_: Verdict(pace=1e12))
    assert other.part(kernel, spec) is None


def _opened(backend, monkeypatch, launch: str) -> Compute | Feedback:
    """A backend like `backend` with other settings."""
    monkeypatch.setenv("GLNN_LAUNCH", launch)
    monkeypatch.setenv("GLNN_TRUST", "1")  # else what looks at a kernel makes launches, too
    return BACKENDS[backend.name](backend.device)  # type: ignore[return-value]


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_launch_that_is_no_time(text) -> None:
    with pytest.raises(GlnnError, match="GLNN_LAUNCH: expected seconds"):
        Settings.from_environment({"GLNN_LAUNCH": text})


def test_a_launch_of_any_length(backend, monkeypatch) -> None:
    other = _opened(backend, monkeypatch, "0")
    op, shapes = Pointwise(call("sigmoid", Arg(0))), {"x0": (1000, 1000)}
    spec = OpSpec.create(op, shapes, {})
    assert (
        not other.watched and other.part(other.choose(OpSpec.create(op, shapes, {})), spec) is None
    )
