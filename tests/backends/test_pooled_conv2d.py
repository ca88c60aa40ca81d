"""Convolutions whose result is pooled, by every kernel, and what graphs make of pools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import glnn
from glnn.errors import ShapeError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d, Pool2d, PooledConv2d
from glnn.graph.operators.winograd import WinogradOutput
from glnn.layers import AvgPool2d, MaxPool2d, ReLU, Sigmoid
from glnn.layers import Conv2d as Layer
from tests import oracle
from tests.backends.harness import Array, allowed, kernels, run

MOST = PooledConv2d(padding=(1, 1, 1, 1))
MEAN = replace(MOST, mode="average")
BIASED_SIGMOID = Epilogue(call("sigmoid", call("add", Arg(0), Arg(1))), ("channel",))


def expected(op: PooledConv2d, given: dict[str, Array]) -> Array:
    """By loops over windows, from the convolution of the tests' own."""
    geometry = op.stride, op.padding, op.dilation, op.groups
    whole = oracle.conv2d(given["x"], given["weight"], None, *geometry)
    if "e1" in given:
        whole = 1 / (1 + np.exp(-(whole + given["e1"].astype(np.float64)[:, None, None])))
    down, across = whole.shape[2] // 2, whole.shape[3] // 2
    found = np.empty((*whole.shape[:2], down, across))
    for y in range(down):
        for x in range(across):
            window = whole[:, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].reshape(*whole.shape[:2], 4)
            found[:, :, y, x] = window.max(2) if op.mode == "max" else window.mean(2)
    return found


@pytest.mark.parametrize("op", [MOST, MEAN])
@pytest.mark.parametrize("epilogue", [None, BIASED_SIGMOID])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 2, 2, 1),
        (2, 17, 13, 9, 19),
        (1, 16, 7, 14, 16),
        (3, 5, 30, 3, 7),
        (1, 37, 12, 11, 131),
    ],
)
@pytest.mark.parametrize(("name", "kernel"), kernels("pooled_conv2d"))
def test_any_sizes(opened, rng, name, kernel, sizes, epilogue, op) -> None:
    n, c, h, w, o = sizes
    given = {"x": rng((n, c, h, w)), "weight": rng((o, c, 3, 3))}
    extra = {} if epilogue is None else {"e1": rng((o,))}
    got = run(opened(name), op, {**given, **extra}, kernel, epilogue)
    assert oracle.error(got, expected(op, given | extra)) <= allowed("pooled_conv2d", kernel)


@pytest.mark.parametrize(
    "op",
    [
        PooledConv2d(stride=(2, 1), padding=(0, 2, 1, 3)),
        PooledConv2d(dilation=(2, 3), mode="average"),
        PooledConv2d(stride=(1, 3), dilation=(1, 7), padding=(3, 0, 0, 9)),
    ],
)
@pytest.mark.parametrize("kernel", [(5, 4), (1, 2), (1, 1)])
def test_any_windows(opened, rng, op, kernel) -> None:
    given = {"x": rng((2, 3, 17, 26)), "weight": rng((6, 3, *kernel))}
    got = run(opened("compute"), op, given, "direct")
    assert oracle.error(got, expected(op, given)) <= allowed("pooled_conv2d", "direct")


def test_nan_and_infinity(opened, rng) -> None:
    given = {"x": rng((1, 2, 9, 8)), "weight": rng((3, 2, 3, 3))}
    given["x"][0, 1, 4, 4], given["x"][0, 0, 0, 0] = np.nan, np.inf
    got = run(opened("compute"), MOST, given, "direct")
    with np.errstate(invalid="ignore"):
        wanted = expected(MOST, given)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    assert np.array_equal(np.isinf(got), np.isinf(wanted))


def test_its_mode_and_size_are_checked() -> None:
    with pytest.raises(ShapeError, match="pooled_conv2d: mode must be max or average, got 'min'"):
        PooledConv2d(mode="min")
    with pytest.raises(ShapeError, match="window"):
        PooledConv2d().shape_of({"x": (1, 3, 3, 3), "weight": (4, 3, 3, 3)})


def few_channels(pool: MaxPool2d | AvgPool2d) -> glnn.Model:
    """LeNet's convolutions: planar."""
    first, second = Layer(1, 6, 5, padding=2), Layer(6, 16, 5)
    layers = [first, Sigmoid(), pool, second, ReLU(), pool]
    return glnn.Model.sequential(layers, input_shape=(1, 30, 25))


