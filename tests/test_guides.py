"""The guides of docs/ followed to the letter, in a copy of the package: what they add works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
IMPORTED = "from glnn.graph.operators import L2Normalize\n"
COPIED = ("glnn", "shaders", "tests/backends", "tests/graph", "tests/gradients")
if not DOCS.is_dir():
    pytest.skip("the guides are not part of the package", allow_module_level=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the guides change."""
    ignored = shutil.ignore_patterns("__pycache__", "*.npz")
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for file in (ROOT / "tests").glob("*.py"):
        shutil.copy(file, tmp_path / "tests")
    for data in (ROOT / "glnn").rglob("*.npz"):
        shutil.copy(data, tmp_path / data.relative_to(ROOT))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(tree: Path, *command: str) -> str:
    """What a Python command prints, by the copy."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "GLNN_CACHE": ""}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "the compute backend cannot run" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def change(path: Path, before: str, after: str) -> None:
    """Put `after` in the place of `before`, which is there."""
    text = path.read_text("utf-8")
    assert before in text, f"{path.name} has no {before!r}"
    path.write_text(text.replace(before, after, 1), "utf-8")


def blocks(page: str, language: str, heading: str) -> list[str]:
    """The blocks of code in the section of a page whose heading begins so."""
    text = (DOCS / page).read_text("utf-8")
    (section,) = re.findall(rf"^## {re.escape(heading)}.*?\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def test_an_operator_is_added_as_its_guide_says(tree: Path) -> None:
    page = "adding-an-operator.md"
    operators, shaders = tree / "glnn/graph/operators", tree / "shaders/l2_normalize"
    shaders.mkdir()
    (text,) = blocks(page, "python", "The operator")
    (operators / "l2_normalize.py").write_text(text)
    module = "from glnn.graph.operators.l2_normalize import L2Normalize\n"
    change(
        operators / "__init__.py",
        "from glnn.graph.operators.matmul import",
        module + "from glnn.graph.operators.matmul import",
    )
    change(operators / "__init__.py", '    "Matmul",\n', '    "L2Normalize",\n    "Matmul",\n')

    (text,) = blocks(page, "python", "Without a kernel")
    (tree / "example.py").write_text(text)
    errors = [line.split() for line in run(tree, "example.py").splitlines()]
    assert [name for name, _ in errors] == ["cpu", "compute", "feedback"]
    assert all(float(error) < 1e-5 for _, error in errors)

    function, row = blocks(page, "python", "A decomposition")
    decompositions = tree / "glnn/graph/compose/decompositions.py"
    change(
        decompositions,
        "from glnn.graph.operators.matmul import",
        module + "from glnn.graph.operators.matmul import",
    )
    change(decompositions, "\nDecompose = ", f"\n{function}\n\nDecompose = ")
    change(
        decompositions,
        '    "softmax": decompose_softmax,\n',
        row + '    "softmax": decompose_softmax,\n',
    )
    (stages,) = blocks(page, "toml", "A decomposition")
    (shaders / "length.toml").write_text(stages)
    run(tree, "example.py")

    rules = tree / "glnn/graph/gradients/neural_network.py"
    (rule,) = blocks(page, "python", "Its gradient")
    change(
        rules,
        "from glnn.graph.operators import (\n",
        IMPORTED + "from glnn.graph.operators import (\n",
    )
    change(rules, "\nRULES", f"\n{rule}\n\nRULES")
    change(
        rules,
        "    Matmul: matmul_backward,\n",
        "    L2Normalize: l2_normalize_backward,\n    Matmul: matmul_backward,\n",
    )

    compute, feedback = blocks(page, "glsl", "Kernels of its own")
    (shaders / "each.comp").write_text(compute)
    (shaders / "feedback.vert").write_text(feedback)
    declarations = blocks(page, "toml", "Kernels of its own")
    for name, declaration in zip(("each", "feedback"), declarations, strict=True):
        (shaders / f"{name}.toml").write_text(declaration)
    test, problem = blocks(page, "python", "Its test")
    (tree / "tests/backends/test_l2_normalize.py").write_text(test)
    accuracy = tree / "glnn/doctor/kernel_accuracy.py"
    change(
        accuracy,
        "from glnn.graph.operators import (\n",
        IMPORTED + "from glnn.graph.operators import (\n",
    )
    change(accuracy, '    "matmul": [\n', problem + '    "matmul": [\n')
    case = 'Case("l2", L2Normalize(), ((3, 7),)),'
    rows = tree / "tests/gradients/cases/rows.py"
    change(rows, "CASES = [\n", f"CASES = [\n    {case}\n")
    change(rows, "from glnn.graph.operators import", IMPORTED + "from glnn.graph.operators import")
    writer, layer = blocks(page, "python", "A layer of it")
    (tree / "glnn/layers/l2_normalize.py").write_text(layer)
    layers, export = tree / "glnn/layers/__init__.py", tree / "glnn/onnx/export"
    first = "from __future__ import annotations\n"
    change(layers, first, first + "from glnn.layers.l2_normalize import L2Normalize\n")
    change(layers, '    "LayerNorm",\n', '    "L2Normalize",\n    "LayerNorm",\n')
    writers = export / "layer_writers.py"
    writers.write_text(f"{writers.read_text('utf-8')}\n\n{writer}", "utf-8")
    row = "    layers.L2Normalize: layer_writers.l2_normalize,\n"
    change(
        export / "__init__.py",
        "_NORMS: dict[type[Layer], Row] = {\n",
        f"_NORMS: dict[type[Layer], Row] = {{\n{row}",
    )

    said = run(tree, "-m", "pytest", "-q", "-p", "no:xdist", "tests/backends/test_l2_normalize.py")
    assert "100%" in said and "failed" not in said
    run(tree, "example.py")
    run(tree, "-m", "glnn", "kernels", "--op", "l2_normalize", "--compile")
    program = """
