"""Kernels that an earlier process has read are the same, and never those of other files."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from pathlib import Path

import pytest

from glnn.kernels.library import parsed, read

DECLARATION = """
summary = "Copies."
operands = { x0 = { layout = "R", binding = 0 }, out = { layout = "R", binding = 1 } }
launch = { workgroup = [64], grid = ["count / 64"] }
priority = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A folder with one kernel, and a place for what is kept of it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    kernel = tmp_path / "shaders" / "pointwise"
    kernel.mkdir(parents=True)
    (kernel / "copied.toml").write_text(DECLARATION)
    (kernel / "copied.comp").write_text("void main() {}\n")
    return tmp_path / "shaders"


def kept() -> Path:
    return Path(importlib.util.cache_from_source(inspect.getfile(parsed))).with_suffix(".pickle")


def unread(folder: Path) -> tuple[()]:
    raise AssertionError(f"{folder} was read again")


def test_what_was_read_is_not_read_again(folder) -> None:
    first = parsed(folder, read)
    assert first == read(folder) and first[0].priority == 1
    assert parsed(folder, unread) == first


@pytest.mark.parametrize("change", ["text", "time", "new", "gone"])
def test_changed_files_are_read(folder, change) -> None:
    parsed(folder, read)
    path = folder / "pointwise" / "copied.toml"
    if change == "text":
        path.write_text(DECLARATION.replace("priority = 1", "priority = 22"))
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "new":
        path.with_name("other.toml").write_text(DECLARATION)
        path.with_name("other.comp").write_text("void main() {}\n")
    else:
        path.unlink()
        path.with_suffix(".comp").unlink()
    with pytest.raises(AssertionError, match="read again"):
        parsed(folder, unread)
    assert parsed(folder, read) == read(folder)


@pytest.mark.parametrize("content", [b"", b"damaged", None])
def test_what_is_damaged_is_made_again(folder, content) -> None:
    first = parsed(folder, read)
    state = kept().read_bytes()[:32]
    kept().write_bytes(state + b"damaged" if content is None else content)
    assert parsed(folder, read) == first
    assert parsed(folder, unread) == first


def test_nothing_is_kept_where_python_keeps_no_code(folder, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    parsed(folder, read)
    assert not kept().exists()


def test_a_place_that_cannot_be_written_is_no_error(folder, tmp_path) -> None:
    (tmp_path / "kept").write_text("a file")
    assert parsed(folder, read) == read(folder)
