"""Models that are built by name work on the command line without a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glnn.model.load import BUILDERS, vgg16
from tests.cli.conftest import Glnn


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILDERS, "vgg16", lambda: vgg16(size=32))


def test_verify(cli: Glnn) -> None:
    found = cli("verify", "vgg16", "--json").json
    assert found["ok"] and found["worst"] < 1e-5
    assert [layer["name"] for layer in found["layers"]][-1] == "softmax"


def test_bench(cli: Glnn) -> None:
    found = cli("bench", "vgg16", "--repeat", 1, "--backends", "cpu", "--json").json
    assert found["batch"] == 1
    assert found["backends"]["cpu"]["total_ms"] > 0


def test_run_wants_an_image_of_a_model_that_knows_nothing(cli: Glnn) -> None:
    assert "random sample" in cli("run", "vgg16", "--backend", "cpu").out


def test_random_weights_are_named_as_such(cli: Glnn, tmp_path: Path) -> None:
    weights = tmp_path / "w.npz"
    np.savez(weights, **vgg16(size=32, seed=3).state_dict())
    run = ("run", "vgg16", "--backend", "cpu")
    bench = ("bench", "vgg16", "--repeat", 1, "--backends", "cpu")
    assert cli(*run).err == "glnn: vgg16 has random weights; give --weights\n"
    assert cli(*bench).err == "glnn: vgg16 has random weights\n"
    assert cli(*run, "--weights", weights).err == ""
    for asked in (run, bench):
        assert cli(*asked, "--json").json["random_weights"] is True
    assert cli(*run, "--weights", weights, "--json").json["random_weights"] is False
    assert "random weights: none were loaded or trained" in cli("info", "vgg16").out
    assert cli("info", "vgg16", "--json").json["random_weights"] is True
    assert "random weights" not in cli("info", "lenet").out
    assert cli("run", "lenet", "--backend", "cpu").err == ""
