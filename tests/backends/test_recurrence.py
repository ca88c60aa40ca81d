"""All steps of recurrent layers, by every kernel, against loops in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.compiler import prepare
from glnn.core.types import TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Recurrence
from glnn.graph.operators.recurrence import MOST_GATES, MOST_STATES
from glnn.kernels import kernels_for
from glnn.kernels.architecture import ARCHITECTURES
from glnn.kernels.codegen import recurrent
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.cells import PLAIN, lstm, packed, sigmoid
from tests.backends.harness import TOLERANCE, kernels, problem_of, run, run_kernel


def one_layer(inputs: np.ndarray, weight: np.ndarray, states: list[np.ndarray], units: int):
    """Hidden and cell after each step (t, b, h), of inputs (t, b, 4, h), by a loop."""
    hidden, cell, bias = states[0], states[1], np.stack(states[2:], 1)
    found = []
    for now in inputs:
        gates = np.stack([hidden @ own.T for own in weight], 1) + now + bias
        i, o, f = (sigmoid(gates[:, k]) for k in range(3))
        cell = f * cell + i * np.tanh(gates[:, 3])
        hidden = o * np.tanh(cell)
        hidden[:, units:] = cell[:, units:] = 0
        found.append((hidden, cell))
    return (np.stack(one) for one in zip(*found, strict=True))


BIASES = tuple(map(Arg, range(10, 14)))
CASES = [  # directions, layers, steps, batch, h, units
    (1, 1, 1, 1, 4, 1),
    (2, 1, 7, 3, 8, 7),
    (1, 1, 3, 7, 132, 129),
    (2, 1, 66, 1, 20, 20),
    (1, 2, 3, 1, 20, 20),
    (1, 3, 7, 3, 8, 5),
    (1, 4, 2, 7, 4, 3),
    (1, 3, 1, 1, 132, 129),
    (1, 2, 258, 1, 4, 3),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrence"))
@pytest.mark.parametrize(("d", "layers", "t", "b", "h", "units"), CASES)
def test_lstms(opened, rng, name, kernel, d, layers, t, b, h, units) -> None:
    count = d * layers
    x, weight = rng((d, t, b, 4, h)), rng((count + layers - 1, 4, h, h)) / 4
    weight[..., units:], x[..., units:] = 0, 9
    states = [rng((count, b, h)) for _ in range(6)]
    states[0][..., units:] = states[1][..., units:] = 0
    op, operands = Recurrence(lstm(*BIASES), 0, units, layers), {"x": x, "weight": weight}
    operands["state"] = packed(states)
    alone = layers == 1 and (kernel != "persistent" or 4 * h <= 512)
    if kernel not in ("wavefront", "dataflow") and not alone:
        with pytest.raises(UnsupportedOpError, match=f"{kernel}: .* it needs"):
            run(opened(name), op, operands, kernel)
        return
    found = run(opened(name), op, operands, kernel)
    wide, given = weight.astype(np.float64), x.astype(np.float64)
    hidden = np.zeros(0)
    for chain in range(count):
        inputs = given[chain] if layers == 1 else given[0]
        if layers > 1 and chain:
            inputs = np.stack([hidden @ own.T for own in wide[layers + chain - 1]], 2)
        own = [one[chain].astype(np.float64) for one in states]
        hidden, cell = one_layer(inputs, wide[chain], own, units)
        assert oracle.error(found[:, chain], packed([hidden, cell])) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrence"))
def test_the_second_of_two_states_is_summed(opened, rng, name, kernel) -> None:
    x, weight, states = rng((2, 5, 3, 1, 8)), rng((2, 1, 8, 8)) / 3, rng((2, 2, 3, 8))
    op = Recurrence((call("sub", Arg(1), Arg(3)), PLAIN[0]), 1)
    operands = {"x": x, "weight": weight, "state": packed([*states])}
    found = run(opened(name), op, operands, kernel)
    first, second = states.astype(np.float64)
    for step in range(5):
        sums = np.stack([second[i] @ weight[i, 0].T.astype(np.float64) for i in range(2)])
        first, second = x[:, step, :, 0] - second, np.tanh(sums + x[:, step, :, 0])
        assert oracle.error(found[step], packed([first, second])) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrence"))
def test_states_may_be_any_nan(opened, rng, name, kernel) -> None:
    x = rng((1, 3, 1, 1, 8))
    x[0, 1, 0, 0, 2:4] = np.array([0x7FA5C3E1, 0x7FC00000], np.uint32).view(np.float32)
    operands = {"x": x, "weight": rng((1, 1, 8, 8)), "state": rng((1, 1, 2, 2, 4))}
    found = run(opened(name), Recurrence((PLAIN[0], Arg(1))), operands, kernel)
    passed = found[:, 0, 0, :, 1].reshape(3, 8)
    np.testing.assert_array_equal(passed, x[0, :, 0, 0])
    assert np.isnan(found[2, 0, 0, :, 0]).all() and not np.isnan(found[0]).any()


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrence"))
@pytest.mark.parametrize("h", [20, 132, 516])
def test_infinite_states_are_summed(opened, rng, name, kernel, h) -> None:
    """Of the last four units, where lanes and turns that sum no further units stand beside."""
    if kernel == "persistent" and h > 256:
        pytest.skip("a workgroup does not hold so many units")
    quads = h // 4
    x, weight, state = rng((1, 3, 2, 1, h)), abs(rng((1, 1, h, h))), rng((1, 2, quads, 1, 4))
    state[0, 0, -1, 0, 3] = np.inf
    operands = {"x": x, "weight": weight / h, "state": state}
    op = Recurrence((call("relu", call("add", Arg(0), Arg(1))),))
    found = run(opened(name), op, operands, kernel)[:, 0].reshape(3, 2, h)
    wanted = state[0].reshape(2, h).astype(np.float64)[1]
    for step in range(3):
        wanted = np.maximum(operands["weight"][0, 0] @ wanted + x[0, step, 1, 0], 0)
        assert (found[step, 0] == np.inf).all()
        assert oracle.error(found[step, 1], wanted) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrence"))
@pytest.mark.parametrize("h", [20, 260])
def test_infinite_states_of_stacked_layers_are_summed(opened, rng, name, kernel, h) -> None:
    """Of the lower layer, by the upper one, half of whose lanes sum these."""
    if kernel not in ("wavefront", "dataflow"):
        pytest.skip("it computes single layers")
    quads = h // 4
    state = np.zeros((2, 1, quads, 1, 4), np.float32)
    state[0, 0, -1, 0, 3] = np.inf
    operands = {"x": rng((1, 2, 1, 1, h)), "weight": abs(rng((3, 1, h, h))) / h, "state": state}
    op = Recurrence((call("relu", call("add", Arg(0), Arg(1))),), layers=2)
    assert (run(opened(name), op, operands, kernel) == np.inf).all()


(DATAFLOW,) = (k for k in kernels_for("recurrence", "compute") if k.name == "dataflow")
MAX_POLLS = DATAFLOW.defaults["MAX_POLLS"]
WAITING = [
    (1, 3, 7, 3, 8),
    (2, 1, 5, 3, 132),
    (1, 1, 258, 1, 4),
    (1, 2, 2, 33, 36),
    (1, 2, 3, 2, 132),
]
PARAMETERS = [
    {
        "LANES": 64,
        "LANES_PER_SUM": 8,
        "ROWS": 2,
        "CACHED_TILES": 4,
    },  # 132 units in two turns, and many tiles
    {"LANES": 128, "LANES_PER_SUM": 16, "ROWS": 4, "QUADS": 2, "CACHED_TILES": 16},
]


@pytest.fixture
def of_groups(opened, monkeypatch) -> Callable[[int], GlBackend]:
    """A function that gives the backend as of a device with so many multiprocessors."""

    def get(count: int) -> GlBackend:
        device = opened("compute").device
        offers = replace(device.capabilities, multiprocessors=count)
        monkeypatch.setattr(device, "capabilities", offers)
        return opened("compute")

    return get


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(("groups", "max_polls"), [(0, 0), (3, 1), (128, 0), (128, 1000)])
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize(("d", "layers", "t", "b", "h"), WAITING)
def test_workgroups_that_wait(
    of_groups, rng, groups, max_polls, parameters, d, layers, t, b, h
) -> None:
    """Those that wait in vain too, as all do that may not poll."""
    shapes = {"x": (d, t, b, 4, h), "weight": (d + 2 * layers - 2, 4, h, h)}
    operands = {name: rng(shape) / 4 for name, shape in shapes.items()}
    operands["state"] = rng((d * layers, b, h // 4, 6, 4))
    op = Recurrence(lstm(*BIASES), units=h - 1, layers=layers)
    operands["weight"][..., h - 1] = operands["state"][:, :, -1, :2, 3] = 0
    kernel = DATAFLOW.with_parameters(**parameters, MAX_POLLS=max_polls)
    spec = problem_of(op, operands)
    wanted = spec.compute({k: v.astype(np.float64) for k, v in operands.items()})
    found = run_kernel(of_groups(groups), op, operands, kernel)
    assert oracle.error(found, wanted) <= TOLERANCE


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(("groups", "max_polls"), [(1, MAX_POLLS), (128, 0)])
def test_given_states_are_never_absent(of_groups, rng, groups, max_polls) -> None:
    state = rng((1, 2, 2, 2, 4))
    state[0, 1, 1, :, 2] = np.array(0x7FA5C3E1, np.uint32).view(np.float32)  # its mark
    operands = {"x": rng((1, 3, 2, 1, 8)), "weight": rng((1, 1, 8, 8)), "state": state}
    kernel = DATAFLOW.with_parameters(ROWS=4, MAX_POLLS=max_polls)
    found = run_kernel(of_groups(groups), Recurrence((PLAIN[0], Arg(3))), operands, kernel)
    assert np.isnan(found[:, 0, 1, :, 0]).all() and np.isfinite(found[:, 0, 0]).all()
    passed = found[:, 0, 1, :, 1].reshape(3, 8)
    np.testing.assert_array_equal(passed, np.broadcast_to(state[0, 1, :, 1].reshape(8), (3, 8)))


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(("count", "launched"), [(0, 1), (3, 3), (132, 132)])
def test_as_many_workgroups_wait_as_run_at_once(of_groups, count, launched) -> None:
    """As many as there are multiprocessors; one, which never waits, where nobody knows."""
    shapes = {"x": (1, 3, 9, 1, 80), "weight": (1, 1, 80, 80), "state": (1, 9, 20, 1, 4)}
    spec, backend = OpSpec.create(Recurrence((PLAIN[0],)), shapes, {}), of_groups(count)
    launch, _ = prepare(
        spec.op, {k: np.zeros(s, np.float32) for k, s in shapes.items()}, backend, DATAFLOW
    )
    assert {dispatch.groups for dispatch in launch._dispatches} == {(1, launched, 1)}


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
def test_parameters_to_tune_have_lanes_for_all_sums(of_groups, rng) -> None:
    """The shader refuses others, so tuning would ask for what cannot be compiled."""
    tune = DATAFLOW.tune
    assert 4 * max(tune["ROWS"]) * max(tune["QUADS"]) <= min(tune["LANES"])
    extremes = {
        "LANES": min(tune["LANES"]),
        "LANES_PER_SUM": max(tune["LANES_PER_SUM"]),
        "QUADS": max(tune["QUADS"]),
    }
    kernel = DATAFLOW.with_parameters(**extremes, ROWS=4, CACHED_TILES=4)
    shapes = {"x": (1, 2, 2, 4, 8), "weight": (1, 4, 8, 8), "state": (1, 2, 2, 6, 4)}
    operands = {name: rng(shape) for name, shape in shapes.items()}
    op = Recurrence(lstm(*BIASES))
    wanted = op.compute({k: v.astype(np.float64) for k, v in operands.items()})
    assert oracle.error(run_kernel(of_groups(4), op, operands, kernel), wanted) <= TOLERANCE


@pytest.mark.parametrize("kernel", kernels_for("recurrence", "compute"), ids=lambda k: k.name)
def test_shared_memory_is_counted(kernel) -> None:
    """That of the shader's declarations, with as many gates and states as there may be."""
    text = kernel.path.read_text()
    names = {**kernel.defaults, "GATES": MOST_GATES, "RESULTS": MOST_STATES}
    macros = dict(re.findall(r"^#define (\w+) (\(.+?\))(?: +//.*)?$", text, re.MULTILINE))

    def value(formula: str) -> int:
        while any(name in macros for name in re.findall(r"\w+", formula)):
            formula = re.sub(r"\w+", lambda word: macros.get(word[0], word[0]), formula)
        return int(eval(formula.replace("/", "//"), names))

    sizes = {"vec4": 16, "float": 4, "uint": 4}
    arrays = re.findall(r"^shared (\w+) \w+(?:\[(.+)\])?;", text, re.MULTILINE)
    total = sum(sizes[kind] * value(formula or "1") for kind, formula in arrays)
    counted = kernel.launch.shared_bytes.evaluate(kernel.defaults)
    assert arrays and total <= counted <= total + 16


