"""Plans: successive runs, intermediate values, reorders, kernels by name."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.compiler.plan import Plan
from glnn.core.tensor_info import BATCH, TensorInfo
from glnn.data import digits
from glnn.errors import DeviceError, ModelError, ShapeError, UnsupportedOpError
from glnn.graph.passes import Pass
from glnn.layers import (
    Add,
    AvgPool2d,
    BatchNorm2d,
    Bias,
    Concat,
    Conv2d,
    Flatten,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    Subsample2d,
)
from glnn.model import Model
from glnn.model.model import Node
from glnn.session import InferenceSession
from tests.oracle import error


def available(name: str):
    try:
        return open_backend(name)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["compute", "feedback", "cpu"])
def backend(request):
    return available(request.param)


@pytest.fixture
def lenet() -> Model:
    return glnn.load("lenet")


def test_every_run_sees_its_own_input(backend, lenet) -> None:
    x = digits()[0][:, None].astype(np.float32) / np.float32(255)
    plan = Plan(lenet.graph, backend, {"input": (4, 1, 28, 28)})
    for start in (0, 4, 8, 4):
        part = np.ascontiguousarray(x[start : start + 4])
        (got,) = plan.run({"input": part}).values()
        expected = lenet(part, backend="cpu")
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_results_of_earlier_runs_stay(backend, lenet) -> None:
    x = np.zeros((2, 1, 28, 28), np.float32)
    plan = Plan(lenet.graph, backend, {"input": x.shape})
    (first,) = plan.run({"input": x}).values()
    kept = first.copy()
    plan.run({"input": x + 1})
    np.testing.assert_array_equal(first, kept)


def test_a_view_of_the_input_is_not_the_callers_array(backend) -> None:
    model = Model.sequential([Flatten()], (2, 3))
    x = np.ones((4, 2, 3), np.float32)
    (got,) = Plan(model.graph, backend, {"input": x.shape}).run({"input": x}).values()
    got[:] = 7
    assert (x == 1).all()


def test_activations_and_biases_are_fused(backend) -> None:
    model = Model.sequential([Linear(5, 4, bias=False), Bias(4), ReLU(), Softmax()], (5,))
    plan = Plan(model.graph, backend, {"input": (3, 5)})
    assert [step.layer for step in plan.steps][:2] == ["linear1 + bias1 + relu1", "softmax1"]
    apart = Plan(model.graph, backend, {"input": (3, 5)}, without=frozenset(Pass))
    ops = [step.op.name for step in apart.steps]
    assert ops == ["matmul", "pointwise", "pointwise", "softmax"]
    x = np.random.default_rng(1).standard_normal((3, 5), dtype=np.float32)
    (a,), (b,) = plan.run({"input": x}).values(), apart.run({"input": x}).values()
    np.testing.assert_allclose(a, b, atol=1e-6)
    with pytest.raises(ModelError, match="keeps no tensor 'bias1'"):
        plan.value("bias1")
    kept = Plan(model.graph, backend, {"input": (3, 5)}, without=frozenset(Pass), keep=True)
    kept.run({"input": x})
    assert kept.value("bias1").shape == (3, 4)


def test_reorders_stand_between_kernels_that_disagree_and_nowhere_else() -> None:
    model = Model.sequential(
        [Conv2d(3, 5, 3), Sigmoid(), AvgPool2d(2), Flatten(), Linear(5 * 9, 2)], (3, 8, 8)
    )
    names = {}
    for name, batch in product(("compute", "feedback"), (1, 2)):
        plan = Plan(model.graph, available(name), {"input": (batch, 3, 8, 8)})
        names[name, batch] = [step.op.name for step in plan.steps]
    assert names["compute", 1] == ["pooled_conv2d", "matmul"]
    assert names["feedback", 1] == ["reorder", "conv2d", "pool2d", "reorder", "matmul"]
    # Of several samples the rows, of 45 numbers, are padded for the product.
    assert names["compute", 2] == ["pooled_conv2d", "move", "matmul"]
    assert names["feedback", 2] == ["reorder", "conv2d", "pool2d", "reorder", "move", "matmul"]


def test_feedback_keeps_channels_in_groups_of_four(rng) -> None:
    nodes = (
        Node("a", Conv2d(3, 6, 3, padding=1), ("x",), "a"),
        Node("response", LocalResponseNorm(3), ("a",), "response"),
        Node("norm", BatchNorm2d(6), ("a",), "norm"),
        Node("sum", Add(), ("response", "norm"), "sum"),
        Node("sigmoid", Sigmoid(), ("sum",), "sigmoid"),
        Node("pool", MaxPool2d(2), ("sigmoid",), "pool"),
        Node("half", Subsample2d(6, 2), ("pool",), "half"),
        Node("left", Conv2d(6, 8, 1), ("half",), "left"),
        Node("right", Conv2d(6, 4, 1), ("half",), "right"),
        Node("both", Concat(2), ("left", "right"), "both"),
        Node("bias", Bias(12), ("both",), "bias"),
        Node("last", Conv2d(12, 5, 1), ("bias",), "last"),
    )
    model = Model(nodes, (TensorInfo("x", (BATCH, 3, 9, 8)),), ("last",), "branches")
    x = rng((2, 3, 9, 8))
    plan = Plan(model.graph, available("feedback"), {"x": x.shape})
    names = [step.op.name for step in plan.steps]
    assert names.index("reorder") == 0 and names.count("reorder") == 1
    assert {"local_response_norm", "pointwise", "subsample", "concat"} <= {*names}
    expected = Plan(model.graph, available("cpu"), {"x": x.shape}).run({"x": x})["last"]
    assert error(plan.run({"x": x})["last"], expected) <= 1e-5


def test_a_kernel_can_be_chosen_by_name(lenet) -> None:
    backend = available("compute")
    plan = Plan(lenet.graph, backend, {"input": (1, 1, 28, 28)}, {"matmul": "gemm_blocked"})
    assert {s.kernel for s in plan.steps if s.op.name == "matmul"} == {"gemm_blocked"}
    with pytest.raises(UnsupportedOpError, match="no kernel 'none' for matmul; it has"):
        Plan(lenet.graph, backend, {"input": (1, 1, 28, 28)}, {"matmul": "none"})
    with pytest.raises(UnsupportedOpError, match="lenet has no op of that name"):
        Plan(lenet.graph, backend, {"input": (1, 1, 28, 28)}, {"bias": "rows"})


def test_not_a_number_travels_as_in_numpy(backend, lenet) -> None:
    x = np.zeros((2, 1, 28, 28), np.float32)
    x[0, 0, 3, 3] = np.nan
    session = InferenceSession(lenet, "cpu")
    (got,) = Plan(lenet.graph, backend, {"input": x.shape}).run({"input": x}).values()
    np.testing.assert_allclose(got, session.run(None, {"input": x})[0], atol=1e-6)


def test_any_thread_may_run_a_plan(lenet) -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = {"input": np.ones((1, 1, 28, 28), np.float32)}
    plan = Plan(lenet.graph, available("compute"), {"input": (1, 1, 28, 28)})
    expected = plan.run(x)["softmax"]
    with ThreadPoolExecutor(1) as pool:
        assert np.array_equal(pool.submit(plan.run, x).result()["softmax"], expected)
        assert np.array_equal(pool.submit(plan.value, "softmax").result(), expected)


def test_lanes_that_hold_no_channel_do_not_leak(backend) -> None:
    # The window lies in the padding alone, so the maximum is minus infinity.
    model = Model.sequential(
        [MaxPool2d(2, 2, padding=1, dilation=3), Conv2d(1, 1, 1, bias=False)], (1, 2, 2)
    )
    x = np.ones((1, 1, 2, 2), np.float32)
    (got,) = Plan(model.graph, backend, {"input": x.shape}).run({"input": x}).values()
    np.testing.assert_array_equal(got, model(x, backend="cpu"))
    assert np.isinf(got).all()


def test_values_are_the_callers_to_change(backend, lenet) -> None:
    x = np.zeros((1, 1, 28, 28), np.float32)
    plan = Plan(lenet.graph, backend, {"input": x.shape})
    (got,) = plan.run({"input": x}).values()
    got[:] = 7
    assert plan.value("softmax").max() <= 1


def test_weights_are_copied_when_they_are_assigned() -> None:
    weight, layer = np.ones((2, 3), np.float32), Linear(3, 2, bias=False)
    layer.weight = weight
    weight[:] = 5
    assert (layer.weight == 1).all()


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((2, 1, 28, 28)),
        np.zeros((2, 1, 28, 29), "f4"),
        np.zeros((1568,), "f4"),
        [1.0],
        None,
    ],
    ids=["float64", "wider", "flat", "list", "none"],
)
def test_inputs_that_are_not_the_plans(backend, lenet, given) -> None:
    """Session.plan is for just its shapes, on every backend."""
    x = digits()[0][:2, None].astype(np.float32)
    plan = InferenceSession(lenet, backend.name).plan({"input": x.shape})
    (expected,) = plan.run({"input": x}).values()
    with pytest.raises(ShapeError, match="input"):
        plan.run({} if given is None else {"input": given})
    (again,) = plan.run({"input": x}).values()
    np.testing.assert_array_equal(again, expected)


def test_what_is_no_input_may_be_anything(backend, lenet) -> None:
    x = np.zeros((1, 1, 28, 28), np.float32)
    plan = Plan(lenet.graph, backend, {"input": x.shape})
    for other in ({"other": None}, {"other": [1]}, {}):
        (y,) = plan.run({"input": x, **other}).values()
        assert y.shape == (1, 10)


def test_a_run_without_outputs_leaves_no_fence_behind(lenet, monkeypatch) -> None:
    backend, x = available("compute"), np.zeros((1, 1, 28, 28), np.float32)
    plan, calls = Plan(lenet.graph, backend, {"input": x.shape}), []
    functions = backend.device._fence_functions

    def noted(kind, call):
        return lambda *arguments: calls.append(kind) or call(*arguments)

    for kind in ("make", "delete"):
        monkeypatch.setattr(functions, kind, noted(kind, getattr(functions, kind)))
    for _ in range(9):
        plan.run({"input": x}, ())
        plan.run({"input": x})  # waits for a fence behind that one's
    assert calls.count("make") >= 9 and calls.count("make") - calls.count("delete") <= 2


def test_threads_may_share_the_cpu() -> None:
    import sys
    import threading

    session = InferenceSession(glnn.load("lenet"), "cpu")
    images = [np.full((1, 1, 28, 28), v, np.float32) for v in (0, 0.3, 0.6, 1)]
    expected = [session.run(None, {"input": x})[0] for x in images]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(100):
            if not np.array_equal(session.run(None, {"input": images[i]})[0], expected[i]):
                wrong.append(i)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


@pytest.mark.parametrize("kernel", ["morton_4_2", "morton_4_4"])
def test_morton_layers_chain_without_a_reorder_between(kernel) -> None:
    model = Model.sequential(
        [Linear(13, 9), Sigmoid(), Linear(9, 11), ReLU(), Linear(11, 3), Softmax()], (13,)
    )
    plan = Plan(model.graph, available("compute"), {"input": (5, 13)}, {"matmul": kernel})
    names = [step.op.name for step in plan.steps]
    assert names == ["reorder", "matmul", "matmul", "matmul", "reorder", "softmax"]
    x = np.random.default_rng(3).standard_normal((5, 13), dtype=np.float32)
    (got,) = plan.run({"input": x}).values()
    np.testing.assert_allclose(got, model(x, backend="cpu"), atol=1e-6)
