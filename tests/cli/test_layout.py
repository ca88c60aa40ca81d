from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Glnn


def test_places_of_elements(cli: Glnn) -> None:
    report = cli("layout", "C_4_2_C", 4, 4, "--json").json
    assert report["layout"] == "C 4 2 C"
    assert report["places"][0] == [0, 4, 8, 12]
    assert cli("layout", "R", 2, 3, "--json").json["places"] == [[0, 1, 2], [3, 4, 5]]
    padded = cli("layout", "R4", 2, 3, "--json").json
    assert padded["places"] == [[0, 1, 2], [4, 5, 6]]  # rows start on a multiple of four
    tiles = cli("layout", "IO4i4o", 4, 2, "--json").json
    assert tiles["places"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_the_table_shows_them(cli: Glnn) -> None:
    out = cli("layout", "R 2 2 R", 4, 4).out
    assert "R 2 2 R, 4 x 4" in out
    assert out.splitlines()[-2].split() == ["3", "10", "11", "14", "15"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture(cli: Glnn, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"z{suffix}"
    assert cli("layout", "R 4 4 R 2 2 R", 8, 8, "--plot", path).code == 0
    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in path.read_bytes()


def test_mistakes(cli: Glnn, tmp_path: Path) -> None:
    assert "expected one like" in cli("layout", "Q", 2, 2).refusal
    assert "is not for matrices" in cli("layout", "nChw4c", 2, 2).refusal
    assert "expected a .png or .svg file" in cli("layout", "C", 2, 2, "--plot", "a.txt").refusal
    assert "0" in cli("layout", "C", 0, 2).refusal
    pytest.importorskip("matplotlib")
    gone = tmp_path / "gone" / "a.png"
    assert "cannot write to" in cli("layout", "C", 2, 2, "--plot", gone).refusal
