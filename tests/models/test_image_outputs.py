"""Outputs that kernels leave channels last: a launch has large ones in rows, sooner than NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends import NAMES
from glnn.layers import Conv2d, ReLU
from glnn.layout.layout import Blocked
from glnn.model import Model, Node, TensorInfo
from glnn.session import InferenceSession
from glnn.types import Array, Shape
from tests import oracle
from tests.models.test_threads import available

LARGE, SMALL = (2, 5, 29, 31), (2, 5, 6, 7)
ON_GPU = [name for name in NAMES if name != "cpu"]


def network(rng, shape: Shape = LARGE) -> tuple[Model, list[Array]]:
    """Two convolutions one behind the other, both of them outputs, and their weights."""
    first, second = Conv2d(5, 36, 3, padding=1, bias=False), Conv2d(36, 33, 3, bias=False)
    weights = [rng((36, 5, 3, 3)), rng((33, 36, 3, 3))]
    first.weight, second.weight = weights
    nodes = (
        Node("first", first, ("x",), "a"),
        Node("relu", ReLU(), ("a",), "r"),
        Node("second", second, ("r",), "b"),
    )
    inputs = (TensorInfo("x", ("N", *shape[1:])),)
    return Model(nodes, inputs, ("r", "b"), "images"), weights


def expected(x: Array, weights: list[Array]) -> list[Array]:
    ahead = np.maximum(oracle.conv2d(x, weights[0], padding=(1, 1, 1, 1)), 0)
    return [ahead, oracle.conv2d(ahead, weights[1])]


def check(found: list[Array], wanted: list[Array]) -> None:
    for got, right in zip(found, wanted, strict=True):
        assert got.shape == right.shape and oracle.error(got, right) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [LARGE, SMALL, (1, 5, 129, 3)])
def test_results_are_right_however_they_are_asked_for(name, shape, rng) -> None:
    model, weights = network(rng, shape)
    session, x = InferenceSession(model, available(name)), rng(shape)
    wanted = expected(x, weights)
    for _ in range(2):
        check(session.run(None, {"x": x}), wanted)
    check(session.run(["b"], {"x": x}), wanted[1:])
    check(session.run(["b", "r", "b"], {"x": x}), [wanted[i] for i in (1, 0, 1)])
    check(session.run_async(None, {"x": x}).result(60), wanted)
    out = {
        key: np.full(one.shape, np.nan, np.float32) for key, one in zip("rb", wanted, strict=True)
    }
    assert session.run(None, {"x": x}, out=out)[1] is out["b"]
    check([out["r"], out["b"]], wanted)


@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.parametrize("keep", [False, True])
def test_a_plan_tells_what_the_host_is_given(name, keep, rng) -> None:
    model, weights = network(rng)
    session, x = InferenceSession(model, available(name)), rng(LARGE)
    plan = session.plan({"x": LARGE}, keep=keep)
    plan.run({"x": x})
    check([plan.value("r"), plan.value("b")], expected(x, weights))


@pytest.mark.parametrize("name", ON_GPU)
def test_large_images_come_in_rows_and_small_ones_as_they_lie(name, rng, monkeypatch) -> None:
    unpacked: list[Shape] = []

    def unpack(layout: Blocked, flat: Array, shape: tuple[int, ...]) -> Array:
        unpacked.append(shape)
        return original(layout, flat, shape)

    original = Blocked.unpack
    monkeypatch.setattr(Blocked, "unpack", unpack)
    for shape, host in ((LARGE, 0), (SMALL, 2)):
        session = InferenceSession(network(rng, shape)[0], available(name))
        steps = session.plan({"x": shape}).steps
        lying = [step for step in steps if step.output in ("r", "b")]
        assert not any(step.layouts["out"] == "R" for step in lying), "they lie in rows anyway"
        assert sum("planar" in step.kernel for step in steps) == 2 - host
        session.run(None, {"x": rng(shape)})
        unpacked.clear()  # kernels are looked at before they are used
        session.run(None, {"x": rng(shape)})
        assert len(unpacked) == host
