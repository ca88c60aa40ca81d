"""Whatever a check of the doctor's raises, the doctor ends with a verdict and names the check."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterator
from dataclasses import replace

import moderngl
import pytest

from glnn import __version__
from glnn.backends.feedback import Feedback
from glnn.doctor import limits, speed
from glnn.doctor.examination import Certificates, ExaminationScope, examine_device
from glnn.doctor.function_accuracy import run
from glnn.doctor.limit_probes import probes
from glnn.doctor.limits import probe_limits
from glnn.doctor.report import advice
from glnn.doctor.speed import measure_speed
from glnn.errors import (
    DeviceError,
    GlnnError,
    LayoutError,
    LimitError,
    ModelError,
    ShaderError,
    ShapeError,
    UnsupportedOpError,
)
from glnn.gl import Device
from tests.cli.conftest import Glnn, cli

__all__ = ["cli"]  # a fixture

ERRORS = [
    KeyError("y_row"),
    ValueError("no"),
    RuntimeError("two\nlines"),
    MemoryError(),
    AssertionError(),
    IndexError("no"),
    TypeError("no"),
    AttributeError("no"),
    NotImplementedError(),
    ZeroDivisionError("no"),
    RecursionError("no"),
    StopIteration(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
    OSError(errno.ENOSPC, "no space"),
    struct.error("no"),
    moderngl.Error("no"),
    DeviceError("GL_INVALID_OPERATION"),
    GlnnError("no"),
    LayoutError("no"),
    LimitError("no"),
    ModelError("no"),
    ShaderError("no"),
    ShapeError("no"),
    UnsupportedOpError("no"),
    Warning("no"),
]
SCOPE = ExaminationScope(("feedback",), ("pack",), ("abs", "exp"))
LISTING = {
    "opening": "glnn.doctor.examination.GL",
    "functions": "glnn.doctor.examination.function_checks",
    "kernels": "glnn.doctor.examination.kernels_of",
    "versions of a kernel": "glnn.doctor.kernel_accuracy._versions",
    "problems": "glnn.doctor.kernel_accuracy._problems",
    "reasons against a kernel": "glnn.doctor.kernel_accuracy.why_not",
    "an empty list of verdicts": "glnn.doctor.examination.KernelDoctor",
    "fingerprints": "glnn.doctor.examination.fingerprints",
    "verdicts on disk": "glnn.doctor.examination.Verdicts.load",
}
"""What is called before and after kernels and functions are looked at."""
LOOKING = {
    "the first look": "glnn.doctor.kernel_accuracy.examine",
    "the sizes": "glnn.doctor.kernel_accuracy.Form.large",
    "other problems": "glnn.doctor.kernel_accuracy.Form.specs",
    "a problem": "glnn.doctor.kernel_accuracy.Trial",
}
"""What is called as a kernel is looked at."""
MEASURES = ("speed._launching", "speed._transfer", "speed._compiling", "speed._room")
MEASURES += ("speed._on_device_seconds", "speed._by_numpy", "speed._run_seconds")

errors = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@pytest.fixture(autouse=True)
def cached(monkeypatch, tmp_path):
    """A cache of its own, and a check before first uses as users have it."""
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    monkeypatch.setenv("GLNN_TRUST", "0")
    return tmp_path


@pytest.fixture(scope="module")
def own() -> Iterator[Device]:
    with Device() as device:
        yield device


class _Raises:
    """Raises an error where it is called, or asked for an item."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *given, **named):
        raise self.error.with_traceback(None)

    def __getitem__(self, name):
        raise self.error.with_traceback(None)


def _certified(own: Device, folder) -> bool:
    return bool(Certificates.load(folder, own.capabilities, __version__).found)


@errors
@pytest.mark.parametrize("stage", LISTING)
def test_what_is_listed_and_kept(own, cached, monkeypatch, stage, error) -> None:
    with monkeypatch.context() as context:
        context.setattr(LISTING[stage], _Raises(error))
        seen = examine_device(own, SCOPE)
    if isinstance(error, OSError) and stage == "fingerprints":
        assert seen.not_kept and "cannot be written" in seen.not_kept
        return
    assert not seen.ok and seen.failed
    assert all(one.step and type(error).__name__ in one.error for one in seen.failed)
    assert not any(one.wrong for one in seen.functions + seen.kernels)
    assert seen.to_json()["no_verdict"] and not _certified(own, cached)
    assert bool(seen.functions) == (stage not in ("opening", "functions", "verdicts on disk"))


