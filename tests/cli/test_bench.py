"""`glnn bench`: what is timed, Ctrl-C, and output that nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import glnn.onnxruntime
from glnn.backends import NAMES
from tests.cli.conftest import Glnn

LAYER = {"name", "op", "kernel", "gflop", "kernel_ms", "wall_ms", "layer", "via"}
TIMES = {
    *("total_ms", "upload_ms", "perform_ms", "download_ms", "kernel_ms", "cpu_ms", "layers_ms"),
}
MEMORY = {"rss_bytes", "peak_rss_bytes", "gpu_bytes"}


def test_lenet(cli: Glnn) -> None:
    found = cli("bench", "lenet", "--batch", 3, "--repeat", 2, "--json").json
    assert (found["model"], found["batch"], found["repeat"]) == ("lenet", 3, 2)
    assert found["device"] == cli("info", "--json").json["device"]["renderer"]
    assert list(found["backends"]) == list(NAMES)
    for name, timed in found["backends"].items():
        assert set(timed) == {"backend", "timer", "layers", *TIMES, *MEMORY}
        assert timed["backend"] == name
        assert all(timed[key] > 0 for key in TIMES - {"kernel_ms"})
        assert (timed["gpu_bytes"] is None) == (name == "cpu")
        if Path("/proc/self/status").exists():
            assert 2**20 < timed["rss_bytes"] <= timed["peak_rss_bytes"] < 2**36
        check_kernel_times(timed)
        layers = [layer for layer in timed["layers"] if layer["op"] != "reorder"]
        first = ("pooled_conv2d",) if name == "compute" else ("conv2d", "pool2d")
        last = ("matmul", "perceptron") if name == "compute" else ("matmul",) * 3
        ops = [*first, *first, *last, "softmax"]
        assert [layer["op"] for layer in layers] == ops
        each = 2 * 25 + 1 + 4  # the products, a bias, and a sigmoid's negation, exp, sum, quotient
        assert layers[0]["gflop"] == pytest.approx(3 * 6 * 28 * 28 * each / 1e9, rel=0.1)


def check_kernel_times(timed: Any) -> None:
    """A kernel time only where the timer is believed, and then it is no more than the wall's."""
    kernels = [layer["kernel_ms"] for layer in timed["layers"]]
    if timed["timer"] is None:
        assert sum(kernels) <= timed["kernel_ms"] <= min(timed["total_ms"], timed["perform_ms"])
        assert all(layer["kernel_ms"] <= layer["wall_ms"] for layer in timed["layers"])
    else:
        assert set(kernels) == {timed["kernel_ms"]} == {None}
    for layer in timed["layers"]:
        assert set(layer) == LAYER
        assert layer["layer"] in layer["name"] or layer["op"] == "reorder"
        assert layer["wall_ms"] > 0
        assert layer["kernel_ms"] is None or (timed["timer"] is None and layer["kernel_ms"] >= 0)
    if timed["backend"] == "cpu":
        assert timed["timer"] == "no GPU" and timed["kernel_ms"] is None


def test_the_tables(cli: Glnn) -> None:
    shown = cli("bench", "lenet", "--backends", "feedback, cpu", "--repeat", 1)
    assert (shown.code, shown.err) == (0, "")
    for head in ("layer", "kernel", "GFLOP", "kernel ms", "wall ms", "overhead ms", "CPU ms"):
        assert head in shown.out
    assert "lenet on feedback" in shown.out and "lenet on cpu" in shown.out
    assert "lenet on compute" not in shown.out
    assert "whole runs, transfers included" in shown.out
    shown = cli("bench", "lenet", "--backends", "feedback, cpu", "--repeat", 1, "--wide")
    assert all(head in shown.out for head in ("CPU time ms", "peak RSS", "GPU memory", "software"))
    alone = cli("bench", "lenet", "--backends", "cpu", "--repeat", 1)
    assert alone.code == 0 and "CPU (NumPy)" in alone.out


def test_a_forced_kernel_applies_where_it_exists(cli: Glnn) -> None:
    forced = ("--kernel", "matmul=gemm_blocked", "--backends", "compute,cpu", "--repeat", 1)
    found = cli("bench", "lenet", *forced, "--json").json["backends"]
    kernels = {
        name: {layer["kernel"] for layer in timed["layers"] if layer["op"] == "matmul"}
        for name, timed in found.items()
    }
    assert kernels == {"compute": {"gemm_blocked"}, "cpu": {"numpy"}}


