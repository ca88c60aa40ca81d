"""`glnn info`, and what all verbs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import glnn
from glnn.backends import NAMES
from glnn.backends.opening import _shared
from glnn.cli import VERBS as REGISTERED
from glnn.cli import cli as command_line
from glnn.layers import Linear
from glnn.model import Model
from tests.cli.conftest import Glnn

NO_DRIVER = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"}
VERBS = {
    "tune": (("tune", "--show"), "device file choices"),
    "info": (["info"], "glnn device limits backends kernels certificates choices gpus attempts"),
    "run": (
        ["run", "lenet"],
        "model backend device software choice random_weights predictions top inputs accuracy notes",
    ),
    "bench": (
        ["bench", "lenet", "--repeat", "1"],
        "model batch inputs repeat precision fused machine device software version backends closed "
        "random_weights",
    ),
    "verify": (
        ["verify", "lenet"],
        "model backend inputs tolerance layers worst ok first_divergence",
    ),
    "plan": (
        ["plan", "lenet"],
        "model backend device inputs outputs steps blocks tensor_bytes parameter_bytes "
        "texture_bytes passing_bytes peak_bytes available_bytes fits choices largest_adjacent "
        "precision fused saved_bytes",
    ),
    "kernels": (["kernels"], "kernels"),
    "layout": (["layout", "R", "2", "2"], "layout rows columns places"),
}


def test_all_verbs_are_here() -> None:
    # Those that write files or texts have a test of their own: test_convert, test_generate, ...
    others = {
        *("cache", "chat", "convert", "doctor", "filter", "generate", "serve", "train"),
        *("completion", "transcribe", "view"),
    }
    assert set(REGISTERED) == {*VERBS, *others}


@pytest.mark.parametrize("verb", VERBS)
def test_json_is_one_object_on_standard_output(cli: Glnn, verb: str) -> None:
    arguments, keys = VERBS[verb]
    assert set(cli(*arguments, "--json").json) == set(keys.split())


@pytest.mark.parametrize("verb", VERBS)
def test_tables_are_on_standard_output_alone(cli: Glnn, verb: str) -> None:
    shown = cli(*VERBS[verb][0])
    assert (shown.code, shown.err) == (0, "") and shown.out.strip()


@pytest.mark.parametrize(
    "arguments", [[], ["completion"], ["filter"], ["view"], *([verb] for verb in VERBS)]
)
def test_help_has_examples(arguments: Sequence[str]) -> None:
    runner = CliRunner()
    shown = runner.invoke(command_line, [*arguments, "--help"])
    assert shown.exit_code == 0
    assert runner.invoke(command_line, [*arguments, "-h"]).output == shown.output
    examples = shown.output.partition("Examples:")[2]
    assert f"glnn {' '.join(arguments)}".rstrip() in examples


def test_info_of_a_model(cli: Glnn) -> None:
    found = cli("info", "lenet", "--batch", "2", "--json").json
    assert (found["parameters"], found["multiply_adds"]) == (61_706, 2 * 416_520)
    assert found["layers"][0]["outputs"] == [[2, 6, 28, 28]]
    shown = cli("info", "lenet").out
    assert "(N, 6, 28, 28)" in shown and "multiply-adds for N = 1: 416,520" in shown
    assert cli("info", "lenet", "--shape", "N=2", "--json").json == found
    assert "--gpu is not for models" in cli("info", "lenet", "--gpu", "0").refusal
    assert "--batch is not for devices" in cli("info", "--batch", "2").refusal


def test_version(cli: Glnn) -> None:
    assert glnn.__version__ in cli("--version").out


def test_without_a_verb_help_is_shown(process: Glnn) -> None:
    shown = process()
    assert "Traceback" not in shown.err
    assert all(verb in shown.out + shown.err for verb in VERBS)


def test_info_of_this_machine(cli: Glnn) -> None:
    found = cli("info", "--json").json
    assert found["glnn"] == glnn.__version__
    assert {"renderer", "vendor", "api", "version", "glsl"} <= set(found["device"])
    assert found["limits"]["max_texture_size"] >= 2048
    assert list(found["backends"]) == list(NAMES)
    for state in found["backends"].values():
        assert set(state) == {"ok", "reason"}
        assert state["ok"] is (state["reason"] is None)
    for gpu in found["gpus"]:
        assert set(gpu) == {"index", "renderer", "vendor", "error", "cuda"}
    assert found["device"]["renderer"] in cli("info").out


def test_the_memory_that_is_free(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLNN_MEMORY", raising=False)
    found = cli("info", "--json").json["device"]
    assert found["memory_available"] is None or found["memory_available"] > 2**20
    assert found["memory_allowed"] is None
    monkeypatch.setenv("GLNN_MEMORY", "3m")
    assert cli("info", "--json").json["device"]["memory_allowed"] == 3 * 2**20
    assert "3.0 MiB" in cli("info").out


@pytest.mark.parametrize("text", ["much", "-1", "5x", "1.5G", "M", "1_0", "²"])
def test_a_memory_that_is_no_size(cli: Glnn, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GLNN_MEMORY", text)
    expected = f"GLNN_MEMORY: expected bytes, as in 4096, 512M or 4G, got {text!r}"
    assert cli("info").refusal == expected


def test_a_memory_of_very_many_digits(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    for digits in (19, 5_000):
        monkeypatch.setenv("GLNN_MEMORY", "9" * digits)
        refusal = cli("info").refusal
        assert "GLNN_MEMORY: expected bytes" in refusal and len(refusal) < 130


def test_info_of_a_gpu_by_index_and_name(cli: Glnn) -> None:
    known = [g for g in cli("info", "--json").json["gpus"] if g["error"] is None]
    if not known:
        pytest.skip("EGL lists no GPU")
    for gpu in (known[0]["index"], known[0]["renderer"].upper()):
        found = cli("info", "--gpu", gpu, "--json").json
        assert found["device"]["renderer"] == known[0]["renderer"]


def test_info_of_the_smallest_device(cli: Glnn) -> None:
    found = cli("info", "--limits", "es31-minimum", "--json").json
    assert found["device"]["minimum_limits"] is True
    assert found["limits"]["max_compute_work_group_invocations"] == 128
    assert found["limits"]["max_compute_work_group_size"] == [128, 128, 64]


def test_info_without_gl_says_what_failed(process: Glnn) -> None:
    found = process("info", "--json", **NO_DRIVER).json
    if found["device"] is not None:
        pytest.skip("this EGL does not dispatch to vendors")
    assert found["limits"] == {}
    assert [name for name, state in found["backends"].items() if state["ok"]] == ["cpu"]
    assert "no usable OpenGL ES context" in found["backends"]["compute"]["reason"]
    assert [a["what"] for a in found["attempts"]] == [
        "EGL device",
        "EGL surfaceless",
        "EGL default display",
        "GLFW window",
    ]
    assert all(set(a) == {"what", "step", "error"} and all(a.values()) for a in found["attempts"])
    shown = process("info", **NO_DRIVER)
    assert (shown.code, shown.err) == (0, "")
    assert "no OpenGL ES context opens" in shown.out and "glfwInit" in shown.out


def test_info_of_es_30(process: Glnn) -> None:
    found = process("info", "--json", MESA_GLES_VERSION_OVERRIDE="3.0").json
    if "ES 3.0" not in found["device"]["version"]:
        pytest.skip("not Mesa")
    opens = {name: state["ok"] for name, state in found["backends"].items()}
    assert opens == {"compute": False, "feedback": True, "cpu": True}
    assert "compute shaders need OpenGL ES 3.1" in found["backends"]["compute"]["reason"]


def test_what_auto_took_is_explained(
    cli: Glnn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    monkeypatch.delenv("GLNN_BACKEND")
    _shared.backends.clear()
    net = tmp_path / "net.json"
    Model.sequential([Linear(3, 2)], (3,), "tiny").save(net)
    np.save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
    try:
        cli("run", net, tmp_path / "x.npy")
        if not cli("info", "--json").json["choices"]:
            pytest.skip("one backend opens: nothing is chosen")
        out = " ".join(cli("info").out.split())
    finally:
        _shared.backends.clear()
    assert "input=2-7x2-7" in out
    assert "inputs: ranges of sizes, as x=1x2-7 for one row of two to seven" in out
