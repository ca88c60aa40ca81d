"""The table of ONNX operators: what `python -m glnn.onnx` prints, and its page."""

from __future__ import annotations

import json
from typing import Any

import onnx
import pytest

from glnn.onnx.__main__ import main
from tests.onnx.operators_page import PAGE, page


def test_page() -> None:
    """`python -m tests.onnx.operators_page` writes it anew."""
    text = PAGE.read_text("utf-8")
    if f"onnx {onnx.__version__}.\n" not in text:
        pytest.skip(f"the page is not of onnx {onnx.__version__}")
    assert text == page()


def test_json(capsys: Any) -> None:
    assert main(["--json", "--domain", "com.microsoft"]) == 0
    rows = json.loads(capsys.readouterr().out)
    gelu = next(row for row in rows if row["name"] == "Gelu")
    assert gelu == {
        "name": "Gelu", "domain": "com.microsoft", "versions": [1], "computed_by": "GPU"
    }  # fmt: skip
    assert {row["domain"] for row in rows} == {"com.microsoft"}


def test_table_has_every_operator_of_the_package(capsys: Any) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    known = {s.name for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")}
    assert all(f"| {name} | " in printed for name in known)
