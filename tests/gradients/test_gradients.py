"""Gradients of operators: NumPy's against central differences, the backends' against NumPy's."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

from glnn.backends import Backend
from glnn.compiler import Plan
from tests.gradients.case import Case, Together, central, wide
from tests.gradients.cases import CASES, GROUPS, KINKS


@pytest.mark.parametrize("case", [c for c in CASES if not c.large], ids=lambda case: case.name)
def test_the_reference_against_central_differences(case: Case) -> None:
    found = Together((case,)).expected()
    for name, expected in central(case):
        assert found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def agrees(cases: Sequence[Case], backend: Backend) -> None:
    """The gradients of all cases, in one plan, are those of the reference."""
    together = Together(tuple(cases))
    feeds = together.feeds
    graph = together.backward
    plan = Plan(graph, backend, {name: array.shape for name, array in feeds.items()})
    found = plan.run(feeds)
    for (name, expected), output in zip(together.expected().items(), graph.outputs, strict=True):
        got = found[output.name]
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("group", GROUPS)
def test_on_the_cpu(group: str, cpu: Backend) -> None:
    agrees(GROUPS[group], cpu)


@pytest.mark.parametrize("group", GROUPS)
def test_on_the_gpu(group: str, gl: Backend, request: pytest.FixtureRequest) -> None:
    """All cases; on the least limits each second, and of older contexts as many as GLNN_SHARE says,
    as of the kernels' own tests: what is compiled for each takes the time.
    """
    share = int(os.environ.get("GLNN_SHARE", "2" if "es31-minimum" in request.node.name else "1"))
    agrees(GROUPS[group][:: 1 if os.environ.get("GLNN_EXHAUSTIVE") else share], gl)


@pytest.mark.parametrize(
    "case", [c for c in (*CASES, *KINKS) if c.torch], ids=lambda case: case.name
)
def test_against_pytorch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    assert case.torch is not None
    given = dict(zip(case.inputs, wide(case.inputs.values()), strict=True))
    tensors = {name: torch.tensor(a, requires_grad=name in case.by) for name, a in given.items()}
    fixed = {f"{case.name}/{i}": torch.tensor(wide([case.arrays[i]])[0]) for i in case.fixed}
    places = sorted({**tensors, **fixed}.items(), key=lambda one: int(one[0].rpartition("/")[2]))
    results = case.torch(torch, *(tensor for _, tensor in places))
    results = results if isinstance(results, (tuple, list)) else [results]
    total = sum((r * torch.tensor(w)).sum() for r, w in zip(results, case.weights, strict=True))
    total.backward()
    for name, got in Together((case,)).expected().items():
        expected = tensors[name].grad.numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8, err_msg=name)
