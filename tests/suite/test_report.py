"""`glnn bench --suite`: what is in the report, and that nobody is named in it."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from glnn.doctor.checks import NoVerdict
from glnn.doctor.examination import Examination, ExaminationScope
from glnn.doctor.kernel_accuracy import KernelResult
from glnn.errors import DeviceError
from glnn.gl import Device
from glnn.model import Model
from glnn.profiling import timing
from glnn.profiling.onnxruntime_peer import PEER
from glnn.suite import measure
from glnn.suite.decoder import CONFIG
from glnn.suite.measure import RunTime, SuiteParts, SuiteResult, measure_suite
from glnn.suite.networks import SuiteNetwork, gru, lenet
from glnn.suite.report import FORMAT, doctor_faults, suite_report
from tests.cli.conftest import cli as cli
from tests.cli.conftest import environment as environment

SMALL = SuiteParts(
    (SuiteNetwork(lenet), SuiteNetwork(lenet, 3)), (64,), (4096,), ("softmax",),
    replace(CONFIG, layers=1, vocabulary=320), 8, 4,
)  # fmt: skip
FEWER = SuiteParts((SuiteNetwork(lenet, 3),), (), (), ("softmax",), tokens=0)
GONE = "/home/zaphod/models/secret.so: cannot open"


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, Any]]:
    """The report of a small suite by a user of a peculiar name, at whose path something fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLNN_KERNELS", "")
        patch.setenv("GLNN_EGL_HINT", "/home/zaphod/lib/libEGL.so")
        patch.setenv("USER", "zaphod")
        patch.setenv("LOGNAME", "zaphod")
        patch.setattr(measure, "copy_bandwidth", broken_on("cpu", measure.copy_bandwidth))
        patch.setattr(measure, "ENOUGH", 0.0)
        patch.setattr(timing, "FIRST_SECONDS", 0.0)
        with Device() as device:
            yield json.loads(json.dumps(suite_report(measure_suite(device, parts=SMALL), device)))


