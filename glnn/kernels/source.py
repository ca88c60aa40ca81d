"""Complete shader sources: the device's header, the parameters, the file with its includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from glnn.device import Source
from glnn.errors import ShaderError
from glnn.kernels.kernel import DOCUMENTS, Kernel

_WORD = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r'\s*#include\s+"([^"]+)"\s*$')
_GENERATED = re.compile(r"\s*#include\s+<([^>]+)>\s*$")
_NOTHING: Mapping[str, str] = MappingProxyType({})
Line = tuple[str, str, int]
"""A line's text, the file that it comes from, and its number there."""


def assemble(
    kernel: Kernel,
    header: str,
    defines: Mapping[str, int],
    samplers: Mapping[str, str] = _NOTHING,
    generated: Mapping[str, str] = _NOTHING,
) -> Source:
    """The source of `kernel` under `header`, with the `defines` that it uses before its first line.

    samplers: what operands are to it (see `Kernel.sampler`), where not what the shader says.
    generated: what stands for the lines `#include <name>`, by name; includes in it are put in, too.
    Raises ShaderError on an include that is missing or leaves the shaders folder.
    """
    root = _root(kernel.path)
    name = kernel.path.relative_to(root).as_posix()
    lines = [(line, "(header)", i) for i, line in enumerate(header.splitlines(), 1)]
    body = _expanded(kernel.path, name, root, set(), generated)
    words = {word for line, _, _ in body for word in _WORD.findall(line)}
    known = {**defines, **{f"{name.upper()}_SAMPLER": kind for name, kind in samplers.items()}}
    used = [f"#define {key} {value}" for key, value in known.items() if key in words]
    lines += [(line, "(defines)", i) for i, line in enumerate(used, 1)]
    lines += body
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Source(name, text, tuple((file, number) for _, file, number in lines))


def fingerprint(kernel: Kernel) -> str:
    """A hash of the declaration and the shader of `kernel`: another one means another kernel."""
    return _fingerprint(kernel.text, None if kernel.stages else kernel.path)


@cache
def expanded(path: Path) -> str:
    """The text of a file of the shaders folder's folders, its includes put in."""
    lines = _expanded(path, path.name, _root(path), set(), None)
    return "\n".join(line for line, _, _ in lines)


@cache
def _fingerprint(declared: str, path: Path | None) -> str:
    text = f"{declared}\n{expanded(path) if path else ''}"
    return sha256(text.encode()).hexdigest()[:16]


def _root(path: Path) -> Path:
    """The shaders folder that the file at `path` is of."""
    folder = path.parents[1]
    return folder.parent if folder.name == DOCUMENTS else folder


def _expanded(
    path: Path, name: str, folder: Path, seen: set[Path], generated: Mapping[str, str] | None
) -> list[Line]:
    """The lines of the file at `path`, its `#version` dropped and each include put in once.

    Where nothing is `generated`, the lines that ask for that stay as they are.
    """
    return _included(_text(path, path.stat().st_mtime_ns), name, folder, seen, generated)


@lru_cache(maxsize=512)
def _text(path: Path, changed: int) -> str:
    return path.read_text("utf-8")


def _included(
    text: str, name: str, folder: Path, seen: set[Path], generated: Mapping[str, str] | None
) -> list[Line]:
    """The lines of `text`, which is called `name`, as `_expanded` gives those of a file."""
    lines: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#version"):
            continue
        if match := _INCLUDE.match(line):
            target = (folder / match[1]).resolve()
            if not target.is_relative_to(folder.resolve()) or not target.is_file():
                raise ShaderError(f"{name}:{number}: no shader file {match[1]!r} to include")
            if target not in seen:
                seen.add(target)
                lines += _expanded(target, match[1], folder, seen, generated)
        elif generated is not None and (match := _GENERATED.match(line)):
            if match[1] not in generated:
                raise ShaderError(f"{name}:{number}: nothing is generated for <{match[1]}>")
            inner = generated[match[1]]
            lines += _included(inner, f"({match[1]})", folder, seen, generated)
        else:
            lines.append((line, name, number))
    return lines
