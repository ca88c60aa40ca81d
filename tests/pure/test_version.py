"""The version is written in one place, and everything that says it says the same."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import glnn

ROOT = Path(__file__).parents[2]
PACKAGE = Path(glnn.__file__).parent
REPOSITORY = pytest.mark.skipif(
    not (ROOT / "CHANGELOG.md").exists(), reason="outside the repository"
)
STATED = re.compile(r"^## \[(\d[^\]]*)\] - (unreleased|\d{4}-\d\d-\d\d)$", re.MULTILINE)


@REPOSITORY
def test_the_latest_version_of_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    latest, *former = re.findall(r"^## .*", text, re.MULTILINE)
    assert not [section for section in former if "unreleased" in section.lower()]
    stated = STATED.fullmatch(latest)
    assert stated is not None, latest
    assert stated[1] == glnn.__version__.partition(".dev")[0]


@REPOSITORY
def test_no_other_file_states_it() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in project and 'path = "glnn/version.py"' in project
    literal = re.compile(rf"""["']{re.escape(glnn.__version__)}["']""")
    stating = [path for path in PACKAGE.rglob("*.py") if literal.search(path.read_text("utf-8"))]
    assert [path.relative_to(PACKAGE).as_posix() for path in stating] == ["version.py"]


def test_the_installed_package() -> None:
    try:
        installed = metadata.distribution("glnn")
    except metadata.PackageNotFoundError:
        pytest.skip("glnn is not installed")
    if Path(str(installed.locate_file("glnn"))).resolve() != PACKAGE.resolve():
        pytest.skip("the tests are of a checkout")
    assert installed.version == glnn.__version__


@pytest.mark.parametrize("command", [["-m", "glnn", "--version"]])
def test_the_command_line(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=60, check=True
    )
    assert glnn.__version__ in done.stdout
