"""Drivers that are wrong in silence: what they get wrong is found, and not used."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest
from onnx import helper

import glnn.ops
from glnn import InferenceSession
from glnn.backends.gl import GlBackend
from glnn.compiler import evaluate
from glnn.core.types import DType, TensorType
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.errors import DeviceError, UnsupportedOpError
from glnn.gl import Program, Source
from glnn.graph.epilogue import Prologue
from glnn.graph.expression import Arg, call
from glnn.graph.index_map import Axis
from glnn.graph.operators import (
    CacheUpdate,
    Conv2d,
    Conv2dInputGradient,
    Expand,
    Matmul,
    Pointwise,
    Rearrange,
    Reduce,
    Softmax,
)
from glnn.graph.operators.gather import Gather
from glnn.kernels import library
from glnn.kernels.capability_check import fitted, why_not_device
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.kernels.verdicts import Verdict, Verdicts
from glnn.validation.examination import Trial, examine_choices
from tests.backends.harness import BACKENDS, taken
from tests.doctor_operands import numbers
from tests.oracle import error

pytestmark = pytest.mark.usefixtures("by_methods")

RELU, SIGMOID = (Pointwise(call(name, Arg(0))) for name in ("relu", "sigmoid"))
SHADERS = [kernel for kernel in library() if not kernel.stages]
KEY = "compute matmul tiled 0123456789abcdef ACTIVATION=0 depth=64"
MOST = 300  # of a launch: beyond, these drivers are wrong


@pytest.fixture
def examined(backend, monkeypatch, tmp_path) -> GlBackend:
    """A backend that has seen no kernel yet, and keeps what it sees."""
    return _anew(backend, monkeypatch, tmp_path)


def _anew(backend, monkeypatch, cache) -> GlBackend:
    monkeypatch.setenv("GLNN_TRUST", "0")
    monkeypatch.setenv("GLNN_CACHE", str(cache))
    return BACKENDS[backend.name](backend.device)


@pytest.fixture
def lossy(monkeypatch) -> list[int]:
    """A driver that begins anew at MOST vertices or workgroups, as softpipe does at 4,096.

    The list holds the sizes of its launches.
    """
    sizes: list[int] = []
    dispatch, capture = Program.dispatch, Program.capture

    def dispatched(self, groups):
        sizes.append(prod(groups))
        few = max(min(groups[0], MOST) // 2, 1), 1, 1
        dispatch(self, groups if prod(groups) <= MOST else few)

    def captured(self, array, vertices, instances, out, first=0, offset=0):
        sizes.append(vertices)
        capture(self, array, min(vertices, MOST), instances, out, first, offset)
        for start in range(MOST, vertices, MOST):
            count = min(MOST, vertices - start)
            capture(self, array, count, 1, out, 0, offset + start * self.stride)

    monkeypatch.setattr(Program, "dispatch", dispatched)
    monkeypatch.setattr(Program, "capture", captured)
    return sizes


def test_nothing_that_is_read_lies_where_results_are_captured(examined, rng, monkeypatch) -> None:
    if examined.name != "feedback":
        pytest.skip("dispatches may write where they read")
    capture = Program.capture

    def captured(self, array, vertices, instances, out, first=0, offset=0):
        out.write(np.full(self.stride * vertices * instances // 4, np.nan, "f4"), offset=offset)
        capture(self, array, vertices, instances, out, first, offset)

    monkeypatch.setattr(Program, "capture", captured)
    cache, x = rng((98, 24)), rng((64, 40))
    places = np.arange(64, dtype=np.int32)[::-1].copy()
    operands = {"x": x, "cache": cache, "places": places}
    got = evaluate(CacheUpdate(3, 4, 98, 1, 20), operands, examined)
    (seen,) = examined.verdicts.seen()
    assert seen.verdict.wrong is None
    expected = cache.copy()
    expected[places] = np.concatenate((x[:, 1:13], x[:, 20:32]), axis=1)
    np.testing.assert_array_equal(got, expected)


def gemm(rng) -> tuple[Matmul, dict[str, np.ndarray], np.ndarray]:
    operands = {"x": rng((1000, 40)), "weight": rng((120, 40))}
    return Matmul(), operands, operands["x"].astype("f8") @ operands["weight"].T.astype("f8")


def test_large_launches_that_are_wrong_are_made_in_parts(examined, rng, lossy) -> None:
    op, operands, expected = gemm(rng)
    kernel = "cross_rm_rm" if examined.name == "compute" else "feedback"
    got = evaluate(op, operands, examined, kernel)
    assert error(got, expected) <= 1e-5
    (seen,) = [one for one in examined.verdicts.seen() if one.kernel == kernel]
    verdict = seen.verdict
    assert seen.notable == f"in launches of {verdict.part} at most"
    assert verdict.part is not None and 64 <= verdict.part <= MOST and verdict.wrong is None
    before = len(lossy)
    assert error(evaluate(op, operands, examined, kernel), expected) <= 1e-5
    assert max(lossy[before:]) <= MOST, "what is known to be wrong was launched again"


def test_a_verdict_outlives_the_process(examined, backend, rng, lossy, monkeypatch, tmp_path):
    op, operands, _ = gemm(rng)
    evaluate(op, operands, examined)
    (path,) = tmp_path.glob("verdicts/*.json")
    assert json.loads(path.read_text("utf-8"))["verdicts"]
    again = _anew(backend, monkeypatch, tmp_path)
    assert again.verdicts.found == examined.verdicts.found
    seen = len(lossy)
    evaluate(op, operands, again)
    assert max(lossy[seen:]) <= MOST


def test_a_larger_launch_is_seen_anew(examined, rng) -> None:
    op = SIGMOID
    evaluate(op, {"x0": rng((64, 64))}, examined)
    ((key, before),) = examined.verdicts.found.items()
    evaluate(op, {"x0": rng((32, 64))}, examined)
    assert examined.verdicts.found == {key: before}, "a smaller one need not be seen"
    evaluate(op, {"x0": rng((640, 640))}, examined)
    assert examined.verdicts.found[key].right > before.right


@pytest.fixture
def looks(monkeypatch) -> list[bool]:
    """Whether special values were among the operands, of each look at a kernel."""
    found: list[bool] = []
    look = Trial.look

    def looked(self, *asked):
        found.append(self._case.special_values)
        return look(self, *asked)

    monkeypatch.setattr(Trial, "look", looked)
    return found


def test_launches_that_grow_are_seen_once(examined, looks) -> None:
    """The largest comes first, and it covers the others."""
    specs = [OpSpec.create(SIGMOID, {"x0": (rows, 64)}, {}) for rows in (64, 640, 128)]
    assert not examine_choices(examined, [(examined.choose(one), one) for one in specs])
    assert looks == [True, False]


def test_a_larger_launch_of_sums_that_were_seen_needs_no_special_values(examined, looks) -> None:
    for rows in (64, 640):
        evaluate(SIGMOID, {"x0": np.ones((rows, 64), np.float32)}, examined)
    assert looks == [True, False, False]


def test_sums_of_several_lengths_are_seen_in_one_large_launch(examined, looks) -> None:
    """Each length is seen with few results; how large a launch may be depends on the program."""
    name = "cross_rm_rm" if examined.name == "compute" else "feedback"
    shapes = [{"x": (rows, k), "weight": (64, k)} for rows, k in ((320, 512), (640, 128), (64, 96))]
    specs = [OpSpec.create(Matmul(), one, {}) for one in shapes]
    assert not examine_choices(examined, [(examined.choose(one, name), one) for one in specs])
    assert looks == [True, False, True]
    assert len(examined.verdicts.found) == 2


def test_depthwise_convolutions_of_any_channels_are_one_program(examined) -> None:
    name = "depthwise" if examined.name == "compute" else "feedback_depthwise"
    for c in (32, 64):
        spec = OpSpec.create(Conv2d(groups=c), {"x": (1, c, 9, 9), "weight": (c, 1, 3, 3)}, {})
        assert not examine_choices(examined, [(examined.choose(spec, name), spec)])
    assert len(examined.verdicts.found) == 1


def test_what_reaches_over_an_edge_is_seen_anew(examined, rng, monkeypatch) -> None:
    """A launch of whole groups says nothing of one whose last group has less to do."""
    evaluate(SIGMOID, {"x0": rng((64, 64))}, examined)
    ((key, before),) = examined.verdicts.found.items()
    assert [launch[3] for launch in before.right] == [0]
    small = rng((5, 11))
    with monkeypatch.context() as wrong:
        wrong.setattr(Program, "dispatch", lambda *_: None)
        wrong.setattr(Program, "capture", lambda *_: None)
        with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
            evaluate(SIGMOID, {"x0": small}, examined)
    examined.verdicts.found = {key: before}
    evaluate(SIGMOID, {"x0": rng((61, 63))}, examined)  # odd: cut short, and a seen size less
    after = examined.verdicts.found[key]
    assert [launch[3] for launch in after.right][-1] == 1
    evaluate(SIGMOID, {"x0": small}, examined)
    assert examined.verdicts.found == {key: after}, "smaller ones that are cut short are seen"


def test_launches_that_a_verdict_covers() -> None:
    verdict = Verdict().and_right((4, 4, 1, 0b10)).and_right((2, 2, 1, 0))
    assert verdict.covers((4, 4, 1, 0b10)) and verdict.covers((4, 4, 1, 0))
    assert not verdict.covers((4, 4, 1, 0b01)) and not verdict.covers((5, 1, 1, 0))
    assert Verdict(((2, 2, 1, 0),)).and_right((4, 4, 1, 0b10)).right == ((4, 4, 1, 0b10),)
    with pytest.raises(ValueError, match="three counts and the axes"):
        Verdict(((1, 2, 3),))  # type: ignore[arg-type]


def test_what_is_always_wrong_is_not_used(examined, rng, monkeypatch) -> None:
    monkeypatch.setattr(Program, "dispatch", lambda *_: None)
    monkeypatch.setattr(Program, "capture", lambda *_: None)
    op, operands, _ = gemm(rng)
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(op, operands, examined)
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(
            op, operands, examined, "gemm_blocked" if examined.name == "compute" else "feedback"
        )


def test_another_kernel_stands_in(examined, rng, monkeypatch) -> None:
    op, operands, expected = gemm(rng)
    spec = OpSpec.create(op, {name: array.shape for name, array in operands.items()}, {})
    first = examined.choose(spec)
    compile = examined.compile

    def wrong(source: Source) -> Program:
        program = compile(source)
        if program.name == f"matmul/{first.path.name}":
            monkeypatch.setattr(program, "dispatch", lambda *_: None)
            monkeypatch.setattr(program, "capture", lambda *_: None)
        return program

    monkeypatch.setattr(examined, "compile", wrong)
    monkeypatch.setattr(examined.device, "programs", {})
    assert error(evaluate(op, operands, examined), expected) <= 1e-5
    offers = examined.device.capabilities
    assert "are wrong" in str(why_not(first, spec, offers, examined.verdicts))
    assert examined.choose(spec).path != first.path


@pytest.mark.parametrize("kernel", SHADERS, ids=[f"{k.op}-{k.name}" for k in SHADERS])
def test_what_is_right_is_used(opened, kernel, monkeypatch, tmp_path) -> None:
    """On a driver that the other tests find right, no kernel is refused, whatever is among x.

    softpipe captures wrongly from the 4,097th vertex of a draw on: there draws may be in parts.
    """
    backend = _anew(opened(kernel.backend), monkeypatch, tmp_path)
    offers = backend.device.capabilities
    kernel = fitted(kernel, offers) or kernel
    if reason := why_not_device(kernel, offers):
        pytest.skip(reason)
    seen = 0
    for op, shapes, *rest in PROBLEMS[kernel.op]:
        spec = OpSpec.create(op, shapes, {}, *rest)
        one = taken(kernel, spec)
        if one and why_not_device(one, offers) is None:  # with the bindings of its operands
            examine_choices(backend, [(one, spec)])
            seen += 1
    assert seen and len(backend.verdicts.found) >= 1
    parts = {"in launches of 4096 at most"} if offers.software == "softpipe" else set()
    assert {one.notable for one in backend.verdicts.seen() if one.notable} <= parts


@pytest.mark.parametrize("op", [RELU, SIGMOID, Softmax()], ids=str)
def test_special_values_are_among_what_is_seen(examined, rng, monkeypatch, op) -> None:
    """A driver that loses NaN is found out, though it is right otherwise."""
    compile = examined.compile

    def losing(source: Source) -> Program:
        assert "is_nan" in source.text
        text = source.text.replace("is_nan(x)", "false").replace("is_nan(a)", "false")
        return compile(Source(source.name, text.replace("is_nan(b)", "false"), source.origin))

    monkeypatch.setattr(examined, "compile", losing)
    monkeypatch.setattr(examined.device, "programs", {})
    x = np.full((20, 30), np.nan, np.float32)
    try:
        got = evaluate(op, {op.names(1)[0]: x}, examined)
    except UnsupportedOpError as refused:
        assert "are wrong" in str(refused)
    else:  # this driver's own max and exp keep NaN
        assert np.isnan(got).all()


def test_the_sign_of_packed_bytes_is_among_what_is_seen(examined, monkeypatch) -> None:
    compile = examined.compile

    def losing(source: Source) -> Program:
        assert ") >> 24;" in source.text
        text = source.text.replace(") >> 24;", ") >> 24 & 127;")
        return compile(Source(source.name, text, source.origin))

    monkeypatch.setattr(examined, "compile", losing)
    monkeypatch.setattr(examined.device, "programs", {})
    bytes = TensorType((5,), DType.int8)
    spec = OpSpec.create(Pointwise(Arg(0)), {"x0": bytes}, {"x0": "packed"})
    assert examine_choices(examined, [(examined.choose(spec), spec)])
    with pytest.raises(UnsupportedOpError, match="are wrong"):
        examined.choose(spec)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5.0), ("uint8", 99), ("int32", -3)])
def test_what_is_the_same_for_all_small_numbers(examined, lossy, dtype, bound) -> None:
    """A comparison that is so tells nothing of where its numbers come from."""
    least, most = (0, 200) if dtype == "uint8" else (-8, 9)
    x = np.random.default_rng(0).integers(least, most, 40_000).astype(dtype)
    of = Arg(0) if dtype == "float32" else call("cast_int32", Arg(0))
    op = Pointwise(call("greater", of, bound))
    got = _unless_refused(examined, op, {"x0": x})
    if got is None:
        return
    assert max(lossy) > MOST or examined.name == "compute", "no launch was large enough"
    np.testing.assert_array_equal(got, x > bound)


def test_a_convolution_of_one_image(examined, rng, lossy) -> None:
    x, weight = rng((1, 20, 40, 40)), rng((24, 20, 3, 3))
    op = Conv2d(padding=(1, 1, 1, 1))
    got = evaluate(op, {"x": x, "weight": weight}, examined)
    expected = op.compute({"x": x.astype("f8"), "weight": weight.astype("f8")})
    assert error(got, expected) <= 1e-5


def test_products_of_several_images(examined, rng) -> None:
    """Each has numbers of its own that its rows are multiplied by: few rows are not all images."""
    if examined.name == "feedback":
        pytest.skip("no kernel takes a prologue")
    scaled = Prologue(call("mul", Arg(0), Arg(1)), ("image",))
    given = {"x": rng((30, 12)), "weight": rng((9, 12)), "p1": rng((2, 12))}
    got = evaluate(Matmul(scaled), given, examined)
    wide = {name: array.astype("f8") for name, array in given.items()}
    assert error(got, (wide["x"] * np.repeat(wide["p1"], 15, 0)) @ wide["weight"].T) <= 1e-5


def _unless_refused(backend, op, operands, kernel=None) -> np.ndarray | None:
    """The result, or None where it is said that the kernels are wrong."""
    try:
        return evaluate(op, operands, backend, kernel)
    except UnsupportedOpError as refused:
        assert "are wrong, off by" in str(refused)
        return None


def _right_or_refused(backend, op, operands, kernel=None) -> None:
    got = _unless_refused(backend, op, operands, kernel)
    if got is None:
        return
    expected = op.compute({name: array.astype("f8") for name, array in operands.items()})
    assert error(got, expected) <= 1e-5


@pytest.mark.parametrize("fault", ["launches", "sums"])
def test_larger_sizes_of_a_range_are_seen_anew(examined, rng, request, fault, monkeypatch) -> None:
    """A plan is made for sizes that are right, and run with such that are not."""
    if fault == "launches":
        request.getfixturevalue("lossy")
    else:
        write = Program.set

        def shortened(self, values):
            write(self, {**values, **{k: min(values[k], 1500) for k in "wh" if "oh" in values}})

        monkeypatch.setattr(Program, "set", shortened)
    pool = helper.make_node("GlobalAveragePool", ["x"], ["m"])
    nodes = [pool, helper.make_node("Sub", ["x", "m"], ["y"])]
    ends = [helper.make_tensor_value_info(one, 1, ["N", 2, "H", "W"]) for one in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), examined.name, device=examined.device)
    rows = 32 if examined.name == "compute" and fault == "launches" else 1
    for width in (512, 520, 516, 1999, 1900, 1700, 550):
        x = rng((1, 2, rows, width)) + 1
        try:
            (got,) = session.run(None, {"x": x})
        except UnsupportedOpError as refused:
            assert fault == "sums" and width > 1500 and "are wrong" in str(refused)
            continue
        assert error(got, x - x.astype("f8").mean((2, 3), keepdims=True)) <= 1e-5, width
    assert session._executor.range_plans


def test_stored_plans_are_for_sizes_that_were_looked_at(examined, rng, monkeypatch) -> None:
    """Of whole groups of threads alone nothing was seen of groups that are cut short."""
    pool = helper.make_node("GlobalAveragePool", ["x"], ["m"])
    nodes = [pool, helper.make_node("Sub", ["x", "m"], ["y"])]
    ends = [helper.make_tensor_value_info(one, 1, [1, 2, 8, "W"]) for one in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), examined.name, device=examined.device)
    session.run(None, {"x": rng((1, 2, 8, 64))})
    (plan,) = session._executor.range_plans
    with monkeypatch.context() as patch:
        patch.setattr(type(plan.validated_sizes), "_validate", lambda self, sizes: False)
        (exact,) = plan.validated_sizes.executable.symbols
        assert (exact.low, exact.high) == (64, 64)
    (symbol,) = plan.validated_sizes.executable.symbols
    assert symbol.low < 64 < symbol.high and symbol.high % 2


@pytest.mark.parametrize("rows", [5, 40])
def test_sums_that_end_early_where_they_are_long(examined, rng, monkeypatch, rows) -> None:
    """llvmpipe itself leaves a loop after some 65,535 turns."""
    write = Program.set

    def shortened(self, values):
        short = dict(values)
        if short.get("k", 0) > 1000:
            short["k"] = 1000
        write(self, short)

    monkeypatch.setattr(Program, "set", shortened)
    for k in (64, 3000, 900):
        operands = {"x": rng((rows, k)), "weight": rng((24, k))}
        _right_or_refused(examined, Matmul(), operands)


def test_what_is_sent_in_parts_while_it_is_seen(backend, rng, lossy, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GLNN_LAUNCH", "6e-4")
    watching = _anew(backend, monkeypatch, tmp_path)
    for m in (1000, 3000, 1000):
        _right_or_refused(watching, Matmul(), {"x": rng((m, 64)), "weight": rng((400, 64))})


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_driver_that_does_nothing(examined, rng, monkeypatch, name) -> None:
    """Even for one sample, of which NaN may spoil all, and whose result may be zeros."""
    monkeypatch.setattr(Program, "dispatch", lambda *_: None)
    monkeypatch.setattr(Program, "capture", lambda *_: None)
    for op, shapes, *rest in PROBLEMS[name]:
        spec = OpSpec.create(op, shapes, {}, *rest)
        if op.samples:
            whole = {k: one.shape for k, one in spec.types.items()}
            one = {
                k: (1, *size[1:]) if k in spec.sample_operands else size
                for k, size in whole.items()
            }
            spec = spec.resized(one)
        if examined.why_not(spec) is None:
            operands = numbers(rng, spec)
            with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
                evaluate(op, operands, examined, epilogue=spec.epilogue)


def test_moves_that_are_all_wrong(examined, rng, monkeypatch) -> None:
    """No kernel is left but one of another layout, in which only moves would put what it reads."""
    monkeypatch.setattr(Program, "dispatch", lambda *_: None)
    monkeypatch.setattr(Program, "capture", lambda *_: None)
    operands = {"dy": rng((1, 33, 7, 9)), "weight": rng((33, 16, 2, 2))}
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(Conv2dInputGradient((7, 9), (1, 1), (1, 0, 0, 1)), operands, examined)


def test_softmax_of_one_row(examined, rng, monkeypatch) -> None:
    monkeypatch.setattr(Program, "dispatch", lambda *_: None)
    monkeypatch.setattr(Program, "capture", lambda *_: None)
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(Softmax(), {"x": rng((1, 1000))}, examined)


def test_a_look_leaves_nothing_for_the_next(examined, rng, monkeypatch) -> None:
    """A driver that loses the end of a whole launch, and the beginning of one in parts."""
    dispatch, capture = Program.dispatch, Program.capture
    parts = 0

    def dispatched(self, groups):
        nonlocal parts
        size = prod(groups)
        parts = parts + 1 if size <= MOST // 2 else 0
        if parts != 1:
            few = (max(groups[0] // 2, 1), *groups[1:])
            dispatch(self, groups if size <= MOST // 2 else few)

    def captured(self, array, vertices, instances, out, first=0, offset=0):
        if vertices > MOST // 2:
            capture(self, array, vertices // 2, instances, out, first, offset)
        elif first or offset:
            capture(self, array, vertices, instances, out, first, offset)

    monkeypatch.setattr(Program, "dispatch", dispatched)
    monkeypatch.setattr(Program, "capture", captured)
    kernel = "scalar_nt" if examined.name == "compute" else "feedback"
    op, operands, _ = gemm(rng)
    _right_or_refused(examined, op, operands, kernel)


def test_another_shape_of_the_grid(examined, rng, monkeypatch) -> None:
    """A driver that loses workgroups beyond 20 along y: as many along x are right."""
    dispatch = Program.dispatch
    monkeypatch.setattr(
        Program, "dispatch", lambda self, g: dispatch(self, (g[0], min(g[1], 20), g[2]))
    )
    kernel = "scalar_nt" if examined.name == "compute" else "feedback"
    for m, n in ((8, 2000), (2000, 8)):
        operands = {"x": rng((m, 40)), "weight": rng((n, 40))}
        _right_or_refused(examined, Matmul(), operands, kernel)


def test_the_last_of_each_draw_is_lost(examined, rng, monkeypatch) -> None:
    """No part is right then, which is found out in a few looks."""
    looks = 0
    capture = Program.capture

    def captured(self, array, vertices, instances, out, first=0, offset=0):
        nonlocal looks
        looks += 1
        if vertices > 1:
            capture(self, array, vertices - 1, instances, out, first, offset)

    monkeypatch.setattr(Program, "capture", captured)
    monkeypatch.setattr(Program, "dispatch", lambda *_: None)
    op, operands, _ = gemm(rng)
    kernel = "scalar_nt" if examined.name == "compute" else "feedback"
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(op, operands, examined, kernel)
    assert looks < 200


def test_a_context_that_is_reset_while_a_kernel_is_seen(examined, rng, monkeypatch) -> None:
    op, operands, _ = gemm(rng)
    shapes = {name: array.shape for name, array in operands.items()}
    chosen = examined.choose(OpSpec.create(op, shapes, {}))

    def reset(*_):
        monkeypatch.setattr(examined.device, "lost", "reset")
        raise DeviceError("reset")

    monkeypatch.setattr(Program, "dispatch", reset)
    monkeypatch.setattr(Program, "capture", reset)
    with pytest.raises(DeviceError, match="reset"):
        evaluate(op, operands, examined)
    assert examined.choose(OpSpec.create(op, shapes, {})).name != chosen.name


def test_trust_leaves_it_out(examined, backend, rng, monkeypatch, lossy) -> None:
    monkeypatch.setenv("GLNN_TRUST", "1")
    trusting = BACKENDS[backend.name](backend.device)
    op, operands, _ = gemm(rng)
    kernel = "cross_rm_rm" if trusting.name == "compute" else "feedback"
    evaluate(op, operands, trusting, kernel)
    assert not trusting.verdicts.found and max(lossy) > MOST


def test_a_backend_without_a_device_needs_no_verdicts(rng) -> None:
    np.testing.assert_allclose(
        glnn.ops.matmul(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), backend="cpu"),
        np.eye(3),
    )


@pytest.mark.parametrize(
    "value", [{"part": 0}, {"pace": float("nan")}, {"right": ((-1, 1, 1),)}, {"right": ((1, 1),)}]
)
def test_a_verdict_that_makes_no_sense(value) -> None:
    with pytest.raises(ValueError, match="expected"):
        Verdict(**value)


def test_a_file_with_other_content_is_passed_over(backend, tmp_path) -> None:
    offers = backend.device.capabilities
    kept = Verdicts.load(tmp_path, offers, "1")
    kept.keep({KEY: Verdict(((3, 1, 1, 0),), 2)})
    assert Verdicts.load(tmp_path, offers, "1").found == {KEY: Verdict(((3, 1, 1, 0),), 2)}
    assert not Verdicts.load(tmp_path, offers, "2").found
    path = kept.file.path
    assert path is not None
    text = json.loads(path.read_text("utf-8"))
    text["verdicts"]["not a key"] = text["verdicts"][KEY]
    path.write_text(json.dumps(text), "utf-8")
    assert list(Verdicts.load(tmp_path, offers, "1").found) == [KEY]
    text["verdicts"][KEY]["right"] = [["many", 1, 1]]
    path.write_text(json.dumps(text), "utf-8")
    with pytest.warns(UserWarning, match="damaged"):
        assert not Verdicts.load(tmp_path, offers, "1").found


def test_operands_of_integers_are_looked_up_not_added(examined, rng) -> None:
    x, index = rng((20, 6)), np.array([3, -1, 0, 19], np.int32)
    got = evaluate(Gather(0), {"x": x, "index": index}, examined)
    np.testing.assert_array_equal(got, x[index])
    assert examined.verdicts.found


@pytest.mark.parametrize("dtype", ["int32", "bool", "float32"])
def test_a_cast_beside_floats(examined, rng, dtype) -> None:
    """What is cast to float32 stays that where the floats beside it are given in float64."""
    op = Pointwise(call("add", call("cast_float32", Arg(0)), Arg(1)))
    operands = {"x0": np.arange(6).reshape(2, 3).astype(dtype), "x1": rng((2, 3))}
    got = evaluate(op, operands, examined)
    np.testing.assert_array_equal(got, operands["x0"].astype(np.float32) + operands["x1"])
    assert all(verdict.wrong is None for verdict in examined.verdicts.found.values())


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Expand((9, 3, 5)), (9, 1, 5)),
        (Rearrange((9, 6), ((Axis(9, 0),), (Axis(3, 1, 0, 2), Axis(2, 1, 0, 1)))), (9, 6)),
    ],
)
def test_what_says_how_many_samples_it_has(examined, rng, op, shape) -> None:
    x = rng(shape)
    np.testing.assert_allclose(evaluate(op, {"x": x}, examined), op.reference(x)[0], rtol=1e-6)
    assert all(verdict.wrong is None for verdict in examined.verdicts.found.values())


@pytest.mark.parametrize("rows", [8, 26])
def test_a_program_that_fewer_samples_do_not_have(examined, rng, rows) -> None:
    """Of 7 samples four neighbours would be no vec4: all are looked at, special values among."""
    x = rng((rows, 1, 6))
    got = evaluate(Reduce("sum", (1,)), {"x0": x}, examined)
    np.testing.assert_array_equal(got, x[:, 0])
    assert all(verdict.wrong is None for verdict in examined.verdicts.found.values())


def test_what_float32_has_no_number_for_tells_nothing(examined, rng) -> None:
    """exp(104) - inf is NaN in float32, minus infinity in float64."""
    op = Pointwise(call("sub", call("exp", Arg(0)), call("mul", Arg(1), Arg(2))))
    shapes = {"x0": (13, 5), "x1": (13, 5), "x2": (1, 5)}
    operands = {name: rng(shape) for name, shape in shapes.items()}
    got = evaluate(op, operands, examined)
    np.testing.assert_allclose(got, op.reference(*operands.values())[0], rtol=1e-5, atol=1e-6)
    assert all(verdict.wrong is None for verdict in examined.verdicts.found.values())


def test_sizes_that_are_even_are_looked_at_once(examined, rng, monkeypatch) -> None:
    """A batch of two stays as the width grows: what was right for three of it is for two."""
    pool = helper.make_node("GlobalAveragePool", ["x"], ["m"])
    nodes = [pool, helper.make_node("Sub", ["x", "m"], ["y"])]
    ends = [helper.make_tensor_value_info(one, 1, ["N", 2, 8, "W"]) for one in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), examined.name, device=examined.device)
    session.run(None, {"x": rng((2, 2, 8, 40))})
    (plan,) = session._executor.range_plans
    kind, looked = type(plan.validated_sizes), list[tuple[int, ...]]()
    validate = kind._validate

    def counting(self, sizes):
        looked.append(sizes)
        return validate(self, sizes)

    monkeypatch.setattr(kind, "_validate", counting)
    for width in range(41, 80):
        session.run(None, {"x": rng((2, 2, 8, width))})
    assert 0 < len(looked) <= 4
    assert all(size % 2 for sizes in looked for size in sizes)