def many_channels(pool: MaxPool2d | AvgPool2d) -> glnn.Model:
    """The second of them by Winograd's algorithm, channels last."""
    first, second = Layer(3, 64, 3, stride=2), Layer(64, 96, 3, padding=1)
    layers = [first, ReLU(), second, Sigmoid(), pool]
    return glnn.Model.sequential(layers, input_shape=(3, 67, 61))


@pytest.mark.parametrize("pool", [MaxPool2d(2), AvgPool2d(2)])
@pytest.mark.parametrize(
    ("build", "renderer", "joined"),
    [
        (few_channels, "llvmpipe", ["direct", "direct"]),
        (few_channels, "NVIDIA H200", ["direct", "direct_tiled"]),
        (many_channels, "llvmpipe", ["winograd_output"]),
    ],
)
def test_networks_pool_as_they_convolve(
    opened, rng, taken_for, build, renderer, joined, pool
) -> None:
    """The same numbers as in two steps, by the same kernels, and no step that only pools."""
    device, net = taken_for(opened("compute"), renderer).device, build(pool)
    session = glnn.InferenceSession(net, "compute", device=device)
    (info,) = session.get_inputs()
    feeds = {info.name: rng((2, *info.shape[1:]))}
    (got,) = session.run(None, feeds)
    steps = session.plan({info.name: feeds[info.name].shape}).outline.steps
    pooling = [step for step in steps if getattr(step.op, "mode", None)]
    names = [s.op.name if isinstance(s.op, WinogradOutput) else s.kernel for s in pooling]
    assert names == joined and not any(isinstance(step.op, Pool2d) for step in steps)
    apart = glnn.InferenceSession(net, "compute", device=device, without=["pooled"])
    assert oracle.error(got, apart.run(None, feeds)[0]) <= 1e-6
    assert oracle.error(got, glnn.InferenceSession(net, "cpu").run(None, feeds)[0]) <= 1e-4


@pytest.mark.parametrize("pool", [MaxPool2d(2), AvgPool2d(2)])
@pytest.mark.parametrize("build", [few_channels, many_channels])
def test_networks_pool_by_what_the_device_chooses(opened, rng, build, pool) -> None:
    """In one step or in two."""
    net, device = build(pool), opened("compute").device
    session = glnn.InferenceSession(net, "compute", device=device)
    (info,) = session.get_inputs()
    feeds = {info.name: rng((2, *info.shape[1:]))}
    (wanted,) = glnn.InferenceSession(net, "cpu").run(None, feeds)
    assert oracle.error(session.run(None, feeds)[0], wanted) <= 1e-4


@pytest.mark.parametrize("op", [Conv2d(), MOST])
def test_what_asks_for_kernels_of_convolutions_gets_them(opened, rng, op) -> None:
    net = glnn.Model.sequential([Layer(3, 4, 3), MaxPool2d(2)], input_shape=(3, 12, 12))
    device = opened("compute").device
    for kernels_asked in ({"conv2d": "direct"}, {"pool2d": "planar"}):
        session = glnn.InferenceSession(net, "compute", device=device, kernels=kernels_asked)
        plan = session.plan({session.get_inputs()[0].name: (1, 3, 12, 12)})
        assert "pooled_conv2d" not in {step.op.name for step in plan.outline.steps}


@pytest.mark.parametrize("beside", [{}, {"conv2d": "direct"}])
@pytest.mark.parametrize("kernel", ["direct", "direct_tiled", "winograd_2"])
def test_what_asks_for_a_kernel_that_pools_gets_it(opened, rng, kernel, beside) -> None:
    layers = [Layer(3, 4, 3), MaxPool2d(2), Layer(4, 5, 2)]
    net = glnn.Model.sequential(layers, input_shape=(3, 12, 12))
    device, asked = opened("compute").device, {"pooled_conv2d": kernel, **beside}
    session = glnn.InferenceSession(net, "compute", device=device, kernels=asked)
    feeds = {session.get_inputs()[0].name: rng((2, 3, 12, 12))}
    got, wanted = (one.run(None, feeds)[0] for one in (session, glnn.InferenceSession(net, "cpu")))
    assert oracle.error(got, wanted) <= allowed("pooled_conv2d", kernel)
    plan = session.plan({k: v.shape for k, v in feeds.items()})
    assert kernel in {name for step in plan.steps for name in (step.kernel, step.via)}
    assert [step.op.name for step in plan.steps].count("pool2d") == 0
