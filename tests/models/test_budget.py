"""Networks in the least memory, and in any between that and the most: right, or refused clearly."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import glnn
from glnn import layers
from glnn.backends import Backend, open_backend
from glnn.compiler.memory_budget import Outline, reasons
from glnn.compiler.plan import check
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError, LimitError
from glnn.graph.passes import Pass
from glnn.model import Model
from glnn.model.model import Node
from tests.oracle import error


@pytest.fixture
def compute() -> Backend:
    try:
        return open_backend("compute")
    except DeviceError as closed:
        pytest.skip(str(closed))


@pytest.fixture(autouse=True)
def quick_launches(monkeypatch) -> None:
    """Winograd wherever it can: on images so small launches would cost more than it saves."""
    monkeypatch.setattr("glnn.kernels.selector.GAIN", 1e9)


def chain() -> Model:
    """A small VGG of channels that make Winograd's weights count."""
    found: list[layers.Layer] = []
    for i, (before, after) in enumerate(((16, 32), (32, 48), (48, 33))):
        found += [layers.Conv2d(before, after, 3, padding=1, seed=i), layers.ReLU()]
        found += [layers.Conv2d(after, after, 3, padding=1, seed=9 + i), layers.ReLU()]
        found += [layers.MaxPool2d(2)] * (i < 2)
    return Model.sequential([*found, layers.Flatten(), layers.Linear(33 * 49, 7)], (16, 29, 31))


def residual() -> Model:
    conv = [layers.Conv2d(c, 36, 3, padding=1, seed=c) for c in (17, 36, 36)]
    nodes = (
        Node("a", conv[0], ("x",), "a"),
        Node("b", conv[1], ("a",), "b"),
        Node("sum", layers.Add(), ("b", "a"), "sum"),
        Node("relu", layers.ReLU(), ("sum",), "relu"),
        Node("c", conv[2], ("relu",), "c"),
        Node("both", layers.Add(), ("c", "sum"), "both"),
    )
    return Model(nodes, (TensorInfo("x", ("N", 17, 25, 15)),), ("both",), "residual")


MODELS = {"chain": chain, "residual": residual}


def outline(model: Model, compute: Backend, batch: int, **more) -> Outline:
    shapes = {info.name: info.with_batch(batch) for info in model.inputs}
    return Outline.create(model.graph, compute, shapes, **more)


IMPLICIT = {"implicit_gemm", "implicit_gemm_texture_buffer"}
"""What a convolution at once is by, as the device has it."""


def chosen(found: Outline) -> set[str]:
    """The kernels of convolutions."""
    named = (*IMPLICIT, "winograd_2", "winograd_4")
    return {name for step in found.steps for name in (step.via, step.kernel) if name in named}


@pytest.mark.parametrize("name", MODELS)
def test_any_memory_is_kept_to(compute, rng, monkeypatch, poisoned, name) -> None:
    """Between the least and the most: right, within what is allowed, and no more than that given
    up; below it a clear error.
    """
    model, draw = MODELS[name](), random.Random(name)
    batch = draw.choice([1, 2, 5])
    most, least = outline(model, compute, batch), outline(model, compute, batch, available=0)
    (whole,) = chosen(least)
    plain = outline(model, compute, batch, kernels={"conv2d": whole})
    assert "winograd_4" in chosen(most) and whole not in chosen(most)
    assert whole in IMPLICIT
    assert least.need == plain.need < most.need
    feeds = {info.name: rng(info.with_batch(batch)) for info in model.inputs}
    (expected,) = glnn.InferenceSession(model, "cpu").run(None, feeds)
    between = [draw.randint(least.need, most.need) for _ in range(3)]
    for allowed in (least.need, *between, most.need - 1, most.need):
        monkeypatch.setenv("GLNN_MEMORY", str(allowed))
        session = glnn.InferenceSession(model, "compute", device=compute.device)
        plan = session.plan({key: array.shape for key, array in feeds.items()})
        assert plan.outline.need <= allowed
        (got,) = session.run(None, feeds)
        assert error(got, expected) <= 1e-5
        assert (plan.outline.steps == most.steps) is (allowed >= most.need)
    monkeypatch.setenv("GLNN_MEMORY", str(least.need - 1))
    session = glnn.InferenceSession(model, "compute", device=compute.device)
    with pytest.raises(LimitError, match="GLNN_MEMORY allows"):
        session.run(None, feeds)


def test_what_was_asked_for_is_not_given_up(compute) -> None:
    model, asked = chain(), {"conv2d": "winograd_4"}
    forced = outline(model, compute, 1, kernels=asked)
    short = outline(model, compute, 1, kernels=asked, available=forced.need - 1)
    assert short.need == forced.need and chosen(short) == {"winograd_4"}
    with pytest.raises(LimitError):
        check(short, forced.need - 1)


def test_reasons(compute) -> None:
    model = chain()
    apart = frozenset({Pass.POOLED})  # as where memory is short
    most = outline(model, compute, 1, without=apart)
    least = outline(model, compute, 1, available=0)
    free, short = list(reasons(most, None)), list(reasons(least, least.need))
    assert [one.name for one in free] == [one.name for one in short]
    for had, has in zip(free, short, strict=True):
        assert had.other in IMPLICIT and had.given_up is None
        assert had.kernel.startswith("winograd") and had.weights > 0
        assert (has.kernel, has.other, has.given_up) == (had.other, had.kernel, had.kernel)
        assert has.weights == -had.weights and has.lacking >= had.weights
        assert had.times == pytest.approx(1 / has.times)


@pytest.mark.parametrize("found", ["ANGLE over SwiftShader", "Mali-G52"])
def test_flags_of_kernels_are_no_parts(compute, monkeypatch, found) -> None:
    """`implicit_gemm` has a flag PARTS, 0 on most architectures; stages have as many parts."""
    device = compute.device
    renamed = replace(device.capabilities, renderer=found, vendor="", max_texture_buffer_size=0)
    monkeypatch.setattr(device, "capabilities", renamed)
    other = type(compute)(device)
    said = {one.kernel for one in reasons(outline(chain(), other, 1), None)}
    said |= {one.other for one in reasons(outline(chain(), other, 1), None)}
    assert "implicit_gemm" in said and not any("in 0 parts" in one for one in said)


def test_what_computes_all_at_once_is_held_against_others(compute, monkeypatch) -> None:
    monkeypatch.setattr("glnn.kernels.selector.GAIN", 0)  # so Winograd is not taken
    model = Model.sequential([layers.Conv2d(19, 21, 3, padding=1)], (19, 23, 18))
    (held,) = reasons(outline(model, compute, 1), None)
    assert not held.kernel.startswith("winograd") and held.other.startswith("winograd")


def test_weights_of_parts_are_counted_once(compute) -> None:
    """All parts read the same."""
    model = Model.sequential([layers.Conv2d(32, 32, 3, padding=1)], (32, 60, 60))
    most = outline(model, compute, 1)
    parts = outline(model, compute, 1, available=most.need - 1)
    assert chosen(parts) == chosen(most) and len(parts.steps) > len(most.steps)
    assert parts.parameters == most.parameters
    (found,) = reasons(parts, most.need - 1)
    assert (found.kernel, found.given_up) == ("winograd_4 in 2 parts", "winograd_4")
    assert 0 < found.lacking <= most.need - parts.need
