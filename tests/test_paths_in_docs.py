"""Pages name files and modules that exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import glnn

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = re.compile(r"`([\w./-]+\.(?:py|toml|comp|vert|frag|glsl))`")
MODULES = re.compile(r"\bglnn(?:\.[a-z_][a-z_0-9]*)+")
READERS = re.compile(
    r"[A-Z]{3,}|^mine/|l2_normali|hypotenuse|sitecustomize|silero_vad|^shaders/matmul/(scalar|together)\.|^each\."
)
"""Files of the reader, or of others."""
TREE = [
    path.relative_to(ROOT).as_posix()
    for folder in ("glnn", "shaders", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".toml", ".comp", ".vert", ".frag", ".glsl")
]


def exists(module: str) -> bool:
    """Whether `module` can be imported, or is an attribute of one that can be."""
    parts = module.split(".")
    try:
        if find_spec(module) is not None:
            return True
    except ModuleNotFoundError:
        pass
    owner: object = glnn
    for name in parts[1:]:
        owner = getattr(owner, name, None)
    return owner is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = {name for name in FILES.findall(page.read_text("utf-8")) if not READERS.search(name)}
    missing = {
        name
        for name in named
        if not any(path == name or path.endswith(f"/{name.removeprefix('../')}") for path in TREE)
        and not (page.parent / name).exists()
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    named = set(MODULES.findall(page.read_text("utf-8")))
    assert not {name for name in named if not exists(name) and not READERS.search(name)}
