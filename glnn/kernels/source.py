"""Complete shader sources: the device's header, the parameters, the file with its includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType

from glnn.core.glsl import expanded, folder_of
from glnn.core.glsl import lines as lines_of_file
from glnn.errors import ShaderError
from glnn.gl import Source
from glnn.kernels.kernel import Kernel

_WORD = re.compile(r"[A-Za-z_]\w*")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def assemble(
    kernel: Kernel,
    header: str,
    defines: Mapping[str, int],
    samplers: Mapping[str, str] = _NOTHING,
    generated: Mapping[str, str] = _NOTHING,
) -> Source:
    """Assemble the source of `kernel`: `header`, the `defines` that it uses, and the shader.

    samplers: sampler types of operands (see `Kernel.sampler`) that replace the shader's defaults.
    generated: the texts for the lines `#include <name>`, by name; includes in these are expanded,
    too. Raises ShaderError on an include that is missing or leaves the shaders folder.
    """
    path = kernel.path if kernel.folder else kernel.path.relative_to(folder_of(kernel.path))
    name = path.as_posix()
    lines = [(line, "(header)", i) for i, line in enumerate(header.splitlines(), 1)]
    body = lines_of_file(kernel.path, name, generated)
    words = set(_WORD.findall("\n".join(line for line, _, _ in body)))
    known = {**defines, **{f"{name.upper()}_SAMPLER": kind for name, kind in samplers.items()}}
    used = [f"#define {key} {value}" for key, value in known.items() if key in words]
    lines += [(line, "(defines)", i) for i, line in enumerate(used, 1)]
    lines += body
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Source(name, text, tuple((file, number) for _, file, number in lines))


def reads(kernel: Kernel, name: str) -> bool:
    """Return True where the shader of `kernel`, includes expanded, contains the word `name`."""
    return not kernel.stages and name in _words(expanded(kernel.path))


@lru_cache(maxsize=1024)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def fingerprint(kernel: Kernel) -> str:
    """Return a hash of the declaration and the shader of `kernel`, which changes with either."""
    return _fingerprint(kernel.text, "" if kernel.stages else expanded(kernel.path))


def known_fingerprint(kernel: Kernel) -> str | None:
    """Return the fingerprint of `kernel`; None where a file is missing."""
    try:
        return fingerprint(kernel)
    except ShaderError:
        return None


@lru_cache(maxsize=1024)
def _fingerprint(declared: str, shader: str) -> str:
    return sha256(f"{declared}\n{shader}".encode()).hexdigest()[:16]