def test_a_layer_of_several_steps(cli: Glnn, staged: Path, images: Path) -> None:
    forced = ("--kernel", "conv2d=winograd_2", "--backends", "compute,cpu", "--repeat", 1)
    timed = cli("bench", staged, images, *forced, "--json").json["backends"]["compute"]
    steps = [step for step in timed["layers"] if step["op"] != "reorder"]
    assert [(step["layer"], step["via"]) for step in steps] == [
        *[("conv", "winograd_2")] * 3,
        ("pool", None),
    ]
    assert [step["name"] for step in steps][:3] == ["conv: tiles", "conv: products", "conv: result"]
    shown = cli("bench", staged, images, *forced).out.partition("on cpu")[0]
    rows = [line.split() for line in shown.splitlines() if line.strip()]
    (whole,) = (row for row in rows if row[0] == "conv")
    assert whole[1:4] == ["4", "steps", "winograd_2"]
    parts = [row[0] for row in rows if row[0] in ("tiles", "products", "result")]
    assert parts == ["tiles", "products", "result"]


def test_inputs(cli: Glnn, small: Path, samples: Path) -> None:
    found = cli("bench", small, samples, "--batch", 5, "--repeat", 1, "--json").json
    assert [layer["name"] for layer in found["backends"]["cpu"]["layers"]] == ["affine + relu"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="sees by /proc when to begin")
def test_ctrl_c(environment: Mapping[str, str]) -> None:
    endless = ["bench", "lenet", "--repeat", "1000000", "--json"]
    command = [sys.executable, "-m", "glnn", *endless]
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts by & ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as bench:
        try:
            maps, deadline = Path(f"/proc/{bench.pid}/maps"), time.monotonic() + 60
            while "moderngl" not in maps.read_text():  # not yet begun
                assert bench.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.5)
            bench.send_signal(signal.SIGINT)
            out, err = bench.communicate(timeout=30)
        finally:
            bench.kill()
    assert (bench.returncode, out, err) == (130, "", "glnn: interrupted\n")


@pytest.mark.parametrize(
    "verb", ["run lenet --backend cpu", "run lenet --backend cpu --json", "--help"]
)
def test_output_that_nobody_reads(environment: Mapping[str, str], verb: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "glnn", *verb.split()],
            env=environment,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


LENET = Path(__file__).parents[1] / "onnx" / "lenet-mnist.onnx"


def test_onnx_runtime_beside(cli: Glnn) -> None:
    ort = pytest.importorskip("onnxruntime")
    asked = ("bench", LENET, "--repeat", 2, "--peers")
    found = cli(*asked, "--json").json
    (peer,) = found["peers"].values()
    assert (peer["version"], peer["provider"]) == (ort.__version__, "CPUExecutionProvider")
    assert peer["threads"] == len(os.sched_getaffinity(0))
    assert peer["total_ms"] > 0 and peer["cpu_ms"] > 0
    assert set(peer["difference"]) == set(found["backends"])
    assert all(0 < difference < 1e-5 for difference in peer["difference"].values())
    shown = cli(*asked, "--backends", "cpu")
    assert shown.code == 0
    assert (
        f"onnxruntime {ort.__version__}, CPUExecutionProvider, {peer['threads']} thr" in shown.out
    )
    assert "peers" not in cli(*asked[:-1], "--backends", "cpu", "--json").json


def test_a_model_that_onnx_runtime_refuses(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    ort = pytest.importorskip("onnxruntime")

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("no kernel for Conv")

    monkeypatch.setattr(ort, "InferenceSession", refuse)
    found = cli("bench", LENET, "--backends", "cpu", "--repeat", 1, "--peers", "--json").json
    assert found["peers"] == {} and list(found["backends"]) == ["cpu"]
    assert found["closed"]["onnxruntime"].endswith("RuntimeError: no kernel for Conv")


def test_where_there_is_no_peer(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = cli("bench", "lenet", "--peers").refusal
    assert refusal == "--peers: expected an .onnx file for ONNX Runtime to read, got lenet"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it was not installed
    refusal = cli("bench", LENET, "--peers", "--json").refusal
    assert "expected the package onnxruntime" in refusal and "pip install" in refusal
    monkeypatch.setitem(sys.modules, "onnxruntime", glnn.onnxruntime)
    refusal = cli("bench", LENET, "--peers").refusal
    assert "got glnn.onnxruntime, which stands in for it" in refusal
    assert "--peers is not for --suite" in cli("bench", "--suite", "--peers").refusal
