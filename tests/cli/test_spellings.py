"""One option for backends, widths without a terminal, names that are nearly those of models."""

from __future__ import annotations

from pathlib import Path

import pytest

import glnn
from glnn.errors import ModelError
from glnn.profiling import Profile
from tests.cli.conftest import Glnn


@pytest.mark.parametrize("spelling", ["--backend", "--backends"])
@pytest.mark.parametrize(
    "verb", ["run lenet", "bench lenet --repeat 1", "verify lenet --batch 1", "plan lenet"]
)
def test_backend_and_backends_are_one_option(cli: Glnn, verb: str, spelling: str) -> None:
    found = cli(*verb.split(), spelling, "cpu", "--json").json
    assert found.get("backend", "cpu") == "cpu" and list(found.get("backends", ["cpu"])) == ["cpu"]


@pytest.mark.usefixtures("cached")
def test_tune_takes_a_backend(cli: Glnn) -> None:
    found = cli("tune", "--size", "3x5x7", "--backend", "feedback", "--json").json
    assert [key.split()[0] for key in found["choices"]] == ["feedback"]


def test_tables_without_a_terminal_obey_columns(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("bench", "lenet", "--backend", "cpu", "--repeat", 1)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "not shown" not in cli(*asked).out
    monkeypatch.setenv("COLUMNS", "60")
    out = cli(*asked).out
    assert "not shown" in out and max(map(len, out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("vgg6", "did you mean vgg16?"),
        ("{}/digits", "did you mean {}/digits.onnx?"),
        ("{}/digts.onnx", "no such file: did you mean {}/digits.onnx?"),
    ],
)
def test_a_name_that_is_nearly_a_model_s(tmp_path: Path, asked: str, meant: str) -> None:
    (tmp_path / "digits.onnx").touch()
    with pytest.raises(ModelError) as raised:
        glnn.load(asked.format(tmp_path))
    assert meant.format(tmp_path) in str(raised.value)


@pytest.mark.parametrize("verb", ["run", "bench"])
@pytest.mark.parametrize(
    ("name", "meant"), [("gpu", "; compute is the GPU"), ("computes", ": did you mean 'compute'?")]
)
def test_a_backend_s_other_names(cli: Glnn, verb: str, name: str, meant: str) -> None:
    refusal = cli(verb, "lenet", "--backend", name).refusal
    assert repr(name) in refusal and refusal.endswith(meant)


def test_a_name_like_no_model_s_suggests_nothing() -> None:
    with pytest.raises(ModelError) as raised:
        glnn.load("bert")
    assert "did you mean" not in str(raised.value)


def test_bench_says_why_layers_exceed_the_whole(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("bench", "lenet", "--backend", "cpu", "--repeat", 1)
    layers = cli(*asked, "--json").json["backends"]["cpu"]
    assert layers["layers_ms"] == pytest.approx(sum(one["wall_ms"] for one in layers["layers"]))
    for sum_of_layers, said in ((1e6, True), (0.0, False)):
        spent = property(lambda self, spent=sum_of_layers: spent)
        monkeypatch.setattr(Profile, "layers_ms", spent)
        assert ("each layer is timed by itself" in cli(*asked).out) is said
        assert cli(*asked, "--json").json["backends"]["cpu"]["layers_ms"] == sum_of_layers
