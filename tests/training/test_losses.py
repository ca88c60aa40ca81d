"""Losses and their gradients against PyTorch's definitions in float64, and against PyTorch."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import run
from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.gl import Device
from glnn.graph.builder import Builder
from glnn.training import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    Loss,
    MSELoss,
)
from glnn.training.operator_writer import OperatorWriter

WEIGHTS = (0.5, 1.5, 2.0, 0.1, 1.0)
RNG = np.random.default_rng(151)
X = (3 * RNG.standard_normal((4, 5))).astype(np.float32)
IMAGES = (3 * RNG.standard_normal((3, 5, 2, 3))).astype(np.float32)
LABELS = np.array([0, 4, 2, 4], np.int32)
SOME = np.array([0, -100, 2, 4], np.int32)
PIXELS = RNG.integers(0, 5, (3, 2, 3)).astype(np.int32)
SHARES = np.exp(RNG.standard_normal((4, 5))).astype(np.float32)
SHARES /= SHARES.sum(1, keepdims=True)
SURE = np.where(np.arange(5) == LABELS[:, None], 1, 0).astype(np.float32)
Y = (2 * RNG.standard_normal((4, 5))).astype(np.float32)
BITS = RNG.random((4, 5)).astype(np.float32)


def reduced(loss: Loss, terms: np.ndarray, count: float | None = None) -> float:
    """As PyTorch has it."""
    if loss.reduction == "sum":
        return terms.sum()
    if loss.reduction == "batchmean":
        return terms.sum() / len(terms)
    return terms.sum() / (terms.size if count is None else count)


def cross_entropy(loss: CrossEntropyLoss, x: np.ndarray, target: np.ndarray) -> float:
    """One sample, one class after the other."""
    classes = x.shape[1]
    weights = np.ones(classes) if loss.weight is None else np.array(loss.weight)
    rows = np.moveaxis(x, 1, -1).reshape(-1, classes)
    logs = rows - rows.max(1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    even = loss.label_smoothing / classes
    if target.dtype.kind == "f":
        shares = np.moveaxis(target, 1, -1).reshape(-1, classes)
        shares = (1 - loss.label_smoothing) * shares + even
        return reduced(loss, -(weights * shares * logs).sum(1))
    terms, count = [], 0.0
    for row, label in zip(logs, target.reshape(-1), strict=True):
        if label != loss.ignore_index:
            sharp = -weights[label] * row[label]
            terms.append((1 - loss.label_smoothing) * sharp - even * (weights * row).sum())
            count += weights[label]
    return reduced(loss, np.array(terms), count)


def bce(loss: BCEWithLogitsLoss, x: np.ndarray, y: np.ndarray) -> float:
    one = 1.0 if loss.pos_weight is None else np.array(loss.pos_weight)
    weight = 1.0 if loss.weight is None else np.array(loss.weight)
    likely, unlikely = np.logaddexp(0, -x), np.logaddexp(0, x)  # -log p and -log(1 - p)
    return reduced(loss, weight * (one * y * likely + (1 - y) * unlikely))


def mse(loss: Loss, x: np.ndarray, y: np.ndarray) -> float:
    return reduced(loss, (x - y) ** 2)


def l1(loss: Loss, x: np.ndarray, y: np.ndarray) -> float:
    return reduced(loss, np.abs(x - y))


def huber(loss: HuberLoss, x: np.ndarray, y: np.ndarray) -> float:
    away, delta = np.abs(x - y), loss.delta
    return reduced(loss, np.where(away <= delta, away**2 / 2, delta * (away - delta / 2)))


def kl(loss: KLDivLoss, x: np.ndarray, y: np.ndarray) -> float:
    if loss.log_target:
        return reduced(loss, np.exp(y) * (y - x))
    logs = np.log(np.where(y > 0, y, 1))
    return reduced(loss, y * (logs - x))


CASES = (
    (CrossEntropyLoss(), cross_entropy, X, LABELS),
    (CrossEntropyLoss(), cross_entropy, X, SOME),
    (CrossEntropyLoss(), cross_entropy, IMAGES, PIXELS),
    (CrossEntropyLoss(ignore_index=None), cross_entropy, X, LABELS),
    (CrossEntropyLoss(ignore_index=4), cross_entropy, IMAGES, PIXELS),
    (CrossEntropyLoss(WEIGHTS), cross_entropy, X, SOME),
    (CrossEntropyLoss(label_smoothing=0.1), cross_entropy, X, SOME),
    (CrossEntropyLoss(WEIGHTS, label_smoothing=0.2), cross_entropy, IMAGES, PIXELS),
    (CrossEntropyLoss(WEIGHTS, reduction="sum"), cross_entropy, X, SOME),
    (CrossEntropyLoss(), cross_entropy, X, SHARES),
    (CrossEntropyLoss(), cross_entropy, X, SURE),
    (CrossEntropyLoss(WEIGHTS, label_smoothing=0.1), cross_entropy, X, SHARES),
    (CrossEntropyLoss(reduction="sum"), cross_entropy, X, 2 * SHARES),
    (BCEWithLogitsLoss(), bce, X, BITS),
    (BCEWithLogitsLoss(WEIGHTS, pos_weight=(3.0,)), bce, X, BITS),
    (BCEWithLogitsLoss(pos_weight=WEIGHTS, reduction="sum"), bce, X, SURE),
    (MSELoss(), mse, X, Y),
    (MSELoss(reduction="sum"), mse, IMAGES, IMAGES[::-1].copy()),
    (L1Loss(), l1, X, Y),
    (HuberLoss(), huber, X, Y),
    (HuberLoss(2.5, reduction="sum"), huber, X, Y),
    (KLDivLoss(), kl, -np.abs(X), SHARES),
    (KLDivLoss(reduction="batchmean"), kl, -np.abs(X), SURE),
    (KLDivLoss(log_target=True, reduction="sum"), kl, -np.abs(X), np.log(SHARES)),
)
IDS = [f"{type(loss).__name__}-{i}" for i, (loss, *_) in enumerate(CASES)]


def got(
    loss: Loss, x: np.ndarray, target: np.ndarray, backend: str | Backend
) -> tuple[float, np.ndarray]:
    """The loss and its gradient by x."""
    builder = Builder()
    output = builder.input("x", TensorType.from_array(x))
    type = loss.target(output.type, DType.from_array(target))
    lost = loss.reduced(OperatorWriter(builder, "loss"), output, builder.input("target", type))
    graph = builder.graph([lost.value, lost.gradient])
    found = run(graph, {"x": x, "target": loss.check(target, output.type)}, backend)
    value, gradient = (found[one.name] for one in (lost.value, lost.gradient))
    assert value.dtype == gradient.dtype == np.float32 and value.shape == ()
    return value.item(), gradient


def differences(loss: Loss, of, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Central differences in float64."""
    wide, found = x.astype(np.float64), np.zeros(x.shape)
    y = target.astype(np.float64) if target.dtype.kind == "f" else target
    for place in np.ndindex(x.shape):
        for sign in (-1, 1):
            near = wide.copy()
            near[place] += sign * 1e-6
            found[place] += sign * of(loss, near, y) / 2e-6
    return found