def broken_on(backend: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `work`, which raises an error with a path in it for one backend."""

    def call(opened: Any) -> Any:
        if opened.name == backend:
            raise DeviceError(GONE)
        return work(opened)

    return call


def texts(part: Any) -> Iterator[str]:
    """Yield all keys and texts in a report."""
    if isinstance(part, dict):
        yield from part
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from texts(one)
    elif isinstance(part, str):
        yield part


def test_nobody_is_named(report: dict[str, Any]) -> None:
    """The driver's own names may have a slash, as NVIDIA's has."""
    names = {"zaphod", "secret", socket.gethostname(), str(Path.cwd()), str(Path.home())}
    own = set(report["device"].values())
    for text in texts(report):
        assert not [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
        assert text in own or not re.search(r"(^|[\s(:=])[/~]\w", text), text
    assert report["left_out"] == {"language model on cpu": "DeviceError: (a path): cannot open"}
    assert report["machine"]["environment"]["GLNN_EGL_HINT"] == "(a path)"


def test_it_has_what_was_measured(report: dict[str, Any]) -> None:
    assert report["format"] == FORMAT and report["glnn"] and report["seconds"] > 0
    assert list(report["networks"]) == ["lenet", "lenet, 3"]
    for times in report["networks"].values():
        assert {"cpu", "feedback"} <= set(times)
        assert times["cpu"]["error"] is None
        for engine, time in times.items():
            assert time["median_ms"] > 0 and time["runs"] >= 3
            assert engine == "cpu" or time["error"] < 1e-5
    assert "feedback" in report["language_model"]
    assert all(rate["tokens_per_s"] > 0 for rate in report["language_model"].values())
    assert [one["n"] for one in report["products"]] == [64]
    assert {"feedback", "numpy"} <= set(report["products"][0]["seconds"])
    assert report["doctor"]["ok"] and report["doctor"]["backends"]["feedback"]["kernels"] > 0


def test_what_keeps_the_doctor_from_being_content_is_named() -> None:
    examination = Examination(
        ExaminationScope(),
        {"feedback": f"not here: {GONE}"},
        (),
        (
            KernelResult("compute", "softmax", "rows", {}, 0, wrong={"a": "0 for 1"}, whole=True),
            KernelResult("compute", "pool2d", "window", {}, 2, part=64),
            KernelResult("compute", "matmul", "tiled", {}, 2),
        ),
        1.0,
        failed=(NoVerdict("the kernels of compute", f"OSError: {GONE}"),),
    )
    with Device() as device:
        doctor = suite_report(SuiteResult(examination=examination), device)["doctor"]
    compute = {"functions": 0, "kernels": 2, "wrong": ["softmax/rows"]}
    assert doctor["backends"]["compute"] == {**compute, "kernels_in_parts": ["pool2d/window"]}
    assert not doctor["ok"] and "zaphod" not in json.dumps(doctor)
    assert doctor_faults(doctor) == [
        "feedback closed",
        "softmax/rows wrong",
        "pool2d/window in parts",
        "the kernels of compute: no verdict",
    ]


def test_a_network_that_cannot_be_built_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(network: SuiteNetwork) -> Model:
        raise MemoryError("too large")

    monkeypatch.setattr(SuiteNetwork, "model", fails)
    with Device() as device:
        result = measure_suite(device, parts=FEWER)
    assert result.left_out["lenet, 3: building"] == "MemoryError: too large"
    assert result.examination is not None and not any(result.networks.values())


def test_what_there_is_no_time_for_is_said() -> None:
    with Device() as device:
        result = measure_suite(device, minutes=1e-9, parts=SMALL)
    assert set(result.left_out.values()) == {"there was no time left"}
    assert {"doctor", "speed", "lenet on cpu", "language model on compute"} <= set(result.left_out)
    assert not any(result.networks.values())


def test_a_run_that_takes_too_long_ends_that_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LONGEST", 0.0)
    parts = replace(FEWER, networks=(SuiteNetwork(gru),))
    with Device() as device:
        result = measure_suite(device, parts=parts)
    assert "a run takes 0 s" in result.left_out["gru on cpu"] and not result.networks["gru"]


def test_the_command(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = import_module("glnn.cli.bench_suite")

    def small(device: Device, progress: Any, minutes: float) -> measure.SuiteResult:
        assert minutes == 3
        return measure_suite(device, progress, minutes, FEWER)

    monkeypatch.setattr(measure, "ENOUGH", 0.0)
    monkeypatch.setattr(command, "measure_suite", small)
    path = tmp_path / "board.json"
    result = cli("bench", "--suite", "--minutes", 3, "--report", path)
    assert (result.code, result.err) == (0, "")
    assert "lenet, 3" in result.out and "glnn doctor" in result.out
    assert json.loads(path.read_text())["format"] == FORMAT


def test_ctrl_c_leaves_what_was_measured(
    cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = import_module("glnn.cli.bench_suite")
    times: list[RunTime] = []
    time_runs = measure.time_runs

    def interrupted(run: Any, exact: Any) -> Any:
        if times:
            raise KeyboardInterrupt
        found = time_runs(run, exact)
        times.append(found[0])
        return found

    monkeypatch.setattr(measure, "ENOUGH", 0.0)
    monkeypatch.setattr(measure, "time_runs", interrupted)
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, PEER, raising=False)
    monkeypatch.setattr(
        command, "measure_suite", lambda *arguments: measure_suite(*arguments, SMALL)
    )
    path = tmp_path / "board.json"
    result = cli("bench", "--suite", "--report", path)
    assert (result.code, result.err) == (130, "glnn: interrupted\n")
    report = json.loads(path.read_text())
    assert report["networks"]["lenet"] == {"cpu": asdict(times[0])}
    assert report["machine"] is not None and report["doctor"] is None
    engines = ("cpu", "compute", "feedback")
    missing = {f"lenet, 3 on {name}" for name in engines} | {"speed", "doctor"}
    missing |= {f"language model on {name}" for name in engines}
    missing |= {"lenet on compute", "lenet on feedback"}
    assert report["left_out"] == dict.fromkeys(missing, "interrupted")
    assert "lenet on compute was left out: interrupted" in result.out


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
def test_a_peer_that_cannot_be_imported_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "onnxruntime.py").write_text(f"raise {kind}({GONE!r})")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == PEER]:
        monkeypatch.delitem(sys.modules, name)
    with Device() as device:
        result = measure_suite(device, minutes=1e-9, parts=SMALL)
        said = suite_report(result, device)["left_out"][PEER]
    assert f"{kind}: (a path)" in said and "zaphod" not in said
    assert not any(step.endswith(f"on {PEER}") for step in result.left_out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench"], "Missing argument 'MODEL', or --suite."),
        (["bench", "lenet", "--suite"], "MODEL is not for --suite"),
        (["bench", "--suite", "--batch", "3"], "--batch is not for --suite"),
        (["bench", "lenet", "--report", "x.json"], "--report is not for a MODEL"),
        (["bench", "--suite", "--report", "/nowhere/x.json"], "--report: cannot write to"),
        (["bench", "--suite", "--minutes", "0"], "0"),
    ],
)
def test_what_does_not_fit_is_refused(cli, arguments: list[str], says: str) -> None:
    assert says in cli(*arguments).refusal
