"""Docstrings as API pages show them: an extension of griffe, which reads the package.

The package explains arguments in sentences, `name: what it is.` A page shows these as a list.
Activation layers state the arguments of their constructors where their classes begin.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe
from reference import link_pages  # mkdocs has this folder on the path: hooks.py is in it

NAMES = re.compile(r"(?:^|(?<=[.!?)]) )(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): ")
"""The beginning of a sentence that explains arguments."""
SECTION = re.compile(r"(?:Args|Attributes|Raises|Returns|Yields|Examples?|Note|Warning):\s*$")
ERRORS = re.compile(r"(?<=[.!?)]) (?=Raises [A-Z])")
"""The beginning of the sentence, behind those of arguments, that says what is raised."""
DOCTEST = re.compile(r"\s*# doctest: .*$", re.MULTILINE)


class PackageStyle(griffe.Extension):  # type: ignore[misc]  # where griffe is not installed
    """Reads docstrings and classes as this package writes them."""

    def on_object(self, *, obj: Any, **others: Any) -> None:
        """Rewrite the docstring of `obj`."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(link_pages(obj.docstring.value))

    def on_class(self, *, cls: Any, **others: Any) -> None:
        """Give `cls` the signature that it has once it is imported, where it is an activation."""
        if "Activation" not in map(str, cls.bases):
            return
        found = inspect.signature(getattr(import_module(cls.module.path), cls.name))
        parameters = [griffe.Parameter("self")]
        for one in found.parameters.values():
            default = None if one.default is one.empty else repr(one.default)
            kind = griffe.ParameterKind.positional_or_keyword
            parameters.append(griffe.Parameter(one.name, kind=kind, default=default))
        init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters))
        cls.set_member("__init__", init)


def with_lists(docstring: str) -> str:
    """Return a docstring whose sentences of the form `name: what it is.` are items of lists."""
    paragraphs = DOCTEST.sub("", docstring).split("\n\n")
    return "\n\n".join(
        text if SECTION.match(text) or text.startswith("    ") else _listed(text)
        for text in paragraphs
    )


def _listed(paragraph: str) -> str:
    """Return a paragraph as sentences, a list and sentences, of which each may be empty."""
    before, *explained = NAMES.split(" ".join(paragraph.split()))
    if not explained:
        return paragraph
    names, texts = explained[::2], explained[1::2]
    texts[-1], *after = ERRORS.split(texts[-1], maxsplit=1)
    items = [f"- **`{name}`**: {text.strip()}" for name, text in zip(names, texts, strict=True)]
    return "\n\n".join(part for part in (before.strip(), "\n".join(items), *after) if part)