@pytest.mark.parametrize(("loss", "of", "x", "target"), CASES, ids=IDS)
def test_value_and_gradient(loss, of, x, target, name) -> None:
    value, gradient = got(loss, x, target, name)
    y = target.astype(np.float64) if target.dtype.kind == "f" else target
    assert value == pytest.approx(of(loss, x.astype(np.float64), y), rel=2e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, differences(loss, of, x, target), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize(("loss", "of", "x", "target"), CASES, ids=IDS)
def test_pytorch(loss, of, x, target) -> None:
    torch = pytest.importorskip("torch")
    arguments = {name: getattr(loss, name) for name in (f.name for f in fields(loss))}
    for name in ("weight", "pos_weight"):
        if arguments.get(name) is not None:
            arguments[name] = torch.tensor(arguments[name])
    if arguments.get("ignore_index", 0) is None:
        del arguments["ignore_index"]
    theirs = getattr(torch.nn, type(loss).__name__)(**arguments)
    scores = torch.tensor(x, requires_grad=True)
    y = torch.tensor(target.astype(np.int64) if target.dtype == np.int32 else target)
    expected = theirs(scores, y)
    expected.backward()
    value, gradient = got(loss, x, target, "cpu")
    assert value == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, scores.grad.numpy(), atol=1e-6, rtol=1e-4)


