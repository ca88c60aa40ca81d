"""Drivers that are wrong in a way of their own: a doctor finds that, and it is never used."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from glnn import __version__
from glnn.backends import open_backend
from glnn.backends.compute import Compute
from glnn.backends.feedback import Feedback
from glnn.compiler import evaluate
from glnn.doctor.checks import Checks
from glnn.doctor.examination import Certificates, ExaminationScope, examine_device, one_of_each
from glnn.doctor.function_accuracy import check_functions, function_checks
from glnn.doctor.kernel_accuracy import Form, KernelDoctor, forms
from glnn.doctor.report import faults, rows, summary
from glnn.errors import DeviceError, GlnnError, UnsupportedOpError
from glnn.gl import Device, Source
from glnn.graph.expression import Arg, call
from glnn.graph.operators import LocalResponseNorm, Pointwise, Softmax
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import (
    ALWAYS,
    Verdict,
    Verdicts,
    kernel_key,
    program_key,
    verdict_key,
)
from glnn.layers import Linear, Tanh
from glnn.model import Model
from glnn.session import InferenceSession
from glnn.validation.examination import examine_choices

NORM = ExaminationScope(("compute",), ("local_response_norm",))
ODD = "if (n == 3 && channel == 36) squares += 5.0;"  # a size that first uses need not have


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """A cache of its own, and a check before first uses as users have it."""
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    monkeypatch.setenv("GLNN_TRUST", "0")
    return tmp_path


@pytest.fixture
def own(cached) -> Iterator[Device]:
    """A device that nobody else has, with compute shaders."""
    with Device() as device:
        if not device.capabilities.compute:
            pytest.skip(device.capabilities.why_no_compute())
        yield device


def _replaced(monkeypatch, name: str, before: str, after: str) -> None:
    """A driver whose compute shaders from the file `name` do something else."""
    compile = Compute.compile

    def other(self, source: Source):
        lines = source.text.split("\n")
        for i, (file, _) in enumerate(source.origin):
            if file == name:
                lines[i] = lines[i].replace(before, after)
        return compile(self, Source(source.name, "\n".join(lines), source.origin))

    monkeypatch.setattr(Compute, "compile", other)


def test_a_kernel_that_is_wrong_in_some_sizes(own, cached, rng, monkeypatch) -> None:
    end = "result[image * out_row + element]"
    _replaced(monkeypatch, "local_response_norm/planar.comp", end, f"{ODD} {end}")
    found = examine_device(own, NORM)
    outcomes = {one.kernel: one.outcome for one in found.kernels}
    assert outcomes == {"planar": "not used", "nhwc": "right"} and not found.ok
    (said,) = faults(found)
    assert "local_response_norm by planar is wrong" in said and "(3, 37, 11, 9)" in said
    ((op, backend, right, parts, wrong, why),) = rows(found)
    assert (op, backend, right, parts, wrong) == ("local_response_norm", "compute", "1", "", "1")
    assert "planar" in why and "nhwc" not in why

    op, x = LocalResponseNorm(5, 0.5), rng((2, 37, 5, 7))
    backend = Compute(own)
    spec = OpSpec.create(op, {"x": x.shape}, {})
    assert backend.choose(spec).name == "nhwc"
    other = OpSpec.create(LocalResponseNorm(3, 2.0), {"x": (1, 4, 2, 2)}, {})  # another program
    with pytest.raises(UnsupportedOpError, match=r"planar: its results on .* are wrong"):
        backend.choose(other, "planar")
    expected = op.compute({"x": x.astype(np.float64)})
    np.testing.assert_allclose(evaluate(op, {"x": x}, backend), expected, rtol=1e-5)


def test_a_function_that_is_wrong_for_some_values(own, cached, rng, monkeypatch) -> None:
    before, after = "quotient = (1.0", "quotient = (abs(x) > 3.0 && abs(x) < 3.1 ? 0.5 : 1.0"
    _replaced(monkeypatch, "functions/tanh.glsl", before, after)
    scope = ExaminationScope(("compute",), ("pointwise",), ("tanh", "sigmoid", "exp", "abs"))
    found = examine_device(own, scope)
    wrong = [one for one in found.functions if one.wrong]
    assert [(one.name, one.dtype) for one in wrong] == [("tanh", "float32")]
    assert 3.0 < abs(wrong[0].fault.given[0]) < 3.1
    assert " units in the last place" in wrong[0].fault.text
    assert all(one.outcome == "right" for one in found.kernels)

    backend = Compute(own)
    gelu = call("mul", call("tanh", Arg(0)), Arg(1))
    for expr in (call("tanh", Arg(0)), gelu, call("gelu_tanh", Arg(0))):
        shapes = {f"x{i}": (3, 5) for i in range(expr.arity)}
        with pytest.raises(UnsupportedOpError, match="tanh of float32 is wrong"):
            backend.choose(OpSpec.create(Pointwise(expr), shapes, {}))
    assert backend.choose(OpSpec.create(Pointwise(call("sigmoid", Arg(0))), {"x0": (3, 5)}, {}))

    x = np.linspace(-4, 4, 77, dtype=np.float32).reshape(7, 11)
    net = Model.sequential([Linear(11, 11), Tanh()], (11,))
    (expected,) = InferenceSession(net, "cpu").run(None, {"input": x})
    try:
        (got,) = InferenceSession(net, "compute", device=own).run(None, {"input": x})
    except UnsupportedOpError as refused:
        assert "tanh of float32 is wrong" in str(refused)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_what_was_right_is_not_looked_at_again(own, cached, rng, monkeypatch) -> None:
    found = examine_device(own, NORM)
    assert (
        found.ok
        and found.not_kept is None
        and "local_response_norm" in next(summary(found)) + str(rows(found))
    )
    form = forms(Compute(own), ("local_response_norm",))[0]
    backend = Compute(own)
    assert backend.verdicts.find(form.kernel, form.spec, own.capabilities).right

    def unasked(*_):
        raise AssertionError("it was looked at again")

    monkeypatch.setattr("glnn.validation.examination.Trial", unasked)
    assert not examine_choices(backend, [(form.kernel, form.spec)])
    (kept,) = Certificates.load(
        cached, own.capabilities, backend.verdicts.file.version
    ).found.values()
    assert kept.holds and kept.looked == "local_response_norm" and not kept.wrong


def test_a_mended_driver_is_believed_again(own, cached, monkeypatch) -> None:
    with monkeypatch.context() as context:
        _replaced(context, "functions/tanh.glsl", "(1.0 - decay)", "(0.9 - decay)")
        assert not examine_device(own, ExaminationScope(("compute",), None, ("tanh",))).ok
    spec = OpSpec.create(Pointwise(call("tanh", Arg(0))), {"x0": (3, 5)}, {})
    assert Compute(own).why_not(spec)
    assert examine_device(own, ExaminationScope(("compute",), None, ("tanh",))).ok
    assert Compute(own).why_not(spec) is None


def test_what_a_first_use_saw_is_not_forgotten(own, cached) -> None:
    backend, offers = Compute(own), own.capabilities
    planar, nhwc = (
        next(one for one in forms(backend, NORM.ops) if one.kernel.name == name)
        for name in ("planar", "nhwc")
    )
    keys = [verdict_key(one.kernel, one.spec, offers) for one in (planar, nhwc)]
    kept = Verdict(wrong="off by 3"), Verdict(((5, 4, 3, 1),), part=64)
    backend.verdicts.keep(dict(zip(keys, kept, strict=True)))  # of sizes that no doctor has
    assert examine_device(own, NORM).ok
    backend = Compute(own)
    assert "off by 3" in str(backend.why_not(planar.spec, "planar"))
    found = backend.verdicts.find(nhwc.kernel, nhwc.spec, offers)
    assert found.part == 64 and found.covers((5, 4, 3, 1)) and len(found.right) == 2


@pytest.mark.parametrize("lost", [False, True])
def test_a_doctor_keeps_what_it_did_not_look_at_again(own, cached, monkeypatch, lost) -> None:
    backend, offers = Compute(own), own.capabilities
    form = forms(backend, NORM.ops)[-1]
    key = kernel_key(form.kernel)
    other = program_key(form.kernel, form.spec, offers).replace("SIZE=5", "SIZE=9")
    kept = {one: Verdict(wrong="off by 3") for one in (key, f"{other} {ALWAYS}")}
    backend.verdicts.keep(kept)
    if lost:

        def reset(self, form):
            raise self.backend.device._lose("dispatch", "guilty")

        monkeypatch.setattr(KernelDoctor, "look", reset)
    seen = examine_device(own, NORM)
    assert (seen.ok, seen.lost is None, seen.failed) == (not lost, not lost, ())
    stay = kept.keys() & Verdicts.load(cached, offers, __version__).found.keys()
    assert stay == kept.keys() - (set() if lost else {key})


def test_a_mended_kernel_is_believed_again(own, cached, monkeypatch) -> None:
    with monkeypatch.context() as context:
        end = "result[image * out_row + element]"
        wrong = f"squares += 5.0; {end}"
        _replaced(context, "local_response_norm/planar.comp", end, wrong)
        assert not examine_device(own, NORM).ok
    with Device() as mended:  # which has compiled nothing yet
        assert examine_device(mended, NORM).ok
        for form in forms(Compute(mended), NORM.ops):
            assert Compute(mended).why_not(form.spec, form.kernel.name) is None


def test_an_interruption_keeps_nothing(own, cached) -> None:
    def interrupted(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine_device(own, NORM, interrupted)
    assert not [*cached.glob("verdicts/*")] and not [*cached.glob("certificates/*")]


@pytest.mark.parametrize("damage", ["", "[]", '{"form": 1', "nested", "negative"])
def test_a_damaged_certificate_is_none(own, cached, damage) -> None:
    examine_device(own, ExaminationScope(("compute",), None, ("abs",)))
    (path,) = cached.glob("certificates/*.json")
    whole = json.loads(path.read_text("utf-8"))
    (key,) = whole["certificates"]
    whole["certificates"][key]["wrong"] = -1
    text = {"nested": "[" * 100000, "negative": json.dumps(whole)}.get(damage, damage)
    path.write_text(text, "utf-8")
    version = Verdicts.load(cached, own.capabilities, "x").file.version
    with pytest.warns(UserWarning, match="damaged"):
        version = open_backend("compute", own).verdicts.file.version
        assert not Certificates.load(cached, own.capabilities, version).found
    with pytest.warns(UserWarning, match="damaged"):
        examine_device(own, ExaminationScope(("compute",), None, ("abs",)))  # which gives a new one
    (kept,) = Certificates.load(cached, own.capabilities, version).found.values()
    assert kept.holds and kept.looked == "abs()"


def test_a_shader_that_does_not_compile(own, cached, monkeypatch) -> None:
    _replaced(monkeypatch, "functions/tanh.glsl", "float square", "floot square")
    looks = function_checks(("tanh", "exp"))
    found = {
        one.name: one for some in looks for one in check_functions(Compute(own), some, Checks())
    }
    assert "does not compile" in (found["tanh"].wrong or "") and found["exp"].wrong is None


RAISED = [KeyError("y_row"), ValueError("no"), AssertionError(), RuntimeError("two\nlines")]
RAISED += [IndexError("no"), TypeError("no"), OSError("no"), ZeroDivisionError("no")]


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_kernel_that_raises_is_not_used(own, cached, monkeypatch, error) -> None:
    def raising(*given):
        raise error

    monkeypatch.setattr("glnn.doctor.kernel_accuracy.examine", raising)
    seen = examine_device(own, NORM)
    assert not seen.ok and seen.not_kept is None
    assert {one.outcome for one in seen.kernels} == {"not used"}
    assert all(type(error).__name__ in one.reason for one in seen.kernels)
    assert Certificates.load(cached, own.capabilities, __version__).found


@pytest.mark.parametrize("error", [MemoryError(), DeviceError("GL_INVALID_OPERATION")], ids=repr)
def test_what_says_nothing_of_a_kernel_is_no_verdict(own, cached, monkeypatch, error) -> None:
    def raising(*given):
        raise error

    monkeypatch.setattr("glnn.doctor.kernel_accuracy.examine", raising)
    seen = examine_device(own, NORM)
    assert {one.outcome for one in seen.kernels} == {"not looked at"}


def test_a_doctor_can_be_stopped(own, cached, monkeypatch) -> None:
    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("glnn.doctor.kernel_accuracy.examine", stopped)
    with pytest.raises(KeyboardInterrupt):
        examine_device(own, NORM)


@pytest.mark.parametrize("error", [KeyError("x"), DeviceError("GL_INVALID_OPERATION")], ids=repr)
def test_a_function_that_raises_is_not_used(own, cached, monkeypatch, error) -> None:
    def raising(*given):
        raise error

    monkeypatch.setattr("glnn.doctor.function_accuracy.run", raising)
    seen = examine_device(own, ExaminationScope(("compute",), None, ("tanh", "exp")))
    assert {one.name for one in seen.functions if one.wrong} == {"tanh", "exp"}


def test_a_quick_look_has_fewer_sizes_and_smaller_dispatches(own) -> None:
    for backend in (Compute(own), Feedback(own)):
        forms_ = [form for form in forms(backend, ("pool2d",)) if form.first]
        assert forms_
        for form, quick in zip(forms_, one_of_each(forms_), strict=True):
            large, less = (math.prod(one.large(backend).result_shape) for one in (form, quick))
            assert less < large if backend.name == "compute" else less == large > 100_000
            sizes, fewer = ({*one.specs(backend)} for one in (form, quick))
            assert quick.spec in fewer < sizes


def test_stages_are_held_together(own, cached, monkeypatch) -> None:
    backend = Compute(own)
    some = [one for one in forms(backend, ("softmax",)) if one.name]
    assert some and isinstance(some[0], Form)
    doctor = KernelDoctor(backend, {})
    doctor.look(some[0])
    compute = Softmax.compute
    monkeypatch.setattr(Softmax, "compute", lambda self, given: compute(self, given) * 1.1)
    doctor.look(some[1])
    first, *_ = doctor.results.values()
    assert "off by" in first.reason and list(first.wrong) == [some[1].what]
    assert backend.why_not(some[1].spec, some[1].name) is not None


def test_what_there_is_not() -> None:
    for scope, said in (
        ({"ops": ("matmal",)}, "--op"),
        ({"functions": ("tan2",)}, "--function"),
        ({"backends": ("cpu",)}, "--backend"),
        ({"backends": ()}, "--backend"),
    ):
        with pytest.raises(GlnnError, match=f"{said}: expected one .*of .* got"):
            ExaminationScope(**scope)


@pytest.mark.skipif(not os.environ.get("GLNN_EXHAUSTIVE"), reason="make check-doctor has it")
@pytest.mark.parametrize("driver", ["llvmpipe", "softpipe"])
def test_a_whole_doctor(tmp_path, driver) -> None:
    """Afterwards no first use is looked at again that it saw, and no result is wrong."""
    environment = {"LIBGL_ALWAYS_SOFTWARE": "1", "GALLIUM_DRIVER": driver, "GLNN_TRUST": "0"}
    environment = {**os.environ, **environment, "GLNN_CACHE": str(tmp_path), "GLNN_DEBUG": "0"}

    def glnn(*arguments: str) -> tuple[int, dict[str, Any]]:
        asked = [sys.executable, "-m", "glnn", *arguments, "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout)

    code, found = glnn("doctor", "--no-speed")
    assert code == (not found["ok"]) and not any(one["wrong"] for one in found["functions"])
    assert {one["backend"] for one in found["kernels"]} == {"compute", "feedback"}
    parts = [one["part"] for one in found["kernels"] if one["part"] is not None]
    assert bool(parts) == (driver == "softpipe")
    if parts:
        said = [one for one in found["sentences"] if "feedback captures wrongly" in one]
        assert len(said) == 1 and all(part <= 16400 for part in parts)
    for backend in ("compute", "feedback"):
        code, shown = glnn("run", "lenet", "--backend", backend)
        assert (code, shown["accuracy"]) == (0, 0.991)