@errors
@pytest.mark.parametrize("stage", LOOKING)
def test_a_kernel_that_raises(own, cached, monkeypatch, stage, error) -> None:
    monkeypatch.setattr(LOOKING[stage], _Raises(error))
    seen = examine_device(own, SCOPE)
    (kernel,) = seen.kernels
    assert not any(one.wrong for one in seen.functions)
    if isinstance(error, LimitError):  # it cannot be asked for so much: that is nobody's fault
        assert seen.ok and kernel.left and not kernel.wrong
    elif isinstance(error, (DeviceError, MemoryError)):
        assert not seen.ok and not kernel.wrong
        assert {type(error).__name__ in one.error for one in seen.failed} == {True}
        assert {"pack by " in one.step and "feedback" in one.step for one in seen.failed} == {True}
        assert not _certified(own, cached)
    else:
        assert not seen.ok and kernel.outcome == "not used" and not seen.failed
        named = "does not compile" if isinstance(error, ShaderError) else type(error).__name__
        assert named in kernel.reason and _certified(own, cached)


@errors
def test_a_function_that_raises(own, cached, monkeypatch, error) -> None:
    monkeypatch.setattr("glnn.doctor.function_accuracy.run", _Raises(error))
    seen = examine_device(own, SCOPE)
    assert not seen.ok
    if isinstance(error, MemoryError):
        assert not seen.functions and not seen.kernels[0].wrong
        steps = [one.step for one in seen.failed]
        assert "exp of float32 on feedback" in steps and "abs of int32 on feedback" in steps
        assert not _certified(own, cached)
    else:
        assert {one.name for one in seen.functions if one.wrong} == {"abs", "exp"}


def test_one_function_without_memory_keeps_the_verdicts_on_others(own, monkeypatch) -> None:
    def short(backend, functions, given, prelude=""):
        if any("f_exp" in value for _, value in functions):
            raise MemoryError
        return run(backend, functions, given, prelude)

    monkeypatch.setattr("glnn.doctor.function_accuracy.run", short)
    seen = examine_device(own, SCOPE)
    assert {one.name for one in seen.functions} == {"abs"} and not seen.functions[0].wrong
    assert [one.step for one in seen.failed] == ["exp of float32 on feedback"]


def test_a_reset_at_a_function_ends_what_is_looked_at(cached, monkeypatch) -> None:
    def reset(backend, functions, given, prelude=""):
        raise backend.device._lose("dispatch", "guilty")

    monkeypatch.setattr("glnn.doctor.function_accuracy.run", reset)
    with Device() as device:
        seen = examine_device(device, SCOPE)
    assert seen.lost is not None and "was reset by its driver" in seen.lost
    assert not seen.ok and seen.failed == () and not seen.kernels


@errors
@pytest.mark.parametrize(
    "place", ["glnn.doctor.kernel_accuracy.examine", "glnn.validation.examination.Trial"]
)
def test_a_reset_at_a_kernel_says_nothing_of_it(cached, monkeypatch, place, error) -> None:
    """Whatever is raised then: a limit, a shader that is refused, a fault of glnn's own."""

    def reset(backend, *given, **named):
        backend.device._lose("dispatch", "guilty")
        raise error.with_traceback(None)

    monkeypatch.setattr(place, reset)
    _lost_at_a_kernel(cached)


def test_a_reset_at_a_kernel_that_raises_nothing(cached, monkeypatch) -> None:
    def reset(backend, *given, **named):
        backend.device._lose("dispatch", "guilty")
        return False

    monkeypatch.setattr("glnn.doctor.kernel_accuracy.examine", reset)
    _lost_at_a_kernel(cached)


def _lost_at_a_kernel(cached) -> None:
    """The doctor looks at a kernel, of which nothing is said but that the context was reset."""
    with Device() as device:
        seen = examine_device(device, ExaminationScope(("feedback",), ("pack",), full=True))
        (kernel,) = seen.kernels
        assert seen.lost is not None and "on feedback: " in seen.lost
        assert "was reset by its driver" in seen.lost
        assert not seen.ok and seen.failed == () and kernel.left and not kernel.wrong
        assert not _certified(device, cached)


@errors
@pytest.mark.parametrize(
    "stage", ["ScratchSpace", "_LimitSearch._try", "_LimitSearch._greatest", "_broken_limit"]
)
def test_a_limit_that_raises(own, monkeypatch, stage, error) -> None:
    before, others = own.capabilities, ("max_texture_size", "max_vertex_uniform_components")
    few = [replace(one, grain=2) for one in probes() if one.limit in others]
    monkeypatch.setattr(limits, "probes", lambda: few)
    if stage == "_broken_limit":  # of a limit that does not hold
        wrong = replace(few[0], work=lambda ground, count: "no")
        monkeypatch.setattr(limits, "probes", lambda: [wrong])
    monkeypatch.setattr(f"glnn.doctor.limits.{stage}", _Raises(error))
    try:
        found = probe_limits(own)
    finally:
        own.capabilities = before
    assert not found.ok and found.to_json()["no_verdict"]
    assert all(type(error).__name__ in one.error for one in found.failed)
    assert len(found.failed) == len(limits.probes())
    assert len(found.wrong) == (stage == "_broken_limit")


