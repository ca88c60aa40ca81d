"""Drivers that are wrong in silence: what they get wrong is found, and not used."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest

import glnn.ops
from glnn.backends import evaluate, open_backend
from glnn.backends.gl import GlBackend
from glnn.device import Program, Source
from glnn.errors import UnsupportedOpError
from glnn.kernels import library
from glnn.kernels.problem import Problem
from glnn.kernels.select import fitted, why_not_device, why_not_problem
from glnn.kernels.verdicts import Verdict, Verdicts
from glnn.ops import Activation, Conv2d, Matmul, Softmax
from tests.backends.harness import BACKENDS
from tests.backends.problems import PROBLEMS
from tests.oracle import error

SHADERS = [kernel for kernel in library() if not kernel.stages]
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
    op = Activation("sigmoid")
    evaluate(op, {"x": rng((64, 64))}, examined)
    ((key, before),) = examined.verdicts.found.items()
    evaluate(op, {"x": rng((32, 64))}, examined)
    assert examined.verdicts.found == {key: before}, "a smaller one need not be seen"
    evaluate(op, {"x": rng((640, 640))}, examined)
    assert examined.verdicts.found[key].largest > before.largest


def test_what_is_always_wrong_is_not_used(examined, rng, monkeypatch) -> None:
    monkeypatch.setattr(Program, "dispatch", lambda *_: None)
    monkeypatch.setattr(Program, "capture", lambda *_: None)
    op, operands, _ = gemm(rng)
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(op, operands, examined)
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(op, operands, examined, "blocked" if examined.name == "compute" else "feedback")


def test_another_kernel_stands_in(examined, rng, monkeypatch) -> None:
    op, operands, expected = gemm(rng)
    shapes = {name: array.shape for name, array in operands.items()}
    first = examined.choose(op, shapes, {})
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
    assert "are wrong" in str(examined.why_not(op, shapes, first.name))


@pytest.mark.parametrize("kernel", SHADERS, ids=[f"{k.op}-{k.name}" for k in SHADERS])
def test_what_is_right_is_used(opened, kernel, monkeypatch, tmp_path) -> None:
    """On a driver that the other tests find right, no kernel is refused, whatever is among x."""
    backend = _anew(opened(kernel.backend), monkeypatch, tmp_path)
    offers = backend.device.capabilities
    kernel = fitted(kernel, offers) or kernel
    if reason := why_not_device(kernel, offers):
        pytest.skip(reason)
    seen = 0
    for op, shapes in PROBLEMS[kernel.op]:
        problem = Problem.of(op, shapes, {})
        if why_not_problem(kernel, problem) is None:
            backend.examine([(kernel, problem)])
            seen += 1
    assert seen and len(backend.verdicts.found) >= 1
    assert [one.notable for one in backend.verdicts.seen() if one.notable] == []


@pytest.mark.parametrize("op", [Activation("relu"), Activation("sigmoid"), Softmax()], ids=str)
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
        got = evaluate(op, {"x": x}, examined)
    except UnsupportedOpError as refused:
        assert "are wrong" in str(refused)
    else:  # this driver's own max and exp keep NaN
        assert np.isnan(got).all()


def test_a_convolution_of_one_image(examined, rng, lossy) -> None:
    x, weight = rng((1, 20, 40, 40)), rng((24, 20, 3, 3))
    op = Conv2d(padding=(1, 1, 1, 1))
    got = evaluate(op, {"x": x, "weight": weight}, examined)
    expected = op.reference({"x": x.astype("f8"), "weight": weight.astype("f8")})
    assert error(got, expected) <= 1e-5


def test_trust_leaves_it_out(examined, backend, rng, monkeypatch, lossy) -> None:
    monkeypatch.setenv("GLNN_TRUST", "1")
    trusting = BACKENDS[backend.name](backend.device)
    op, operands, _ = gemm(rng)
    kernel = "cross_rm_rm" if trusting.name == "compute" else "feedback"
    evaluate(op, operands, trusting, kernel)
    assert not trusting.verdicts.found and max(lossy) > MOST


def test_a_backend_without_a_device_needs_no_verdicts(rng) -> None:
    assert not open_backend("cpu").examine([])
    np.testing.assert_allclose(
        glnn.ops.matmul(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), backend="cpu"),
        np.eye(3),
    )


@pytest.mark.parametrize("value", [{"largest": -1}, {"part": 0}, {"pace": float("nan")}])
def test_a_verdict_that_makes_no_sense(value) -> None:
    with pytest.raises(ValueError, match="expected at least"):
        Verdict(**value)


def test_a_file_with_other_content_is_passed_over(backend, tmp_path) -> None:
    offers = backend.device.capabilities
    kept = Verdicts.load(tmp_path, offers, "1")
    kept.keep({"a": Verdict(3, 2)})
    assert Verdicts.load(tmp_path, offers, "1").found == {"a": Verdict(3, 2)}
    assert not Verdicts.load(tmp_path, offers, "2").found
    path = kept.file.path
    assert path is not None
    text = json.loads(path.read_text("utf-8"))
    text["verdicts"]["a"]["largest"] = "many"
    path.write_text(json.dumps(text), "utf-8")
    with pytest.warns(UserWarning, match="damaged"):
        assert not Verdicts.load(tmp_path, offers, "1").found