def test_workgroups_wait_where_it_was_seen_to_work() -> None:
    suited = {n for n in ARCHITECTURES if DATAFLOW.architectures.fit(n) == "suits"}
    assert suited == {"NVIDIA"} and 0 not in DATAFLOW.suits["multiprocessors"]


@pytest.mark.parametrize(
    ("h", "b", "t", "waves"), [(8, 1, 257, 256), (2048, 1, 64, 32), (1 << 14, 1, 3, 1)]
)
def test_launches_read_little(h, b, t, waves) -> None:
    shapes = {"x": (1, t, b, 4, h), "weight": (1, 4, h, h), "state": (1, b, h // 4, 6, 4)}
    types = {name: TensorType(shape) for name, shape in shapes.items()}
    made = recurrent.dataflow(Recurrence(lstm(*BIASES)), types, {}, "compute")
    assert made.uniforms["most_waves"] == waves
    assert sum(not launch.brief for launch in made.launches) == -(-t // waves)


@pytest.mark.parametrize(
    ("layers", "samples", "h", "groups", "loads"),
    [
        # loads: how many of all parts of a step load their weights of one block of units
        (2, 1, 256, 132, 0),
        (1, 1, 512, 132, 0),
        (1, 1, 516, 132, 129),  # more than its lanes hold
        (2, 1, 260, 132, 130),  # upper layers have half of the lanes for each layer
        (2, 1, 256, 46, 128),  # three blocks each
        (3, 1, 256, 132, 192),  # two blocks each
        (2, 32, 256, 132, 0),  # four tiles of samples each, of one block
        (2, 40, 256, 132, 0),
        (2, 40, 256, 160, 192),  # three of five groups of four tiles have two blocks of five
        (2, 32, 260, 132, 4 * 130),
    ],
)
def test_weights_that_no_lane_keeps_are_counted(layers, samples, h, groups, loads) -> None:
    found = recurrent.reloaded_bytes(DATAFLOW.defaults, layers, samples, 4, h, groups)
    weights = (2 * layers - 1) * 4 * h * h
    assert found == 4 * loads * weights // (layers * h // 4)


def test_a_launch_has_its_share_of_the_work(opened) -> None:
    backend, shapes = opened("compute"), {"x": (1, 257, 1, 1, 8), "weight": (1, 1, 8, 8)}
    op = Recurrence((PLAIN[0],))
    spec = OpSpec.create(op, {**shapes, "state": (1, 1, 2, 1, 4)}, {})
    assert backend.launches(DATAFLOW, spec) == 2


def test_what_does_not_fit_is_refused() -> None:
    shapes = {"x": (1, 2, 3, 1, 8), "weight": (1, 1, 8, 8), "state": (1, 3, 2, 1, 4)}
    assert Recurrence(PLAIN).shape_of(shapes) == (2, 1, 3, 2, 1, 4)
    above = {**shapes, "weight": (3, 1, 8, 8), "state": (2, 3, 2, 1, 4)}
    assert Recurrence(PLAIN, layers=2).shape_of(above) == (2, 2, 3, 2, 1, 4)
    for wrong in (
        {"x": (1, 2, 3, 1, 7)},
        {"weight": (1, 5, 8, 8)},
        {"weight": (3, 1, 8, 8)},
        {"state": (1, 3, 8, 1)},
        {"state": (2, 3, 2, 1, 4)},
    ):
        with pytest.raises(ShapeError, match="recurrence"):
            Recurrence(PLAIN).shape_of({**shapes, **wrong})
    with pytest.raises(ShapeError, match="differ"):
        Recurrence(PLAIN, layers=2).shape_of(shapes)
    with pytest.raises(ShapeError, match="too little"):
        Recurrence(PLAIN, units=9).shape_of(shapes)
    for wrong in ({"exprs": ()}, {"summed": 1}, {"layers": 0}):
        with pytest.raises(ShapeError, match="no such"):
            Recurrence(**{"exprs": PLAIN, **wrong})