import numpy as np, glnn
x = np.ones((2, 4), np.float32)
model = glnn.Model.sequential([glnn.layers.L2Normalize()], (4,))
model.save("l2.onnx")
model.save("l2.json")
print(abs(glnn.load("l2.onnx")(x) - 0.5).max())
"""
    assert float(run(tree, "-c", program)) < 1e-6
    for backend, kernel in (("compute", "each"), ("feedback", "feedback")):
        for verb in ("plan", "verify"):
            said = run(tree, "-m", "glnn", verb, "l2.json", "--backend", backend)
            (row,) = [line.split() for line in said.splitlines() if " l2_normalize " in line]
            assert row[2] == kernel, said
    run(tree, "-m", "pytest", "-q", "-p", "no:xdist", "tests/gradients/test_table.py")
    if find_spec("ruff"):
        run(tree, "-m", "ruff", "check", "--ignore", "E402,I001,RUF022", "glnn", "tests/backends")


@pytest.mark.parametrize("page", ["index.md", "running.md"])
def test_the_first_pages_run(tmp_path: Path, page: str) -> None:
    code = "\n".join(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    )
    comments = re.findall(r"print\(.*  # (.+)$", code, re.MULTILINE)
    assert "print(" in code and comments
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [one for one in comments if one in done.stdout.splitlines()] == comments


def test_a_function_is_added_as_its_guide_says(tree: Path) -> None:
    page = "adding-a-function.md"
    functions = tree / "glnn/graph/functions.py"
    swish, log_cosh = blocks(page, "python", "A formula of other functions")
    cube = next(
        line
        for line in blocks(page, "python", "A function of its own")[0].splitlines()
        if "cube" in line
    )
    change(
        functions,
        "_ACTIVATIONS = (\n",
        f"_ACTIVATIONS = (\n    {swish.strip()}\n    {cube.strip()}\n{log_cosh}",
    )
    (text,) = [one for one in blocks(page, "python", "Try it") if "import glnn" in one]
    (tree / "example.py").write_text(text)
    lines = [line.split() for line in run(tree, "example.py").splitlines()]
    assert lines == [[name, "[", "1.", "-8.", "27.]"] for name in ("cpu", "compute", "feedback")]
    by_formula = "import numpy as np, glnn\nx = np.array([-1, 2], np.float32)\n"
    by_formula += "y = glnn.layers.Pointwise('swish', [2.0])(x, backend='feedback')\n"
    by_formula += "print(abs(y - x / (1 + np.exp(-2 * x))).max())"
    assert float(run(tree, "-c", by_formula)) < 1e-6
    references = tree / "tests/graph/function_references.py"
    (line,) = [one for one in blocks(page, "python", "Accuracy") if "logaddexp" in one]
    change(references, '    "relu": lambda', f'{line}    "relu": lambda')
    test = "tests/graph/test_functions.py"
    run(tree, "-m", "pytest", "-q", "-p", "no:xdist", "-k", "log_cosh", test)
    said = run(tree, "-m", "glnn", "doctor", "--function", "log_cosh", "--no-speed", "--json")
    assert all(one["wrong"] is None and one["ulps"] <= 1 for one in json.loads(said)["functions"])