def test_scores_of_any_size(name) -> None:
    """Nothing overflows, and a score of minus infinity takes no part."""
    x = np.array([[1e4, -1e4, 0.0], [-np.inf, 2.0, 2.0]], np.float32)
    value, gradient = got(CrossEntropyLoss(), x, np.array([1, 2], np.int32), name)
    assert value == pytest.approx((2e4 + np.log(2)) / 2)
    np.testing.assert_allclose(gradient[0], [0.5, -0.5, 0])
    big = np.array([[200.0, -200.0]], np.float32)
    y = np.array([[0.0, 1.0]], np.float32)
    value, gradient = got(BCEWithLogitsLoss(reduction="sum"), big, y, name)
    assert value == 400
    np.testing.assert_allclose(gradient, [[1, -1]])


def test_nothing_is_ignored() -> None:
    loss = CrossEntropyLoss()
    assert loss.suited(LABELS) == CrossEntropyLoss(ignore_index=None)
    assert loss.suited(SOME) is loss
    assert MSELoss().suited(Y) == MSELoss()


def test_targets_are_checked() -> None:
    output = TensorType((4, 5))
    loss = CrossEntropyLoss()
    assert loss.check(SOME.astype(np.int64), output).dtype == np.int32
    assert loss.check(SHARES.astype(np.float64), output).dtype == np.float32
    with pytest.raises(ShapeError, match="labels must be from 0 to 4, got 5 at \\(2,\\)"):
        loss.check(np.array([0, 1, 5, 2]), output)
    with pytest.raises(
        ShapeError, match=r"must be int32 \(4,\) or float32 \(4, 5\), got int32 \(3,\)"
    ):
        loss.check(np.zeros(3, np.int32), output)
    with pytest.raises(ShapeError, match="the target must be"):
        loss.check(np.zeros((4, 5), np.uint8), output)
    with pytest.raises(ShapeError, match=r"must be float32 \(4, 5\), got float32 \(4,\)"):
        MSELoss().check(np.zeros(4, np.float32), output)
    with pytest.raises(ShapeError, match=r"of an output of shape \(n, c, ...\)"):
        loss.targets(TensorType((4,)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: MSELoss(reduction="none"),
        lambda: CrossEntropyLoss(label_smoothing=1.5),
        lambda: CrossEntropyLoss(weight="heavy"),
        lambda: CrossEntropyLoss(ignore_index=1.5),
        lambda: CrossEntropyLoss(weight=(1.0, 2.0)).targets(TensorType((4, 5))),
        lambda: HuberLoss(0),
        lambda: BCEWithLogitsLoss(weight=[[1.0], [2.0, 3.0]]),
        lambda: got(BCEWithLogitsLoss(weight=(1.0, 2.0)), X, BITS, "cpu"),
        lambda: KLDivLoss("yes"),
    ],
)
def test_arguments_are_checked(wrong) -> None:
    with pytest.raises(ShapeError):
        wrong()


@pytest.mark.parametrize(
    "loss",
    [
        CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
        BCEWithLogitsLoss(weight=WEIGHTS, pos_weight=WEIGHTS),
    ],
)
def test_kernels_are_not_refused(loss, gpu, monkeypatch, tmp_path) -> None:
    """They are right where what they are examined with has infinities, too."""
    monkeypatch.setenv("GLNN_TRUST", "0")
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    with Device() as device:
        backend = open_backend(gpu, device)
        value, _ = got(loss, np.resize(X, (13, 5)), np.resize(SHARES, (13, 5)), backend)
    assert np.isfinite(value)
