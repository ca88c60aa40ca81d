"""The examples of docs/training.md run, one after the other, as the page has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import glnn

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_pages_examples_run(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    here: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), here)
    assert len(blocks) == 5
    history = here["history"]
    assert isinstance(history, glnn.training.History) and history[4].validation_accuracy > 0.75
    assert str(history) in capsys.readouterr().out
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {
        *("digits", "history", "run")
    }
    assert isinstance(here["model"], glnn.Model) and len(glnn.load("digits.json").nodes) == 3
