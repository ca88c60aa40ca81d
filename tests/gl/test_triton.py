"""Triton's library is loaded before GL is opened where PyTorch was imported. Stubs stand for both.

`make check-torch` has the true ones (tests/torch/test_opening.py).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc/self/maps")
Run = Callable[..., CompletedProcess[str]]

OPENED = """
from pathlib import Path
import sys
from glnn.gl import Device, device_selection

def loaded():
    return "/_C/libtriton.so" in Path("/proc/self/maps").read_text()

def ways(*arguments, before=device_selection._candidates):
    print(loaded())
    yield from before(*arguments)

device_selection._candidates = ways
with Device():
    print(loaded(), "triton" in sys.modules)
"""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with a torch, and a triton whose code must not be run, found before any others."""
    (tmp_path / "triton" / "_C").mkdir(parents=True)
    (tmp_path / "torch.py").touch()
    (tmp_path / "triton" / "__init__.py").write_text("raise SystemExit('it was run')")
    spec = find_spec("glcontext.egl")  # any library
    assert spec is not None and spec.origin is not None
    shutil.copy(spec.origin, tmp_path / "triton" / "_C" / "libtriton.so")
    return tmp_path


@pytest.mark.parametrize(
    ("before", "expected"),
    [("import torch", "True\nTrue False\n"), ("", "False\nFalse False\n")],
)
def test_it_is_loaded_first(python: Run, stubs: Path, before: str, expected: str) -> None:
    done = python(f"import sys; sys.path.insert(0, {str(stubs)!r}); {before}\n{OPENED}")
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


def test_what_cannot_be_loaded_is_passed_over(python: Run, stubs: Path) -> None:
    (stubs / "triton" / "_C" / "libtriton.so").write_text("no library")
    done = python(f"import sys; sys.path.insert(0, {str(stubs)!r}); import torch\n{OPENED}")
    assert (done.stdout, done.stderr) == ("False\nFalse False\n", "")
