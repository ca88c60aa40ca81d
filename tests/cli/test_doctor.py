"""`glnn doctor`: its table and report, its exit code, and what it leaves in the cache."""

from __future__ import annotations

import getpass
import json
import shutil
from pathlib import Path

import pytest

from glnn.core.glsl import shaders_folder
from glnn.core.redaction import redact
from glnn.gl import Device, Program
from glnn.kernels.library import reload
from tests.backends.conftest import by_methods  # noqa: F401  # a fixture
from tests.cli.conftest import Glnn

FEW = ("doctor", "--op", "pack", "--function", "abs", "--backend", "feedback")


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_what_is_right_is_said_and_certified(cli: Glnn, cached: Path) -> None:
    assert cli("info", "--json").json["certificates"] == []
    assert "glnn doctor has not run here yet" in cli("info").out
    shown = cli(*FEW, "--report", str(cached / "report.txt"))
    assert (shown.code, shown.err) == (0, "")
    assert "functions that are right: 1 (4 by the types of their arguments)" in shown.out
    assert "; kernels: 1, which computed" in shown.out
    *_, verdict, paste = shown.out.splitlines()
    assert verdict == "Nothing is wrong in what was looked at."
    assert paste == f"For a report of a fault: {cached / 'report.txt'}"
    report = (cached / "report.txt").read_text("utf-8")
    with Device() as device:
        assert device.capabilities.renderer in report
    assert "pack by feedback: 1 right" in report
    assert str(cached) not in report and str(Path.home()) + "/" not in report
    assert getpass.getuser() not in report.replace("rows", "").split()
    (certificate,) = cli("info", "--json").json["certificates"]
    assert (certificate["looked"], certificate["wrong"]) == ("pack, abs()", 0)
    assert certificate["holds"] and "pack, abs()" in cli("info").out
    kinds = {row["kind"]: row["entries"] for row in cli("cache", "--json").json["kept"]}
    assert kinds["certificates"] == 1 and kinds["verdicts"] >= 1
    cli("kernels", "--forget", "--op", "pack")
    assert cli("info", "--json").json["certificates"] == []
    assert not {"certificates", "verdicts"} & {
        row["kind"] for row in cli("cache", "--json").json["kept"]
    }


def test_quick_looks_at_each_kernel_once_and_certifies_nothing(cli: Glnn) -> None:
    asked = ("doctor", "--op", "reduce", "--function", "abs", "--backend", "feedback", "--json")
    all_of_it, quick = cli(*asked).json, cli(*asked, "--quick").json
    assert quick["ok"] and quick["scope"]["quick"]
    counts = [
        {one["kernel"]: one["problems"] for one in found["kernels"]} for found in (quick, all_of_it)
    ]
    assert counts[0].keys() == counts[1].keys()
    assert all(0 < counts[0][name] <= count for name, count in counts[1].items())
    assert sum(counts[0].values()) < sum(counts[1].values())
    assert cli("kernels", "--forget", "--op", "reduce").code == 0
    cli(*asked, "--quick")
    assert cli("info", "--json").json["certificates"] == []


@pytest.mark.usefixtures("by_methods")
def test_what_is_wrong_is_in_the_report(
    cli: Glnn, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Program, "capture", lambda *_: None)
    shown = cli(*FEW, "--json", "--report", str(cached / "report.txt"))
    found = json.loads(shown.out)
    assert shown.code == 1 and not found["ok"] and found["limits"] is None
    (kernel,) = found["kernels"]
    assert (kernel["op"], kernel["outcome"]) == ("pack", "not used")
    assert {one["name"] for one in found["functions"] if one["wrong"]} == {"abs"}
    assert found["sentences"][-1] == (
        "Wrong here: 1 function, 1 kernel. None of it is used as it is."
    )
    report = (cached / "report.txt").read_text("utf-8")
    for line in (
        "    glnn doctor --op pack --backend feedback",
        "    glnn doctor --function abs --backend feedback",
    ):
        assert line in report.split("\n")
    assert "not used" in cli("info").out


def test_a_report_keeps_its_words_whoever_made_it(
    cli: Glnn, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    monkeypatch.setattr("glnn.doctor.report.redact", lambda text: texts.append(text) or text)
    assert cli(*FEW, "--op", "conv2d", "--quick", "--report", str(cached / "report.txt")).code == 0
    (text,) = texts
    assert "conv2d by feedback" in text
    for user in ("zaphod", "conv2d", "feedback", "kernels", "max"):
        assert redact(text, {"USER": user, "HOME": f"/home/{user}"}) == text


def test_reports_are_silent_about_the_folder_of_a_broken_kernel(
    cli: Glnn, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cached / 'eve\'s "k"; dir: x'
    shipped = shaders_folder() / "pack"
    (folder / "pack").mkdir(parents=True)
    declaration = (shipped / "words.toml").read_text("utf-8")
    (folder / "pack" / "broken.toml").write_text(declaration, "utf-8")
    (folder / "pack" / "broken.comp").write_text("void main() { undeclared = 1; }", "utf-8")
    monkeypatch.setenv("GLNN_KERNELS", str(folder))
    reload()
    asked = ("doctor", "--op", "pack", "--backend", "compute", "--quick")
    try:
        shown = cli(*asked, "--json", "--report", str(cached / "report.txt"))
        shutil.copytree(folder, cached / "other")
        monkeypatch.setenv("GLNN_KERNELS", str(cached / "other"))
        reload()
        kept = {
            one["name"]: one["seen"]
            for one in cli("kernels", "--op", "pack", "--json").json["kernels"]
        }
    finally:
        monkeypatch.delenv("GLNN_KERNELS")
        reload()
    assert shown.code == 1
    for report in ((cached / "report.txt").read_text("utf-8"), shown.out):
        assert "pack by broken" in report and "(a path)" in report
        assert not [part for part in ("eve's", "dir: x", str(cached)) if part in report]
    (kernel,) = [one for one in json.loads(shown.out)["kernels"] if one["kernel"] == "broken"]
    assert "pack/broken.comp" in kept["broken"] and str(cached) not in kept["broken"]
    assert kernel["op"] == "pack" and "(a path)" in " ".join(kernel["wrong"].values())


def test_what_there_is_not_is_refused(cli: Glnn, cached: Path) -> None:
    assert "--op: expected one of" in cli("doctor", "--op", "matmal").refusal
    assert "--function: expected one of" in cli("doctor", "--function", "tan2").refusal
    assert "--report: cannot write to" in cli("doctor", "--report", str(cached / "a/b")).refusal
