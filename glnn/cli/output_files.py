"""Commands that refuse to write over a file that they read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Any

import rich_click as click
from click.types import StringParamType

from glnn.errors import ModelError

BESIDE = {".json": (".npz", ".weights-*.npz"), ".onnx": (".onnx.data", ".onnx_data")}
"""How files beside a model's that have its weights end, by the ending of the model's own."""


class OutputFile(StringParamType):
    """The type of a parameter that names a file, or a folder for files, to write."""

    def __init__(self, inside: str = "", replaces: str = "") -> None:
        """inside: the pattern of files in a folder. replaces: the input that it may be."""
        self.inside, self.replaces = inside, replaces


class WritingCommand(click.RichCommand):
    """A command some of whose parameters are an `OutputFile`.

    Before it does anything it raises ModelError where one of these is the same file as one that
    another parameter names, as an input, behind links, too.
    """

    def invoke(self, ctx: click.Context) -> Any:
        for parameter in self.params:
            if isinstance(parameter.type, OutputFile) and ctx.params.get(parameter.name or ""):
                self._check(ctx, parameter, parameter.type)
        return super().invoke(ctx)

    def _check(self, ctx: click.Context, output: click.Parameter, type: OutputFile) -> None:
        """Raise ModelError where `output` is an input's file."""
        target = str(ctx.params[output.name or ""])
        for parameter in self.params:
            name = parameter.name or ""
            if isinstance(parameter.type, OutputFile) or name == type.replaces:
                continue
            for read in _named(ctx.params.get(name)):
                if _is_written(target, type.inside, read):
                    names = f"{_called(parameter)} and {_called(output)}"
                    raise ModelError(f"{read}: {names} are the same file")


def _named(value: Any) -> Iterator[Path]:
    """Yield the files that a parameter's value may name: itself, what is behind NAME=, those of a
    pattern, those in a folder, and a model's weights beside it.
    """
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, str | Path):
            continue
        _, _, behind = str(one).partition("=")
        for text in filter(None, (str(one), behind)):
            yield Path(text)
            yield from _beside(Path(text))
            if has_magic(text):
                yield from map(Path, glob(text))
            elif os.path.isdir(text):
                yield from Path(text).iterdir()


def _beside(path: Path) -> Iterator[Path]:
    for ending in BESIDE.get(path.suffix, ()):
        yield from path.parent.glob(escape(path.stem) + ending)


def _is_written(target: str, inside: str, read: Path) -> bool:
    """Return True where the file `read` is written as `target`, or in it as a folder, or dropped
    with a model that is there and replaced.
    """
    try:
        if not read.is_file():
            return False
        if os.path.isdir(target):
            within = bool(inside) and fnmatch(read.name, inside)
            return within and os.path.samefile(target, read.parent)
        if not os.path.exists(target):
            return False
        return any(path.samefile(read) for path in (Path(target), *_beside(Path(target))))
    except (OSError, ValueError):  # what no system has as a file's name
        return False


def _called(parameter: click.Parameter) -> str:
    """Return what people call a parameter: an option's name, an argument's letters."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.metavar or (parameter.name or "").upper()
