"""The rules that keep the project simple: who imports whom, and how long things are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import glnn
from glnn.graph import operators
from glnn.kernels import library
from glnn.kernels.kernel import Kernel
from glnn.kernels.report import Example
from glnn.kernels.source import assemble

PACKAGE = Path(glnn.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# A layer of the project may import those before it; the ones in a tuple may not import each other.
ORDER = (
    ("errors", "registry", "version"),
    ("core",),
    ("graph", "gl"),
    ("runtime", "images"),
    ("stored", "layers", "kernels"),
    ("onnx", "backends", "validation"),
    ("compiler", "data"),
    ("model", "ops", "filters", "profiling"),
    ("session", "training", "tuning", "documents", "generation"),
    ("onnx_backend", "torch", "onnxruntime", "doctor"),
    ("suite",),
    ("cli",),
)
HEAVY = {"glnn.graph", "glnn.kernels", "glnn.backends", "glnn.compiler", "glnn.model", "moderngl"}
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def _name(path: Path) -> str:
    """The module in `path`, as imports have it."""
    parts = ("glnn", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


NAMES = {_name(path) for path in MODULES}
# The package's own two: glnn/__init__.py loads the parts as they are asked for.
PARTS = [path for path in MODULES if _name(path) not in ("glnn", "glnn.__main__")]


def _imported(tree: ast.AST, *, by_name: bool = True) -> set[str]:
    """Modules of glnn that are imported anywhere below `tree`, for types only or late too.

    by_name: also by `import_module`.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if by_name and isinstance(node, ast.Call) and _called(node) == "import_module":
            (argument,) = node.args
            if isinstance(argument, ast.Constant):
                found.add(str(argument.value))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports say where from"
            module = node.module or ""
            whole = {f"{module}.{alias.name}" for alias in node.names}
            found |= (whole & NAMES) | ({module} if whole - NAMES else set())
    return found & NAMES


def _called(node: ast.Call) -> str:
    """The name of the function that is called."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def test_modules_are_imported_by_names_that_can_be_read() -> None:
    """But by the registry, by the command line of its verbs, and in stand-ins."""
    hidden = {
        _name(path)
        for path in PARTS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__")
        if not isinstance(node.args[0], ast.Constant)
    }
    here = "glnn.onnxruntime"
    stand_ins = {f"{here}.shim", f"{here}.standin.onnxruntime", f"{here}.standin.sitecustomize"}
    assert hidden <= {"glnn.registry", "glnn.cli", *stand_ins}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module imports."""
    return {_name(path): _imported(ast.parse(path.read_text("utf-8"))) for path in PARTS}


def test_imports_go_one_way(imports: dict[str, set[str]]) -> None:
    """From part to part of glnn."""

    assert not [module for module, others in imports.items() if "glnn" in others]  # its root

    def part(module: str) -> str:
        return module.split(".")[1]

    upward = {
        (module, other)
        for module, others in imports.items()
        for other in others
        if part(other) != part(module) and RANK[part(other)] >= RANK[part(module)]
    }
    assert not upward


def test_imports_make_no_circles(imports: dict[str, set[str]]) -> None:
    """From module to module, also inside a folder."""
    TopologicalSorter(imports).prepare()  # CycleError names those of a circle


def test_folders_make_no_circles(imports: dict[str, set[str]]) -> None:
    """From folder to folder, also to those within; the files of glnn/ stand for themselves.

    A folder may export names of those within, which `test_imports_make_no_circles` sees.
    """

    def folder(module: str) -> str:
        path = PACKAGE.joinpath(*module.split(".")[1:])
        return module if path.is_dir() or path.parent == PACKAGE else module.rpartition(".")[0]

    between: dict[str, set[str]] = {}
    for module, others in imports.items():
        exported = {one for one in others if one.startswith(f"{module}.")}
        between.setdefault(folder(module), set()).update(map(folder, others - exported))
    TopologicalSorter({one: others - {one} for one, others in between.items()}).prepare()


def test_functions_import_nothing_of_glnn() -> None:
    late = {
        (_name(path), other)
        for path in PARTS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for other in _imported(node, by_name=False)
    }
    assert not late


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes_stay_readable(path: Path) -> None:
    """A file is as long as its subject needs, which is no more than this."""
    assert len(path.read_text("utf-8").splitlines()) <= 800


def test_importing_glnn_opens_no_gl() -> None:
    """Nor does its command line import a verb, a model or a kernel before one is asked for."""
    code = (
        "import sys, glnn; print([m for m in ('moderngl', 'glfw', 'rich') if m in sys.modules]);"
        "import glnn.cli; parts = {'.'.join(m.split('.')[:2]) for m in sys.modules};"
        f"print(sorted(parts & {HEAVY}), 'glnn.cli.run' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[] False"]


@pytest.mark.parametrize("kernel", library(), ids=lambda k: f"{k.op}-{k.name}")
def test_a_shader_carries_the_defaults_of_its_declaration(kernel) -> None:
    text = assemble(kernel, "", {}, generated=next(Example.all_of(kernel)).texts).text
    for name, value in kernel.defaults.items():
        default = re.search(rf"#ifndef {name}\n#define {name} (\d+)\n", text)
        assert default, name
        if (kernel.op, kernel.name) == (kernel.path.parent.name, kernel.path.stem):
            assert int(default[1]) == value, name


def apart(kernel: Kernel, included: str) -> tuple[str, str]:
    """The kernel's source, and that without what the file `included` gives it."""
    source = assemble(kernel, "", {}, generated=next(Example.all_of(kernel)).texts)
    lines = zip(source.text.splitlines(), source.origin, strict=True)
    return source.text, "\n".join(line for line, (file, _) in lines if file != included)


@pytest.mark.parametrize("kernel", library(), ids=lambda k: f"{k.op}-{k.name}")
def test_a_launch_can_be_made_in_parts(kernel) -> None:
    """Where an invocation stands is asked of common/launch.glsl alone."""
    text, own = apart(kernel, "common/launch.glsl")
    assert not re.findall(r"gl_(?:WorkGroupID|NumWorkGroups|GlobalInvocationID)", own)
    if kernel.backend == "compute":
        assert "IN_PARTS" in text
    if kernel.launch.instances:
        assert "gl_InstanceID + first_instance" in own and own.count("gl_InstanceID") == 1


@pytest.mark.parametrize("kernel", library(), ids=lambda k: f"{k.op}-{k.name}")
def test_shared_memory_has_one_barrier(kernel) -> None:
    """`workgroup_barrier` of common/barrier.glsl, which has what each driver needs."""
    _, own = apart(kernel, "common/barrier.glsl")
    assert "memoryBarrierShared" not in own
    if re.search(r"^shared ", own, re.MULTILINE):
        assert not re.search(r"\bbarrier\(\)", own)


@pytest.mark.parametrize("name", sorted({k.op for k in library()}))
def test_one_name_crosses_all_folders(name: str) -> None:
    """From the operator, in one file, to its shaders' folder, to the test of its kernels."""
    kinds = [getattr(operators, kind) for kind in operators.__all__]
    assert len({kind.__module__ for kind in kinds if kind.name == name}) == 1
    assert (Path(__file__).parent / "backends" / f"test_{name}.py").is_file()
