"""docs/errors.md quotes messages that glnn has: those that can be had anywhere are provoked."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.cli.options import check_absent
from glnn.errors import GlnnError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/errors.md"
if not PAGE.exists():
    pytest.skip("the guides are not part of the package", allow_module_level=True)
MESSAGES = re.findall(r"^\| `([^`]+)`", PAGE.read_text("utf-8"), re.MULTILINE)
X = np.zeros((1, 1, 28, 28), np.float32)


def run(feeds: dict[str, Any]) -> None:
    glnn.InferenceSession("lenet", backend="cpu").run(None, feeds)


PROVOKED: dict[str, Callable[[], object]] = {
    "unknown model …": lambda: glnn.load("lenot"),
    "input … must have … dimensions, …, got …": lambda: run({"input": X[0]}),
    "input … must be a … NumPy array, got …": lambda: run({"input": X.astype(np.float64)}),
    "missing input …: … takes …": lambda: run({"x": X}),
    "the state dict is not that of …: missing: …; unexpected: …": lambda: glnn.load(
        "lenet-untrained"
    ).load_state_dict({"a": X}),
    "… is there already: …--overwrite replaces it": lambda: check_absent("OUT", __file__),
}


def pattern(message: str) -> re.Pattern[str]:
    """Return what matches a message of the page, in which … stands for any text."""
    return re.compile(".*".join(re.escape(part) for part in message.split("…")), re.DOTALL)


@cache
def texts() -> list[str]:
    """Return all texts in glnn's sources, with … in place of what is put into them."""
    found = []
    for path in (ROOT / "glnn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                )
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value.replace("%s", "…"))
    return found


def test_messages_are_found() -> None:
    assert len(MESSAGES) > 15 and PROVOKED.keys() <= set(MESSAGES)


@pytest.mark.parametrize("message", PROVOKED)
def test_a_mistake_has_this_message(message: str) -> None:
    with pytest.raises(GlnnError) as caught:
        PROVOKED[message]()
    assert pattern(message).match(str(caught.value)), str(caught.value)


@pytest.mark.parametrize("message", sorted(set(MESSAGES) - PROVOKED.keys()))
def test_a_source_has_this_message(message: str) -> None:
    """Each part between two … that has several words is one of its texts, or a part of one."""
    parts = [part.strip() for part in message.split("…") if part.count(" ") > 1]
    assert parts, message
    for part in parts:
        assert any(part in text for text in texts()), part
