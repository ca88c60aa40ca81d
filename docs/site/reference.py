"""The text of the reference: API pages, made of `__all__` of modules, and the page of commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
MODULES = (
    *("glnn", "glnn.layers", "glnn.images", "glnn.filters", "glnn.training", "glnn.generation"),
    *("glnn.onnxruntime", "glnn.torch", "glnn.model", "glnn.ops", "glnn.data", "glnn.errors"),
    *("glnn.profiling", "glnn.kernels", "glnn.backends", "glnn.gl"),
)
"""The public modules, each of which has an API page."""
DEFINED_IN = {"glnn.onnxruntime": "glnn.onnxruntime.names"}
"""Modules whose names another one defines."""
FIRST = ("InferenceSession", "load", "Model", "LanguageModel", "SpeechToText")
"""Names that come first on their page: a program begins with them."""
LAST = ("BY_NAME", "registry")
"""Names that come last on theirs: programs that extend glnn need them."""
PAGE = re.compile(r"\bdocs/([\w-]+)\.md")
"""A page that a docstring names."""
SPECIAL = re.compile(r"([\\`*_<>\[\]|#])")
"""Characters that mean something in Markdown."""


def api_page(module: str) -> str:
    """Return the API page of a module: its docstring, and each name of its `__all__`."""
    tree = _parsed(module)
    lines = [f"# {module}", "", link_pages(ast.get_docstring(tree) or ""), ""]
    for name in sorted(public_names(module), key=_place):
        if f"{module}.{name}" in MODULES:
            lines += [f"## [{module}.{name}]({name}.md)", "", _summary(f"{module}.{name}"), ""]
        else:
            lines += [f"::: {DEFINED_IN.get(module, module)}.{name}"]
            if module != "glnn.layers":  # each of which has all that Layer has
                lines += ["    options:", "      inherited_members: true"]
            lines.append("")
    return "\n".join(lines)


def _place(name: str) -> tuple[int, str]:
    """Return the sorting key of a name: FIRST in that order, all others by the alphabet, LAST."""
    if name in FIRST:
        return FIRST.index(name), ""
    return len(FIRST) + (name in LAST), name.lower()


def link_pages(docstring: str) -> str:
    """Replace the names of pages of docs/ by links, as seen from an API page."""
    return PAGE.sub(r"[\1.md](../\1.md)", docstring)


def public_names(module: str) -> list[str]:
    """Return `__all__` of a module, without importing it: some need packages that are not there."""
    for node in _parsed(DEFINED_IN.get(module, module)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise ValueError(f"{module} has no __all__, of which its API page is made")


def _parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / module_path(module)).read_text("utf-8"))


def module_path(module: str) -> str:
    """Return the file of a module, as a path in the repository."""
    path = Path(*module.split("."))
    path = path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")
    return path.as_posix()


def _summary(module: str) -> str:
    """Return the first paragraph of the docstring of a module."""
    return (ast.get_docstring(_parsed(module)) or "").split("\n\n")[0]


def commands_page(group: click.Group, name: str) -> str:
    """Return the page of a program's commands: of each what `--help` says."""
    return "\n".join(_command(group, click.Context(group, info_name=name), 1))


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Yield the lines of a command and those below it. level: of its heading."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"{'#' * level} {context.command_path}", "", "```", usage, "```", "")
    yield from _help(command)
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    for option, text in filter(None, records):
        if text:  # arguments have none: the usage names them
            yield from (f"`{option}`", f":   {_escaped(text)}", "")
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            below = command.get_command(context, sub)
            if below is not None and not below.hidden:
                yield from _command(below, click.Context(below, context, info_name=sub), level + 1)


def _help(command: click.Command) -> Iterator[str]:
    """Yield the help of a command; paragraphs behind a `\\b` keep their lines."""
    for paragraph in cleandoc((command.help or "").split("\f")[0]).split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            title, *lines = paragraph.lstrip().removeprefix("\b").strip("\n").split("\n")
            if lines and title.endswith(":"):
                yield from (title, "")
            else:
                lines = [title, *lines]
            yield from ("```", *(line.removeprefix("  ") for line in lines), "```", "")
        else:
            yield from (_escaped(" ".join(paragraph.split())), "")


def _escaped(text: str) -> str:
    """Return `text` as Markdown that shows it as it is, but for code between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return SPECIAL.sub(r"\\\1", text)
    return "`".join(part if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))
