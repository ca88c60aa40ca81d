"""Docstrings name parameters that there are, and stand where they belong to something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import glnn

PACKAGE = Path(glnn.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ARGUMENTS = re.compile(r"(?:^|[.!?)]\s+|\n\s*\n\s*)(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): ")
"""A sentence that explains arguments: their names and a colon."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.fixture(scope="module")
def classes() -> dict[str, ast.ClassDef]:
    """The classes of the package by name."""
    trees = (ast.parse(path.read_text("utf-8")) for path in MODULES)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def parameters(function: Function) -> set[str]:
    """The names of the parameters of `function`."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in every if arg is not None}


def texts(node: ast.AST) -> set[str]:
    """The string literals in `node`: keys of what a function returns, operands of an operator."""
    literals = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {text for text in literals if isinstance(text, str)}


def attributes(owner: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The names of a class's attributes, methods and constructor's parameters, with its bases'.

    Its summary names further ones, as those of a formula.
    """
    names = texts(owner) | set(re.findall(r"\w+", summary(owner)))
    for node in ast.walk(owner):
        if isinstance(node, Function):
            names |= {node.name, *(parameters(node) if node.name == "__init__" else ())}
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    bases = {
        node.id for base in owner.bases for node in ast.walk(base) if isinstance(node, ast.Name)
    }
    for name in bases & classes.keys() - {owner.name}:
        names |= attributes(classes[name], classes)
    return names


def summary(node: ast.ClassDef | Function) -> str:
    """The first paragraph of the docstring of `node`."""
    return (ast.get_docstring(node) or "").split("\n\n")[0]


def explained(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | Function, str]]:
    """Each function and class with a name that its docstring explains."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | Function):
            for names in ARGUMENTS.findall(ast.get_docstring(node) or ""):
                yield from ((node, name.lstrip("*")) for name in names.split(", "))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_explain_parameters_that_there_are(
    path: Path, classes: dict[str, ast.ClassDef]
) -> None:
    def known(owner: ast.ClassDef | Function) -> set[str]:
        if isinstance(owner, ast.ClassDef):
            return attributes(owner, classes)
        return parameters(owner) | texts(owner)

    tree = ast.parse(path.read_text("utf-8"))
    wrong = [
        f"line {owner.lineno}, {owner.name}: {name}"
        for owner, name in explained(tree)
        if name not in known(owner)
    ]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_stand_behind_what_they_describe(path: Path) -> None:
    """At the top of a module, class or function, or behind an assignment."""
    stray = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, [])
            for before, statement in zip([None, *block], block) if isinstance(block, list) else ():
                if not isinstance(statement, ast.Expr) or not isinstance(
                    statement.value, ast.Constant
                ):
                    continue
                named = isinstance(before, ast.Assign | ast.AnnAssign) or (
                    before is None and isinstance(node, ast.Module | ast.ClassDef | Function)
                )
                if isinstance(statement.value.value, str) and not named:
                    stray.append(statement.lineno)
    assert not stray
