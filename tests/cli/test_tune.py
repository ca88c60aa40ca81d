from __future__ import annotations

import pytest

from glnn.backends.opening import _shared
from glnn.layers import Conv2d, Linear
from glnn.model import Model
from tests.cli.conftest import Glnn

KEY = "compute matmul R m=4 n=8 k=2 batch=1 BATCHED=0"


pytestmark = pytest.mark.usefixtures("cached")


def skip_without_compute(cli: Glnn) -> None:
    done = cli("tune", "--show")
    if "the compute backend cannot run" in done.err:
        pytest.skip(done.err)


def test_a_real_search(cli: Glnn) -> None:
    skip_without_compute(cli)
    report = cli("tune", "--size", "5x7x3", "--json").json
    choice = report["choices"]["compute matmul R m=4 n=8 k=4 batch=1 BATCHED=0"]
    assert choice["seconds"] <= choice["default_seconds"]
    assert cli("tune", "--show", "--json").json == report
    shown = cli("tune", "--show").out
    assert choice["kernel"] in shown and report["file"] in shown


def test_what_is_known_is_not_tuned_again(cli: Glnn, searches) -> None:
    skip_without_compute(cli)
    first = ("tune", "--size", "4x8x2", "--json")
    assert cli(*first).json["choices"][KEY]["parameters"]["TM"] == 2
    cli(*first)
    assert searches == ["4x8x2"]
    cli(*first, "--exhaustive")
    assert searches.pop() == "4x8x2" and len(searches) == 1
    cli(*first, "--fresh")
    assert searches == ["4x8x2", "4x8x2"]
    assert cli("tune", "--forget", "--json").json["choices"] == {}
    cli(*first)
    assert len(searches) == 3


def test_a_kernel_that_has_changed_is_tuned_anew(cli: Glnn, searches, monkeypatch) -> None:
    skip_without_compute(cli)
    cli("tune", "--size", "4x8x2")
    monkeypatch.setattr("glnn.kernels.tuned.fingerprint", lambda kernel: "another")
    cli("tune", "--size", "4x8x2")
    assert searches == ["4x8x2", "4x8x2"]


def test_sizes_of_one_class_are_tuned_once_and_small_ones_first(cli: Glnn, searches) -> None:
    skip_without_compute(cli)
    done = cli("tune", "--size", "30x30x30", "--size", "31x33x32", "--size", "4x8x2", "--json")
    assert (done.code, searches) == (0, ["4x8x2", "30x30x30"])
    assert done.err == "glnn: --size: 31x33x32 is tuned as 30x30x30, being near it\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["lenet", "--size", "1x1x1"], "--size: expected either MODEL or sizes, got lenet and"),
        (["--batch", "3"], "--batch: expected a MODEL to run 3 samples of, got none"),
        (["--show", "--forget"], "--forget: expected it without --show, got both"),
    ],
)
def test_options_that_do_not_go_together(cli: Glnn, options, says) -> None:
    assert cli("tune", *options).refusal.startswith(says)


def test_an_interruption_keeps_what_was_found(cli: Glnn, searches) -> None:
    skip_without_compute(cli)
    sizes = ("--size", "4x8x2", "--size", "13x13x13", "--size", "64x64x64")
    assert cli("tune", *sizes).code == 130
    _shared.backends.clear()  # as a new process would have none
    assert list(cli("tune", "--show", "--json").json["choices"]) == [KEY]
    assert searches == ["4x8x2", "13x13x13"]


def test_a_model(cli: Glnn, searches) -> None:
    skip_without_compute(cli)
    choices = cli("tune", "lenet", "--batch", "3", "--json").json["choices"]
    ops = [key.split()[1] for key in choices]
    assert {"pooled_conv2d", "matmul", "softmax"} <= set(ops)


def test_an_onnx_model_of_open_sizes(cli: Glnn, searches, tmp_path) -> None:
    skip_without_compute(cli)
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    Model.sequential([Linear(8, 4)], (8,), name="net").save(path)
    cli("tune", path, "--shape", "input=16,8", "--json")
    assert searches == ["16x4x8"]


def test_a_convolution_in_stages_is_tuned_with_them(cli: Glnn, searches, tmp_path) -> None:
    skip_without_compute(cli)
    model = Model.sequential([Conv2d(8, 32, 1)], (8, 5, 5), name="one")
    model.save(tmp_path / "one.json")
    keys = cli("tune", str(tmp_path / "one.json"), "--json").json["choices"]
    ops = [key.split()[1] for key in keys]
    assert {"conv2d", "matmul"} <= set(ops)


@pytest.mark.parametrize("text", ["5x7", "0x1x1", "axbxc", "1x1x99999999999", ""])
def test_a_wrong_size(cli: Glnn, text: str) -> None:
    skip_without_compute(cli)
    refusal = cli("tune", "--size", text).refusal
    assert refusal == f"--size: expected three numbers as in 100x64x256, got {text!r}"


def test_a_folder_that_cannot_be_written(cli: Glnn, tmp_path, monkeypatch, searches) -> None:
    skip_without_compute(cli)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path / "file"))
    _shared.backends.clear()
    assert "what is found cannot be kept in" in cli("tune", "--size", "4x8x2").refusal
    assert searches == []


def test_an_empty_folder_name_is_explained(cli: Glnn, monkeypatch, searches) -> None:
    skip_without_compute(cli)
    monkeypatch.setenv("GLNN_CACHE", "")
    _shared.backends.clear()
    assert cli("tune", "--size", "4x8x2").refusal == ("GLNN_CACHE is empty, so nothing can be kept")
    assert searches == []
    for option in ("--show", "--forget"):
        assert "GLNN_CACHE is empty, so nothing is kept" in cli("tune", option).out
        assert cli("tune", option, "--json").json["file"] is None


@pytest.mark.parametrize("verb", [("tune",), ("info",), ("run", "lenet"), ("kernels",)])
def test_a_home_that_is_not_known(cli: Glnn, monkeypatch, verb) -> None:
    monkeypatch.setenv("GLNN_CACHE", "~nosuchuser/x")
    assert cli(*verb).refusal.startswith("GLNN_CACHE: expected a folder, got '~nosuchuser/x'")
