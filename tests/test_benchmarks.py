"""Every benchmark runs and prints one JSON object; nothing here is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not part of the package"
)


def run(*arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=given,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if "the compute backend cannot run" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lenet() -> None:
    rows = json.loads(run("benchmarks.lenet", "--batch", "2", "--repeat", "1", "--json"))["rows"]
    assert {"glnn cpu", "glnn feedback"} <= {row["name"] for row in rows}
    assert all(row["error"] < 1e-5 for row in rows if row["name"].startswith("glnn"))


def test_matmul() -> None:
    names = "default,cross_rm_rm,morton_4_2"
    result = json.loads(run("benchmarks.matmul", "--sizes", "9", "--kernels", names, "--json"))
    ours = [row for row in result["rows"] if row["name"] in names.split(",")]
    assert len(ours) == 3
    assert all(row["gflops"] > 0 and row["error"] < 1e-5 for row in ours)


@pytest.mark.parametrize("op", ["bias", "activation"])
def test_elementwise(op) -> None:
    rows = json.loads(run("benchmarks.elementwise", op, "--json"))["rows"]
    assert len(rows) % 3 == 0
    assert all(row["us"] > 0 for row in rows)


def test_roofline() -> None:
    result = json.loads(run("benchmarks.roofline", "--json"))
    assert result["peak_gflops"] > 0
    assert [row["bytes"] for row in result["transfers"]] == sorted(
        row["bytes"] for row in result["transfers"]
    )


def test_boards() -> None:
    stats = {"shader": "COMPUTE", "inst": 7, "registers": 3, "spills": 1, "fills": 2}
    line = {"target": "mali-g52", "file": "bias-rows.comp", "ok": True, "stats": [stats]}
    page = run("benchmarks.boards", given=json.dumps(line) + "\n")
    assert "1 compilations, 0 failed, 1 with spills." in page
    assert "| bias-rows.comp | 7 3r, 3 spills |" in page
