"""Sessions with fusion and without (`fused=False`): their steps, and that their results agree."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends import NAMES
from glnn.errors import DeviceError, GlnnError
from glnn.graph.passes import Pass
from glnn.graph.passes.pass_manager import FUSING
from glnn.layers import (
    BatchNorm2d,
    Conv2d,
    ConvTranspose2d,
    Flatten,
    Layer,
    Linear,
    ReLU,
    Sigmoid,
    Upsample,
)
from glnn.model import Model
from glnn.session import InferenceSession
from tests import oracle

IMAGE = (3, 2, 9, 7)


def net() -> Model:
    """Every kind of step that others join: bias, normalisation, activations."""
    layers = [Conv2d(2, 5, 3), BatchNorm2d(5), ReLU(), Flatten(), Linear(5 * 7 * 5, 10), Sigmoid()]
    return Model.sequential(layers, IMAGE[1:])


def opened(model: Model, backend: str, **more: object) -> InferenceSession:
    try:
        return InferenceSession(model, backend, **more)  # type: ignore[arg-type]
    except DeviceError as error:
        pytest.skip(str(error))


def ops(session: InferenceSession) -> list[str]:
    """What each step computes, but for changes of layout."""
    plan = session.plan({"input": IMAGE})
    return [s.op.name for s in plan.steps if s.op.name not in ("reorder", "move")]


@pytest.mark.parametrize("backend", NAMES)
def test_each_is_a_step_and_results_agree(backend: str) -> None:
    model, x = net(), np.random.default_rng(0).normal(size=IMAGE).astype(np.float32)
    whole, apart = opened(model, backend), opened(model, backend, fused=False)
    (expected,) = model.graph.reference(x.astype(np.float64))
    for session in (whole, apart):
        (found,) = session.run(None, {"input": x})
        assert oracle.error(found, expected) <= 1e-5
    bias, normalised, relu = ["pointwise"] * 3
    after = ["matmul", "pointwise", "pointwise"]
    assert ops(apart) == ["conv2d", bias, normalised, relu, *after]
    assert ops(whole) == ["conv2d", "matmul"]


@pytest.mark.parametrize(
    "layer",
    [
        ConvTranspose2d(8, 16, 2, 2),
        ConvTranspose2d(8, 16, (2, 3), (2, 3), groups=2),
        Upsample(scale_factor=(2, 3)),
        Upsample(size=(14, 15), mode="nearest-exact"),
    ],
    ids=repr,
)
def test_places_between_convolutions_by_one_move(layer: Layer) -> None:
    """Channels stay last, a bias is the convolution's, and one plan is for several batches."""
    wide = 8 if isinstance(layer, Upsample) else 16
    model = Model.sequential([Conv2d(2, 8, 3), layer, Conv2d(wide, 8, 1)], IMAGE[1:])
    if isinstance(layer, ConvTranspose2d):
        bias = np.random.default_rng(1).normal(size=16).astype(np.float32)
        setattr(layer, "bias", bias)  # noqa: B010
    session = opened(model, "compute")
    steps = session.plan({"input": IMAGE}).steps
    assert [s.op.name for s in steps].count("move") == 1
    assert "gather" not in [s.op.name for s in steps]
    assert "pointwise" not in [s.op.name for s in steps]
    for batch in (3, 1, 5, 4):
        x = np.random.default_rng(batch).normal(size=(batch, *IMAGE[1:])).astype(np.float32)
        (expected,) = model.graph.reference(x.astype(np.float64))
        (found,) = session.run(None, {"input": x})
        assert oracle.error(found, expected) <= 1e-5


def test_it_is_the_passes_that_fuse() -> None:
    assert Pass.left_out((), True) == frozenset()
    assert Pass.left_out(["dead"], False) == {Pass.DEAD} | FUSING
    assert Pass.FUSE in FUSING
    with pytest.raises(GlnnError, match="fused must be True or False, got 0"):
        InferenceSession(net(), "cpu", fused=0)  # type: ignore[arg-type]


def test_of_several_kernels_the_first_that_can_is_taken() -> None:
    layers = [Linear(7, 5), Sigmoid(), Linear(5, 3)]
    model, x = Model.sequential(layers, (7,)), np.ones((4, 7), np.float32)
    named = {"matmul": "cross_rm_rm", "pointwise": "bias_rm, activation_unbound"}
    session = opened(model, "compute", fused=False, kernels=named)
    (found,) = session.run(None, {"input": x})
    assert oracle.error(found, model(x, backend="cpu")) <= 1e-6
    steps = session.plan({"input": x.shape}).steps
    taken = [step.kernel for step in steps if step.op.name != "reorder"]
    product = ["cross_rm_rm", "bias_rm"]
    assert taken == [*product, "activation_unbound", *product]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("bias_rm,nonesuch", "no kernel 'nonesuch' for pointwise"),
        ("bias_rm,bias_morton_4_2", "takes no operand x1|it needs"),
        (",", "kernel pointwise=, can compute no step"),
    ],
)
def test_names_that_none_has_are_refused(names: str, says: str) -> None:
    model = Model.sequential([Linear(7, 5), Sigmoid()], (7,))
    session = opened(model, "compute", fused=False, kernels={"pointwise": names})
    with pytest.raises(GlnnError, match=says):
        session.run(None, {"input": np.ones((4, 7), np.float32)})
