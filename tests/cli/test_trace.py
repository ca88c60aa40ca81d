"""`--trace`: files in Chrome's format, whole or not there, and refused before anything runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from glnn.backends import NAMES
from tests.cli.conftest import Glnn
from tests.trace_files import check, inside


def test_runs(cli: Glnn, small: Path, samples: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    asked = ("run", small, samples, "--batch", 1, "--json")
    found = cli(*asked, "--trace", target).json
    document = json.loads(target.read_bytes())
    spans = check(document)
    assert found.pop("trace") == {"file": str(target), "events": len(document["traceEvents"])}
    assert found == cli(*asked).json
    assert [e["name"] for e in spans if e["name"] in ("run 1", "run 2", "run 3")] == [
        *("run 1", "run 2")
    ]
    assert sorted(path.name for path in tmp_path.glob("*t.json*")) == ["t.json"]


def test_runs_with_a_dump(cli: Glnn, small: Path, samples: Path, tmp_path: Path) -> None:
    files = ("--trace", tmp_path / "t.json", "--dump", tmp_path / "t.npz")
    shown = cli("run", small, samples, *files)
    assert (shown.code, shown.err) == (0, "")
    assert f"traced to {tmp_path / 't.json'}, which ui.perfetto.dev shows" in shown.out
    assert "dumped to " in shown.out and (tmp_path / "t.npz").exists()


def test_every_backend(cli: Glnn, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    found = cli("bench", "lenet", "--repeat", 2, "--trace", target, "--json").json
    document = json.loads(target.read_bytes())
    spans = check(document)
    assert found["trace"]["file"] == str(target)
    assert list(document["otherData"]["plans"]) == [f"lenet on {name}" for name in NAMES]
    for pid, timed in enumerate(found["backends"].values(), start=1):
        runs = [e for e in spans if e["pid"] == pid and e["name"].endswith(", step by step")]
        assert len(runs) == 2
        for run in runs:
            steps = [e["name"] for e in inside(spans, run) if e["cat"] == "step"]
            assert steps == [layer["name"] for layer in timed["layers"]]


@pytest.mark.parametrize("verb", ["run", "bench"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("gone/t.json", "--trace: cannot write to gone/t.json: No such file or directory"),
        (".", "--trace: cannot write to .: is a folder"),
        ("/dev/null", "--trace: cannot write to /dev/null: is not a file"),
        ("small.json/t.json", "--trace: cannot write to small.json/t.json: Not a directory"),
    ],
)
def test_refused_before_anything_runs(
    cli: Glnn, small: Path, samples: Path, monkeypatch, verb: str, path: str, says: str
) -> None:
    monkeypatch.chdir(small.parent)
    before = sorted(small.parent.iterdir())
    assert cli(verb, small, samples, "--trace", path, "--json").refusal == says
    assert sorted(small.parent.iterdir()) == before


def test_a_failure_leaves_the_old_file(cli: Glnn, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("old")
    assert cli("run", "lenet", "gone.png", "--trace", tmp_path / "t.json", "--overwrite").refusal
    assert (tmp_path / "t.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("asked", ["--trace t.json", "--dump tensors"])
def test_ctrl_c_leaves_nothing_half_written(
    environment: Mapping[str, str], tmp_path: Path, asked: str
) -> None:
    """It comes while digits are classified one by one; what is there is whole."""
    command = [sys.executable, "-m", "glnn", "run", "lenet", "--batch", "1", "-vv", *asked.split()]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as run:
        try:
            assert run.stderr is not None
            said = [next(run.stderr)]
            while "planned lenet" not in said[-1]:
                said.append(next(run.stderr))
            time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=30)
        finally:
            run.kill()
    assert run.returncode == 130 and err.splitlines()[-1].startswith("glnn: interrupted")
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    if "t.json" in left:  # some digits were done
        left.remove("t.json")
        assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert all(name.startswith("run-") and name.endswith(".npz") for name in left), left
