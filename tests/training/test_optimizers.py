"""Optimisers against float64 NumPy, written from PyTorch's definitions, and against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.layers import Linear
from glnn.model import Model
from glnn.training import SGD, Adagrad, Adam, AdamW, MSELoss, Optimizer, RMSprop, StepLR, applying
from tests.training.steps import ran

STEPS = 5
SHAPE = (5, 3)


def gradients() -> np.ndarray:
    rng = np.random.default_rng(15)
    found = rng.standard_normal((STEPS, *SHAPE)).astype(np.float32)
    found[1] *= 30  # no two alike in size
    found[2, 0] = 0
    return found


def sgd(w, grads, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    buffer = None
    for g in grads:
        g = g + weight_decay * w
        if momentum:
            buffer = g if buffer is None else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        w = w - lr * g
        yield w


def adam(w, grads, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, start=1):
        if decoupled:
            w = w - lr * weight_decay * w
        else:
            g = g + weight_decay * w
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        mean, square = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        w = w - lr * mean / (np.sqrt(square) + eps)
        yield w


def adamw(w, grads, lr, weight_decay=1e-2, **others):
    return adam(w, grads, lr, weight_decay=weight_decay, decoupled=True, **others)


def rmsprop(
    w, grads, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False
) -> Iterator[np.ndarray]:
    v, mean, buffer = (np.zeros_like(w) for _ in range(3))
    for g in grads:
        g = g + weight_decay * w
        v = alpha * v + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        root = np.sqrt(v - mean**2 if centered else v) + eps
        if momentum:
            buffer = momentum * buffer + g / root
            w = w - lr * buffer
        else:
            w = w - lr * g / root
        yield w


def adagrad(
    w, grads, lr, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10
) -> Iterator[np.ndarray]:
    total = np.full_like(w, initial_accumulator_value)
    for t, g in enumerate(grads, start=1):
        g = g + weight_decay * w
        total = total + g**2
        w = w - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(total) + eps)
        yield w


CASES: tuple[tuple[type[Optimizer], Callable, dict], ...] = (
    (SGD, sgd, {"lr": 0.1}),
    (SGD, sgd, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, sgd, {"lr": 0.1, "momentum": 0.9}),
    (SGD, sgd, {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.05}),
    (SGD, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    (Adam, adam, {"lr": 0.01}),
    (Adam, adam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    (AdamW, adamw, {"lr": 0.01}),
    (AdamW, adamw, {"lr": 0.1, "betas": (0.0, 0.99), "weight_decay": 0.3}),
    (RMSprop, rmsprop, {"lr": 0.01}),
    (RMSprop, rmsprop, {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1}),
    (RMSprop, rmsprop, {"lr": 0.01, "centered": True, "eps": 1e-4}),
    (RMSprop, rmsprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    (Adagrad, adagrad, {"lr": 0.1}),
    (
        Adagrad,
        adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
)
IDS = [f"{kind.__name__}-{i}" for i, (kind, *_) in enumerate(CASES)]


def way(optimizer: Optimizer, backend: str, **more) -> list[np.ndarray]:
    """The parameter after each step."""
    model = Model.sequential([Linear(3, 5, bias=False)], (3,), names=["l"])
    step = applying(model, MSELoss(reduction="sum"), optimizer, **more)
    states, found = dict(step.states), []
    for gradient in gradients():
        states["l.weight/gradient"] = gradient
        states = ran(step, states, backend)
        found.append(states["l.weight"])
    assert states["step"] == STEPS
    return found


def first() -> np.ndarray:
    return Linear(3, 5, bias=False).weight


@pytest.mark.parametrize(("kind", "expected", "arguments"), CASES, ids=IDS)
def test_five_steps(kind, expected, arguments, name) -> None:
    got = way(kind(**arguments), name)
    wide = expected(first().astype(np.float64), gradients().astype(np.float64), **arguments)
    for one, other in zip(got, wide, strict=True):
        # where gradients are 0, a centred mean of squares is nothing but what rounding left
        np.testing.assert_allclose(one, other, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("kind", "expected", "arguments"), CASES, ids=IDS)
def test_pytorch(kind, expected, arguments) -> None:
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.tensor(np.array(first())))
    theirs = getattr(torch.optim, kind.__name__)([w], **arguments)
    for one, gradient in zip(way(kind(**arguments), "cpu"), gradients(), strict=True):
        w.grad = torch.tensor(gradient)
        theirs.step()
        np.testing.assert_allclose(one, w.detach().numpy(), atol=1e-6, rtol=1e-6)


def test_a_schedule_makes_the_rate() -> None:
    got = way(SGD(0.1), "cpu", schedule=StepLR(2, 0.5))
    w = first().astype(np.float64)
    for one, gradient, lr in zip(got, gradients(), (0.1, 0.1, 0.05, 0.05, 0.025), strict=True):
        w = w - lr * gradient
        np.testing.assert_allclose(one, w, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SGD(-1.0),
        lambda: SGD(momentum=-0.1),
        lambda: SGD(nesterov=True),
        lambda: SGD(momentum=0.9, dampening=0.1, nesterov=True),
        lambda: Adam(betas=(0.9, 1.0)),
        lambda: Adam(betas=0.9),
        lambda: AdamW(eps=-1e-8),
        lambda: RMSprop(alpha=-1),
        lambda: Adagrad(lr_decay="fast"),
    ],
)
def test_arguments_are_checked(wrong) -> None:
    with pytest.raises(ShapeError):
        wrong()
