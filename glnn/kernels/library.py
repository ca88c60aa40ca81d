"""Every kernel there is: the shaders folder, read once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from glnn.errors import ShaderError
from glnn.glsl import DOCUMENTS, shaders_folder
from glnn.kernels.declaration import variants
from glnn.kernels.forms import DeclarationError
from glnn.kernels.kernel import BACKENDS, Kernel, place

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(folder: Path) -> tuple[Kernel, ...]:
    """The kernels declared in `folder` and, after those, in its folder of documents' kernels.

    Of each by op and name. Raises ShaderError where a shader has no declaration, a declaration no
    shader, or a name stands for two kernels.
    """
    kernels: dict[tuple[str, str], Kernel] = {}
    for part in (folder, folder / DOCUMENTS):
        found = [kernel for path in sorted(part.glob("*/*.toml")) for kernel in _kernels(path)]
        for kernel in sorted(found, key=lambda k: (k.op, k.name)):
            other = kernels.setdefault((kernel.op, kernel.name), kernel)
            if other is not kernel:
                where, there = (place(k.declaration, k.name) for k in (kernel, other))
                raise ShaderError(f"{where}: its name is that of {there}, too")
        declared = {kernel.path for kernel in kernels.values()}
        for suffix in BACKENDS:
            for shader in part.glob(f"*/*{suffix}"):
                if shader not in declared:
                    raise ShaderError(f"{shader}: it has no declaration (.toml) beside it")
    return tuple(kernels.values())


def _kernels(declaration: Path) -> Iterator[Kernel]:
    """The kernels of a declaration. Raises ShaderError."""
    try:
        found = variants(tomllib.loads(declaration.read_text("utf-8")), declaration.stem)
    except (tomllib.TOMLDecodeError, DeclarationError) as error:
        raise ShaderError(f"{declaration}: {error}") from None
    beside = [path for path in map(declaration.with_suffix, BACKENDS) if path.exists()]
    for name, text in found.items():
        if len(beside) != 1 and "stages" not in text:
            raise ShaderError(f"{declaration}: expected one shader beside it, found {len(beside)}")
        path = declaration if "stages" in text else beside[0]
        yield Kernel.declared(declaration, path, text, name)


@lru_cache(maxsize=1)
def declared() -> tuple[Kernel, ...]:
    """The kernels that ship with glnn, those that are made of stages among them."""
    return read(shaders_folder())


def library() -> tuple[Kernel, ...]:
    """The kernels that are shaders."""
    return tuple(kernel for kernel in declared() if not kernel.stages)


def kernels_for(op: str, backend: str) -> tuple[Kernel, ...]:
    """The kernels of `backend` for the op named `op`, the preferred ones first."""
    return _by_op().get((op, backend), ())


@lru_cache(maxsize=1)
def _by_op() -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """The kernels for each op and backend, the preferred ones first."""
    found: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in sorted(declared(), key=lambda k: -k.priority):
        found.setdefault((kernel.op, kernel.backend), []).append(kernel)
    return {key: tuple(some) for key, some in found.items()}
