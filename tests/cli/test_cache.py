"""`glnn cache`: what is kept, and its removal."""

from __future__ import annotations

import json

import pytest

from glnn.core.disk_cache import DiskCache


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    monkeypatch.delenv("GLNN_CACHE_SIZE", raising=False)
    disk = DiskCache(tmp_path)
    disk.write("programs/a", {"x": bytes(100)}, device="one")
    disk.write("programs/b", {"x": bytes(200)}, device="two")
    disk.write("plans/a", {"x": bytes(3000)}, device="one")
    for table, entries in (("choices", {}), ("verdicts", {"key": 1}), ("notes", {"mine": 1})):
        (tmp_path / table).mkdir()
        known = {"form": 1, "device": "one", "glnn": "1"} if table != "notes" else {}
        (tmp_path / table / "one.json").write_text(json.dumps({**known, table: entries}))
    (tmp_path / "choices" / "bad.json").write_text("{")
    (tmp_path / "programs" / "bad.glnn-kept").write_text("bad")
    (tmp_path / "programs" / "mine.bin").write_text("mine")
    return tmp_path


def test_what_is_kept(cli, kept) -> None:
    found = cli("cache", "--json").json
    rows = [(row["kind"], row["device"], row["entries"]) for row in found["kept"]]
    assert rows == [
        ("plans", "one", 1),
        ("programs", "(not usable)", 1),
        ("programs", "one", 1),
        ("programs", "two", 1),
        ("tuned", "(not usable)", 0),
        ("tuned", "one", 0),
        ("verdicts", "one", 1),
    ]
    assert (found["folder"], found["most"]) == (str(kept), 2 << 30)
    assert found["bytes"] == sum(row["bytes"] for row in found["kept"]) > 3300
    shown = cli("cache").out
    assert str(kept) in shown and "verdicts" in shown and "2048.0 MiB" in shown


def files(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_programs_and_plans_go(cli, kept) -> None:
    assert "3 entries" not in cli("cache", "clear").refusal, "nobody is asked without a terminal"
    assert len(files(kept)) == 9
    assert cli("cache", "clear", "--yes", "--json").json["removed"] == 4
    mine = ["notes/one.json", "programs/mine.bin"]
    found = ["choices/bad.json", "choices/one.json", "verdicts/one.json"]
    assert files(kept) == sorted(mine + found)
    assert "nothing to remove" in cli("cache", "clear").out


def test_a_kind_goes(cli, kept) -> None:
    assert cli("cache", "clear", "plans", "tuned", "--yes").code == 0
    kinds = {row["kind"] for row in cli("cache", "--json").json["kept"]}
    assert kinds == {"programs", "verdicts"}
    refusal = cli("cache", "clear", "plan", "--yes").refusal
    assert (
        "expected a KIND of programs, plans, weights, tuned, verdicts, certificates, "
        "fastest, limits, got plan" in refusal
    )


def test_nothing_is_kept(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GLNN_CACHE", "")
    assert cli("cache", "--json").json["kept"] == []
    assert "nothing is kept" in cli("cache").out
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path / "none"))
    assert "nothing is kept there yet" in cli("cache").out
    assert not (tmp_path / "none").exists()
