"""What `glnn info` and `glnn kernels` say of kernels that were seen to be wrong here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import glnn
from glnn.gl import Device
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Matmul, Pointwise
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import Verdict, VerdictRecord, Verdicts, verdict_key
from tests.cli.conftest import Glnn

WRONG = "its results are wrong, off by 9.5e-01"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that says one kernel is wrong, one is right in parts and one is right."""
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    said = {
        "gemm_tiled": Verdict(wrong=WRONG),
        "gemm_blocked": Verdict(((5000, 1, 1, 0),), part=512),
        "gemm_split_k16": Verdict(((5000, 1, 1, 0),)),
    }
    with Device() as device:
        offers = device.capabilities
        verdicts = Verdicts.load(tmp_path, offers, glnn.__version__)
        spec = OpSpec.create(Matmul(), {"x": (3, 5), "weight": (7, 5)}, {})
        for kernel in kernels_for("matmul", "compute"):
            if kernel.name in said:
                verdicts.keep({verdict_key(kernel, spec, offers): said[kernel.name]})
        (one, *_) = kernels_for("pointwise", "feedback")
        activation = OpSpec.create(Pointwise(call("relu", Arg(0))), {"x0": (3, 5)}, {})
        one = activation.adapted(one)
        verdicts.keep({verdict_key(one, activation, offers): Verdict(wrong=WRONG)})


def test_info(cli: Glnn, kept: None) -> None:
    report = cli("info", "--json").json["kernels"]
    assert report["seen"] == 4
    said = {(one["backend"], one["name"]): one["said"] for one in report["notable"]}
    assert said["compute", "gemm_tiled"] == f"not used: {WRONG}"
    assert said["compute", "gemm_blocked"] == "in launches of 512 at most"
    assert len(said) == 3
    shown = cli("info").out
    assert "4 kernels" in shown and "3 of them" in shown and WRONG in shown


def test_kernels(cli: Glnn, kept: None) -> None:
    rows = {row["name"]: row for row in cli("kernels", "--op", "matmul", "--json").json["kernels"]}
    assert not rows["gemm_tiled"]["ok"] and rows["gemm_tiled"]["reason"] == f"wrong: {WRONG}"
    assert (
        rows["gemm_blocked"]["ok"] and rows["gemm_blocked"]["seen"] == "in launches of 512 at most"
    )
    assert rows["gemm_split_k16"]["ok"] and rows["gemm_split_k16"]["seen"] is None
    assert "512 at most" in cli("kernels", "--op", "matmul").out


def test_forget(cli: Glnn, kept: None) -> None:
    rows = cli("kernels", "--op", "matmul", "--forget", "--json").json["kernels"]
    assert all(row["seen"] is None for row in rows)
    assert cli("info", "--json").json["kernels"] == {"seen": 0, "notable": []}
    assert cli("kernels", "--forget").code == 0, "there is nothing to forget"


def test_what_cannot_be_forgotten(cli: Glnn, kept: None, tmp_path: Path) -> None:
    (path,) = tmp_path.glob("verdicts/*.json")
    path.unlink()
    path.mkdir()
    done = cli("kernels", "--forget")
    warned, refused = done.err.splitlines()
    assert warned.startswith(f"glnn: {path}: not used, as it is damaged: ")
    assert refused.startswith(f"glnn: --forget: {path} cannot be removed") and done.code == 2


def test_nothing_was_seen_yet(cli: Glnn) -> None:
    assert cli("info", "--json").json["kernels"] == {"seen": 0, "notable": []}
    assert "no kernel was held against NumPy here yet" in cli("info").out


@pytest.mark.parametrize(
    ("wrong", "right", "says"),
    [
        (
            0,
            1,
            "1 kernel with its attributes was held against NumPy here; it is used, not in parts",
        ),
        (1, 0, "1 kernel with its attributes was held against NumPy here; it is not used, or in"),
        (
            0,
            2,
            "2 kernels with their attributes were held against NumPy here; all of them are used,",
        ),
        (
            1,
            2,
            "3 kernels with their attributes were held against NumPy here; 1 of them is not used",
        ),
        (2, 1, "3 kernels with their attributes were held against NumPy here; 2 of them are not"),
    ],
)
def test_how_many_were_seen(
    cli: Glnn, monkeypatch: pytest.MonkeyPatch, wrong: int, right: int, says: str
) -> None:
    one = VerdictRecord("compute", "matmul", "gemm_tiled", "", Verdict(wrong=WRONG))
    other = dataclasses.replace(one, verdict=Verdict(((5000, 1, 1, 0),)))
    seen = [one] * wrong + [other] * right
    monkeypatch.setattr(Verdicts, "seen", lambda self: seen)
    assert says in cli("info", "--wide").out
