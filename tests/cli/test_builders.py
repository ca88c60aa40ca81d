"""Models that are built by name work on the command line without a file."""

from __future__ import annotations

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
