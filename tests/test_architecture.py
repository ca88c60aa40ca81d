"""The rules that keep the project simple: who imports whom, and how long things are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import glnn
from glnn.kernels import library
from glnn.kernels.report import alone

PACKAGE = Path(glnn.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# A layer of the project may import those before it; the ones in a tuple may not import each other.
ORDER = (
    ("errors",),
    ("reading",),
    ("settings", "process", "types"),
    ("layout",),
    ("graph", "device"),
    ("kernels",),
    ("backends",),
    ("compile",),
    ("layers",),
    ("data",),
    ("model",),
    ("session",),
    ("ops",),
    ("profiling",),
    ("tuning",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def _imports(path: Path) -> set[str]:
    """Parts of glnn imported where the module loads; those in functions are late on purpose."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glnn."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("glnn.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if here not in RANK:  # the package's own __init__ and __main__
        return
    for imported in _imports(path) - {here}:
        assert RANK[imported] < RANK[here], f"{path} imports glnn.{imported}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes_stay_readable(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 320
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno <= 62, f"{path}: {node.name}"


def test_importing_glnn_opens_no_gl() -> None:
    code = "import sys, glnn; print([m for m in ('moderngl', 'glfw', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kernel", library(), ids=lambda k: f"{k.op}-{k.name}")
def test_a_shader_carries_the_defaults_of_its_declaration(kernel) -> None:
    text = alone(kernel, "", {}).text
    for name, value in kernel.defaults.items():
        default = re.search(rf"#ifndef {name}\n#define {name} (\d+)\n", text)
        assert default, name
        if kernel.name == kernel.path.stem:  # others declare the same shader anew
            assert int(default[1]) == value, name


@pytest.mark.parametrize("kernel", library(), ids=lambda k: f"{k.op}-{k.name}")
def test_a_launch_can_be_made_in_parts(kernel) -> None:
    """Where an invocation stands is asked of common/launch.glsl alone."""
    source = alone(kernel, "", {})
    lines = zip(source.text.splitlines(), source.origin, strict=True)
    own = "\n".join(line for line, (file, _) in lines if file != "common/launch.glsl")
    assert not re.findall(r"gl_(?:WorkGroupID|NumWorkGroups|GlobalInvocationID)", own)
    if kernel.backend == "compute":
        assert "IN_PARTS" in source.text
    if kernel.instances:
        assert "gl_InstanceID + first_instance" in own and own.count("gl_InstanceID") == 1


@pytest.mark.parametrize("name", sorted({k.op for k in library()}))
def test_one_name_crosses_all_folders(name: str) -> None:
    assert (PACKAGE / "graph" / "operators" / f"{name}.py").is_file()
    assert (Path(__file__).parent / "backends" / f"test_{name}.py").is_file()
