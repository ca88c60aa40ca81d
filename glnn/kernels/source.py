"""Complete shader sources: the device's header, the parameters, the file with its includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from glnn.device import Source
from glnn.errors import ShaderError
from glnn.kernels.kernel import Kernel

_WORD = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r'\s*#include\s+"([^"]+)"\s*$')


def assemble(
    kernel: Kernel,
    header: str,
    defines: Mapping[str, int],
    samplers: Mapping[str, str] = MappingProxyType({}),
) -> Source:
    """The source of `kernel` under `header`, with the `defines` that it uses before its first line.

    samplers: what operands are to it (see `Kernel.sampler`), where not what the shader says.
    Raises ShaderError on an include that is missing or leaves the shaders folder.
    """
    name = f"{kernel.op}/{kernel.path.name}"
    lines = [(line, "(header)", i) for i, line in enumerate(header.splitlines(), 1)]
    body = _expanded(kernel.path, name, kernel.path.parents[1], set())
    words = {word for line, _, _ in body for word in _WORD.findall(line)}
    known = {**defines, **{f"{name.upper()}_SAMPLER": kind for name, kind in samplers.items()}}
    used = [f"#define {key} {value}" for key, value in known.items() if key in words]
    lines += [(line, "(defines)", i) for i, line in enumerate(used, 1)]
    lines += body
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Source(name, text, tuple((file, number) for _, file, number in lines))


def fingerprint(kernel: Kernel) -> str:
    """A hash of the declaration and the shader of `kernel`: another one means another kernel."""
    return _fingerprint(kernel.declaration, kernel.path)


@cache
def _fingerprint(declaration: Path, path: Path) -> str:
    lines = _expanded(path, path.name, path.parents[1], set())
    text = "\n".join([declaration.read_text("utf-8"), *(line for line, _, _ in lines)])
    return sha256(text.encode()).hexdigest()[:16]


def _expanded(path: Path, name: str, folder: Path, seen: set[Path]) -> list[tuple[str, str, int]]:
    """The lines of the file at `path`, its `#version` dropped and each include put in once."""
    lines: list[tuple[str, str, int]] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("#version"):
            continue
        if not (match := _INCLUDE.match(line)):
            lines.append((line, name, number))
            continue
        target = (folder / match[1]).resolve()
        if not target.is_relative_to(folder.resolve()) or not target.is_file():
            raise ShaderError(f"{name}:{number}: no shader file {match[1]!r} to include")
        if target not in seen:
            seen.add(target)
            lines += _expanded(target, match[1], folder, seen)
    return lines