@pytest.fixture
def little(monkeypatch) -> None:
    """Little is measured."""
    monkeypatch.setattr(speed, "IMAGE", 4)
    monkeypatch.setattr(speed, "ENOUGH", 0.0)
    monkeypatch.setattr(speed, "ROOM", 16 << 20)
    monkeypatch.setattr(speed, "waiting", lambda: 1.0)


@errors
@pytest.mark.usefixtures("little")
def test_what_cannot_be_measured_is_left_out(own, monkeypatch, error) -> None:
    monkeypatch.setattr(speed, "IMAGES", (1,))
    for name in MEASURES:
        monkeypatch.setattr(f"glnn.doctor.{name}", _Raises(error))
    found = measure_speed(own, sides=(8,), sizes=(4096,))
    assert found.launches == found.transfers == found.compiling == () and found.room is None
    assert not any(one.on_device or one.in_all for one in found.contests)
    steps = " ".join(one.step for one in found.failed)
    for what in ("launches on feedback", "moving 4096 bytes", "compiling on feedback", "memory"):
        assert f"speed: {what}" in steps
    assert "matmul 8, operands in place on feedback" in steps and "lenet 1, in all on cpu" in steps
    assert all(type(error).__name__ in one.error for one in found.failed)
    assert len(found.lines()) == 1 and set(advice(found)) == set(
        advice(replace(found, contests=()))
    )


@errors
@pytest.mark.usefixtures("little")
def test_a_backend_that_does_not_open_is_not_measured(own, monkeypatch, error) -> None:
    monkeypatch.setattr(speed, "IMAGES", ())
    monkeypatch.setattr(speed, "open_backend", _Raises(error))
    found = measure_speed(own, sides=(), sizes=(4096,))
    assert found.launches == () and found.room is not None
    assert bool(found.failed) == (not isinstance(error, DeviceError))


PLACES = {
    "the machine": "glnn.cli.doctor.describe_machine",
    "limits": "glnn.cli.doctor.probe_limits",
    "speed": "glnn.cli.doctor.measure_speed",
}


@errors
@pytest.mark.parametrize("what", PLACES)
def test_the_command_says_it(cli: Glnn, monkeypatch, cached, what, error) -> None:
    for name in ("function_checks", "kernels_of"):
        monkeypatch.setattr(f"glnn.doctor.examination.{name}", lambda *given: [])
    monkeypatch.setattr(limits, "probes", lambda: [])
    monkeypatch.setattr("glnn.cli.doctor.measure_speed", lambda *given, **named: None)
    monkeypatch.setattr(PLACES[what], _Raises(error))
    report = cached / "report.txt"
    shown = cli("doctor", "--backend", "feedback", "--json", "--report", str(report))
    found = json.loads(shown.out)
    assert (shown.code, shown.err, found["ok"]) == (1, "", False)
    (one,) = found["no_verdict"]
    assert one["step"] == what and type(error).__name__ in one["error"]
    said = f"{what}: no verdict: {one['error']}."
    verdict = "Nothing wrong was seen, but there is no verdict on 1 check."
    assert said in found["sentences"] and found["sentences"][-1] == verdict
    assert said in report.read_text("utf-8") and verdict in report.read_text("utf-8")


STOPS = [*LISTING.values(), *LOOKING.values(), "glnn.doctor.function_accuracy.run"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", STOPS)
def test_ctrl_c_still_ends_the_doctor(own, cached, monkeypatch, place, stop) -> None:
    monkeypatch.setattr(place, _Raises(stop()))
    with pytest.raises(stop):
        examine_device(own, SCOPE)
    assert not [*cached.glob("certificates/*")]


def test_ctrl_c_ends_limits_and_speed(own, monkeypatch) -> None:
    monkeypatch.setattr(limits, "ScratchSpace", _Raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        probe_limits(own)
    monkeypatch.setattr(speed, "_launching", _Raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        measure_speed(own)


def test_a_backend_that_does_not_open_for_a_reason_is_no_fault(own, monkeypatch) -> None:
    monkeypatch.setattr(Feedback, "why_not_device", lambda device: "there is none")
    with pytest.raises(DeviceError, match="feedback: there is none"):
        examine_device(own, SCOPE)
