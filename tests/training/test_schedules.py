"""Learning rates against their formulas, against PyTorch, and on the device."""

from __future__ import annotations

from math import cos, pi

import numpy as np
import pytest

from glnn.compiler import run
from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.training import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    StepLR,
)
from glnn.training.operator_writer import OperatorWriter

STEPS = 20
SCHEDULES = (
    (StepLR(3, 0.5), "StepLR", {"step_size": 3, "gamma": 0.5}),
    (CosineAnnealingLR(8, 0.01), "CosineAnnealingLR", {"T_max": 8, "eta_min": 0.01}),
    (
        LinearLR(0.2, 0.9, 7),
        "LinearLR",
        {"start_factor": 0.2, "end_factor": 0.9, "total_iters": 7},
    ),
    (ConstantLR(0.25, 4), "ConstantLR", {"factor": 0.25, "total_iters": 4}),
    (OneCycleLR(1.0, STEPS), "OneCycleLR", {"max_lr": 1.0, "total_steps": STEPS}),
    (
        OneCycleLR(2.0, STEPS, 0.4, "linear", 10, 100),
        "OneCycleLR",
        {
            **{"max_lr": 2.0, "total_steps": STEPS, "pct_start": 0.4},
            **{"anneal_strategy": "linear", "div_factor": 10, "final_div_factor": 100},
        },
    ),
    (
        OneCycleLR(1.0, STEPS, 0.35, three_phase=True),
        "OneCycleLR",
        {"max_lr": 1.0, "total_steps": STEPS, "pct_start": 0.35, "three_phase": True},
    ),
)


def test_formulas() -> None:
    assert [StepLR(2, 0.1).at(i, 0.5) for i in range(5)] == pytest.approx(
        [0.5, 0.5, 0.05, 0.05, 0.005]
    )
    got = [CosineAnnealingLR(4, 0.1).at(i) for i in range(9)]
    assert got == pytest.approx([0.1 + 0.45 * (1 + cos(pi * i / 4)) for i in range(9)], abs=1e-6)
    assert [LinearLR(0.5, 1.0, 2).at(i, 2.0) for i in range(4)] == pytest.approx([1, 1.5, 2, 2])
    cycle = OneCycleLR(1.0, 11, 0.5, "linear", div_factor=10, final_div_factor=10)
    assert cycle.at(0) == pytest.approx(0.1) and cycle.at(10) == pytest.approx(0.01)
    assert cycle.at(4) < cycle.at(5) and cycle.at(10) == cycle.at(1000)
    warm = StepLR(100, warmup=4)
    assert [warm.at(i) for i in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


@pytest.mark.parametrize("schedule", [one for one, *_ in SCHEDULES], ids=lambda s: repr(s)[:12])
def test_on_the_device(schedule, name) -> None:
    builder = Builder()
    step = builder.input("step", TensorType((STEPS + 5,), DType.int32))
    graph = builder.graph([schedule.on_device(OperatorWriter(builder, "rate"), step, 0.3)])
    steps = np.arange(STEPS + 5, dtype=np.int32)
    (got,) = run(graph, {"step": steps}, name).values()
    np.testing.assert_allclose(got, [schedule.at(i, 0.3) for i in steps], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("schedule", "name", "arguments"), SCHEDULES)
def test_pytorch(schedule, name, arguments) -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    more = {"cycle_momentum": False} if name == "OneCycleLR" else {}
    theirs = getattr(torch.optim.lr_scheduler, name)(optimizer, **arguments, **more)
    for i in range(STEPS):
        rate = optimizer.param_groups[0]["lr"]
        assert schedule.at(i, 0.3) == pytest.approx(rate, rel=2e-6, abs=1e-7), i
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StepLR(0),
        lambda: StepLR(1.5),
        lambda: CosineAnnealingLR(0),
        lambda: LinearLR(1.5),
        lambda: OneCycleLR(1.0, 10, anneal_strategy="square"),
        lambda: OneCycleLR(1.0, 10, div_factor=0),
        lambda: StepLR(3, warmup=-1),
    ],
)
def test_arguments_are_checked(wrong) -> None:
    with pytest.raises(ShapeError):
        wrong()
