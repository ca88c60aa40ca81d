"""Graphs with branches: residual blocks, concatenations of branches, normalisations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError
from glnn.graph.passes import Pass
from glnn.layers import BatchNorm2d
from tests.oracle import error
from tests.references import results

APART = frozenset(Pass)


@pytest.fixture(params=["compute", "feedback", "cpu"])
def backend(request):
    try:
        return open_backend(request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


@pytest.mark.parametrize("fused", [True, False])
def test_branches(rng, backend, blocks, fused) -> None:
    x = rng((3, 3, 9, 7))
    plan = Plan(blocks.graph, backend, {"image": x.shape}, without=frozenset() if fused else APART)
    (got,) = plan.run({"image": x}).values()
    assert error(got, results(blocks.graph, {"image": x})[blocks.outputs[0]]) <= 1e-5
    ops = [step.op.name for step in plan.steps if step.op.name != "reorder"]
    assert ops.count("concat") == 1 and "identity" not in ops
    alone = sum(step.op.name == "pointwise" for step in plan.steps)
    apart = Plan(blocks.graph, backend, {"image": x.shape}, without=APART)
    assert fused is (alone < sum(step.op.name == "pointwise" for step in apart.steps))


def test_a_saved_model_is_the_same(rng, blocks, tmp_path: Path) -> None:
    blocks.save(tmp_path / "blocks.json")
    again, x = glnn.load(tmp_path / "blocks.json"), rng((2, 3, 9, 7))
    assert [node.inputs for node in again.nodes] == [node.inputs for node in blocks.nodes]
    assert [repr(node.layer) for node in again.nodes] == [repr(n.layer) for n in blocks.nodes]
    np.testing.assert_array_equal(again(x, backend="cpu"), blocks(x, backend="cpu"))


def test_a_new_parameter_of_a_folded_norm_is_noticed(rng, blocks) -> None:
    x = rng((1, 3, 9, 7))
    before = blocks(x, backend="cpu")
    norm = blocks.nodes[-1].layer
    assert isinstance(norm, BatchNorm2d)
    norm.bias = norm.bias + np.float32(1)
    np.testing.assert_allclose(blocks(x, backend="cpu"), before + 1, rtol=1e-5)
