from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from glnn.backends import NAMES
from glnn.data import digits
from glnn.kernels import library

VERBS = ["info", "run", "bench", "verify", "kernels"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_examples(cli, verb) -> None:
    done = cli(verb, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert f"glnn {verb}" in done.stdout


def test_info(answer, cli) -> None:
    report = answer("info")
    assert set(report) >= {"device", "limits", "backends", "gpus", "attempts"}
    assert set(report["backends"]) == set(NAMES)
    assert report["backends"]["cpu"] == {"ok": True, "reason": None}
    assert report["device"]["renderer"] in cli("info").stdout
    lowered = answer("info", "--limits", "es31-minimum")["limits"]
    assert lowered["max_compute_work_group_invocations"] in (0, 128)
    assert lowered["max_texture_size"] == 2048


def test_info_without_any_gl_says_what_was_tried(answer) -> None:
    report = answer(
        "info", __EGL_VENDOR_LIBRARY_FILENAMES="/nonexistent", DISPLAY="", WAYLAND_DISPLAY=""
    )
    assert report["device"] is None
    assert {name: state["ok"] for name, state in report["backends"].items()} == {
        "compute": False,
        "feedback": False,
        "cpu": True,
    }
    assert len(report["attempts"]) >= 3
    assert all(a["step"] and a["error"] for a in report["attempts"])


@pytest.mark.parametrize("backend", NAMES)
def test_run_classifies_the_bundled_digits(answer, backend) -> None:
    report = answer("run", "lenet", "--backend", backend)
    assert report["backend"] == backend
    assert len(report["predictions"]) == 1000
    right = np.mean(np.array(report["predictions"]) == digits()[1])
    assert report["accuracy"] == pytest.approx(right)
    assert right >= 0.98


def test_run_prints_predictions_and_accuracy(cli) -> None:
    done = cli("run", "lenet", "--top", 2)
    assert done.returncode == 0
    assert "accuracy 99.10%" in done.stdout
    assert "digit 0" in done.stdout


def test_run_takes_images_of_any_kind(answer, cli, tmp_path) -> None:
    image = pytest.importorskip("PIL.Image")
    images, labels = digits()
    dark, light = tmp_path / "dark.png", tmp_path / "light.jpg"
    image.fromarray(images[0]).save(dark)
    photo = image.fromarray(255 - images[2]).resize((280, 280)).convert("RGB")
    photo.save(light)
    report = answer("run", "lenet", dark, light, "--top", 3)
    assert report["predictions"] == [labels[0], labels[2]]
    assert [len(row) for row in report["top"]] == [3, 3]
    assert report["accuracy"] is None
    assert any("inverted" in note for note in report["notes"])
    assert "inverted" in cli("run", "lenet", light).stdout


def test_run_takes_arrays_with_labels(answer, tmp_path) -> None:
    images, labels = digits()
    np.save(tmp_path / "a.npy", (images[:3, None] / np.float32(255)).astype(np.float32))
    np.savez(tmp_path / "b.npz", image=images[3:8], label=labels[3:8])
    assert answer("run", "lenet", tmp_path / "a.npy")["predictions"] == labels[:3].tolist()
    report = answer("run", "lenet", tmp_path / "b.npz", "--batch", 2)
    assert report["predictions"] == labels[3:8].tolist()
    assert report["accuracy"] == 1.0


def test_a_nan_in_the_input_is_allowed(answer, tmp_path) -> None:
    x = np.full((1, 1, 28, 28), np.nan, np.float32)
    np.save(tmp_path / "nan.npy", x)
    report = answer("run", "lenet", tmp_path / "nan.npy")
    assert report["top"][0][0]["score"] == "nan"


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("limits", [[], ["--limits", "es31-minimum"]])
def test_verify(answer, backend, limits) -> None:
    report = answer("verify", "lenet", "--backend", backend, *limits)
    assert report["ok"] is True
    assert report["worst"] == max(layer["error"] for layer in report["layers"])
    assert report["worst"] <= 1e-5
    names = [layer["name"] for layer in report["layers"]]
    assert len(names) == 8
    assert names[0].startswith("c1")


def test_verify_names_the_first_divergence_and_fails(cli) -> None:
    done = cli("verify", "lenet", "--tolerance", "1e-12")
    assert done.returncode == 1
    assert "the first layer that diverges is c1" in done.stdout


def test_bench(answer, cli) -> None:
    report = answer("bench", "lenet", "--batch", 3, "--repeat", 2)
    assert set(report) >= {"device", "machine", "backends"}
    assert list(report["backends"]) == list(NAMES)
    for timed in report["backends"].values():
        assert timed["total_ms"] > 0
        for layer in timed["layers"]:
            assert set(layer) >= {"name", "op", "kernel", "gflop", "kernel_ms", "wall_ms"}
            assert layer["kernel_ms"] is None or timed["timer"] is None
    shown = cli("bench", "lenet", "--repeat", 1, "--kernel", "matmul=blocked")
    assert shown.returncode == 0
    assert "blocked" in shown.stdout
    assert "speed-up" in shown.stdout


def test_kernels(answer, cli, tmp_path) -> None:
    rows = answer("kernels", "--compile")["kernels"]
    assert len(rows) == len(library())
    for row in rows:
        assert row["ok"] == (row["reason"] is None)
        assert row["reason"] is None or row["reason"].startswith("not admissible:")
    only = answer("kernels", "--op", "softmax")["kernels"]
    assert {row["op"] for row in only} == {"softmax"}
    done = cli("kernels", "--export", tmp_path)
    assert done.returncode == 0
    assert len(list(tmp_path.iterdir())) == len(library())


def test_es_30_has_feedback_only(answer, refused) -> None:
    es30 = {"MESA_GLES_VERSION_OVERRIDE": "3.0"}
    if not answer("info", **es30)["device"]["version"].startswith("OpenGL ES 3.0"):
        pytest.skip("this driver cannot be told to be OpenGL ES 3.0")
    assert "compute shaders need OpenGL ES 3.1" in refused(
        "run", "lenet", "--backend", "compute", **es30
    )
    assert answer("run", "lenet", **es30)["backend"] == "feedback"
    for row in answer("kernels", "--compile", **es30)["kernels"]:
        assert row["ok"] == (row["backend"] == "feedback")
        assert row["ok"] or row["reason"].startswith("not admissible: compute shaders need")


def test_an_interrupt_is_quiet(tmp_path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "glnn", "bench", "lenet", "--batch", "100", "--repeat", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in out + err
