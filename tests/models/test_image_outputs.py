"""Outputs that kernels leave channels last: devices with memory of their own put them in rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glnn.backends import NAMES
from glnn.core.layout.layout import Blocked
from glnn.core.types import Array, Shape
from glnn.gl import Device
from glnn.layers import Conv2d, ReLU
from glnn.model import Model, Node, TensorInfo
from glnn.session import InferenceSession
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


@pytest.fixture
def own() -> Iterator[Device]:
    """A device that says to have memory of its own."""
    with Device() as device:
        offers = device.capabilities
        staged = offers.buffer_storage and offers.compute
        device.capabilities = replace(offers, dedicated_memory=True, buffer_storage=staged)
        yield device


def opened(model: Model, name: str, device: Device, **options: Any) -> InferenceSession:
    """A session on `device`, or of NumPy."""
    where = {} if name == "cpu" else {"device": device}
    return InferenceSession(model, available(name), **where, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [LARGE, SMALL, (1, 5, 129, 3)])
def test_results_are_right_however_they_are_asked_for(name, shape, rng, own) -> None:
    model, weights = network(rng, shape)
    session, x = opened(model, name, own), rng(shape)
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
def test_a_plan_tells_what_the_host_is_given(name, keep, rng, own) -> None:
    model, weights = network(rng)
    session, x = opened(model, name, own), rng(LARGE)
    plan = session.plan({"x": LARGE}, keep=keep)
    plan.run({"x": x})
    check([plan.value("r"), plan.value("b")], expected(x, weights))


@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.parametrize(
    ("shape", "owns", "without", "host"),
    [
        (LARGE, True, (), 0),
        (SMALL, True, (), 2),
        (LARGE, False, (), 2),
        (LARGE, True, ("rows",), 2),
    ],
)
def test_large_images_come_in_rows_and_others_as_they_lie(
    name, shape, owns, without, host, rng, own, monkeypatch
) -> None:
    unpacked: list[Shape] = []

    def unpack(layout: Blocked, flat: Array, shape: tuple[int, ...]) -> Array:
        unpacked.append(shape)
        return original(layout, flat, shape)

    original = Blocked.unpack
    monkeypatch.setattr(Blocked, "unpack", unpack)
    own.capabilities = replace(own.capabilities, dedicated_memory=owns)
    session = opened(network(rng, shape)[0], name, own, without=without)
    steps = session.plan({"x": shape}).steps
    lying = [step for step in steps if step.output in ("r", "b")]
    assert not any(step.layouts["out"] == "R" for step in lying), "they lie in rows anyway"
    copies = [step.layer for step in steps if "planar" in step.kernel]
    assert copies == ["first + relu", "second"][: 2 - host]
    session.run(None, {"x": rng(shape)})
    unpacked.clear()  # kernels are looked at before they are used
    session.run(None, {"x": rng(shape)})
    assert len(unpacked) == host


@pytest.mark.parametrize("name", ON_GPU)
def test_where_memory_is_short_they_come_as_they_lie(name, rng, own, monkeypatch) -> None:
    model, weights = network(rng)
    x = rng(LARGE)
    need = opened(model, name, own).plan({"x": LARGE}).outline.need
    least = opened(model, name, own, without=["rows"]).plan({"x": LARGE}).outline.need
    assert least < need
    monkeypatch.setenv("GLNN_MEMORY", str((least + need) // 2))
    session = opened(model, name, own)
    check(session.run(None, {"x": x}), expected(x, weights))
    executor: Any = session._executor
    (plan,) = executor.range_plans
    assert not any("planar" in step.kernel for step in plan.steps)
